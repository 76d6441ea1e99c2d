"""Lag: the messages of a queue that a group has not read, in messages, bytes and seconds. Pure.

The numbers of one queue are read as one snapshot, in this order: committed, minimum, maximum. All
three only grow without a reset, so none exceeds a number that was read after it, and lag is never
negative. An unknown number is None with a ``Reason``, never 0 or −1. The lag in seconds is measured
by the store time of the oldest unread message, never extrapolated.
Step before: ``lag_collector`` or, for views, ``queue_stats`` takes the snapshot. Step after:
``pairs`` adds up.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from sys import byteorder
from typing import Final, NamedTuple, TypeVar

from tidemark.formats.queue_unit import UNIT, Unit, batch_range
from tidemark.offsets import BATCH_UNIT_SIZE, UNIT_SIZE

_SIZE_AT: Final = 2
"""A unit is five 32-bit words: two of the physical offset, one of the size, two of the tags code
(docs/formats.md, section 4.1)."""
_WORDS: Final = UNIT_SIZE // 4

T = TypeVar("T", int, float)


class Reason(StrEnum):
    """Why a number is unknown; the values are part of the API."""

    NEVER_COMMITTED = "never_committed"
    """The group has no offset in this queue yet; its first fetch settles where it starts."""
    BROADCASTING = "broadcasting"
    """Each member of a broadcasting group reads everything for itself and commits nothing."""
    AHEAD = "ahead"
    """The committed offset lies beyond every message that the queue ever held."""
    NOT_DISPATCHED = "not_dispatched"
    """The committed offset lies beyond what is dispatched, but not beyond what is stored."""
    UNKNOWN_TOPIC = "unknown_topic"
    """The topic does not exist, or no longer; the group's offsets in it are kept."""
    TOO_MANY_UNREAD = "too_many_unread"
    """There are more unread messages than one answer may add up."""
    UNREADABLE = "unreadable"
    """The oldest unread message was deleted during the look-up, or its queue file is missing."""
    CLOCK_BEHIND = "clock_behind"
    """The clock stepped back to before the store time of the oldest unread message."""
    NOT_TRACKED = "not_tracked"
    """The number is not kept while the group has no members."""


class QueuePositions(NamedTuple):
    """Queue offsets of one queue and one group at one instant."""

    committed: int | None
    """Next message to read after a restart; None: nothing was committed."""
    min_offset: int
    max_offset: int
    """Behind the last message that is dispatched."""
    next_offset: int
    """Queue offset of the next message to be stored; it counts messages not dispatched yet."""


class Unread(NamedTuple):
    """The messages of a queue that a group has not read."""

    first: int | None
    """Queue offset of the oldest unread message; the next one to come if there is none."""
    messages: int | None
    lost: int
    """Messages below the minimum that the group did not read and never can."""
    ahead: int
    """How far the committed offset lies beyond the maximum."""
    reason: Reason | None = None
    """Why ``first`` and ``messages`` are None."""


def unread(snapshot: QueuePositions) -> Unread:
    """Return the unread messages of a snapshot.

    A committed offset beyond the maximum is a state of its own and not a lag of 0: the next
    messages of that queue would not be read.
    """
    committed, first, end, next_offset = snapshot
    if committed is None:
        return Unread(None, None, 0, 0, Reason.NEVER_COMMITTED)
    if committed > end:
        stored = committed <= next_offset
        reason = Reason.NOT_DISPATCHED if stored else Reason.AHEAD
        return Unread(None, None, 0, committed - end, reason)
    effective = min(max(committed, first), end)
    return Unread(effective, end - effective, max(0, first - committed), 0)


def age(
    messages: int, head_store_ms: int | None, now_ms: int
) -> tuple[float | None, Reason | None]:
    """Return the seconds since the oldest unread message was stored; 0.0 if there is none.

    messages: number of unread messages. head_store_ms: store time of the oldest; None if it could
    not be read.
    """
    if messages == 0:
        return 0.0, None
    if head_store_ms is None:
        return None, Reason.UNREADABLE
    if head_store_ms > now_ms:
        return None, Reason.CLOCK_BEHIND
    return (now_ms - head_store_ms) / 1000, None


