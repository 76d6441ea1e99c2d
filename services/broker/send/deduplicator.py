"""Prevents a repeated send from being stored twice: the step before the append.

Every send passes through this module. A first attempt goes directly to ``sender``. If a client
repeats a send because it does not know the outcome, the messages are looked up in the log. Messages
found there are answered with their location, and only the others are appended. A first attempt that
had to wait may have been overtaken by its own repeat; it is compared with the messages that repeats
appended since it arrived. ``send`` comes before this step; ``stored_ids`` does the search, and
``sender`` appends after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from services.broker.log.append import FILE_TRIES
from services.broker.send.batches import batch_id
from services.broker.send.placing import Wait
from services.broker.send.repeats import Part, Repeats
from services.broker.send.request import ProduceRequest
from services.broker.send.send_result import SendResult
from services.broker.send.sender import (
    AppendedSend,
    OnAppended,
    Outcome,
    PendingSend,
    Sender,
    with_results,
)
from services.broker.send.stored_ids import Indexed, Place, StoredIds, unique_ids_of, without
from shared.runtime.pauses import Pauses
from shared.state.values import TopicConfig
from tidemark.errors import FileNotReady, WriteFailed
from tidemark.formats.batch_parts import Part as BatchPart
from tidemark.formats.delay import TIMER_TOPIC
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.hosts import Host
from tidemark.offsets import PhysicalOffset

T = TypeVar("T")


class _Found(NamedTuple):
    """The messages of a request that are in the log already."""

    unique_ids: list[str | None]
    """The unique id of each message; of a batch request, only that of the batch."""
    places: list[Place | None]
    """The location of each message in the log; None: it is not stored."""
    waits: Sequence[Wait | None]
    """The delay of each message; empty: no message is delayed."""

    @property
    def present(self) -> frozenset[int]:
        """Indexes in the request of the messages that are stored."""
        return frozenset(n for n, place in enumerate(self.places) if place is not None)

    def merged(self, rest: Iterable[dict[str, Any]], host: Host) -> list[dict[str, Any]]:
        """Combine the results of stored messages with those of the rest, in the request's order."""
        fresh = iter(rest)
        return [
            next(fresh)
            if place is None
            else place.result(self.unique_ids[n], host, self.waits[n] if self.waits else None)
            for n, place in enumerate(self.places)
        ]


class RepeatCount(NamedTuple):
    """How many repeats had appended something when a request began to arrive."""

    deduplicator: Deduplicator | None
    """The one that counted; None: sends were refused then."""
    repeats: int

    def since(self, now: Deduplicator) -> int:
        """Return the count as ``Deduplicator.send`` takes it.

        After a change of role there is another deduplicator: all of its repeats came later."""
        return self.repeats if self.deduplicator is now else 0


