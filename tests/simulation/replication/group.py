"""The nodes of one simulated group, their services, lease and network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.ha.core.events import Command
from services.ha.core.setup import Setup
from services.ha.lease.value import Lease, Member, Stored
from shared.cluster.nodes import Node
from shared.files.store_dir import LockByte
from tests.simulation.replication import page_rules
from tests.simulation.replication.broker import Broker
from tests.simulation.replication.ha import Ha
from tests.simulation.replication.history import History
from tests.simulation.replication.lease_api import LeaseApi
from tests.simulation.replication.lease_object import LeaseObject, Weather
from tests.simulation.replication.lease_volume import LeaseVolume
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.network import Network
from tests.simulation.replication.plan import SERVICES, TIMES, Plan
from tests.simulation.replication.process import Process
from tests.simulation.replication.reput import Reput
from tests.simulation.replication.store_view import FILE_SIZE
from tests.simulation.replication.timeline import Timeline
from tests.simulation.replication.violation import Violation

FOUNDED_US: Final = (TIMES.link_dead_ms + TIMES.request_timeout_ms) * 1000
"""Time within which nodes that start together have found each other."""


class Group:
    """All nodes and their services; a service that ends is started again."""

    def __init__(
        self, timeline: Timeline, plan: Plan, *, write_trace: Callable[[str], None] | None = None
    ) -> None:
        """write_trace: takes the lines of a trace."""
        self.timeline, self.plan = timeline, plan
        self.random = timeline.random
        self.is_struck = False
        """Whether a fault has happened."""
        self.healed = False
        """Whether no more faults happen."""
        self.gone: set[tuple[str, str]] = set()
        """Services that are not restarted."""
        self.on_lease: list[Callable[[Lease, Lease], None]] = []
        """Called with the lease before and after each change."""
        self.on_made: list[Callable[[Lease], None]] = []
        """Called with each lease that is created."""
        self._write_trace = write_trace
        self.history = History(lambda: list(self.machines.values()))
        self.history.epoch_of = self._epoch_of
        self.history.times = TIMES
        self.history.min_in_sync = plan.min_in_sync
        store: type[LeaseObject] = LeaseVolume if plan.lease_in_directory else LeaseApi
        self.lease = store(timeline, self._lease_changed)
        self.lease.weather = plan.weather
        self.history.possible_leases = self.lease.possible
        self.network = Network(timeline, delay_max_us=plan.delay_max_us, spike=plan.spike)
        names = [f"n{number}" for number in range(plan.nodes)]
        self.machines = {
            name: Machine(timeline, name, self.history, drift=plan.drift, disk_us=disk_us)
            for name, disk_us in zip(names, plan.disk_us, strict=True)
        }
        for machine in self.machines.values():
            machine.master_from = self._master_from
        self.services: dict[tuple[str, str], Ha | Broker | Reput] = {}
        """The current start of each service of each node."""
        self._nodes = tuple(
            Node(name, name, 9000, f"http://{name}:8080", f"http://{name}:8090") for name in names
        )
        self.history.configured = self._nodes
        self._commands = 0

    @property
    def members(self) -> list[Member]:
        """All nodes with their present incarnations."""
        return [Member(name, node.incarnation) for name, node in self.machines.items()]

    def ha_of(self, node: str) -> Ha | None:
        """The current start of ha of a node; None if none runs."""
        service = self.services.get((node, "ha"))
        return service if isinstance(service, Ha) and service.process.alive else None

    def broker_of(self, node: str) -> Broker | None:
        """The current start of the broker of a node; None if none runs."""
        service = self.services.get((node, "broker"))
        return service if isinstance(service, Broker) and service.process.alive else None

    def end(self) -> None:
        """End the world: unwind every process."""
        for machine in self.machines.values():
            for process in list(machine.processes.values()):
                process.on_end.clear()
                process.end()
                process.unwind()

    def trace(self, source: str, line: str) -> None:
        """Write a line of the trace."""
        if self._write_trace is not None:
            self._write_trace(f"{self.timeline.now_us / 1000:10.3f} {source}: {line}")

    def boot(self, machine: Machine, *, first: str | None = None) -> None:
        """Boot the machine and start its services. first: the service that starts before the
        others; None for a random order."""
        machine.power_on()
        self.network.off.discard(machine.name)
        for service in SERVICES:
            delay_ms = self.random.choice((5, 50, 50, 500))
            if first is not None:
                delay_ms = 5 if service == first else 100
            self.start_later(machine, service, delay_ms)

    def cut_power(self, machine: Machine) -> None:
        """End all processes of the machine and drop what is not durable."""
        self.network.off.add(machine.name)
        machine.power_off()
        if not any(each.is_on for each in self.machines.values()):
            self.lease.power_cut()
        self.history.check_members(f"when the power of {machine.name} was cut")

    def start_later(self, machine: Machine, service: str, delay_ms: int) -> None:
        """Start a service in this boot, unless it runs by then."""
        boot = machine.boot

        def start() -> None:
            running = machine.processes.get(service)
            if (machine.name, service) in self.gone:
                return
            if machine.is_on and machine.boot == boot and (running is None or not running.alive):
                self._start(machine, service)

        self.timeline.after(delay_ms * 1000, start)

    def _start(self, machine: Machine, service: str) -> None:
        process = Process(machine, service, preemption=self.plan.preemption)
        machine.processes[service] = process
        process.on_end.append(lambda: self._ended(machine, service))
        write_trace = None if self._write_trace is None else self.trace
        started: Ha | Broker | Reput
        common = (
            machine,
            process,
            self.history,
            lambda name: self._ring(machine, name),
            write_trace,
        )
        match service:
            case "ha":
                started = Ha(
                    *common,
                    setup=self._setup(machine),
                    network=self.network,
                    lease=self.lease,
                    random=self.random,
                )
            case "broker":
                started = Broker(
                    *common,
                    ack_limit_ms=TIMES.ack_limit_ms,
                    sends_per_s=self.plan.sends_per_s,
                    names=tuple(self.machines),
                    ha=lambda: self.ha_of(machine.name),
                )
            case _:
                started = Reput(*common)
        self.trace(f"{machine.name} {service}", "starts")
        self.services[machine.name, service] = started
        started.start()

    def _check_founding(self) -> None:
        """Check that nodes which start together raise no alarm while they found the group."""
        running = [ha for name in self.machines if (ha := self.ha_of(name)) is not None]
        first_us = min(ha.process.resumed_us for ha in running)
        if self.plan.weather != Weather(self.plan.weather.delay_max_ms) or self.plan.spike:
            return
        if self.timeline.now_us - first_us > FOUNDED_US:
            return
        for ha in running:
            alarms = {} if ha.replica is None else ha.replica.context.alarms
            if alarms:
                raise Violation(f"{ha.node} has alarms while the group is founded: {alarms}")

    def _setup(self, machine: Machine) -> Setup:
        return Setup(
            cluster="simulated",
            group="g0",
            own=next(node for node in self._nodes if node.name == machine.name),
            nodes=self._nodes,
            min_in_sync=self.plan.min_in_sync,
            times=TIMES,
            file_size=FILE_SIZE,
            process=f"{self.random.getrandbits(64):016x}",
            boot=machine.boot,
        )

    def _master_from(self) -> int | None:
        """Start of the log of the node that holds the lease."""
        holder = self.history.holder
        return None if holder is None else self.machines[holder.node].begins_at

    def _epoch_of(self, machine: Machine) -> int | None:
        """Epoch for which the broker of a node holds the append lock."""
        broker = self.broker_of(machine.name)
        if broker is not None and machine.holds(LockByte.APPEND, broker.process):
            return broker.epoch
        return None

    def _ended(self, machine: Machine, service: str) -> None:
        self.trace(f"{machine.name} {service}", "ended")
        if machine.processes[service].is_finished:
            page_rules.check_stopped(machine)
            ended = self.services[machine.name, service]
            if isinstance(ended, Broker):
                ended.check_ended()
        machine.ended_us = self.timeline.now_us
        if machine.is_on:
            self.start_later(machine, service, self._restart_ms())

    def _restart_ms(self) -> int:
        if self.healed:
            return 50
        return self.random.choice((20, 100, 300, 300, 1_000, 3_000))

    def _ring(self, machine: Machine, service: str) -> None:
        """Ring a doorbell. It carries no data and may be lost."""
        running = self.services.get((machine.name, service))
        if running is not None and running.process.alive and self.random.random() < 0.95:
            running.rung()

    def command(
        self,
        name: str,
        arguments: dict[str, str],
        machine: Machine | None = None,
        *,
        refused: bool = False,
    ) -> int | None:
        """Give a command to ha of a node, by default of the master; returns its token. refused: the
        command must not succeed."""
        holder = self.history.holder
        node = machine.name if machine is not None else holder.node if holder is not None else ""
        service = self.ha_of(node)
        if service is None:
            return None
        self._commands += 1
        service.command(Command(self._commands, name, arguments), refused=refused)
        return self._commands

    @property
    def removed(self) -> list[Machine]:
        """Machines that are no node of the group now, as the lease has it."""
        members = None if self.lease.stored is None else self.lease.stored.lease.members
        names = {*self.machines} if members is None else {node.name for node in members.nodes}
        return [machine for name, machine in self.machines.items() if name not in names]

    def add_node(self, machine: Machine) -> None:
        """Order the master to add a node that was removed."""
        own = next(node for node in self._nodes if node.name == machine.name)
        arguments = {
            "node": own.name,
            "replication": f"{own.host}:{own.port}",
            "api": own.api,
            "admin": own.admin,
        }
        self.command("add-node", arguments)

    def _lease_changed(self, before: Stored | None, now: Stored | None) -> None:
        if (
            now is None
            or before is None
            or before.lease._replace(renewed=0) != now.lease._replace(renewed=0)
        ):
            self.trace("lease", f"{now and now.lease} version {now and now.version}")
        if before is None and not self.history.epoch and not self.is_struck:
            self._check_founding()
        self.history.lease_changed(before, now)
        if before is not None and now is not None:
            for call in self.on_lease:
                call(before.lease, now.lease)
        if before is None and now is not None:
            for made in self.on_made:
                made(now.lease)
