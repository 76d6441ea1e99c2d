"""What a start of ha must read from the disk, and what it must keep there for the next start.

The files of a replica that only ha writes are promise, confirm offset and damage. A start that
knows less than the previous one campaigns, cuts or acknowledges where it must not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from services.ha.core.effects import LeasePut
from services.ha.core.events import Event, Failed
from services.ha.core.outbox import NO_ROOM
from services.ha.core.replica_context import DAMAGE, STEP_BACK_PAUSES
from services.ha.core.setup import Found
from services.ha.core.states import State
from services.ha.lease.value import Member
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.store_view import FILE_SIZE
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot
from tidemark.formats.record import BLANK_SIZE, MAGIC_BLANK

if TYPE_CHECKING:
    from services.ha.core.replica import Replica
    from tests.simulation.replication.ha import Ha
    from tests.simulation.replication.history import History

SENSED_US: Final = 500_000
"""ha samples the page every 50 ms, so it knows a service's trouble within this time."""
DECIDED_MS: Final = 2 * TIMES.lease_ms
"""Time within which an earlier campaign has ended."""
ROOM_MS: Final = STEP_BACK_PAUSES * TIMES.lease_ms
"""A replica without room for its promise leaves the lease to the others for this long."""
FROM_THE_START: Final = -(1 << 40)
EARLY: Final = 0.9
"""Clocks differ by less than this, and a lease is read only after it was written."""
NOTED_US: Final = 8_000_000
"""ha writes the confirm offset every second, with three syncs on a disk that is not slow."""
QUICK_US: Final = 50_000
"""Duration of a sync of such a disk."""
SIZE_AND_MAGIC: Final = 8


class Marks(NamedTuple):
    """Content of the files of one volume before a start."""

    incarnation: str
    promised: int
    seen: tuple[int, int]
    confirm: int
    damage: int | None


def marks_of(machine: Machine) -> Marks:
    """Read the marks of a node's volume."""
    return Marks(
        machine.incarnation,
        machine.promised,
        machine.seen,
        machine.noted_confirm,
        machine.noted_damage,
    )


def check_found(machine: Machine, before: Marks, found: Found, history: History) -> None:
    """Check that a start has read these files, unless the store was emptied or the replica
    halts."""
    if found.damage and machine.name not in history.damaged:
        raise Violation(f"{machine.name} reports damage, but nothing was damaged: {found.damage}")
    if found.halted is not None or before.incarnation != found.incarnation:
        return
    if found.promised < before.promised or found.confirm < before.confirm:
        raise Violation(
            f"{machine.name} starts with the promise of {found.promised}, confirmed up to "
            f"{found.confirm}; its files had {before.promised} and {before.confirm}"
        )
    if (found.seen_epoch, found.seen_version) < before.seen:
        raise Violation(
            f"{machine.name} starts without the lease state {before.seen}, but "
            f"with {found.seen_epoch, found.seen_version} instead"
        )
    at = before.damage
    if at is None or found.damage or at >= len(history.confirmed):
        return
    end = at + _size_at(history.confirmed, at)
    if machine.log(at, end) != history.confirmed[at:end]:
        raise Violation(
            f"{machine.name} starts with its log as undamaged; ha/damage had {at}, and the "
            "record there is still damaged"
        )


def check_cut(machine: Machine, point: int, confirmed: bytearray) -> None:
    """Check that a cut removes no confirmed record that the replica has: it may be the last intact
    copy."""
    while point < len(confirmed):
        size = _size_at(confirmed, point)
        magic = int.from_bytes(confirmed[point + 4 : point + 8], "big", signed=True)
        if magic != MAGIC_BLANK and FILE_SIZE - point % FILE_SIZE >= BLANK_SIZE:
            if machine.log(point, point + size) == confirmed[point : point + size]:
                raise Violation(
                    f"{machine.name} cuts its log at {point}, where it has a record that is "
                    "confirmed"
                )
            return
        point += FILE_SIZE - point % FILE_SIZE  # Fillers of two different logs may be equal.


def check_damage_is_kept(ha: Ha) -> None:
    """Check that damage which a replica knows is in its file, since the next start may not find
    it."""
    replica, machine = ha.replica, ha.machine
    if replica is None or not ha.process.alive or replica.found.halted is not None:
        return
    own = replica.context
    knows = own.damage or (own.halted is not None and own.halted.code == DAMAGE)
    fails = machine.is_full or machine.has_failed
    if knows and own.state is not State.RESYNC and not fails and not machine.has_durable_damage:
        raise Violation(
            f"{machine.name} knows that its log is damaged, but its next start would not"
        )