class Deduplicator:
    """Stores each message once, however often its client repeats it. Belongs to one loop."""

    def __init__(self, sender: Sender, stored: StoredIds | None = None) -> None:
        """stored: finds messages by unique id; None: repeats are stored again."""
        self._sender = sender
        self._stored = stored
        self._repeats = Repeats()
        self.is_batch: Final = sender.is_batch
        """Returns whether a topic exists and has batch queues."""

    def append_now(self, send: PendingSend) -> AppendedSend | None:
        """Append a first attempt that was not overtaken by its repeat, as ``Sender.append_now``."""
        return self._sender.append_now(send)

    def append_all(self, sends: Sequence[PendingSend | Exception | None]) -> list[Outcome]:
        """Append several first attempts, none of which was overtaken by its repeat, as
        ``Sender.append_all``."""
        return self._sender.append_all(sends)

    def batch_properties(self, part: BatchPart) -> bytes:
        """Return the properties of a batch; it gets an id if its first message has none."""
        return self._sender.batches.properties_of(part)

    @property
    def repeat_count(self) -> int:
        """Number of repeated requests that appended something; pass it to ``send`` as since."""
        return self._repeats.count

    async def send(
        self,
        topic: str,
        request: ProduceRequest,
        born_host: Host,
        on_appended: OnAppended | None = None,
        since: int | None = None,
        pauses: Pauses | None = None,
    ) -> SendResult:
        """Store the messages of the request that are not stored yet; wait for its level.

        since: ``repeat_count`` when the request began to arrive; None: it arrived in one piece.
        pauses: the pauses between slices of the search; None: only yield to the loop. Raises what
        ``Sender.send`` raises, and DispatchBehind, Overloaded or CorruptRecord from the search.
        """
        sender, count = self._sender, self._repeats.count
        send = PendingSend(topic, request, born_host, on_appended, sender.clock.monotonic())
        if request.retry and self._stored is not None:
            return await self._send_again(send, pauses)
        if since is None or since == count:
            appended = sender.append_now(send)
            if appended is not None:
                await sender.reach(appended, sender.wait(appended))
                return appended.result
            since = count
        return await self._send_rest(send, since)

    async def _send_again(self, send: PendingSend, pauses: Pauses | None) -> SendResult:
        """Store the missing messages of a repeated request, and record the appended range."""
        request, on_appended = send.request, send.on_appended
        wanted = [each for each in _ids_of(request) if each is not None]

        def note(topic: str, result: SendResult, start: int, end: int) -> None:
            part = Part(PhysicalOffset(start), PhysicalOffset(end))
            self._repeats.note(topic, wanted, part)
            if on_appended is not None:
                on_appended(topic, result, start, end)

        assert self._stored is not None
        self._sender.admit(request.ack)
        topics = _stored_in(send.topic, request)
        indexed = await self._stored.find_indexed(topics, wanted, pauses or Pauses())
        return await self._send_rest(replace(send, on_appended=note), indexed)

    async def _send_rest(self, send: PendingSend, known: int | Indexed) -> SendResult:
        """Append the missing messages; return when the whole request has reached the level.

        known: for a repeat, the result of the index search; for a first attempt that had to wait,
        the count of repeats when it arrived, so that only later repeats are searched. There is no
        wait between the final search and the append. The index search comes earlier, because it
        covers only dispatched messages. Otherwise: 1. a send waits for the next log file; 2. its
        client gives up and repeats it; 3. the repeat finds nothing and waits as well; 4. the file
        is created, and both append.
        """
        sender = self._sender
        for tries_left in range(FILE_TRIES, 0, -1):
            admitted = sender.admit(send.request.ack)
            topic = await sender.topic(send)
            found = self._find(send, topic.queues, known)
            try:
                if found.present:
                    return await self._complete(send, topic, found)
                return await sender.send(send, topic, admitted)
            except FileNotReady:
                if tries_left == 1:
                    raise
            await sender.file_made()
        raise AssertionError("the loop returns or raises")

    async def _complete(self, send: PendingSend, topic: TopicConfig, found: _Found) -> SendResult:
        """Append the messages that were not found; wait until all messages have reached the ack
        level.

        The results, including those in an error, cover all messages of the request.
        """
        sender, present = self._sender, found.present
        admitted = sender.admit(send.request.ack)
        end = PhysicalOffset(max(place.end for place in found.places if place is not None))
        fresh: list[dict[str, Any]] = []
        if len(present) < len(found.places):
            rest = replace(send, request=_rest(send.request, present))
            try:
                appended = sender.append(rest, topic, admitted)
            except WriteFailed as fault:
                results = fault.facts.get("results")
                if results is None:
                    raise
                merged = found.merged(results, sender.store_host)
                for place, each in zip(found.places, merged, strict=True):
                    if place is not None:
                        each["outcome"] = "stored"
                raise with_results(fault, merged) from fault
            fresh, end = appended.result.results(), appended.end
        is_batch = bool(send.request.batch_properties)
        results = found.merged(fresh, sender.store_host)
        if is_batch and (place := found.places[0]) is not None:
            results[0]["message_count"] = place.message_count
        result = SendResult.of_places(admitted.level, results, is_batch=is_batch)
        whole = AppendedSend(sender, send, result, end, admitted)
        await sender.reach(whole, sender.wait(whole))
        return result

    def _find(self, send: PendingSend, queue_count: int, known: int | Indexed) -> _Found:
        """Find the messages of the request that are stored. known: as in ``_send_rest``."""
        topic, request = send.topic, send.request
        unique_ids = _ids_of(request)
        wanted = [unique_id for unique_id in unique_ids if unique_id is not None]
        topics = _stored_in(topic, request)
        places: dict[str, Place] = {}
        if self._stored is not None:
            if isinstance(known, Indexed):
                places = self._stored.find(known, topics, wanted)
            elif wanted:
                parts = self._repeats.since(known, topic, wanted)
                places = self._stored.find_in(parts, topics, wanted) if parts else {}
        waits: Sequence[Wait | None] = ()
        if places and request.delays is not None:
            now_ms = self._sender.clock.wall_ms()
            waits = self._sender.place(topic, queue_count, request, now_ms).waits
        return _Found(
            unique_ids, [None if each is None else places.get(each) for each in unique_ids], waits
        )


def _ids_of(request: ProduceRequest) -> list[str | None]:
    """Return the unique id of each message; of a batch request, that of the batch."""
    if request.batch_properties:
        return [batch_id(request.batch_properties)]
    return unique_ids_of(request.entries)


def _rest(request: ProduceRequest, present: frozenset[int]) -> ProduceRequest:
    """Return the request reduced to the messages that are not stored yet."""

    def left(values: list[T]) -> list[T]:
        return [value for number, value in enumerate(values) if number not in present]

    picks, delays = request.picks, request.delays
    delays = None if delays is None else left(delays)
    return replace(
        request,
        entries=without(request.entries, present),
        message_count=request.message_count - len(present),
        picks=left(picks) if isinstance(picks, list) else picks,
        delays=delays if delays is not None and any(delays) else None,
        retry=False,
    )


def _stored_in(topic: str, request: ProduceRequest) -> list[str]:
    """Return the topics in which the messages of a request may be stored."""
    return [topic] if request.delays is None else [topic, SCHEDULE_TOPIC, TIMER_TOPIC]
