"""The simulation's knowledge of the outside world: which messages were acked or shown.

The store under test never sees this. Messages are kept in physical order; a restart may remove a
suffix of them, but only messages that were not reported as durable.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from tidemark.formats import hashing, record
from tidemark.formats.queue_unit import Unit
from tidemark.offsets import Queue


class Violation(AssertionError):
    """A promise was broken. The message says which; the runner adds the seed."""


class Sent(NamedTuple):
    """One record that was appended, and the answer to its sender."""

    topic: str
    queue: int
    queue_offset: int
    start: int
    size: int
    raw: bytes
    """The record's bytes, encoded here."""
    tags: str
    keys: tuple[str, ...]
    """Every key that finds the record: its unique id and the KEYS."""
    message_count: int
    """Number of messages of an inner batch; 0: the record is one message."""
    store_timestamp_ms: int

    @property
    def next_queue_offset(self) -> int:
        """Queue offset after its messages."""
        return self.queue_offset + max(1, self.message_count)

    @property
    def end(self) -> int:
        """Physical offset behind the record."""
        return self.start + self.size

    @property
    def unit(self) -> Unit:
        """The queue unit that dispatch must make of it."""
        return Unit(self.start, self.size, hashing.tags_code(self.tags or None))


class Flying(NamedTuple):
    """One record that was given to the appender and has no answer yet."""

    topic: str
    queue: int
    queue_offset: int
    body: bytes
    tags: str
    keys: tuple[str, ...]
    message_count: int = 0

    def stored(self, start: int, raw: bytes, store_timestamp_ms: int) -> Sent:
        """The record with its place in the log."""
        return Sent(
            *self[:3],
            start,
            len(raw),
            raw,
            self.tags,
            self.keys,
            self.message_count,
            store_timestamp_ms,
        )

    def landed(self, start: int, raw: bytes) -> Sent:
        """The same record, found in the log at a start. Raises Violation if raw is another one."""
        found = record.decode(memoryview(raw))
        expected = (self.topic, self.queue, self.queue_offset, start, self.body)
        if expected != (
            found.topic,
            found.queue_id,
            found.queue_offset,
            found.physical_offset,
            bytes(found.body),
        ):
            raise Violation(f"the record at {start} is not what was being sent")
        return self.stored(start, raw, found.store_timestamp_ms)


class History:
    """All messages that were sent and must still exist, in physical order."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        """Messages with a returned place; above ``written_end`` they may be in memory only."""
        self.in_flight: list[Flying] = []
        """Messages without an answer: after a crash, a prefix of them may exist."""
        self.acked_end = 0
        """Every message that ends at or below was acked at ``disk``, or shown to a consumer."""
        self.written_end = 0
        """Every message that ends at or below survives the death of processes (``memory``)."""
        self.lost_count = 0

    def stored(self, written: int) -> None:
        """Note a published written end: senders below it that asked for no more are answered."""
        self.written_end = max(self.written_end, written)

    def ack(self, flushed: int) -> None:
        """Note a published flushed end: every sender below it has its answer."""
        self.acked_end = max(self.acked_end, flushed)

    def power_cut(self) -> None:
        """Note a power cut: only messages acked at ``disk``, or shown, must exist."""
        self.written_end = self.acked_end

    def queues(self) -> dict[Queue, list[Sent]]:
        """Records of each queue, in order."""
        found: dict[Queue, list[Sent]] = defaultdict(list)
        for sent in self.sent:
            found[sent.topic, sent.queue].append(sent)
        return dict(found)

    def next_queue_offsets(self) -> dict[Queue, int]:
        """The queue offsets from which a restarted broker must go on."""
        return {queue: sent[-1].next_queue_offset for queue, sent in self.queues().items()}

    def keys(self) -> dict[tuple[str, str], list[int]]:
        """(topic, key) → physical offsets of the messages that it must find, ascending."""
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for sent in self.sent:
            for key in dict.fromkeys(sent.keys):
                found[sent.topic, key].append(sent.start)
        return dict(found)

    def restarted(self, end: int, found: list[tuple[int, bytes]]) -> None:
        """Compare the log after a restart with the sent messages; remove lost ones that may be
        lost.

        end: where the restarted log ends; everything below it is durable from now on.
        found: (physical offset, bytes) of every record below end, by an independent walk.
        """
        if end < self.acked_end:
            raise Violation(f"log ends at {end}, but everything below {self.acked_end} was acked")
        if end < self.written_end:
            raise Violation(f"log ends at {end}, but no power cut took {self.written_end} away")
        known, others = found[: len(self.sent)], found[len(self.sent) :]
        for (start, raw), sent in zip(known, self.sent, strict=False):
            if start != sent.start or raw != sent.raw:
                raise Violation(f"the record at {start} is not the one sent to {sent.start}")
        for sent in self.sent[len(known) :]:
            if sent.end <= self.acked_end:
                raise Violation(f"the acked record at {sent.start} is gone")
        if len(others) > len(self.in_flight):
            raise Violation(f"{len(others)} records that were never sent, from {others[0][0]}")
        self.lost_count += len(self.sent) - len(known)
        del self.sent[len(known) :]
        for (start, raw), flying in zip(others, self.in_flight, strict=False):
            self.sent.append(flying.landed(start, raw))
        self.in_flight = []
        self.acked_end = self.written_end = end
