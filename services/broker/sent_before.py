"""A send that is repeated because its outcome was unknown: what of it is in the log already.

The sender chose the unique ids and says that it sends again. What reput has dispatched is looked up
in the index, what lies behind that is walked; only what is in neither is appended, and the answer
tells the old places. It looks back ten minutes: a sender that repeats later than that gets a
duplicate, as does one on a node without an index. While an index is made again, only what lies
behind what is dispatched can be told; a repeat of anything else has to wait. A first try that waits
itself may be overtaken by its repeat: what repeats have appended lately is noted for it. Before:
``produce`` has a repeated request, or one that waited. After: it appends the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

import msgpack

from services.broker.delay.placing import Wait
from services.broker.messages import AckLevel
from services.broker.repeats import Part
from shared.files.commit_log import CommitLogReader
from tidemark.clock import Clock
from tidemark.errors import DispatchBehind
from tidemark.formats import batch, delay, ids, properties, twins
from tidemark.formats.delay import TIMER_TOPIC
from tidemark.formats.hosts import Host
from tidemark.formats.record import Checks, Record
from tidemark.offsets import PhysicalOffset

LOOK_BACK_MS: Final = 600_000
TAIL_MAX: Final = 64 << 20
"""Bytes that are not dispatched yet and are walked; more is a matter of waiting for reput."""
WALKED_AT_ONCE: Final = 16_384
_UNIQUE_ID: Final = properties.UNIQ_KEY.encode("ascii")


class Index(Protocol):
    """Where records are looked up by their unique ids (``shared.files.index``)."""

    def records(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int,
        hits_max: int,
        dispatched: int,
        unique_id_only: bool,
    ) -> list[Record]:
        """Records of topic that are called key, in the order of the log."""
        ...


class Place(NamedTuple):
    """Where a message is."""

    topic: str
    queue: int
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp_ms: int
    due_ms: int | None = None
    """Until when it waits, as its record says; None if the record does not wait for a time."""

    @property
    def end(self) -> int:
        """Behind its record."""
        return self.physical_offset + self.size

    def result(self, unique_id: str | None, host: Host, wait: Wait | None = None) -> dict[str, Any]:
        """As a send's answer shows it. wait: what the repeated send would wait for.

        A message that waits for a time waits for the one in its record: the time of a repeat with
        ``delay_ms`` is later than that of the first try.
        """
        due_ms = self.due_ms
        if due_ms is None and wait is not None and wait.topic == self.topic:
            due_ms = wait.due_ms(self.store_timestamp_ms)
        more = {} if due_ms is None else {"topic": self.topic, "deliver_at_ms": due_ms}
        return {
            "message_id": ids.offset_id(host, PhysicalOffset(self.physical_offset)),
            "unique_id": unique_id,
            "queue": self.queue,
            "queue_offset": self.queue_offset,
            "physical_offset": self.physical_offset,
            "store_timestamp_ms": self.store_timestamp_ms,
            **more,
        }


class SentAgain:
    """The answer to a repeated send: old places and new ones, in the request's order."""

    def __init__(self, level: AckLevel, copies: int, results: list[dict[str, Any]]) -> None:
        self.level = level
        self.copies = copies
        self._results = results

    def packed(self) -> bytes:
        """The body of the answer in msgpack."""
        return cast(bytes, msgpack.packb(self.as_dict()))

    def as_dict(self) -> dict[str, Any]:
        """The body of the answer as a value."""
        return {
            "status": "PUT_OK",
            "ack": {"level": self.level.value, "copies": self.copies},
            "results": self._results,
        }

    def results(self) -> list[dict[str, Any]]:
        """Where each message is."""
        return self._results


