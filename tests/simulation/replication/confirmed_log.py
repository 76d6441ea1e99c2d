"""Judges of the log: every copy of it agrees with the confirmed log, and members have all of it.

Every advance of a node's confirm offset counts as if all bytes below it had been acknowledged and
read, also on former masters. That is stricter than what the broker does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.ha.lease.value import Member
from tests.simulation.replication.confirmed import Confirmed
from tests.simulation.replication.group_facts import GroupFacts
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

ACK_CHECKED_SIZE: Final = 8192
"""Bytes before an acknowledged end that are compared with the disk."""
ANSWER_MAX_US: Final = 5_000
"""Longest time between the loads that allow an answer and the answer, unless the process is
paused."""


class ConfirmedLog(GroupFacts):
    """The confirmed log of a group, and the logs of its nodes compared with it."""

    def __init__(self, nodes: Callable[[], list[Machine]]) -> None:
        super().__init__(nodes)
        self.records = Confirmed()
        self.confirmed = self.records.log
        """The confirmed log of the group."""
        self.expired = 0
        """Largest start of a log among all nodes whose retention deleted files."""

    def confirm_moved(self, node: Machine, confirm: int) -> None:
        """Check a confirm offset (B, D): its bytes are durable and equal to the confirmed log, or
        extend it."""
        known = len(self.confirmed)
        self._must_match_confirmed(node, min(confirm, known), "confirms")
        must_be_durable(node, confirm - ACK_CHECKED_SIZE, confirm)
        if confirm > known:
            self.records.extend(node.log(known, confirm))
            self.check_members(f"when {node.name} confirmed {confirm}")

    def check_members(self, when: str) -> None:
        """Check that each member of the published set has all confirmed bytes on its disk (A).

        The same holds for the winner of the lease, since only members can win it, and for each
        member of a set that a write under way may publish.
        """
        end = len(self.confirmed)
        possible = (member for lease in self.possible_leases() for member in lease.in_sync)
        members = {*self.published, *possible} if end else set()
        for node in self._nodes():
            if Member(node.name, node.incarnation) not in members or node.is_being_emptied:
                continue
            if node.name in self.damaged:
                continue
            first = node.first_file(durable=True)
            is_long = self._expired_below(first)
            if not node.has(self.confirmed, first, end, durable=True) or not is_long:
                found = node.durable_log(first, end)
                raise Violation(
                    f"A: {node.name} is in the in-sync set and its disk lacks confirmed bytes, "
                    f"{first} to {end}, {when}: {_difference(found, self.confirmed[first:], first)}"
                )

    def check_own_confirm(self, node: Machine) -> None:
        """Check that the confirm offset that a node has noted lies in its log, with the confirmed
        bytes (D)."""
        confirm = node.noted_confirm
        first = node.begins_at
        is_same = node.has(self.confirmed, first, confirm)
        if node.name not in self.damaged and not (is_same and self._expired_below(first)):
            raise Violation(
                f"D: {node.name} has noted {confirm} as confirmed, but lacks some of it"
            )

    def check_equal_histories(self) -> None:
        """Check that two logs with the same (epoch, start) have equal bytes as far as both reach
        (F)."""
        nodes = [
            node
            for node in self._nodes()
            if node.end and not node.has_intent and node.name not in self.damaged
        ]
        for index, one in enumerate(nodes):
            for other in nodes[index + 1 :]:
                _check_pair(one, other)

    def _must_match_confirmed(self, node: Machine, end: int, what: str) -> None:
        if not end:
            return  # it claims nothing, and a log that is being emptied may begin anywhere
        first = node.begins_at
        is_same = node.name in self.damaged or node.has(self.confirmed, first, end)
        if end > len(self.confirmed) or not is_same or not self._expired_below(first):
            found, known = node.log(first, end), self.confirmed[first:end]
            raise Violation(
                f"C: {node.name} {what} {end} bytes; the confirmed log of "
                f"{len(self.confirmed)} differs: {_difference(found, known, first)}"
            )

    def expires(self, machine: Machine, until: int) -> None:
        """Check that retention deletes only confirmed and dispatched bytes, which no copying slave
        needs."""
        needed, confirm = machine.slot(Slot.NEEDED_FROM), machine.slot(Slot.CONFIRM)
        needed_us = self._now_us() - machine.changed_us.get(Slot.NEEDED_FROM, 0)
        is_master = machine.slot(Slot.SERVING_EPOCH) != 0
        if is_master and 0 < needed < until and needed_us > ANSWER_MAX_US:
            raise Violation(
                f"{machine.name} deletes its log below {until}; a slave still copies it "
                f"from {needed} on"
            )
        if until > min(confirm, machine.slot(Slot.DISPATCHED_DURABLE)):
            raise Violation(
                f"{machine.name} deletes its log below {until}; the confirm offset is {confirm}"
            )
        self.expired = max(self.expired, until)

    def _expired_below(self, first: int) -> bool:
        """Whether a log may begin at first: some broker's retention has deleted the bytes before
        it."""
        return first <= self.expired

    def _is_overtaken(self, node: Machine) -> bool:
        """Whether the log of another node begins after the end of this node's log."""
        return any(other.begins_at > node.end for other in self.others(node))


def must_be_durable(node: Machine, start: int, end: int) -> None:
    start = max(node.begins_at, start)
    if node.durable_log(start, end) != node.log(start, end):
        raise Violation(f"{node.name} reports [{start}, {end}) as on its disk, and it is not")


def _difference(one: bytes | bytearray, other: bytes | bytearray, first: int) -> str:
    """Describe the first difference. first: physical offset of the first byte of both."""
    size = max(len(one), len(other))
    at = next((at for at in range(size) if one[at : at + 1] != other[at : at + 1]), size)
    return f"first difference at {first + at}"


def _check_pair(one: Machine, other: Machine) -> None:
    mine, theirs = one.table, other.table
    for table, size in ((mine, one.end), (theirs, other.end)):
        if any(entry.start > size for entry in table[:-1]):
            return  # A start removes such entries. Until then they mean nothing.
    common = set(mine) & set(theirs)
    if not common:
        return
    newest = max(common)
    ends = dict(zip(mine, [entry.start for entry in mine[1:]], strict=False))
    ends_there = dict(zip(theirs, [entry.start for entry in theirs[1:]], strict=False))
    upto = min(ends.get(newest, one.end), ends_there.get(newest, other.end), one.end, other.end)
    first = max(one.begins_at, other.begins_at)
    mine_upto, theirs_upto = one.log(first, upto), other.log(first, upto)
    if mine_upto != theirs_upto:
        raise Violation(
            f"F: {one.name} and {other.name} both have epoch {newest.epoch} from {newest.start}, "
            f"but differ below {upto}: {_difference(mine_upto, theirs_upto, first)}"
        )