def check_trouble_is_known(ha: Ha) -> None:
    """Check that ha counts the node as ill exactly if broker or reput publish trouble, or the log
    is damaged."""
    replica, machine, process = ha.replica, ha.machine, ha.process
    if replica is None or not process.alive or process.paused:
        return
    slots = Slot.BROKER_TROUBLE, Slot.REPUT_TROUBLE
    changed_us = [machine.changed_us.get(slot, 0) for slot in slots]
    since_us = machine.timeline.now_us - max(process.resumed_us, ha.found_us, *changed_us)
    has_trouble = any(machine.slot(slot) for slot in slots)
    known = replica.context._store_trouble
    if since_us > SENSED_US and bool(known) != (has_trouble or bool(replica.context.damage)):
        values = {slot.name: machine.slot(slot) for slot in slots}
        raise Violation(f"the page of {machine.name} has {values}, its ha has {known or 'nothing'}")


class Noted:
    """Checks that one start of ha writes the confirm offset to its disk."""

    def __init__(self) -> None:
        self._since: tuple[int, int] | None = None
        """Since when the page has had a confirm offset that is not yet noted, and that offset."""
        self._member: Member | None = None
        """The member whose offset it is: a store copied anew begins without one."""

    def check(self, ha: Ha) -> None:
        """Check that the confirm offset in the file is not old: nothing below it may ever be
        cut."""
        replica, machine, now_us = ha.replica, ha.machine, ha.machine.timeline.now_us
        fails = machine.is_full or machine.has_failed or machine.disk_us > QUICK_US
        rests = not ha.process.alive or ha.process.paused
        if (
            replica is None
            or rests
            or fails
            or replica.context.state in (State.HALTED, State.RESYNC)
        ):
            self._since = None
            return
        before, self._member = self._member, replica.context.member
        if before != self._member:
            self._since = None
        if self._since is None or machine.noted_confirm >= self._since[1]:
            self._since = now_us, machine.slot(Slot.CONFIRM)
        elif now_us - max(self._since[0], ha.process.resumed_us) > NOTED_US:
            raise Violation(
                f"{machine.name} knows for {NOTED_US} µs that {self._since[1]} is confirmed, but "
                f"has noted {machine.noted_confirm}"
            )


class LeaseObstacles:
    """Reasons for which one start of ha must not take the lease."""

    def __init__(self, ha: Ha, replica: Replica) -> None:
        self._ha, self._replica = ha, replica
        self._damaged_ms = FROM_THE_START if replica.found.damage else None
        self._no_room_ms: int | None = None

    def happened(self, event: Event, now_ms: int) -> None:
        """Note what the event means for the replica, after its decision."""
        if isinstance(event, Failed) and event.code in NO_ROOM:
            self._no_room_ms = now_ms
        if not self._replica.context.damage:
            self._damaged_ms = None
        elif self._damaged_ms is None:
            self._damaged_ms = now_ms

    def writes_lease(self, put: LeasePut) -> None:
        """Check a write of the lease."""
        node, base, now_ms = self._ha.node, put.base.lease, self._replica.context.now_ms
        holder, wanted = base.holder, put.lease
        is_forced = getattr(self._replica.leadership.campaign, "_forced", False)
        if wanted.epoch <= base.epoch or wanted.holder is None or is_forced:
            return
        is_others = holder is not None and holder.node != node
        if is_others and self._damaged_ms is not None and now_ms - self._damaged_ms >= DECIDED_MS:
            raise Violation(
                f"{node} takes the lease of {holder}, but knows that its log is damaged"
            )
        is_own = holder is not None and holder.member == self._replica.context.member
        if is_own and self._damaged_ms == FROM_THE_START and len(base.in_sync) > 1:
            unchanged_ms = self._ha.history.unwritten_us // 1000
            if unchanged_ms < TIMES.lease_ms * EARLY:
                raise Violation(
                    f"{node} knows that its log is damaged, but takes its own lease again after "
                    f"{unchanged_ms} ms, before another member could"
                )
        is_given = holder is None and base.handover_to == node
        if not is_given and self._no_room_ms is not None and now_ms - self._no_room_ms < ROOM_MS:
            raise Violation(
                f"{node} takes the lease {now_ms - self._no_room_ms} ms after its disk had no room "
                "for what a master writes"
            )


def _size_at(log: bytearray, at: int) -> int:
    return max(SIZE_AND_MAGIC, int.from_bytes(log[at : at + 4], "big"))
