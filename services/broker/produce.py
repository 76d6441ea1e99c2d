"""A send from a checked request to an answer that tells the truth about where its messages are.

Picks the queue, makes runs of the request, appends them in one step, and waits for the level the
sender asked for. What cannot be promised is refused before anything is appended; what was appended
and not confirmed in time is answered as an error that says so. Nothing is done per message unless
the messages name different queues. Before: ``messages`` (walk step 2). After: ``append``, then
``flusher`` (steps 3 to 6), then the answer (step 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from services.broker import queue_choice
from services.broker.append import FILE_TRIES, Append, Appended
from services.broker.committer import Committer
from services.broker.delay import placing
from services.broker.delay.placing import Wait
from services.broker.flusher import Flusher
from services.broker.messages import AckLevel, Pick, ProduceRequest
from services.broker.metrics import BrokerMetrics
from services.broker.repeats import Part, Repeats
from services.broker.replication.group_sends import GroupSends
from services.broker.replication.promises import Promise
from services.broker.send_counts import SendCounts
from services.broker.sent import COPIES, Sent
from services.broker.sent_before import (
    Indexed,
    Place,
    SentAgain,
    SentBefore,
    unique_ids_of,
    without,
)
from services.broker.topics import Topics
from shared.runtime.give_way import GiveWay
from tidemark.clock import Clock
from tidemark.errors import (
    AckTimeout,
    FileNotReady,
    FlushFailed,
    LogFileReplaced,
    NodeAlone,
    NotServing,
    StoreError,
    WriteFailed,
)
from tidemark.formats.delay import TIMER_TOPIC
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.hosts import Host
from tidemark.formats.runs import Run
from tidemark.formats.send_back import RECORD_ROOM
from tidemark.offsets import PhysicalOffset

T = TypeVar("T")
Told = Callable[[str, Sent, int, int], None]
"""Takes topic, what was appended, and its first and last physical offset [bytes]."""


def _rest(request: ProduceRequest, present: frozenset[int]) -> ProduceRequest:
    """What of a repeated request is not stored yet."""

    def left(values: list[T]) -> list[T]:
        return [value for number, value in enumerate(values) if number not in present]

    picks, delays = request.picks, request.delays
    delays = None if delays is None else left(delays)
    return request._replace(
        entries=without(request.entries, present),
        message_count=request.message_count - len(present),
        picks=left(picks) if isinstance(picks, list) else picks,
        delays=delays if delays is not None and any(delays) else None,
        retry=False,
    )


def _stored_in(topic: str, request: ProduceRequest) -> list[str]:
    """The topics in which messages of a request may be."""
    return [topic] if request.delays is None else [topic, SCHEDULE_TOPIC, TIMER_TOPIC]


class _Old(NamedTuple):
    """What of a request is in the log already."""

    unique_ids: list[str | None]
    """Of each message."""
    places: list[Place | None]
    """Of each message; None: it is not there."""
    waits: Sequence[Wait | None]
    """What each waits for; empty: none waits."""

    @property
    def present(self) -> frozenset[int]:
        """Which messages are there."""
        return frozenset(n for n, place in enumerate(self.places) if place is not None)


class Sends:
    """Stores what senders send."""

    def __init__(
        self,
        append: Append,
        flusher: Flusher,
        topics: Topics,
        clock: Clock,
        metrics: BrokerMetrics,
        store_host: Host,
        committer: Committer | None = None,
        delay_levels_ms: Sequence[int] = (),
        group: GroupSends | None = None,
        before: SentBefore | None = None,
    ) -> None:
        """committer: of a pooled log; without one, what is appended is in the file at once.
        delay_levels_ms: [0] is the delay of level 1. group: of a master; None: the node is alone.
        before: knows what repeated sends have stored already; None: nobody does.
        """
        self._before = before
        self._repeats = Repeats()
        self._append = append
        self._flusher = flusher
        self._committer = committer
        self._topics = topics
        self._clock = clock
        self._store_host = store_host
        self._delay_levels_ms = delay_levels_ms
        self._group = group
        self._turns: dict[str, int] = {}
        self._counts = SendCounts(metrics)

    @property
    def repeat_count(self) -> int:
        """Repeated requests that have appended something; for ``send``."""
        return self._repeats.count

    async def send(
        self,
        topic: str,
        request: ProduceRequest,
        born_host: Host,
        appended: Told | None = None,
        since: int | None = None,
        way: GiveWay | None = None,
    ) -> Sent | SentAgain:
        """Store all messages of the request or none; wait for its level.

        Of one that is repeated those that are not stored yet. appended: is told when messages are
        in the log, before their level is reached. since: ``repeat_count`` as it was when the
        request began to arrive; None: it came in one piece. way: the rests of the search for what
        a repeated request has stored; None: turns only. Raises NotEnoughReplicas and
        DelayOutOfRange before anything is stored, AckTimeout after everything is, also if the node
        stops before the level is reached.
        """
        started = self._clock.monotonic()
        if request.retry and self._before is not None:
            return await self._send_missing(topic, request, born_host, appended, started, way=way)
        if since is not None and since != self._repeats.count:
            return await self._send_missing(topic, request, born_host, appended, started, since)
        return await self._send(topic, request, born_host, appended, started)

    async def _send(
        self,
        topic: str,
        request: ProduceRequest,
        born_host: Host,
        told: Told | None,
        started: float,
        queue_count: int | None = None,
    ) -> Sent | SentAgain:
        """queue_count: of the topic, from who has just looked for the messages: nothing is awaited
        before the append then, and FileNotReady is raised."""
        entries, message_count, picks, asked, timeout_ms, delays, _ = request
        group = self._group
        level, promised = self._admit(asked)
        seen = None
        if queue_count is None:
            seen = self._repeats.count
            queue_count = (await self._topics.for_sending(topic)).queues
            if self._repeats.count != seen:  # it waited for the topic to be made
                return await self._send_missing(topic, request, born_host, told, started, seen)
        born_ms = self._clock.wall_ms()
        common = (born_host, self._store_host, born_ms)
        positions = waits = None
        if delays is not None:
            placed = self._place(topic, queue_count, request, born_ms)
            positions, waits = placed.positions, placed.waits
            runs = [
                Run(share.topic, share.queue, share.entries, share.message_count, *common)
                for share in placed.shares
            ]
        elif isinstance(picks, list):
            shares, positions = self._cut(topic, queue_count, entries, picks)
            runs = [Run(topic, queue, part, count, *common) for queue, part, count in shares]
        else:
            if picks is None:
                picks = self._turn(topic, queue_count)
            elif picks >= queue_count:
                raise queue_choice.unknown_queue(topic, picks, queue_count)
            runs = [Run(topic, picks, entries, message_count, *common)]
        try:
            appended = self._append.append_now(runs, room=RECORD_ROOM)
        except FileNotReady:
            if seen is None:
                raise
            return await self._send_missing(topic, request, born_host, told, started, seen)
        except WriteFailed as fault:
            if not isinstance(fault.appended, Appended):
                raise  # nothing of this request was written
            sent = Sent(level, entries, runs, fault.appended, positions, waits)
            raise _outcome_unknown(fault, sent.results()) from fault
        self._counts.accepted(topic, request, appended, waits)
        sent = Sent(level, entries, runs, appended, positions, waits)
        if told is not None:
            told(topic, sent, appended.start, appended.end)
        deadline = started + timeout_ms / 1000
        try:
            if group is not None and promised is not None and promised.by_the_group:
                in_time = await group.confirmed(appended.end, deadline)
            elif level is AckLevel.DISK:
                in_time = await self._flusher.durable(appended.end, deadline)
            else:
                in_time = self._committer is None or await self._committer.committed(appended.end)
        except NotServing as stopping:
            raise self._stopped(sent, appended.end) from stopping
        except (WriteFailed, FlushFailed, LogFileReplaced) as fault:
            raise _outcome_unknown(fault, sent.results()) from fault
        if not in_time:
            raise await self._out_of_time(timeout_ms, sent, appended)
        if group is not None and promised is not None:
            # From here to the answer's last byte nothing is awaited that could take another turn of
            # the loop: what is true now is true when it leaves.
            self._say_reached(group, promised, sent, appended)
        self._counts.answered(sent.level, self._clock.monotonic() - started)
        return sent

    async def _send_missing(
        self,
        topic: str,
        request: ProduceRequest,
        born_host: Host,
        told: Told | None,
        started: float,
        since: int | None = None,
        way: GiveWay | None = None,
    ) -> Sent | SentAgain:
        """Append what is missing; answer when all of it has reached the level.

        since: of a first try that has to wait: the count of repeats when it came; only what they
        have appended since is looked through. None: it is a repeat. A wait never lies between the
        look and the append; the index, which says nothing of what is appended meanwhile, is asked
        before. Otherwise: 1. a send waits for the next log file; 2. its client gives up and sends
        it again; 3. the repeat finds nothing, and waits as well; 4. the file is there, and both
        append.
        """
        if since is None:
            told = self._noting(request, told)
        unique_ids, topics = unique_ids_of(request.entries), _stored_in(topic, request)
        indexed = None
        if self._before is not None and since is None:
            self._admit(request.ack)
            wanted = filter(None, unique_ids)
            indexed = await self._before.find_indexed(topics, wanted, way or GiveWay())
        for tries_left in range(FILE_TRIES, 0, -1):
            level, promised = self._admit(request.ack)
            queue_count = (await self._topics.for_sending(topic)).queues
            old = self._look(topic, request, queue_count, since, indexed)
            present, sent = old.present, None
            if len(present) < len(old.places):
                rest = _rest(request, present) if present else request
                try:
                    sent = await self._send(topic, rest, born_host, told, started, queue_count)
                except FileNotReady:
                    if tries_left == 1:
                        raise
                    await self._append.file_made()
                    continue
                except (WriteFailed, FlushFailed, LogFileReplaced) as fault:
                    results = fault.facts.get("results")
                    if not present or results is None:
                        raise
                    merged = self._merged(old, results)
                    for place, result in zip(old.places, merged, strict=True):
                        if place is not None:
                            result["outcome"] = "stored"
                    raise _same_with(fault, merged) from fault
                if not present:
                    return sent
            answered = self._answer(old, level, sent)
            end = PhysicalOffset(max(place.end for place in old.places if place is not None))
            deadline = started + request.timeout_ms / 1000
            await self._wait_for_old(answered, end, deadline, request, promised)
            return answered
        raise AssertionError("the loop returns or raises")

    def _noting(self, request: ProduceRequest, told: Told | None) -> Told:
        """Who notes what a repeat appends, and tells it on."""

        def note(topic: str, sent: Sent, start: int, end: int) -> None:
            part = Part(PhysicalOffset(start), PhysicalOffset(end))
            self._repeats.note(topic, filter(None, unique_ids_of(request.entries)), part)
            if told is not None:
                told(topic, sent, start, end)

        return note

    def _look(
        self,
        topic: str,
        request: ProduceRequest,
        queue_count: int,
        since: int | None,
        indexed: Indexed | None,
    ) -> _Old:
        """What of the request is stored. since: see ``_send_missing``. indexed: what the index says
        of a repeat."""
        before, unique_ids = self._before, unique_ids_of(request.entries)
        wanted = [unique_id for unique_id in unique_ids if unique_id is not None]
        topics = _stored_in(topic, request)
        found: dict[str, Place] = {}
        if before is not None:
            if indexed is not None:
                found = before.find(indexed, topics, wanted)
            elif since is not None and wanted:
                parts = self._repeats.since(since, topic, wanted)
                found = before.find_in(parts, topics, wanted) if parts else {}
        waits: Sequence[Wait | None] = ()
        if found and request.delays is not None:
            waits = self._place(topic, queue_count, request, self._clock.wall_ms()).waits
        places = [None if each is None else found.get(each) for each in unique_ids]
        return _Old(unique_ids, places, waits)

    def _answer(self, old: _Old, level: AckLevel, sent: Sent | SentAgain | None) -> SentAgain:
        """Old places and new ones. sent: the rest of the request; None: all of it was there."""
        return SentAgain(
            level if sent is None else sent.level,
            COPIES if sent is None else sent.copies,
            self._merged(old, () if sent is None else sent.results()),
        )

    def _merged(self, old: _Old, rest: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Results of what is there already and, in between, those of the rest of the request."""
        fresh = iter(rest)
        return [
            next(fresh)
            if place is None
            else place.result(
                old.unique_ids[n], self._store_host, old.waits[n] if old.waits else None
            )
            for n, place in enumerate(old.places)
        ]

    async def _wait_for_old(
        self,
        answered: SentAgain,
        end: PhysicalOffset,
        deadline: float,
        request: ProduceRequest,
        promised: Promise | None,
    ) -> None:
        """Messages that were in the log already, up to end, have to reach the level, too."""
        group = self._group
        in_time = True
        try:
            if group is not None and promised is not None and promised.by_the_group:
                in_time = await group.confirmed(end, deadline)
            elif answered.level is AckLevel.DISK:
                in_time = await self._flusher.durable(end, deadline)
        except NotServing as stopping:
            raise self._stopped(answered, end) from stopping
        said = None if group is None or promised is None else group.reached(promised)
        if not in_time or (group is not None and said is None):
            why = f"{answered.level.value} was not within {request.timeout_ms} ms"
            raise self._not_reached(why, answered, end, timeout_ms=request.timeout_ms)
        if said is not None:
            answered.level, answered.copies = said

    def _admit(self, asked: AckLevel | None) -> tuple[AckLevel, Promise | None]:
        """The level that a send waits for; of a group what it promises. Raises NodeAlone,
        NotEnoughReplicas."""
        if self._group is not None:
            promised = self._group.admit(asked)
            return promised.level, promised
        if asked is AckLevel.REPLICATED:
            raise NodeAlone(
                "ack=replicated needs a second copy, and this node is alone. Nothing was stored.",
                "Ask for ack=disk, or run a group with slaves.",
            )
        return AckLevel.DISK if asked is None else asked, None

    def _say_reached(
        self, group: GroupSends, promised: Promise, sent: Sent, appended: Appended
    ) -> None:
        """Write into the answer what is true now. Raises AckTimeout if that is no success."""
        said = group.reached(promised)
        if said is None:
            raise self._not_reached(
                f"level {promised.level.value} was not reached before the group or this node's "
                "part in it changed",
                sent,
                appended.end,
            )
        sent.level, sent.copies = said

    def _turn(self, topic: str, queue_count: int) -> int:
        """The queue whose turn it is among those of the topic."""
        queue = self._turns.get(topic, 0) % queue_count
        self._turns[topic] = queue + 1
        return queue

    def _cut(
        self, topic: str, queue_count: int, entries: bytes, picks: list[Pick]
    ) -> queue_choice.Shares:
        turn = self._turn(topic, queue_count) if None in picks else 0
        return queue_choice.cut(entries, queue_choice.choose(topic, queue_count, picks, turn))

    def _place(
        self, topic: str, queue_count: int, request: ProduceRequest, now_ms: int
    ) -> placing.Placed:
        """Where messages go of which some wait."""
        picks, delays = request.picks, request.delays
        assert delays is not None
        each = picks if isinstance(picks, list) else [picks] * request.message_count
        turn = self._turn(topic, queue_count) if None in each else 0
        queues = queue_choice.choose(topic, queue_count, each, turn)
        return placing.place(
            topic, request.entries, queues, delays, levels_ms=self._delay_levels_ms, now_ms=now_ms
        )

    async def _out_of_time(self, timeout_ms: int, sent: Sent, appended: Appended) -> AckTimeout:
        """What a sender is told whose messages are not durable in time."""
        if self._committer is not None:
            await self._committer.committed(appended.end)  # before level memory is claimed
        why = f"{sent.level.value} was not within {timeout_ms} ms"
        return self._not_reached(why, sent, appended.end, timeout_ms=timeout_ms)

    def _stopped(self, sent: Sent | SentAgain, end: PhysicalOffset) -> AckTimeout:
        """What a sender is told whose messages are appended on a node that ends, or is no master
        any more, before their level is reached. Not that it does not serve: that says nothing was
        stored, and clients send again."""
        if self._group is not None:
            why = f"this node's term ended before level {sent.level.value}"
            return self._not_reached(why, sent, end)
        results = sent.results()
        return AckTimeout(
            f"the node stops: {len(results)} messages are appended, and level {sent.level.value} "
            "was not reached. The outcome is unknown: they may yet be there, or be lost with the "
            "node.",
            "Do not send them again without looking for them; see the results.",
            results=results,
        )

    def _not_reached(
        self, why: str, sent: Sent | SentAgain, end: PhysicalOffset, **facts: int
    ) -> AckTimeout:
        """What a sender is told whose messages are stored, with the level that is sure."""
        results = sent.results()
        on_disk = self._group is not None and self._group.is_on_disk(end)
        level = AckLevel.DISK if on_disk else AckLevel.MEMORY
        return AckTimeout(
            f"{len(results)} messages are stored, level {level.value} is reached, and {why}. The "
            "outcome is unknown: they may yet be durable, or be lost with the node.",
            "Do not send them again without looking for them; see the results.",
            ack={"level": level.value, "copies": COPIES},
            results=results,
            **facts,
        )


def _outcome_unknown(fault: StoreError, results: list[dict[str, Any]]) -> StoreError:
    """The disk's failure, said to one sender: where each message is if it is there."""
    return _same_with(fault, [result | {"outcome": "unknown"} for result in results])


def _same_with(fault: StoreError, results: list[dict[str, Any]]) -> StoreError:
    return type(fault)(fault.detail, fault.advice, **{**fault.facts, "results": results})
