"""Appends the messages of a checked request and waits for the requested acknowledgement level.

The sender picks the queue, splits the request into runs, appends them in one step, and waits. A
level that cannot be reached is refused before anything is appended. If appended messages are not
confirmed in time, the answer is an error that says so. There is no work per message unless the
messages name different queues. Before this step ``send`` checks the request, and
``deduplicator`` passes it on (write path, steps 2 and 3). After it come ``append`` and ``flusher``
(steps 4 and 5) and the answer (step 6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from services.broker.log.ack_levels import AckLevel, Admitted, not_reached
from services.broker.log.append import Append, Appended
from services.broker.log.log_context import LogContext
from services.broker.send import placing, queue_choice
from services.broker.send.batches import Batches
from services.broker.send.placing import Wait
from services.broker.send.request import Pick, ProduceRequest
from services.broker.send.send_result import SendResult
from services.broker.state.topics import Topics
from services.broker.traffic_metrics import TrafficMetrics
from shared.metrics.family import SIZE_BUCKETS
from shared.state.values import TopicConfig
from tidemark.errors import (
    AckTimeout,
    FileNotReady,
    FlushFailed,
    LogFileReplaced,
    NotPermitted,
    NotServing,
    StoreError,
    TidemarkError,
    WriteFailed,
)
from tidemark.formats import batch, native
from tidemark.formats.hosts import Host
from tidemark.formats.nack import RECORD_ROOM
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

OnAppended = Callable[[str, SendResult, int, int], None]
"""Called after the append, before the level is reached, with the topic, the result, and the start
and end of the appended bytes (physical offsets)."""


class PendingSend(msgspec.Struct, frozen=True):
    """A checked request that is being carried out."""

    topic: str
    request: ProduceRequest
    born_host: Host
    on_appended: OnAppended | None
    started: float
    """When it arrived, on the monotonic clock [s]."""

    @property
    def deadline(self) -> float:
        """When its client stops waiting, on the monotonic clock [s]."""
        return self.started + self.request.timeout_ms / 1000


class AppendedSend(msgspec.Struct, frozen=True):
    """A send whose messages are in the log; they may not have reached their level yet."""

    sender: Sender
    send: PendingSend
    result: SendResult
    end: PhysicalOffset
    """End of the last record."""
    admitted: Admitted


class _Placed(msgspec.Struct, frozen=True):
    """A send whose messages have their queues."""

    send: PendingSend
    admitted: Admitted
    runs: list[Run]
    positions: Sequence[int] | None
    """Index of each message among those of the runs; None: the same order."""
    waits: Sequence[Wait | None] | None
    """Delay of each message; None: no message is delayed."""

    def result(self, appended: Appended) -> SendResult:
        """Return the result, if the runs are or may be in the log there."""
        request = self.send.request
        return SendResult(
            self.admitted.level,
            request.entries,
            self.runs,
            appended,
            self.positions,
            self.waits,
            bool(request.batch_properties),
        )


Outcome = AppendedSend | Exception | None
"""What became of a send: it is appended, or refused with an error, or must wait (None, with nothing
stored) until its topic or the next log file is created."""


class Sender:
    """Appends the messages of sends and waits for their levels. Belongs to one loop."""

    def __init__(self, log_context: LogContext, append: Append, topics: Topics) -> None:
        self._term = log_context.term
        self._durability = log_context.durability
        self._flushed = log_context.flushed
        self._append = append
        self._flusher = log_context.flusher
        self._committer = log_context.committer
        self._topics = topics
        self.batches = Batches(log_context, topics)
        self.is_batch = topics.is_batch
        self.clock = log_context.clock
        self.store_host = log_context.host
        self._delay_levels_ms: Sequence[int] = log_context.config.store.delay_levels_ms
        self._turns: dict[str, int] = {}
        self._counts = SendCounts(log_context.metrics)

    def admit(self, asked: AckLevel | None) -> Admitted:
        """Return the level that a send waits for.

        Raises NodeAlone, NotEnoughReplicas, Fenced or SwitchingOver; nothing is stored then.
        """
        assert self._term is not None, "the gate of a slave refuses sends"
        return self._term.admit(asked)

    async def topic(self, send: PendingSend) -> TopicConfig:
        """Return the topic of a send; creates it if sends may do so, for a batch with batch queues.

        Raises UnknownTopic and others."""
        if send.request.batch_properties:
            return await self._topics.for_sending(send.topic, is_batch=True)
        return await self._topics.for_sending(send.topic)

    async def send(self, send: PendingSend, topic: TopicConfig, admitted: Admitted) -> SendResult:
        """Store all messages of the request or none, then wait for its level.

        admitted: what ``admit`` returned. There is no await before the append. Raises FileNotReady
        and DelayOutOfRange before anything is stored, and NotPermitted if a batch request names a
        topic with simple queues. Raises AckTimeout after everything is stored if the level is not
        reached in time or the node stops first.
        """
        appended = self.append(send, topic, admitted)
        await self.reach(appended, self.wait(appended))
        return appended.result

    def append_now(self, send: PendingSend) -> AppendedSend | None:
        """Append all messages in one step; None, with nothing stored, if the topic or the next log
        file has to be created before. Raises what ``send`` raises before it waits."""
        placed = self._ready(send)
        try:
            return None if placed is None else self._append_placed(placed)
        except FileNotReady:
            return None

    def append_all(self, sends: Sequence[PendingSend | Exception | None]) -> list[Outcome]:
        """Append several sends in one step; return for each what ``append_now`` returns or raises.

        Their records are written together. If the log refuses that, each send is appended alone, so
        that none is refused because of another. What is no send is returned as it is.
        """
        ready: list[_Placed | Exception | None] = []
        for send in sends:
            try:
                ready.append(self._ready(send) if isinstance(send, PendingSend) else send)
            except Exception as error:  # noqa: BLE001 - the caller answers it
                ready.append(error)
        placed = [each for each in ready if isinstance(each, _Placed)]
        appended = iter(self._append_together(placed) if placed else ())
        return [next(appended) if isinstance(each, _Placed) else each for each in ready]

    def append(self, send: PendingSend, to: TopicConfig, admitted: Admitted) -> AppendedSend:
        """Append all messages in one step. Raises what ``send`` raises before it waits."""
        return self._append_placed(self._placed(send, to, admitted))

    def _ready(self, send: PendingSend) -> _Placed | None:
        """Return a send that can be appended; None if its topic has to be created before."""
        admitted = self.admit(send.request.ack)
        topic = self._topics.ready_for_sending(send.topic)
        return None if topic is None else self._placed(send, topic, admitted)

    def _placed(self, send: PendingSend, to: TopicConfig, admitted: Admitted) -> _Placed:
        """Divide the messages of a send into runs. Raises what ``send`` raises for a bad queue,
        delay or kind of topic."""
        topic, request, queue_count = send.topic, send.request, to.queues
        picks, batch_properties = request.picks, request.batch_properties
        if batch_properties and not to.is_batch:
            raise _not_batch(topic)
        born_ms = self.clock.wall_ms()
        common = (send.born_host, self.store_host, born_ms)
        positions = waits = None
        if request.delays is not None:
            placed = self.place(topic, queue_count, request, born_ms)
            positions, waits = placed.positions, placed.waits
            runs = [
                Run(share.topic, share.queue, share.entries, share.message_count, *common)
                for share in placed.shares
            ]
        elif isinstance(picks, list):
            shares, positions = self._cut(topic, queue_count, request.entries, picks)
            runs = [Run(topic, queue, part, count, *common) for queue, part, count in shares]
        else:
            if picks is None:
                picks = self._turn(topic, queue_count)
            elif picks >= queue_count:
                field = "queue" if batch_properties else ""
                raise queue_choice.unknown_queue(topic, picks, queue_count, field=field)
            host, count = self.store_host, request.message_count
            runs = [Run(topic, picks, request.entries, count, send.born_host, host, born_ms)]
        if batch_properties:
            runs = [runs[0]._replace(batch_properties=batch_properties)]
        elif to.attributes and to.is_batch:
            runs = self.batches.of(runs)
        return _Placed(send, admitted, runs, positions, waits)

    def _append_placed(self, send: _Placed) -> AppendedSend:
        """Append the runs of a send."""
        try:
            appended = self._append.append_now(send.runs, room=RECORD_ROOM)
        except WriteFailed as fault:
            if not isinstance(fault.appended, Appended):
                raise  # nothing of this send was written
            raise outcome_unknown(fault, send.result(fault.appended).results()) from fault
        return self._accepted(send, appended)

    def _append_together(self, sends: Sequence[_Placed]) -> list[Outcome]:
        """Append the runs of sends together; if the log refuses that, each send alone."""
        all_runs = [send.runs for send in sends]
        try:
            appended = self._append.append_now(
                [run for runs in all_runs for run in runs], room=RECORD_ROOM
            )
        except WriteFailed as fault:
            if not isinstance(fault.appended, Appended):
                return [fault] * len(sends)  # nothing of these sends was written
            parts = fault.appended.parts(all_runs)
            return [
                outcome_unknown(fault, send.result(part).results())
                for send, part in zip(sends, parts, strict=True)
            ]
        except TidemarkError:  # nothing was stored
            return [self._alone(send) for send in sends]
        parts = appended.parts(all_runs)
        return [self._accepted(send, part) for send, part in zip(sends, parts, strict=True)]

    def _alone(self, send: _Placed) -> Outcome:
        try:
            return self._append_placed(send)
        except FileNotReady:
            return None
        except Exception as error:  # noqa: BLE001 - the caller answers it
            return error

    def _accepted(self, placed: _Placed, appended: Appended) -> AppendedSend:
        """Count a send whose messages are in the log."""
        send, result = placed.send, placed.result(appended)
        self._counts.accepted(send.topic, send.request, appended, placed.waits)
        if send.on_appended is not None:
            send.on_appended(send.topic, result, appended.start, appended.end)
        return AppendedSend(self, send, result, appended.end, placed.admitted)

    def wait(self, appended: AppendedSend) -> asyncio.Future[bool] | None:
        """Begin to wait for the level of a send; None if it has its level already.

        Call it in the step of the append: a flush that starts then knows who waits for it. The
        future is for ``reach``.
        """
        admitted, end = appended.admitted, appended.end
        if admitted.level is AckLevel.MEMORY:
            return None if self._committer is None else self._committer.committed(end)
        durability = self._durability if admitted.by_the_group else self._flusher
        return durability.durable(end, appended.send.deadline)

    async def reach(self, appended: AppendedSend, waiting: asyncio.Future[bool] | None) -> None:
        """Wait until the messages have their level; count the send as answered.

        waiting: from ``wait``. The reached level and copies are stored in the result.

        Raises AckTimeout, WriteFailed or FlushFailed; the messages are or may be stored then.
        """
        if waiting is not None:
            await self._in_time(appended, waiting)
        self.settle(appended, self.clock.monotonic())

    async def _in_time(self, appended: AppendedSend, waiting: asyncio.Future[bool]) -> None:
        """Wait for the level. Raises AckTimeout at the deadline."""
        result, end = appended.result, appended.end
        term, level = self._term, appended.admitted.level
        assert term is not None, "its messages were appended"
        try:
            in_time = await waiting
        except NotServing as stopping:
            # Not NotServing: that error says that nothing was stored, and clients would repeat the
            # send.
            raise term.interrupted(
                level, result.results(), is_on_disk=self._flushed() >= end
            ) from stopping
        except (WriteFailed, FlushFailed, LogFileReplaced) as fault:
            raise outcome_unknown(fault, result.results()) from fault
        if not in_time:
            if self._committer is not None:
                # The error reports level memory as reached, so that level must be reached first.
                await self._committer.committed(end)
            timeout_ms = appended.send.request.timeout_ms
            why = f"{level.value} was not within {timeout_ms} ms"
            raise self._not_reached(why, result, end, timeout_ms=timeout_ms)

    def settle(self, appended: AppendedSend, now: float) -> None:
        """Store the reached level in the result, and count the send as answered.

        now: on the monotonic clock [s].
        From here until the answer is written no await yields to the event loop: the level that
        holds now still holds when the answer is sent. Raises AckTimeout if it does not hold.
        """
        result = appended.result
        assert self._term is not None, "its messages were appended"
        reached = self._term.reached(appended.admitted)
        if reached is None:
            level = appended.admitted.level.value
            raise self._not_reached(
                f"level {level} was not reached before the in-sync set or this node's role changed",
                result,
                appended.end,
            )
        result.level, result.copies = reached
        self._counts.answered(result.level, now - appended.send.started)

    async def file_made(self) -> None:
        """Wait until the log file that an append found missing exists; the wait is bounded."""
        await self._append.file_made()

    def place(
        self, topic: str, queue_count: int, request: ProduceRequest, now_ms: int
    ) -> placing.Placed:
        """Return topic and queue of each message of a request that has delayed messages."""
        picks, delays = request.picks, request.delays
        assert delays is not None
        each = picks if isinstance(picks, list) else [picks] * request.message_count
        turn = self._turn(topic, queue_count) if None in each else 0
        queues = queue_choice.choose(topic, queue_count, each, turn)
        return placing.place(
            topic, request.entries, queues, delays, levels_ms=self._delay_levels_ms, now_ms=now_ms
        )

    def _turn(self, topic: str, queue_count: int) -> int:
        """Return the next queue of the topic, round-robin."""
        queue = self._turns.get(topic, 0) % queue_count
        self._turns[topic] = queue + 1
        return queue

    def _cut(
        self, topic: str, queue_count: int, entries: bytes, picks: list[Pick]
    ) -> queue_choice.Shares:
        turn = self._turn(topic, queue_count) if None in picks else 0
        return queue_choice.cut(entries, queue_choice.choose(topic, queue_count, picks, turn))

    def _not_reached(
        self, why: str, result: SendResult, end: PhysicalOffset, **facts: int
    ) -> AckTimeout:
        return not_reached(why, result.results(), is_on_disk=self._flushed() >= end, **facts)


class _TopicCounters(NamedTuple):
    """Counters of one topic's sends."""

    messages: Callable[[int], None]
    received_bytes: Callable[[int], None]


