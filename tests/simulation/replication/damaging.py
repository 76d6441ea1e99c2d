"""Trials in which a bit of a log flips, or the queue files of a node are removed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from services.ha.core.replica_context import DAMAGE
from services.ha.shell.replica_disk import CHECK_INTERVAL_S
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import SERVICES
from tests.simulation.replication.seams import CHECKED_AT_ONCE
from tests.simulation.replication.store_view import FILE_SIZE, INTENT
from tests.simulation.replication.trying import AGAIN_MS, Trying
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

HALTED_MS: Final = 6_000
"""Time within which a pass of the check of the log begins after another one or a restart of ha, and
within which damage that is found halts the node, also after it has handed over."""
MET_MS: Final = 1_000
"""ha checks the log within this time after a reader has found damage."""
SHUT_MS: Final = 1_000
"""The broker of a halted node refuses reads after this time."""
NOTICED_MS: Final = 600
"""Three intervals at which a broker checks which start of reput wrote the queue files."""
FOLLOWED_MS: Final = 2_500
"""A broker has loaded the new queues after this time."""
COPYING_MS: Final = 300
"""Upper limit for copying a log."""
EMPTYING_US: Final = 30_000
"""Approximate time to empty a store."""


def found_within_ms(machine: Machine, confirmed: int) -> int:
    """Return the time within which a node halts that is damaged now. The check of the log may have
    passed the damage just before: that pass ends, and the next one gets there.

    confirmed: end of the confirmed log."""
    steps = max(0, confirmed - machine.begins_at) // CHECKED_AT_ONCE + 1
    return HALTED_MS + int(2 * steps * CHECK_INTERVAL_S * 1000)


class Damaging(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (self._flip_a_bit, self._lose_queues)

    def _flip_a_bit(self) -> None:
        """Damage a node, or damage it again after it was copied anew."""
        if not self._may_lose_one:
            return  # The remaining nodes would refuse sends, as configured.
        machine = self._any_machine()
        self._damage(machine)
        if self._random.random() < 0.4:
            self._damage(machine)
            return
        for service in SERVICES:
            machine.processes[service].end()
        self._must_be_whole_again(f"{machine.name} was copied anew, and started again")

    def _damage(self, machine: Machine) -> None:
        """A bit of an acknowledged record flips on one disk. The node reports it and does not serve
        the record, the others go on, and after a resync the node is a member again (P6)."""
        group, history = self._group, self._history
        assert history.holder is not None, "the group is whole"
        leads = machine.name == history.holder.node
        topic, queue = self._random.choice(list(history.records.queues))
        places = history.records.seen(topic, queue, self._world.shown(machine.name) or 0)
        live = bisect_left(places, machine.begins_at, key=lambda place: place.start)
        if live == len(places):
            return
        offset = self._random.randrange(live, len(places))
        last = [
            at
            for at, place in enumerate(places[:-1])
            if at >= live and places[at + 1].start // FILE_SIZE > place.end // FILE_SIZE
        ]
        if last and self._random.random() < 0.3:
            offset = self._random.choice(last)  # The check of the log continues in the next file.
        place = places[offset]
        at = self._random.randrange(place.start, place.end)
        history.damaged.add(machine.name)
        group.trace("world", f"a bit of byte {at} of {machine.name} flips, in {place}")
        machine.flip(at, self._random.randrange(8))
        acked, found_ms = len(history.acked), found_within_ms(machine, len(history.confirmed))
        broker, reader = group.broker_of(machine.name), None
        if leads and len(group.machines) > 2 and self._random.random() < 0.3:
            # Only a slave that is copied anew reads the record there.
            slave = self._any_but(machine)
            history.replaced.add(slave.name)
            group.command("resync", {"group": "g0"}, slave)
        elif (leads or self._random.random() < 0.5) and broker is not None:
            reader, found_ms = broker, found_ms if leads else MET_MS
            # The log of a slave is compared with the master's.
            if leads and self._random.random() < 0.5:
                self._any_machine().processes["ha"].end()
        else:
            for service in SERVICES:
                if self._random.random() < 0.3:
                    machine.processes[service].end()

        def is_found() -> bool:
            if reader is not None:
                reader.consumer.show(
                    topic, queue, offset
                )  # Repeat the pull: reput may repair a unit.
            return self._is_found(machine)

        if not self._until(is_found, found_ms):
            raise Violation(
                f"a bit of byte {at} of {machine.name} flipped {found_ms} ms ago; its state is "
                f"{self._world.state_of(machine.name)} with the alarms {self._alarms_of(machine)}"
            )
        if not self._until(lambda: not self._world.shown(machine.name), SHUT_MS):
            raise Violation(f"{machine.name} is damaged and serves reads")
        self._until(lambda: len(history.acked) > acked, AGAIN_MS)
        if len(history.acked) == acked:
            raise Violation(f"no send is acknowledged since {machine.name} is damaged")
        before = machine.incarnation
        history.replaced.add(machine.name)
        if self._random.random() < 0.3:  # Cut the power while the store is being emptied.
            machine.arm_file(INTENT.name, lambda: self._lose_power_soon(machine))
        ha, token = group.ha_of(machine.name), None

        def is_ordered() -> bool:
            nonlocal ha, token
            reply = None if ha is None or token is None else ha.replies.get(token)
            if (reply is not None and reply.ok) or (token is not None and not machine.is_on):
                return True
            if token is None or reply is not None:
                ha = group.ha_of(machine.name)
                token = group.command("resync", {"group": "g0"}, machine)
            return False

        if not self._until(is_ordered, AGAIN_MS):
            raise Violation(f"{machine.name} is damaged and accepts no resync")
        self._until(lambda: machine.incarnation != before or not machine.is_on, AGAIN_MS)
        if machine.incarnation == before and not machine.is_on and not machine.is_being_emptied:
            # The power was cut before the order was on disk.
            token = None
            self._until(lambda: self._world.state_of(machine.name).startswith("halted"), AGAIN_MS)
            self._until(is_ordered, AGAIN_MS)
        elif machine.is_on and self._random.random() < 0.6:
            self._wait(self._random.randint(1, COPYING_MS))
            machine.processes[self._random.choice(("ha", "ha", *SERVICES))].end()
        self._must_be_whole_again(f"{machine.name} was resynced")
        history.damaged.clear()

    def _lose_power_soon(self, machine: Machine) -> None:
        def lose() -> None:
            self._group.cut_power(machine)
            self._timeline.after(EMPTYING_US, lambda: self._group.boot(machine))

        self._timeline.after(self._random.randint(0, EMPTYING_US), lose)

    def _is_found(self, machine: Machine) -> bool:
        """Whether the node is halted for damage of its log, or because an epoch begins within a
        record."""
        codes = self._alarms_of(machine).keys() & {DAMAGE, "halted-replica"}
        return bool(codes) and self._world.state_of(machine.name).startswith("halted")

    def _lose_queues(self) -> None:
        """Queues are derived data (P4): when they are removed, reput builds them again from the
        log."""
        machine = self._any_machine()
        self._group.trace("world", f"the queues of {machine.name} are removed")
        before, shown = machine.slot(Slot.RESUMED_BY), machine.slot(Slot.DISPATCHED)
        self._history.lost_queues.add(machine.name)
        machine.processes["reput"].end()
        machine.remove_queues()

        def are_there() -> bool:
            resumed = machine.slot(Slot.RESUMED_BY) != before
            return resumed and machine.slot(Slot.DISPATCHED) >= shown

        if not self._until(are_there, AGAIN_MS):
            raise Violation(f"reput of {machine.name} does not rebuild its queues")
        self._wait(NOTICED_MS)
        self._history.lost_queues.clear()
        self._must_be_whole_again(f"the queues of {machine.name} were removed")
        # Topics created from now on are in the new queues only, and brokers read them there.
        self._history.late_topics.append("returns")
        self._wait(FOLLOWED_MS)
        to = machine.name
        if self._history.holder is not None and self._history.holder.node != to:
            self._group.command("switchover", {"to": to})
            self._wait(FOLLOWED_MS)
