"""The simulated world of one seed: nodes, what connects them, the faults, and the healing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.ha.events import Command
from services.ha.lease.value import Lease, Member, Stored
from services.ha.setup import Setup
from shared.cluster.nodes import Node
from tests.simulation.replication.broker import Broker
from tests.simulation.replication.ha import Ha
from tests.simulation.replication.history import History, Violation
from tests.simulation.replication.lease_object import LeaseObject, Weather
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.network import Network
from tests.simulation.replication.plan import SUDDEN, TIMES, WATCHED, Fault, Plan, draw_plan
from tests.simulation.replication.process import Process
from tests.simulation.replication.reput import Reput
from tests.simulation.replication.timeline import Timeline

SERVICES: Final = ("ha", "broker", "reput")
HEAL_MS: Final = 20 * TIMES.lease_ms
"""Within this a healed group has a master, and everybody is in the set."""
FILE_SIZE: Final = 64 << 20
Say = Callable[[str, str], None]


class World:
    """One group, from its bootstrap on."""

    def __init__(self, seed: int, *, say: Callable[[str], None] | None = None) -> None:
        """say: takes the lines of a trace."""
        self.timeline = Timeline(seed)
        self.random = self.timeline.random
        self.plan: Plan = draw_plan(self.random)
        self.faults_count = 0
        self.healed = False
        self._print = say
        plan = self.plan
        self.history = History(lambda: list(self.machines.values()))
        self.lease = LeaseObject(self.timeline, self._lease_changed)
        self.lease.weather = plan.weather
        self.network = Network(self.timeline, delay_max_us=plan.delay_max_us, spike=plan.spike)
        names = [f"n{number}" for number in range(plan.nodes)]
        self.machines = {
            name: Machine(self.timeline, name, drift=plan.drift, disk_us=disk_us)
            for name, disk_us in zip(names, plan.disk_us, strict=True)
        }
        self.services: dict[tuple[str, str], Ha | Broker | Reput] = {}
        """The present start of each service of each node."""
        self._nodes = tuple(
            Node(name, name, 9000, f"http://{name}:8080", f"http://{name}:8090") for name in names
        )
        self._orders = 0
        self._armed: set[Fault] = set()

    # -- the run ------------------------------------------------------------------------------

    def run(self) -> None:
        """Bootstrap, faults, healing. Raises Violation."""
        self._tell("world", f"{self.plan}")
        for machine in self.machines.values():
            self._boot(machine)
        if self.plan.faults:
            self._plan_next_fault()
        self.timeline.after(100_000, self._check_now_and_then)
        self.timeline.run_until(self.plan.duration_ms * 1000)
        self._heal()
        acked = len(self.history.acked)
        whole = self.timeline.run_until(
            self.timeline.now_us + HEAL_MS * 1000,
            done=lambda: len(self.history.acked) > acked and self._is_whole(),
        )
        self.history.check_equal_histories()
        self.history.check_members("at the end")
        if not whole and self._must_recover():
            raise Violation(self._why_not_whole(len(self.history.acked) - acked))

    def _check_now_and_then(self) -> None:
        self.history.check_equal_histories()
        self.timeline.after(250_000, self._check_now_and_then)

    def _members(self) -> list[Member]:
        """All nodes, with the disks that they have now."""
        return [Member(name, node.volume.incarnation) for name, node in self.machines.items()]

    def _is_whole(self) -> bool:
        return set(self.history.published) == set(self._members())

    def _must_recover(self) -> bool:
        """Whether what is left is enough: the disk of a member of the set."""
        published = set(self.history.published)
        return bool(published & set(self._members())) or not self.history.epoch

    def _why_not_whole(self, acked: int) -> str:
        now = {name: self._state_of(name) for name in self.machines}
        return (
            f"healed for {HEAL_MS} ms: {acked} sends were acknowledged since; the set is "
            f"{[member.node for member in self.history.published]}, the holder "
            f"{self.history.holder and self.history.holder.node}; {now}"
        )

    def _state_of(self, name: str) -> str:
        service = self.services.get((name, "ha"))
        if not isinstance(service, Ha) or service.replica is None:
            return "no replica"
        status = service.replica.status(self.machines[name].clock.now_ms())
        own: dict[str, object] = next((n for n in status["nodes"] if n["node"] == name), {})
        return f"{own.get('state')}: {own.get('reason')}"

    # -- services -----------------------------------------------------------------------------

    def _boot(self, machine: Machine) -> None:
        machine.power_on()
        self.network.off.discard(machine.name)
        for service in SERVICES:
            self._start_later(machine, service, self.random.choice((5, 50, 50, 500)))

    def _start_later(self, machine: Machine, service: str, delay_ms: int) -> None:
        boot = machine.boot

        def start() -> None:
            running = machine.processes.get(service)
            if machine.is_on and machine.boot == boot and (running is None or not running.alive):
                self._start(machine, service)

        self.timeline.after(delay_ms * 1000, start)

    def _start(self, machine: Machine, service: str) -> None:
        process = Process(self.timeline, service, preemption=self.plan.preemption)
        machine.processes[service] = process
        process.on_end.append(lambda: self._ended(machine, service))
        say = None if self._print is None else self._tell
        started: Ha | Broker | Reput
        match service:
            case "ha":
                setup = Setup(
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
                started = Ha(
                    machine,
                    process,
                    setup,
                    history=self.history,
                    network=self.network,
                    lease=self.lease,
                    say=say,
                    ring=lambda name: self._ring(machine, name),
                    random=self.random,
                )
            case "broker":
                started = Broker(
                    machine,
                    process,
                    history=self.history,
                    ack_limit_ms=TIMES.ack_limit_ms,
                    sends_per_s=self.plan.sends_per_s,
                    ring=lambda name: self._ring(machine, name),
                    say=say,
                )
            case _:
                started = Reput(
                    machine,
                    process,
                    history=self.history,
                    ring=lambda name: self._ring(machine, name),
                )
        self._tell(f"{machine.name} {service}", "starts")
        self.services[machine.name, service] = started
        started.start()

    def _ended(self, machine: Machine, service: str) -> None:
        self._tell(f"{machine.name} {service}", "ended")
        if machine.is_on:
            self._start_later(machine, service, self._restart_ms())

    def _restart_ms(self) -> int:
        if self.healed:
            return 50
        return self.random.choice((20, 100, 300, 300, 1_000, 3_000))

    def _ring(self, machine: Machine, service: str) -> None:
        """A doorbell: carries nothing, and may be lost."""
        running = self.services.get((machine.name, service))
        if running is not None and running.process.alive and self.random.random() < 0.95:
            running.rung()

    # -- faults -------------------------------------------------------------------------------

    def _plan_next_fault(self) -> None:
        gap_us = int(self.random.expovariate(1 / self.plan.gap_ms) * 1000) + 1000
        self.timeline.after(gap_us, self._next_fault)

    def _next_fault(self) -> None:
        if not self.healed:
            fault = self.random.choice(self.plan.faults)
            self.faults_count += 1
            self._strike(fault)
            self._plan_next_fault()

    def _aim(self) -> Machine:
        holder = self.history.holder
        if holder is not None and self.random.random() < self.plan.at_master:
            return self.machines[holder.node]
        return self.random.choice(list(self.machines.values()))

    def _other(self, machine: Machine) -> Machine:
        return self.random.choice([m for m in self.machines.values() if m is not machine])

    def _while_ms(self) -> int:
        lease_ms = TIMES.lease_ms
        return self.random.choice((20, 200, lease_ms // 2, 3 * lease_ms // 2, 3 * lease_ms))

    def _later(self, delay_ms: int, undo: Callable[[], None]) -> None:
        def run() -> None:
            if not self.healed:
                undo()

        self.timeline.after(delay_ms * 1000, run)

    def _strike(self, fault: Fault, machine: Machine | None = None) -> None:
        if self.healed:
            return
        machine, random = machine or self._aim(), self.random
        name = machine.name
        self._tell("world", f"{fault.value}: {name}")
        match fault:
            case Fault.KILL:
                process = machine.processes.get(random.choice(SERVICES))
                if process is not None:
                    process.strike_after(random.randint(1, 60), process.end)
            case Fault.STOP:
                process = machine.processes.get(random.choice(("ha", "ha", "broker", "reput")))
                if process is not None:
                    process.strike_after(random.randint(1, 60), lambda: self._stop([process]))
            case Fault.STOP_NODE:
                self._stop(list(machine.processes.values()))
            case Fault.POWER:
                self._power_cut(machine)
            case Fault.POWER_ALL:
                for each in self.machines.values():
                    self._power_cut(each)
            case Fault.CUT:
                self._cut(machine, self._other(machine), both=random.random() < 0.6)
            case Fault.ISOLATE:
                for each in self.machines.values():
                    if each is not machine:
                        self._cut(machine, each, both=True)
                self._out_of(self.lease.unreachable, name)
            case Fault.LEASE_UNREACHABLE:
                for whose in random.choice(([name], list(self.machines))):
                    self._out_of(self.lease.unreachable, whose)
            case Fault.LEASE_DEAF:
                self._out_of(self.lease.deaf, name)
            case Fault.LEASE_TOUCHED:
                self.lease.touch()
            case Fault.RESET_LINKS:
                self.network.break_links(name, self._other(machine).name)
            case Fault.FULL_DISK:
                machine.is_full = True
                self._later(self._while_ms(), lambda: setattr(machine, "is_full", False))
            case Fault.SLOW_DISK:
                self._slow_disk(machine)
            case Fault.SWITCH:
                self._order("switchover", {"to": self._other(machine).name})
            case Fault.END:
                self._end_in_order(machine)
            case Fault.PAUSE:
                self._order("pause", {}, machine)
            case Fault.REMOVE:
                self._order("remove-member", {"node": self._other(machine).name})
            case Fault.AT_SLOT:
                machine.page.arm(random.choice(WATCHED), lambda: self._strike_at_once(machine))
            case Fault.AT_TABLE:
                how = self._strike_at_once if random.random() < 0.4 else self._power_cut_soon
                machine.volume.on_table = lambda: how(machine)
            case Fault.LATE_CHANGE:
                self.lease.late_change = self._cut_off_changed
            case Fault.WINNER | Fault.CHANGE:
                self._armed.add(fault)
            case Fault.NEW_VOLUME:
                # One node keeps its disk: a group of empty disks alone is another group.
                if len(self.history.replaced | {name}) < len(self.machines):
                    self._power_cut(machine, then=lambda: self._replace_volume(machine))
            case Fault.DELETE_LEASE:
                if random.random() < 0.3:
                    self.lease.delete()
                else:
                    self._armed.add(fault)
            case Fault.HASTY:
                self._make_hasty(random.choice(list(self.machines.values())))
            case Fault.CLOCK:
                self.history.clocks_lie = True
                machine.clock.jump(random.choice((300, 2_000, 100_000)))

    def _strike_at_once(self, machine: Machine) -> None:
        """Between two accesses to the page, or soon after."""
        random = self.random
        process = machine.processes.get(random.choice(("ha", "broker")))
        match random.randrange(3):
            case 0 if process is not None:
                process.strike_after(random.randint(1, 6), process.end)
            case 1 if process is not None:
                process.strike_after(random.randint(1, 6), lambda: self._stop([process]))
            case _:
                self._power_cut_soon(machine)

    def _power_cut_soon(self, machine: Machine) -> None:
        """Or, now and then, nobody reaches it any more."""
        random = self.random
        fault = Fault.POWER if random.random() < 0.8 else Fault.ISOLATE
        delay_us = random.randint(0, random.choice((200, 3_000, 30_000)))
        self.timeline.after(delay_us, lambda: self._strike(fault, machine))

    def _make_hasty(self, machine: Machine) -> None:
        """No clock can be so wrong; but nothing except stale reads may depend on clocks."""
        service = self.services.get((machine.name, "ha"))
        if isinstance(service, Ha) and service.replica is not None:
            self.history.clocks_lie = True
            session = service.replica.session
            session.__dict__["unchanged_ms"] = lambda now_ms: 10 * TIMES.lease_ms
            self.timeline.after(500_000, lambda: session.__dict__.pop("unchanged_ms", None))

    def _cut_off_changed(self, before: Lease, wanted: Lease) -> None:
        """The members that a change adds or removes lose their links to the master."""
        holder = wanted.holder
        for node in sorted({member.node for member in {*before.in_sync} ^ {*wanted.in_sync}}):
            if holder is not None and node != holder.node:
                self.network.break_links(holder.node, node)
                self._cut(self.machines[holder.node], self.machines[node], both=True)

    def _stop(self, processes: list[Process]) -> None:
        for process in processes:
            process.pause()

        def go_on() -> None:
            for process in processes:
                process.resume()

        self._later(self._while_ms(), go_on)

    def _power_cut(self, machine: Machine, *, then: Callable[[], None] | None = None) -> None:
        if not machine.is_on:
            return
        self.network.off.add(machine.name)
        machine.power_off()
        self.history.check_members(f"when the power of {machine.name} was cut")
        if then is not None:
            then()
        self._later(self._while_ms(), lambda: None if machine.is_on else self._boot(machine))

    def _replace_volume(self, machine: Machine) -> None:
        self.history.replaced.add(machine.name)
        machine.replace_volume()

    def _cut(self, one: Machine, other: Machine, *, both: bool) -> None:
        pairs = [(one.name, other.name)] + ([(other.name, one.name)] if both else [])
        if not both:
            self.random.shuffle(pairs)
        for pair in pairs:
            self.network.cut(*pair)

        def join() -> None:
            for sender, receiver in pairs:
                self.network.heal(sender, receiver)

        self._later(self._while_ms(), join)

    def _out_of(self, group: set[str], name: str) -> None:
        group.add(name)
        self._later(self._while_ms(), lambda: group.discard(name))

    def _slow_disk(self, machine: Machine) -> None:
        usual, machine.disk_us = machine.disk_us, self.random.choice((50_000, 400_000))
        self._later(self._while_ms(), lambda: setattr(machine, "disk_us", usual))

    def _order(
        self, name: str, arguments: dict[str, str], machine: Machine | None = None
    ) -> int | None:
        """Give an order to the ha of a node, by default of the master; the order's number."""
        holder = self.history.holder
        node = machine.name if machine is not None else holder.node if holder is not None else ""
        service = self.services.get((node, "ha"))
        if not isinstance(service, Ha) or not service.process.alive:
            return None
        self._orders += 1
        service.take(Command(self._orders, name, arguments))
        return self._orders

    def _end_in_order(self, machine: Machine) -> None:
        """SIGTERM for ha: it hands over if it can, and ends within a second."""
        service = self.services.get((machine.name, "ha"))
        token = self._order("switchover", {"reason": "stopping"}, machine)
        if token is None or not isinstance(service, Ha):
            return
        ending, until_us = service, self.timeline.now_us + 1_000_000

        def look() -> None:
            if token in ending.replies or self.timeline.now_us >= until_us:
                ending.process.end()
            elif ending.process.alive:
                self.timeline.after(20_000, look)

        look()

    def _operate(self) -> None:
        """What an operator does behind it all: failover is automatic again, the lease is there."""
        stored = self.lease.stored
        machine = self.random.choice(list(self.machines.values()))
        if stored is None or self.history.went_back:
            # Nodes that started since have not seen the set: the operator's own list counts then.
            members = [m.node for m in self._members() if m in self.history.published]
            named = {"in_sync": ",".join(members)} if self.random.random() < 0.5 else {}
            self._order("recreate-lease", named, machine)
        elif stored.lease.paused:
            self._order("resume", {}, machine)
        self.timeline.after(700_000, self._operate)

    def _heal(self) -> None:
        """Everything works again, and nothing new happens."""
        self._tell("world", "heal")
        self.healed = True
        self.timeline.after(1_500_000, self._operate)
        self.lease.weather = Weather()
        self.lease.unreachable.clear()
        self.lease.deaf.clear()
        self.lease.late_change = None
        self.network.heal()
        self.network.spike = 0.0
        for machine in self.machines.values():
            machine.disk_us = 2_000
            machine.is_full = False
            machine.page.disarm()
            machine.volume.on_table = None
            if not machine.is_on:
                self._boot(machine)
            for service in SERVICES:
                process = machine.processes.get(service)
                if process is not None and process.alive:
                    process.calm()
                else:
                    self._start_later(machine, service, 50)

    # -- the history --------------------------------------------------------------------------

    def _lease_changed(self, before: Stored | None, now: Stored | None) -> None:
        if (
            now is None
            or before is None
            or before.lease._replace(renewed=0) != now.lease._replace(renewed=0)
        ):
            self._tell("lease", f"{now and now.lease} version {now and now.version}")
        self.history.lease_changed(before, now)
        if before is None or now is None or now.lease.holder is None or self.healed:
            return
        if now.lease.epoch != before.lease.epoch:
            if Fault.DELETE_LEASE in self._armed:
                self._armed.discard(Fault.DELETE_LEASE)
                self.timeline.after(self.random.randint(1, 150_000), self.lease.delete)
            self._strike_soon(Fault.WINNER, self.machines[now.lease.holder.node])
        elif now.lease.in_sync != before.lease.in_sync:
            self._strike_soon(Fault.CHANGE, self.machines[now.lease.holder.node])

    def _strike_soon(self, armed: Fault, machine: Machine) -> None:
        if armed in self._armed:
            self._armed.discard(armed)
            fault = self.random.choice(SUDDEN)
            delay_us = self.random.randint(0, self.random.choice((2_000, 20_000, 150_000)))
            self.timeline.after(delay_us, lambda: self._strike(fault, machine))

    def _tell(self, who: str, line: str) -> None:
        if self._print is not None:
            self._print(f"{self.timeline.now_us / 1000:10.3f} {who}: {line}")