class SentBefore:
    """Finds messages by their unique ids up to the log's last byte. Belongs to one loop."""

    def __init__(
        self,
        index: Index | None,
        reader: CommitLogReader,
        clock: Clock,
        *,
        dispatched: Callable[[], PhysicalOffset],
        written: Callable[[], PhysicalOffset],
        index_is_whole: Callable[[], bool],
    ) -> None:
        """index: None if the store keeps none. written: end of what can be read of the log, which
        is all that was appended: the first try may be no older than a moment. index_is_whole: False
        while some of the index is made again.
        """
        self._index = index
        self._reader = reader
        self._clock = clock
        self._dispatched = dispatched
        self._written = written
        self._index_is_whole = index_is_whole

    def find(self, topics: Sequence[str], unique_ids: Iterable[str]) -> dict[str, Place]:
        """Where messages of these topics with these ids are; those that are nowhere left out.

        Of several with one id the first. Raises DispatchBehind, CorruptRecord, DamagedFile.
        """
        wanted = set(unique_ids)
        found = self._in_tail(frozenset(topics), wanted)
        if self._index is None:
            return found
        if not self._index_is_whole():
            # 1. A message is stored, dispatched and synced, its answer lost; 2. the node's power
            # fails; 3. reput makes the index again, while all of the log is dispatched already;
            # 4. the message is sent again: it is neither in the tail nor in the index, and stored.
            _check_all(wanted, found)
            return found
        since_ms = self._clock.wall_ms() - LOOK_BACK_MS
        dispatched = self._dispatched()
        for unique_id in wanted:
            for topic in topics:
                stored = self._index.records(
                    topic,
                    unique_id,
                    begin_ms=since_ms,
                    hits_max=1,
                    dispatched=dispatched,
                    unique_id_only=True,
                )
                if stored:
                    found[unique_id] = _place(stored[0])
                    break
        if not self._index_is_whole():  # it was taken away between two look-ups
            _check_all(wanted, found)
        return found

    def find_in(
        self, parts: Sequence[Part], topics: Sequence[str], unique_ids: Iterable[str]
    ) -> dict[str, Place]:
        """As ``find``, in some parts of the log only. Raises CorruptRecord."""
        wanted, found = set(unique_ids), dict[str, Place]()
        self._written()
        for part in parts:
            self._walk(part, frozenset(topics), wanted, found)
        return found

    def _in_tail(self, topics: frozenset[str], wanted: set[str]) -> dict[str, Place]:
        reader, end = self._reader, self._written()
        at = max(self._dispatched(), reader.min_offset)
        if end - at > TAIL_MAX:
            raise DispatchBehind(
                f"{end - at} bytes are not dispatched yet, and a repeated send looks through "
                f"{TAIL_MAX} at most. Nothing was stored.",
                "Try again when reput has caught up.",
                behind=int(end - at),
                limit=TAIL_MAX,
            )
        found: dict[str, Place] = {}
        self._walk(Part(PhysicalOffset(at), end), topics, wanted, found)
        return found

    def _due_ms(self, topic: str, offset: PhysicalOffset, end: PhysicalOffset) -> int | None:
        stored = self._reader.record(offset, end) if topic == TIMER_TOPIC else None
        return None if stored is None else delay.timer_due_ms(stored.properties)

    def _walk(
        self, part: Part, topics: frozenset[str], wanted: set[str], found: dict[str, Place]
    ) -> None:
        """Add to found where the first message of each wanted id is in a part of the log."""
        reader, (at, end) = self._reader, part
        while at < end:
            walked = twins.walk(
                reader.window(at, end),
                at=at,
                checks=Checks(body_crc=False, record_crc=False),
                records_max=WALKED_AT_ONCE,
                delay_levels_ms=(),
            )
            for entry in walked.entries:
                if entry.unique_id in wanted and entry.topic in topics:
                    found.setdefault(
                        entry.unique_id,
                        Place(
                            entry.topic,
                            entry.queue_id,
                            entry.queue_offset,
                            entry.physical_offset,
                            entry.size,
                            entry.store_timestamp_ms,
                            self._due_ms(entry.topic, PhysicalOffset(entry.physical_offset), end),
                        ),
                    )
            if not walked.entries:
                reader.record(PhysicalOffset(at + walked.end), end)  # raises what is wrong
                at = reader.next_file(at)
            else:
                at = PhysicalOffset(at + walked.end)


def _check_all(wanted: Collection[str], found: Collection[str]) -> None:
    """Raise DispatchBehind if some of the wanted ids are not found while the index is not whole."""
    missing_count = len(wanted) - len(found)
    if missing_count:
        raise DispatchBehind(
            "the index is being made again, and until it is whole nobody can tell whether "
            f"{missing_count} messages of a repeated send are stored already. Nothing was stored.",
            "Try again when reput's /ready says that it has caught up.",
            missing=missing_count,
        )


def _place(stored: Record) -> Place:
    return Place(
        stored.topic,
        stored.queue_id,
        stored.queue_offset,
        stored.physical_offset,
        stored.size,
        stored.store_timestamp_ms,
        delay.timer_due_ms(stored.properties) if stored.topic == TIMER_TOPIC else None,
    )


def unique_ids_of(entries: bytes) -> list[str | None]:
    """The unique id of every message of a request; of a repeated one each has one."""
    raws = (
        properties.find(bytes(entry.properties), _UNIQUE_ID) for entry in batch.iterate(entries)
    )
    return [None if raw is None else properties.text(raw) for raw in raws]


def without(entries: bytes, gone: frozenset[int]) -> bytes:
    """The messages of a request but those at these positions."""
    return batch.encode(
        entry for number, entry in enumerate(batch.iterate(entries)) if number not in gone
    )
