"""Check a workload against the final master's log: no acked or consumed message is missing. Pure.

The criteria have letters:
A: each acked message is in the log, at the offset of its ack.
B: no two acked messages have the same queue offset.
C: every message that a consumer read is at the same queue offset in the final log.
D: an acked message is in the epoch whose master acked it.
E: the logs of all replicas are equal up to the confirm offset (``log_reading`` compares bytes).

Queue offsets must be dense and epochs must rise strictly. Messages acked at ``replicated`` must not
be lost. Messages acked at a lower level may be lost with their only copy and are counted
separately.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from drills.ledger import OWED_LEVEL, Ledger, Place

SHOWN_MAX: Final = 8


class Stored(NamedTuple):
    """A message of the workload in the final log."""

    place: Place
    physical_offset: int
    key: str


class EpochStart(NamedTuple):
    """An epoch and the physical offset of its first record."""

    epoch: int
    start: int


@dataclass(slots=True)
class FinalLog:
    """The contents of the final master's log that the checker needs."""

    messages: list[Stored] = field(default_factory=list)
    """Messages in physical order."""
    epochs: list[EpochStart] = field(default_factory=list)
    """Epochs in physical order, from the epoch records."""
    first_offset: int = 0
    """Physical offset of the oldest byte; everything before it has expired."""
    end: int = 0


@dataclass(slots=True)
class Verdict:
    violations: list[str] = field(default_factory=list)
    """Sentences, each beginning with the letter of its criterion."""
    lost: int = 0
    """Number of messages acked at ``replicated`` that are not in the log."""
    lost_below: int = 0
    """Number of messages acked at a lower level that are not in the log; this is permitted."""
    acked: int = 0
    unknown_stored: int = 0
    """Number of messages that were never acked but are in the log."""
    unknown_absent: int = 0
    duplicates: int = 0
    """Second and later copies of one message."""
    out_of_order: int = 0
    """Messages that are in the log before an earlier acked message of their producer and queue."""

    def shown(self) -> str:
        """Return the first violations, one per line."""
        more = len(self.violations) - SHOWN_MAX
        lines = self.violations[:SHOWN_MAX] + ([f"... and {more} more"] if more > 0 else [])
        return "\n".join(lines)


def judge(ledger: Ledger, log: FinalLog, masters: Mapping[int, str] | None = None) -> Verdict:
    """Compare acked and consumed messages with the log.

    masters: master of each epoch, as far as it is known; needed for criterion D.
    """
    verdict = Verdict(acked=len(ledger.acked))
    verdict.violations += [f"B: {sentence}" for sentence in ledger.conflicting_acks]
    verdict.violations += [f"C: {sentence}" for sentence in ledger.seen_wrong]
    at_place = {stored.place: stored for stored in log.messages}
    _check_acked(ledger, log, at_place, verdict)
    _check_seen(ledger, log, at_place, verdict)
    if masters:
        _check_epochs(ledger, log.epochs, masters, verdict)
    verdict.violations += _gaps(log.messages)
    verdict.violations += [
        f"epochs: {later} follows {earlier}"
        for earlier, later in zip(log.epochs, log.epochs[1:], strict=False)
        if later.epoch <= earlier.epoch
    ]
    _count(ledger, log.messages, verdict)
    return verdict


def _check_acked(
    ledger: Ledger, log: FinalLog, at_place: Mapping[Place, Stored], verdict: Verdict
) -> None:
    owners: dict[Place, str] = {}
    for key, ack in ledger.acked.items():
        other = owners.setdefault(ack.place, key)
        if other != key:
            verdict.violations.append(f"B: {other} and {key} were both acked at {ack.place}")
        if ack.physical_offset < log.first_offset:
            continue  # expired
        stored = at_place.get(ack.place)
        if stored == Stored(ack.place, ack.physical_offset, key):
            continue
        if ack.level == OWED_LEVEL:
            verdict.lost += 1
            verdict.violations.append(f"A: {key} was acked {ack}, the log has {stored} there")
        else:
            verdict.lost_below += 1


def _check_seen(
    ledger: Ledger, log: FinalLog, at_place: Mapping[Place, Stored], verdict: Verdict
) -> None:
    oldest: dict[int, int] = {}
    for stored in log.messages:
        oldest.setdefault(stored.place.queue, stored.place.queue_offset)
    for consumer, places in ledger.seen.items():
        for place, key in places.items():
            there = at_place.get(place)
            if there is not None and there.key == key:
                continue
            if log.first_offset and place.queue_offset < oldest.get(place.queue, 1 << 62):
                continue  # expired
            verdict.violations.append(
                f"C: consumer {consumer} saw {key} at {place}, the log has {there} there"
            )


def _check_epochs(
    ledger: Ledger, epochs: Sequence[EpochStart], masters: Mapping[int, str], verdict: Verdict
) -> None:
    starts = [epoch.start for epoch in epochs]
    for key, ack in ledger.acked.items():
        number = bisect_right(starts, ack.physical_offset) - 1
        if number < 0 or ack.level != OWED_LEVEL:
            continue
        master = masters.get(epochs[number].epoch)
        if master is not None and ack.node and ack.node != master and not ack.repeated:
            verdict.violations.append(
                f"D: {key} was acked by {ack.node} at physical offset {ack.physical_offset}, "
                f"where {master} was master in epoch {epochs[number].epoch}"
            )


def _gaps(messages: Iterable[Stored]) -> list[str]:
    """Check that the offsets of each queue are consecutive in physical order."""
    found: list[str] = []
    expected: dict[int, int] = {}
    for stored in messages:
        queue, offset = stored.place
        if offset != expected.setdefault(queue, offset):
            found.append(f"dense: {stored} follows offset {expected[queue] - 1} of its queue")
        expected[queue] = offset + 1
    return found


def _count(ledger: Ledger, messages: Iterable[Stored], verdict: Verdict) -> None:
    found: set[str] = set()
    newest: dict[tuple[str, int], int] = {}
    for stored in messages:
        if stored.key in found:
            verdict.duplicates += 1
            continue
        found.add(stored.key)
        if stored.key not in ledger.sent:
            verdict.violations.append(f"A: {stored.key} is at {stored.place} and was never sent")
        if stored.key in ledger.acked:
            producer, _, number = stored.key.partition(".")
            stream = producer, stored.place.queue
            if int(number) < newest.get(stream, -1):
                verdict.out_of_order += 1
            newest[stream] = max(newest.get(stream, -1), int(number))
    unknown = ledger.sent.keys() - ledger.acked.keys()
    verdict.unknown_stored, verdict.unknown_absent = len(unknown & found), len(unknown - found)
