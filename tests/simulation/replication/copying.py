"""Trials of log copying: from the end of a slave's log, from the oldest file, and from scratch.

Each trial introduces several causes in turn and waits in between until the group is whole. So each
outcome is known: which node keeps its log, which one is copied anew, and from which byte on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from services.ha.core.switch_orders import REMOVAL_MS_MAX
from services.ha.shell import replica_disk
from tests.simulation.replication.confirmed import Place
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import SERVICES, WINDOW_SIZE
from tests.simulation.replication.process import Process
from tests.simulation.replication.store_view import CONFIRM, FILE_SIZE
from tests.simulation.replication.trying import AGAIN_MS, QUIET_MS, UNHEARD_MS, Trying
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

SLOW_US: Final = 600_000
"""Longest sync of a slave that is to stay behind for a while."""
BEHIND_SIZE: Final = 3 * WINDOW_SIZE
"""A slave with this lag is sent little at a time."""


HELD_UP_US: Final = 2_500_000
"""Duration of a delayed sync of one file. Two more writes of the offset wait meanwhile."""
QUEUED_US: Final = 1_300_000, 1_800_000
"""Time within which the first of them waits."""
WRITTEN_US: Final = 100_000
"""Time within which a small file is written."""
CUT_STEPS: Final = ("cut-7", "cut-8", "cut-9", "cut-10")
BEFORE_ZEROS: Final = ("cut-6", "cut-7", "cut-8", "cut-8")
"""Steps of a cut before which the removed bytes are still there."""
RESYNC_STEPS: Final = tuple(f"resync-{step}" for step in range(2, 9))
"""Steps of a resync after the point from which the next start continues it."""
PAGE_SYNCED: Final = tuple(f"resync-{step}" for step in range(4, 9))
"""Steps before which the role that the page shows meanwhile is on the disk."""


NEVER_S: Final = 1e6
PASS_MS: Final = 2_500
"""Time within which a check of the log that was due has ended."""
FOUND_MS: Final = 2 * AGAIN_MS
"""Time within which the slave finds the damage, its master checks its log, and hands over to a
member."""


class Copying(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            *(self._overtake_a_slave, self._stop_while_cutting, self._stop_while_emptying),
            *(self._empty_during_a_write, self._spoil_a_piece, self._meet_damage_at_a_slave),
        )

    def _overtake_a_slave(self) -> None:
        """A slave that was away for longer than the master keeps its log is copied anew from the
        oldest file. One that returns in time continues at its end, and no file that it still needs
        is deleted."""
        slave = self._any_but(self._master())
        if not self._may_lose_one:
            self._grow(FILE_SIZE)  # Without it nothing is stored.
            self._let_expire(len(self._history.confirmed) - 2 * FILE_SIZE)
            self._copy_anew(slave)
            return
        self._go_without(slave)
        self._grow(2 * FILE_SIZE)
        self._let_expire(slave.end)
        self._must_be_copied_anew(slave, self._bring_back)
        self._go_without(slave)
        self._grow(BEHIND_SIZE)
        before, usual = slave.incarnation, slave.disk_us
        slave.disk_us = SLOW_US
        self._bring_back()
        self._let_expire_beside(slave)
        slave.disk_us = usual
        self._must_be_whole_again(f"{slave.name} was {BEHIND_SIZE} bytes behind")
        if slave.incarnation != before:
            raise Violation(
                f"{slave.name} was behind by less than the master's log, but was copied anew"
            )

    def _stop_while_cutting(self) -> None:
        """A former master cuts off what was never confirmed, although it is stopped repeatedly
        meanwhile, and keeps everything else."""
        group, master = self._group, self._master()
        before, others = master.incarnation, [n for n in group.machines if n != master.name]
        for other in others:
            group.network.cut(master.name, other)
            group.network.cut(other, master.name)
        group.lease.unreachable.add(master.name)

        if not self._until(lambda: self._has_another_master(master), AGAIN_MS):
            raise Violation(f"{master.name} is cut off and holds the lease for {AGAIN_MS} ms")
        steps = [self._random.choice(BEFORE_ZEROS), self._random.choice(CUT_STEPS)]
        self._stop_at(master, steps)
        group.lease.unreachable.clear()
        group.network.heal()
        self._must_be_whole_again(f"{master.name} was cut off and stopped at {steps}")
        master.calm()
        if master.incarnation != before:
            raise Violation(f"{master.name} was cut off and then copied anew")

    def _stop_while_emptying(self) -> None:
        """A store that is being emptied by command is empty in the end, although the node is
        stopped repeatedly meanwhile. Nothing of the previous log returns. After a power cut the
        broker opens the store before ha continues."""
        slave = self._any_but(self._master())
        steps = self._random.sample(RESYNC_STEPS, 2)
        self._stop_at(slave, [self._random.choice(PAGE_SYNCED), *steps], by_power=True)
        self._must_be_emptied(
            slave,
            lambda: self._group.command("resync", {"group": "g0"}, slave),
            "stopped meanwhile",
        )

    def _empty_during_a_write(self) -> None:
        """A store is being emptied by command while ha writes an offset file."""
        slave = self._any_but(self._master())
        slave.held_up[CONFIRM.with_name(CONFIRM.name + ".tmp")] = HELD_UP_US
        slave.arm_file(CONFIRM.name + ".tmp", lambda: self._command_during_write(slave))
        self._must_be_emptied(slave, lambda: None, "wrote an offset")

    def _must_be_emptied(self, slave: Machine, begin: Callable[[], object], how: str) -> None:
        before = slave.incarnation
        begin()
        self._history.replaced.add(slave.name)
        self._until(lambda: slave.incarnation not in ("", before), AGAIN_MS)
        slave.held_up.clear()
        self._must_be_whole_again(f"{slave.name} {how} while it was emptied")
        slave.calm()
        if slave.incarnation == before:
            raise Violation(
                f"{slave.name} was to be copied anew, but its incarnation has not changed"
            )

    def _command_during_write(self, slave: Machine) -> None:
        """Begin to empty the store while one write of an offset file is under way and the next one
        waits. Copying cannot begin before both have ended."""

        def cut_off() -> None:
            for other in self._group.machines:
                if other != slave.name:
                    self._group.network.cut(other, slave.name)

        def order() -> None:
            slave.arm(Slot.ROLE, cut_off)
            self._group.command("resync", {"group": "g0"}, slave)

        leaves_us = 0 if self._may_lose_one else REMOVAL_MS_MAX * 1000
        self._timeline.after(max(self._random.randint(*QUEUED_US) - leaves_us, 0), order)
        self._timeline.after(HELD_UP_US + WRITTEN_US, self._group.network.heal)

    def _stop_at(self, machine: Machine, steps: list[str], *, by_power: bool = False) -> None:
        """Stop the node, or only its ha, before the first of the steps; after the restart, before
        the next one, and so on. by_power: the first stop is a power cut, after which the broker
        starts first."""
        if not steps:
            return

        def strike() -> None:
            process = machine.processes["ha"]
            self._group.trace("world", f"{machine.name} is stopped before {steps[0]}")
            if by_power:
                self._cut_power(machine, process, "broker")
            elif self._random.random() < 0.5:
                process.strike_after(self._random.choice((1, 1, 4, 12)), process.end)
            else:
                # A broker that starts first opens a store that is about to be emptied.
                self._cut_power(machine, process, self._random.choice(("broker", "reput", "ha")))
            self._stop_at(machine, steps[1:])

        machine.arm_step(steps[0], strike)

    def _cut_power(self, machine: Machine, process: Process, first: str) -> None:
        """Cut the power within the present step of a process. first: the service that starts before
        the others afterwards."""
        process.pause()

        def cut_power() -> None:
            if machine.is_on and machine.processes.get("ha") is process:
                self._group.cut_power(machine)
                self._timeline.after(1_000, boot)

        def boot() -> None:
            self._group.boot(machine, first=first)

        self._timeline.after(self._random.randint(0, 200), cut_power)

    def _spoil_a_piece(self) -> None:
        """A slave that receives damaged log bytes appends none of them, asks again after a pause,
        and continues at its end."""
        group, history, master = self._group, self._history, self._master()
        slave, epoch = self._any_but(master), history.epoch
        before, path = slave.incarnation, (master.name, slave.name)
        history.corrupted.add(slave.name)
        group.network.to_corrupt.add(path)
        self._until(lambda: path not in group.network.to_corrupt, AGAIN_MS)
        group.network.to_corrupt.clear()
        self._wait(QUIET_MS)
        self._must_be_whole_again(f"{slave.name} received damaged bytes")
        history.corrupted.clear()
        if slave.incarnation != before or history.epoch != epoch:
            raise Violation(
                f"{slave.name} received damaged bytes; it was {before} and is "
                f"{slave.incarnation}, epoch {epoch} became {history.epoch}"
            )

    def _meet_damage_at_a_slave(self) -> None:
        """A bit of the master's log flips where only a slave can notice it: a slave that is copied
        anew, or one that restarts with records that it does not know to be confirmed. The slave
        keeps what is intact; the master checks its log, hands over, and is copied anew."""
        if not self._may_lose_one:
            return
        group, history, master = self._group, self._history, self._master()
        slave = self._any_but(master)
        with patch.object(replica_disk, "CHECK_PASS_INTERVAL_S", NEVER_S):
            self._wait(PASS_MS)
            if group.plan.nodes > 2 and self._random.random() < 0.5:
                place = self._place_in(master)
                self._flip(master, place)
                history.replaced.add(slave.name)
                group.command("resync", {"group": "g0"}, slave)
            else:
                place = self._newest_unmarked(slave)
                self._flip(master, place)
                group.cut_power(slave)
                group.boot(slave)
            self._must_move_from(master, FOUND_MS, f"the record at {place.start} is damaged there")
        for name in group.machines:
            service = group.ha_of(name)
            if service is not None:
                service.check_log_again()
        self._until(lambda: self._world.state_of(master.name).startswith("halted"), AGAIN_MS)
        self._copy_anew(master)
        history.damaged.clear()

    def _place_in(self, machine: Machine) -> Place:
        """Any confirmed record that the node still has."""
        history = self._history
        places = [place for each in history.records.queues.values() for place in each]
        return self._random.choice([each for each in places if each.start >= machine.begins_at])

    def _newest_unmarked(self, slave: Machine) -> Place:
        """The newest confirmed record, once the slave has it on disk and none of its files shows
        that it is confirmed."""
        history, found = self._history, list[Place]()

        def is_there() -> bool:
            places = [each[-1] for each in history.records.queues.values()]
            newest = max(places, key=lambda place: place.end)
            marks = [slave.durable_slot(slot) for slot in (Slot.CONFIRM, Slot.DISPATCHED_DURABLE)]
            found[:] = [newest]
            is_marked = max(*marks, slave.noted_confirm) > newest.start
            return not is_marked and len(slave.durable_log(newest.start, newest.end)) > 0

        self._until(is_there, AGAIN_MS)
        return found[0]

    def _flip(self, machine: Machine, place: Place) -> None:
        at = self._random.randrange(place.start, place.end)
        self._history.damaged.add(machine.name)
        self._group.trace("world", f"a bit of byte {at} of {machine.name} flips, in {place}")
        machine.flip(at, self._random.randrange(8))

    # -- growth and retention of the log ---------------------------------------------------

    def _go_without(self, slave: Machine) -> None:
        """Kill services of the slave and wait until it has left the in-sync set."""
        self._lose_from_set(slave, self._random.choice((("ha",), SERVICES)), UNHEARD_MS + AGAIN_MS)

    def _let_expire_beside(self, slave: Machine) -> None:
        """Let the master delete files while the slave copies. Those that the slave needs stay."""
        master = self._master()

        def copies() -> bool:
            return 0 < master.slot(Slot.NEEDED_FROM) <= slave.end

        if not self._until(copies, AGAIN_MS) or self._is_member(slave):
            return  # The slave has copied all, or its disk is too slow to begin.
        self._keep_little(is_little=True)
        self._until(lambda: self._is_member(slave), AGAIN_MS)
        self._keep_little(is_little=False)

    # -- copied anew -----------------------------------------------------------------------

    def _must_be_copied_anew(self, slave: Machine, begin: Callable[[], None]) -> None:
        """Check that the slave becomes another member, with a log that begins where the master's
        did, in the middle of an epoch."""
        before, first = slave.incarnation, self._master().begins_at
        begin()
        self._must_be_whole_again(f"{slave.name} had to be copied anew")
        if slave.incarnation == before or slave.begins_at < first:
            raise Violation(
                f"{slave.name} had to be copied anew from {first} on; it begins at "
                f"{slave.begins_at}, and was {before}"
            )

    def _copy_anew(self, machine: Machine) -> None:
        """Resync the node by command, which is repeated until it is accepted."""
        self._history.replaced.add(machine.name)
        self._must_be_copied_anew(machine, lambda: self._must_accept_resync(machine))