def record_bytes(units: memoryview) -> int:
    """Return the sum of the record sizes of whole units.

    units: consume queue units of one file, without fillers; an incomplete unit at the end is
    ignored. It takes 0.04 µs per unit, a third of a loop over single units.
    """
    whole = units[: len(units) // UNIT_SIZE * UNIT_SIZE]
    sizes = array("i", whole.cast("B").cast("i")[_SIZE_AT::_WORDS].tobytes())
    if byteorder == "little":
        sizes.byteswap()
    return sum(sizes)


def batch_record_bytes(units: memoryview, end: int) -> tuple[int, int]:
    """Return the sum of the record sizes of batches, and the queue offset after the last of them.

    units: of a batch queue. end: batches that begin at or after this queue offset do not count.
    """
    found = after = 0
    for at in range(0, len(units) // BATCH_UNIT_SIZE * BATCH_UNIT_SIZE, BATCH_UNIT_SIZE):
        first, next_first = batch_range(units, at)
        if first >= end:
            break
        found += Unit._make(UNIT.unpack_from(units, at)).size
        after = next_first
    return found, after


class Lag(NamedTuple):
    """How far a group is behind, in one queue or in several."""

    messages: int | None
    bytes: int | None
    seconds: float | None
    lost: int = 0
    ahead: int = 0
    in_flight: int | None = None
    """Messages handed out to members and not committed."""
    expiring: int | None = None
    """Unread messages that the next deletion of a log file would remove."""
    reasons: Mapping[str, Reason] = {}
    """A reason for each field that is None."""

    def with_in_flight(self, handed_out: int) -> Lag:
        """Return this lag with the messages in flight, which are at most the unread ones.

        handed_out: messages from the committed offset to the next one that members will get.
        """
        if self.messages is None:
            return self
        return self._replace(in_flight=min(max(0, handed_out - self.lost), self.messages))

    def as_dict(self) -> dict[str, object]:
        """Return the fields as the API shows them."""
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "lost": self.lost,
            "ahead": self.ahead,
            "in_flight": self.in_flight,
            "expiring_messages": self.expiring,
            "reasons": {name: str(reason) for name, reason in self.reasons.items()},
        }


def nothing_known(reason: Reason, *, lost: int = 0, ahead: int = 0) -> Lag:
    """Return a lag without numbers, and with a reason for each of them."""
    names = ("messages", "bytes", "seconds", "in_flight", "expiring_messages")
    return Lag(None, None, None, lost, ahead, reasons=dict.fromkeys(names, reason))


def lag_of(found: Unread, head_store_ms: int | None, now_ms: int) -> Lag:
    """Return the lag of one queue; bytes, messages in flight and expiring messages are left out.

    head_store_ms: store time of the oldest unread message; None if it could not be read, or if
    there is none. now_ms: wall clock.
    """
    if found.messages is None:
        reason = found.reason or Reason.NEVER_COMMITTED
        return nothing_known(reason, lost=found.lost, ahead=found.ahead)
    seconds, why = age(found.messages, head_store_ms, now_ms)
    reasons = {} if why is None else {"seconds": why}
    return Lag(found.messages, None, seconds, found.lost, reasons=reasons)


class Total(NamedTuple):
    """Lag of several queues together."""

    lag: Lag
    queues: int
    unknown_queues: int
    """Queues whose messages are unknown: they are in no sum."""
    lagging_queues: int
    """Queues whose oldest unread message is older than the group's objective."""

    def as_dict(self) -> dict[str, object]:
        """Return the fields as the API shows them."""
        return {
            **self.lag.as_dict(),
            "queues": self.queues,
            "unknown_queues": self.unknown_queues,
            "lagging_queues": self.lagging_queues,
        }


def total(lags: Iterable[Lag], objective_s: float, *, otherwise: Reason) -> Total:
    """Add up the queues whose messages are known; of seconds, take the largest.

    A queue whose messages are unknown is counted and not added. A field that is unknown for one of
    the added queues is unknown for the sum too, because a partial sum would be mistaken for the
    whole. otherwise: the reason if there are no queues. objective_s: see ``Total.lagging_queues``.
    """
    each = list(lags)
    known = [lag for lag in each if lag.messages is not None]
    reasons: dict[str, Reason] = {}

    def values_of(name: str, values: list[T | None]) -> list[T]:
        missing = [lag.reasons[name] for lag in known or each if name in lag.reasons]
        if missing or not known:
            reasons[name] = Counter(missing or [otherwise]).most_common(1)[0][0]
            return []
        return [value for value in values if value is not None]

    together = Lag(
        sum_of(values_of("messages", [lag.messages for lag in known])),
        sum_of(values_of("bytes", [lag.bytes for lag in known])),
        max(values_of("seconds", [lag.seconds for lag in known]), default=None),
        sum(lag.lost for lag in each),
        sum(lag.ahead for lag in each),
        sum_of(values_of("in_flight", [lag.in_flight for lag in known])),
        sum_of(values_of("expiring_messages", [lag.expiring for lag in known])),
        reasons,
    )
    return Total(
        together,
        len(each),
        len(each) - len(known),
        sum(lag.seconds is not None and lag.seconds > objective_s for lag in each),
    )


def sum_of(values: Sequence[int]) -> int | None:
    """Return the sum; None if there is nothing to add."""
    return sum(values) if values else None