class SendCounts:
    """Metrics of sends. Belongs to one loop."""

    def __init__(self, metrics: TrafficMetrics) -> None:
        self._messages_in, self._received_bytes = metrics.messages_in, metrics.received_bytes
        # Each series is looked up once: a lookup by labels costs more than the counting itself.
        self._counters: dict[str, _TopicCounters] = metrics.registry.kept()
        self._message_size = metrics.message_size
        self._put_duration = {level: metrics.put_duration.labels(level.value) for level in AckLevel}
        self._put_ok = metrics.put_results.labels("ok").inc

    def answered(self, level: AckLevel, took_s: float) -> None:
        """Count a request whose messages have reached its level."""
        self._put_duration[level].observe(took_s)
        self._put_ok()

    def accepted(
        self,
        topic: str,
        request: ProduceRequest,
        appended: Appended,
        waits: Sequence[Wait | None] | None,
    ) -> None:
        """Count a request whose messages are in the log. waits: delays; None: none is delayed."""
        message_count = request.message_count
        counters = self._counters.get(topic)
        if counters is None:
            counters = self._counters[topic] = _TopicCounters(
                self._messages_in.labels(topic, "normal").inc,
                self._received_bytes.labels(topic).inc,
            )
        if waits is None and not isinstance(request.picks, list):
            counters.messages(message_count)
        else:
            self._count_kinds(topic, request, waits, counters.messages)
        counters.received_bytes(appended.end - appended.start)
        if message_count == 1:
            self._message_size.observe(batch.first_body_size(request.entries))
        else:
            counts = native.body_size_counts(request.entries, SIZE_BUCKETS)
            total = counts.pop()
            self._message_size.observe_counts(counts, total)

    def _count_kinds(
        self,
        topic: str,
        request: ProduceRequest,
        waits: Sequence[Wait | None] | None,
        normal: Callable[[int], None],
    ) -> None:
        """Count the messages by kind: delayed, with a sharding key (fifo), and normal.

        A delayed message is counted when it is accepted, under its destination topic. It is not
        counted again when it is delivered.
        """
        count, picks = request.message_count, request.picks
        waiting = [False] * count if waits is None else [wait is not None for wait in waits]
        each = picks if isinstance(picks, list) else [picks] * count
        delayed = sum(waiting)
        fifo = sum(
            isinstance(pick, str) and not waits for pick, waits in zip(each, waiting, strict=True)
        )
        labels = self._messages_in.labels
        if delayed:
            labels(topic, "delay").inc(delayed)
        if fifo:
            labels(topic, "fifo").inc(fifo)
        if count > delayed + fifo:
            normal(count - delayed - fifo)


def _not_batch(topic: str) -> NotPermitted:
    return NotPermitted(
        f"topic {topic!r} has simple queues, which take no batches. Nothing was stored.",
        "Send the messages with POST /v1/topics/{topic}/messages, or create a topic with "
        '"queue_type": "batch".',
        topic=topic,
        queue_type="simple",
    )


def outcome_unknown(fault: StoreError, results: list[dict[str, Any]]) -> StoreError:
    """Return a disk failure as the error of one send: it lists where each message may be stored."""
    return with_results(fault, [result | {"outcome": "unknown"} for result in results])


def with_results(fault: StoreError, results: list[dict[str, Any]]) -> StoreError:
    """Return the same error with other results."""
    return type(fault)(fault.detail, fault.advice, **{**fault.facts, "results": results})
