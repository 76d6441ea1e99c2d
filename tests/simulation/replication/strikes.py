"""Faults that the seed draws for a simulated group, each undone after a while."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from services.ha.lease.value import Lease
from tests.simulation.replication.group import Group
from tests.simulation.replication.machine import WATCHED_FILES, Machine
from tests.simulation.replication.plan import (
    CLOCK_FAULTS,
    OPERATED,
    RARE,
    REFUSED_COMMANDS,
    SERVICES,
    SUDDEN,
    TIMES,
    USUAL,
    WATCHED,
    Fault,
)
from tests.simulation.replication.process import Process
from tests.simulation.replication.service import Service
from tidemark.formats.checkpoint import Slot

GRACE_US: Final = 4_000_000
FEW: Final = (*(fault for fault in (*USUAL, *RARE) if fault not in CLOCK_FAULTS), *OPERATED)
"""Faults of a round: operations are as frequent as failures."""
SWITCH_TRIES: Final = 5
SWITCH_AGAIN_US: Final = 200_000


class Strikes:
    """The faults of one seed; they end when the group is healed."""

    def __init__(self, group: Group) -> None:
        self.count = 0
        self._group, self._plan = group, group.plan
        self._timeline, self._random = group.timeline, group.random
        self._history, self._network, self._lease = group.history, group.network, group.lease
        self._machines = group.machines
        self._armed: set[Fault] = set()
        self._round = 0
        """Faults that an earlier round planned do not happen any more."""
        group.on_lease.append(self._lease_changed)

    def begin(self) -> None:
        """Plan the first fault; each one plans the next."""
        if self._plan.faults:
            self._plan_next_fault()

    def strike_few(self) -> int:
        """Strike one to three times within a short time; returns the delay of the last strike in
        milliseconds."""
        random, at_ms = self._random, 0
        self._round += 1
        self._armed.clear()
        for _ in range(random.choice((1, 2, 2, 3))):
            self._later(at_ms, partial(self._strike, random.choice(FEW)))
            at_ms += random.randint(0, random.choice((5, 50, 500)))
            self.count += 1
        self._group.is_struck = True
        return at_ms

    def _plan_next_fault(self) -> None:
        gap_us = int(self._random.expovariate(1 / self._plan.gap_ms) * 1000) + 1000
        self._timeline.after(gap_us, self._next_fault)

    def _next_fault(self) -> None:
        if not self._group.healed:
            fault = self._random.choice(self._plan.faults)
            self.count += 1
            self._group.is_struck = True
            self._strike(fault)
            self._plan_next_fault()

    def _aim(self) -> Machine:
        holder = self._history.holder
        if holder is not None and self._random.random() < self._plan.at_master:
            return self._machines[holder.node]
        return self._random.choice(list(self._machines.values()))

    def _other(self, machine: Machine) -> Machine:
        return self._random.choice([m for m in self._machines.values() if m is not machine])

    def _while_ms(self) -> int:
        lease_ms = TIMES.lease_ms
        return self._random.choice((20, 200, lease_ms // 2, 3 * lease_ms // 2, 3 * lease_ms))

    def _later(self, delay_ms: int, undo: Callable[[], None]) -> None:
        now = self._round

        def run() -> None:
            if now == self._round and not self._group.healed:
                undo()

        self._timeline.after(delay_ms * 1000, run)

    def _strike(self, fault: Fault, machine: Machine | None = None) -> None:
        if self._group.healed:
            return
        machine, random = machine or self._aim(), self._random
        name = machine.name
        self._group.trace("world", f"{fault.value}: {name}")
        match fault:
            case Fault.KILL:
                process = machine.processes.get(random.choice(SERVICES))
                if process is not None:
                    process.strike_after(random.randint(1, 60), process.end)
            case Fault.STOP:
                process = machine.processes.get(random.choice(("ha", "ha", "broker", "reput")))
                if process is not None:
                    process.strike_after(random.randint(1, 60), lambda: self._stop([process]))
            case Fault.STALL:
                stalled = machine.processes.get(random.choice(("broker", "reput", "reput")))
                if stalled is not None:
                    self._stop([stalled], for_ms=random.choice((3, 5)) * TIMES.lease_ms)
            case Fault.STOP_NODE:
                self._stop(list(machine.processes.values()))
            case Fault.POWER:
                self._power_cut(machine)
            case Fault.POWER_ALL:
                for each in self._machines.values():
                    self._power_cut(each)
            case Fault.CUT:
                self._cut(machine, self._other(machine), both=random.random() < 0.6)
            case Fault.ISOLATE:
                for each in self._machines.values():
                    if each is not machine:
                        self._cut(machine, each, both=True)
                self._out_of(self._lease.unreachable, name)
            case Fault.LEASE_UNREACHABLE:
                for whose in random.choice(([name], list(self._machines))):
                    self._out_of(self._lease.unreachable, whose)
            case Fault.LEASE_DEAF:
                self._out_of(self._lease.deaf, name)
            case Fault.LEASE_TOUCHED:
                self._lease.touch()
            case Fault.RESET_LINKS:
                self._network.break_links(name, self._other(machine).name)
            case Fault.FULL_DISK:
                machine.is_full = True
                self._later(self._while_ms(), lambda: setattr(machine, "is_full", False))
            case Fault.FAILED_SYNC:
                machine.syncs_fail = True
                self._later(
                    random.choice((1, 20, 200)), lambda: setattr(machine, "syncs_fail", False)
                )
            case Fault.SLOW_DISK:
                self._slow_disk(machine)
            case Fault.SWITCH:
                self._switch(SWITCH_TRIES)
            case Fault.LATE_APPEND:
                holder = self._history.holder
                if holder is not None:
                    master = self._machines[holder.node]
                    master.arm_append(lambda: self._stop_within(master))
                    self._switch(SWITCH_TRIES)
            case Fault.END:
                self._end_in_order(machine)
            case Fault.END_OTHER | Fault.END_NODE:
                if fault is Fault.END_NODE:
                    self._end_in_order(machine)
                others = ["broker", "reput"]
                for other in others if fault is Fault.END_NODE else [random.choice(others)]:
                    running = self._group.services.get((name, other))
                    if running is not None and running.process.alive:
                        self._ask_to_end(running)
            case Fault.PAUSE:
                self._group.command("pause", {}, machine)
            case Fault.REMOVE:
                self._group.command("remove-member", {"node": self._other(machine).name})
            case Fault.NODES:
                self._change_nodes(machine)
            case Fault.AT_SLOT:
                machine.arm(random.choice(WATCHED), lambda: self._strike_at_once(machine))
            case Fault.AT_FILE:
                how = self._strike_at_once if random.random() < 0.4 else self._power_cut_soon
                machine.arm_file(random.choice(WATCHED_FILES), lambda: how(machine))
            case Fault.LATE_CHANGE:
                self._lease.late_change = self._cut_off_changed
            case Fault.WINNER | Fault.CHANGE:
                self._armed.add(fault)
            case Fault.REFUSED:
                order, arguments = random.choice(REFUSED_COMMANDS)
                self._group.command(order, arguments, machine, refused=True)
            case Fault.RESYNC:
                holder = self._history.holder
                is_master = holder is not None and holder.node == name
                # A command must not empty a master.
                slave = self._other(machine) if is_master else machine
                if len(self._history.replaced | {slave.name}) < len(self._machines):
                    self._history.replaced.add(slave.name)
                    self._group.command("resync", {"group": "g0"}, slave)
            case Fault.NEW_VOLUME:
                # One node keeps its disk: a group with only empty disks is another group.
                if len(self._history.replaced | {name}) < len(self._machines):
                    self._power_cut(machine, then=lambda: self._replace_volume(machine))
            case Fault.DELETE_LEASE:
                if random.random() < 0.3:
                    self._lease.delete()
                else:
                    self._armed.add(fault)
            case Fault.HASTY:
                self._make_hasty(random.choice(list(self._machines.values())))
            case Fault.CLOCK:
                self._history.clocks_wrong = True
                machine.clock.jump(random.choice((300, 2_000, 100_000)))

    def _change_nodes(self, machine: Machine) -> None:
        """Add a removed node, or remove one; sometimes order two changes at about the same time."""
        random, removed = self._random, self._group.removed
        if removed and random.random() < 0.7:
            self._group.add_node(random.choice(removed))
        else:
            self._group.command("remove-node", {"node": machine.name})
        if random.random() < 0.5:
            again = {"node": self._other(machine).name}
            delay_us = random.choice((0, 1_000, 10_000, 50_000))
            self._timeline.after(delay_us, lambda: self._remove_node(again))

    def _remove_node(self, arguments: dict[str, str]) -> None:
        self._group.command("remove-node", arguments)

    def _switch(self, tries: int) -> None:
        """Repeat the command until it is accepted, as an operator does. A fault may strike the
        master while it hands over."""
        holder, random = self._history.holder, self._random
        if holder is None or self._group.healed:
            return
        master = self._machines[holder.node]
        token = self._group.command("switchover", {"to": self._other(master).name})
        if random.random() < 0.5:
            slot = random.choice((Slot.SENDS_HELD, Slot.SENDS_HELD, Slot.FENCED, Slot.CONFIRM))
            end = slot is Slot.SENDS_HELD and random.random() < 0.6
            strike = self._end_broker_soon if end else self._strike_at_once
            master.arm(slot, lambda: strike(master))

        def check() -> None:
            service = self._group.ha_of(master.name)
            reply = None if service is None or token is None else service.replies.get(token)
            if tries > 1 and (token is None or (reply is not None and not reply.ok)):
                self._switch(tries - 1)

        self._timeline.after(SWITCH_AGAIN_US, check)

    def _strike_at_once(self, machine: Machine) -> None:
        """Strike between two accesses to the page, or soon after."""
        random = self._random
        process = machine.processes.get(random.choice(("ha", "ha", "broker", "broker", "reput")))
        if random.random() < 0.3:
            # Two strikes at once: one process is late, and the other one restarts or changes its
            # decision meanwhile.
            late = machine.processes.get(random.choice(("broker", "ha")))
            if late is not None and late is not process:
                late.strike_after(random.randint(1, 12), lambda: self._stop([late]))
        match random.randrange(3):
            case 0 if process is not None:
                process.strike_after(random.randint(1, 6), process.end)
            case 1 if process is not None:
                process.strike_after(random.randint(1, 6), lambda: self._stop([process]))
            case _:
                self._power_cut_soon(machine)

    def _stop_within(self, machine: Machine) -> None:
        """Stop the broker within an append: the bytes are in the file and are published after the
        switch has begun."""
        broker = machine.processes.get("broker")
        if broker is not None:
            for_ms = self._random.choice((200, 400, 600))
            broker.strike_after(
                self._random.randint(1, 2), lambda: self._stop([broker], for_ms=for_ms)
            )

    def _end_broker_soon(self, machine: Machine) -> None:
        """Kill the broker while an append is under way."""
        broker = machine.processes.get("broker")
        if broker is not None:
            broker.strike_after(self._random.randint(1, 12), broker.end)

    def _power_cut_soon(self, machine: Machine) -> None:
        """Cut the power soon or, now and then, isolate the node."""
        random = self._random
        fault = Fault.POWER if random.random() < 0.8 else Fault.ISOLATE
        delay_us = random.randint(0, random.choice((200, 3_000, 30_000)))
        self._timeline.after(delay_us, lambda: self._strike(fault, machine))

    def _make_hasty(self, machine: Machine) -> None:
        """Let a node take the lease to have run out. No clock is so wrong, but nothing except stale
        reads may depend on clocks."""
        service = self._group.ha_of(machine.name)
        if service is not None and service.replica is not None:
            self._history.clocks_wrong = True
            session = service.replica.session
            session.__dict__["unchanged_ms"] = lambda now_ms: 10 * TIMES.lease_ms
            self._timeline.after(500_000, lambda: session.__dict__.pop("unchanged_ms", None))

    def _cut_off_changed(self, before: Lease, wanted: Lease) -> None:
        """Break the links between the master and the members that a change adds or removes."""
        holder = wanted.holder
        for node in sorted({member.node for member in {*before.in_sync} ^ {*wanted.in_sync}}):
            if holder is not None and node != holder.node:
                self._network.break_links(holder.node, node)
                self._cut(self._machines[holder.node], self._machines[node], both=True)

    def _stop(self, processes: list[Process], *, for_ms: int | None = None) -> None:
        for process in processes:
            process.pause()

        def go_on() -> None:
            for process in processes:
                process.resume()

        self._later(for_ms or self._while_ms(), go_on)

    def _power_cut(self, machine: Machine, *, then: Callable[[], None] | None = None) -> None:
        if not machine.is_on:
            return
        self._group.cut_power(machine)
        if then is not None:
            then()
        self._later(self._while_ms(), lambda: None if machine.is_on else self._group.boot(machine))

    def _replace_volume(self, machine: Machine) -> None:
        self._history.replaced.add(machine.name)
        machine.replace_volume()

    def _cut(self, one: Machine, other: Machine, *, both: bool) -> None:
        pairs = [(one.name, other.name)] + ([(other.name, one.name)] if both else [])
        if self._random.random() < 0.5:
            pairs = [(receiver, sender) for sender, receiver in pairs]
        for pair in pairs:
            self._network.cut(*pair)

        def join() -> None:
            for sender, receiver in pairs:
                self._network.heal(sender, receiver)

        self._later(self._while_ms(), join)

    def _out_of(self, group: set[str], name: str) -> None:
        group.add(name)
        self._later(self._while_ms(), lambda: group.discard(name))

    def _slow_disk(self, machine: Machine) -> None:
        usual, machine.disk_us = machine.disk_us, self._random.choice((50_000, 400_000))
        self._later(self._while_ms(), lambda: setattr(machine, "disk_us", usual))

    def _end_in_order(self, machine: Machine) -> None:
        """SIGTERM for ha: it hands over if it can, and ends within a second."""
        ending, until_us = self._group.ha_of(machine.name), self._timeline.now_us + 1_000_000
        token = self._group.command("switchover", {"reason": "stopping"}, machine)
        if ending is None or token is None:
            return

        def check() -> None:
            if token in ending.replies or self._timeline.now_us >= until_us:
                self._ask_to_end(ending)
            elif ending.process.alive:
                self._timeline.after(20_000, check)

        check()

    def _ask_to_end(self, service: Service) -> None:
        """SIGTERM, then SIGKILL after a while."""
        service.ask_to_end()
        self._timeline.after(GRACE_US, service.process.end)

    def _lease_changed(self, before: Lease, now: Lease) -> None:
        if now.holder is None or self._group.healed:
            return
        if now.epoch != before.epoch:
            if Fault.DELETE_LEASE in self._armed:
                self._armed.discard(Fault.DELETE_LEASE)
                self._timeline.after(self._random.randint(1, 150_000), self._delete_lease)
            self._strike_soon(Fault.WINNER, self._machines[now.holder.node])
        elif now.in_sync != before.in_sync:
            self._strike_soon(Fault.CHANGE, self._machines[now.holder.node])

    def _delete_lease(self) -> None:
        if not self._group.healed:
            self._lease.delete()

    def _strike_soon(self, armed: Fault, machine: Machine) -> None:
        if armed in self._armed:
            self._armed.discard(armed)
            fault = self._random.choice(SUDDEN)
            delay_us = self._random.randint(0, self._random.choice((2_000, 20_000, 150_000)))
            self._timeline.after(delay_us, lambda: self._strike(fault, machine))
