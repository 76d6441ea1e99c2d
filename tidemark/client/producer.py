"""Sends messages: collects batches, packs them, keeps the order, bounds memory and requests.

The write path begins here; the broker's ``connections`` is the next step. ``batching`` decides when
a batch is sent. Messages of one lane (topic, queue if given, ack level, timeout) are sent in the
order in which ``send`` was called. A message is checked (``messages.outgoing``) in the call of
``send``, so an invalid one fails there and not in a request that it shares. The work per message is
constant, however many wait: one future and one entry in an ordered map. A request is packed in one
call, and its answer is decoded in one.

Two bounds are shared in first-come, first-served order (``turns``): bytes held, from ``send`` until
they are sent or dropped, and requests in flight.

Every message gets a unique id here. A request that the broker may have stored (``ack-timeout``, a
lost connection, a failover) is repeated with the same ids and marked as a retry: the broker then
stores only the messages that it does not find (``retries``). For topics with batch queues a request
is packed as the batch that is stored (``batch_form``), and only the batch has a unique id.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import math
from collections import OrderedDict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Final

import msgpack
import msgspec
from msgspec.structs import force_setattr

from tidemark import errors
from tidemark.client import checks
from tidemark.client.answers import Answer
from tidemark.client.batch_form import (
    OCTETS,
    StoredBatch,
    is_one_record,
    packed_batch,
    single_results,
)
from tidemark.client.batching import (
    MESSAGE_OVERHEAD,
    Limits,
    Verdict,
    cut,
    decide,
    held_size,
    take,
)
from tidemark.client.connection import Connection
from tidemark.client.messages import NewMessage, Outgoing, SendResult, outgoing
from tidemark.client.paths import path
from tidemark.client.turns import Turns
from tidemark.client.unique_ids import UniqueIds
from tidemark.formats.produce_wire import PlainRequest

LEVEL_TIMEOUT_MS: Final = 3000
"""How long the broker waits at a time for the ack level of a send without its own timeout."""
ANSWER_GRACE_S: Final = 0.25
"""How much longer than a send's timeout the client waits for the broker's answer."""

_ALONE: Final = frozenset(
    {"bad-request", "bad-property", "too-large", "too-many-messages", "too-many-values"}
)
"""Errors that reject a whole request and may be due to one message that the error does not name."""


class _Ack(msgspec.Struct):
    """The level that a send has reached."""

    level: str
    copies: int


class _Stored(msgspec.Struct):
    """The answer to a successful send."""

    ack: _Ack
    results: list[SendResult]


class _SentBatch(msgspec.Struct):
    """The answer to a successful batch request."""

    ack: _Ack
    batch: StoredBatch


_STORED: Final = msgspec.msgpack.Decoder(_Stored)
_SENT_BATCH: Final = msgspec.msgpack.Decoder(_SentBatch)


class _Key(msgspec.Struct, frozen=True):
    """What the messages of one lane have in common. Like ``Outgoing`` no tuple: each message needs
    one."""

    topic: str
    queue: object
    """The queue given by the messages; None if they give none."""
    ack: str | None
    timeout_ms: int | None
    """None: the client's default."""
    moves_on: bool
    """Whether a request that certainly stored nothing fails at once (``Connection.call``)."""


class _Waiting(msgspec.Struct):
    """A message that ``send`` has accepted and not answered."""

    message: Outgoing
    taken_at: float
    answered: asyncio.Future[SendResult]


class _Batch:
    """Messages of one request, or of several after the broker rejected one of them."""

    __slots__ = ("has_left", "held_size", "size", "waiting")

    def __init__(self, waiting: Sequence[_Waiting]) -> None:
        self.waiting = waiting
        self.size = sum([each.message.weight for each in waiting])
        self.held_size = held_size(self.size, len(waiting))
        self.has_left = False
        """Whether its first request was started; before that, nothing of it was sent."""


class _Lane:
    """Messages that may share a request, in order, and their requests in flight."""

    __slots__ = ("key", "late", "requests", "size", "timer", "turn_is_due", "waiting")

    def __init__(self, key: _Key) -> None:
        self.key = key
        # Ordered, and not a deque: the message of a cancelled sender is removed in constant time.
        self.waiting: OrderedDict[asyncio.Future[SendResult], _Waiting] = OrderedDict()
        self.size = 0
        self.requests: dict[asyncio.Task[None], _Batch] = {}
        self.timer: asyncio.TimerHandle | None = None
        """Timer for when the open batch is due."""
        self.late: asyncio.TimerHandle | None = None
        """Timer for the earliest time at which the oldest message may time out."""
        self.turn_is_due = False
        """Whether the lane is due to be processed in the next iteration of the loop."""


class Producer:
    """The sending part of a client."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self._ids = UniqueIds()
        self._lanes: dict[_Key, _Lane] = {}
        self._room = Turns(limits.waiting_size_max)
        self._requests = Turns(limits.requests_max)
        self._batch_topics: set[str] = set()
        """Topics that are known to have batch queues."""
        self._answered_at = -math.inf
        """When the broker last answered a send, on the loop's clock."""

    @property
    def unanswered_size(self) -> int:
        """Bytes accepted from callers that are neither answered nor dropped."""
        return self._room.taken

    async def send(
        self,
        topic: str,
        message: Outgoing,
        *,
        ack: str | None,
        timeout_ms: int | None,
        moves_on: bool = False,
    ) -> SendResult:
        """Store one message; return when the broker has acknowledged it.

        Concurrent calls share requests. Waits while ``waiting_size_max`` bytes are unanswered.
        timeout_ms: time limit of the call; None: see ``_ends_at``. moves_on: see ``_Key``.
        """
        checks.check_send(topic, ack, timeout_ms)
        loop = asyncio.get_running_loop()
        started = loop.time()
        size = held_size(message.weight, 1)
        key = _Key(topic, message.wire.get("queue"), ack, timeout_ms, moves_on)
        if not self._room.take_now(size) and not await self._room.take(
            size, functools.partial(self._ends_at, timeout_ms, started)
        ):
            raise self._out_of_time(timeout_ms, has_left=False)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
        answered: asyncio.Future[SendResult] = loop.create_future()
        lane.waiting[answered] = _Waiting(message, started, answered)
        lane.size += message.weight
        if lane.late is None:
            lane.late = loop.call_at(self._ends_at(timeout_ms, started), self._sweep, lane)
        if not lane.turn_is_due:
            # Deferred by one loop iteration, so that sends that start together share a request.
            lane.turn_is_due = True
            loop.call_soon(self._turn, lane)
        try:
            return await answered
        except asyncio.CancelledError:
            self._drop(lane, answered)
            raise

    async def send_many(
        self,
        topic: str,
        messages: Sequence[Outgoing],
        *,
        ack: str | None,
        timeout_ms: int | None,
        moves_on: bool = False,
    ) -> list[SendResult]:
        """Store many messages in as few requests as the limits allow, one after another.

        Each request is stored as a whole or not at all, and has its own timeout. If one fails, the
        error's fact ``results`` holds the results of the earlier ones, and its own if the broker
        returned them (``ack-timeout``). ``index`` is the index of the rejected message, if the
        error is about one message.
        """
        checks.check_send(topic, ack, timeout_ms)
        results: list[SendResult] = []
        for part in cut([message.weight for message in messages], self._limits):
            try:
                results += await self._send_part(
                    topic,
                    messages[part.start : part.stop],
                    ack=ack,
                    timeout_ms=timeout_ms,
                    moves_on=moves_on,
                )
            except errors.TidemarkError as error:
                error.facts["results"] = [*results, *_stored_by(error)]
                index = _named(error, len(part))
                if index is not None:
                    error.facts["index"] = part.start + index
                    error.add_note(f"The message has index {part.start + index} in the list.")
                raise
        return results

    async def _send_part(
        self,
        topic: str,
        messages: Sequence[Outgoing],
        *,
        ack: str | None,
        timeout_ms: int | None,
        moves_on: bool,
    ) -> list[SendResult]:
        size = held_size(sum([message.weight for message in messages]), len(messages))
        ends_at = functools.partial(
            self._ends_at, timeout_ms, asyncio.get_running_loop().time(), lingers=False
        )
        if not await self._room.take(size, ends_at):
            raise self._out_of_time(timeout_ms, has_left=False)
        try:
            if not await self._requests.take(1, ends_at):
                raise self._out_of_time(timeout_ms, has_left=False)
            try:
                wires = [message.wire for message in messages]
                return await self._request(
                    topic, wires, ack=ack, timeout_ms=timeout_ms, moves_on=moves_on
                )
            finally:
                self._requests.give(1)
        finally:
            self._room.give(size)

    async def post(
        self,
        topic: str,
        wires: Sequence[dict[str, object]],
        *,
        ack: str | None,
        timeout_ms: int,
        moves_on: bool = False,
    ) -> Answer:
        """Make one produce request and return its answer undecoded: for tools that only count.

        timeout_ms: how long the broker waits for the ack level. A unique id is added to the given
        maps that have none. moves_on: see ``_Key``.
        """
        return await self._call(
            topic,
            wires,
            ack=ack,
            level_timeout_ms=timeout_ms,
            ends_in_s=None,
            moves_on=moves_on,
        )

    async def close(self) -> None:
        """Wait until all accepted messages are answered, so that leaving drops none."""
        self._limits = self._limits._replace(linger_ms=0.0)
        for lane in list(self._lanes.values()):
            self._advance(lane)
        await self._room.empty()

    def _give_ids(self, wires: Sequence[dict[str, object]]) -> None:
        """Add a unique id to each map that has none, unless sends are not repeated."""
        if self._connection.retries:
            for wire, unique_id in zip(wires, self._ids.make_all(len(wires)), strict=True):
                wire.setdefault("unique_id", unique_id)

    async def _call(
        self,
        topic: str,
        wires: Sequence[dict[str, object]],
        *,
        ack: str | None,
        level_timeout_ms: int,
        ends_in_s: float | None,
        moves_on: bool,
    ) -> Answer:
        self._give_ids(wires)
        body = functools.partial(_body, wires, ack, level_timeout_ms)
        return await self._connection.call(
            "POST",
            path("topics", topic, "messages"),
            body=body(is_retry=False),
            again=functools.partial(body, is_retry=True) if self._connection.retries else None,
            idempotent=False,
            is_held=True,  # outside the bounded pool, because ``requests_max`` bounds sends
            ends_in_s=ends_in_s,
            moves_on=moves_on,
        )

    async def _request(
        self,
        topic: str,
        wires: Sequence[dict[str, object]],
        *,
        ack: str | None,
        timeout_ms: int | None,
        moves_on: bool,
    ) -> list[SendResult]:
        if timeout_ms is None:
            level_timeout_ms = int(min(LEVEL_TIMEOUT_MS, self._connection.request_timeout_s * 1000))
        else:
            level_timeout_ms = timeout_ms
        ends_in_s = self._timeout_s(timeout_ms)
        if topic in self._batch_topics and (batch := packed_batch(wires)) is not None:
            try:
                return await self._batch_request(
                    topic,
                    batch,
                    wires[0].get("unique_id"),
                    ack,
                    level_timeout_ms,
                    ends_in_s,
                    moves_on=moves_on,
                )
            except (errors.MessageTooLarge, errors.TooManyMessages):
                pass  # the broker divides an ordinary request
            except errors.NotPermitted as error:
                if error.facts.get("queue_type") != "simple":
                    raise
                self._batch_topics.discard(topic)  # another topic has the name now
        call = await self._noted(
            self._call(
                topic,
                wires,
                ack=ack,
                level_timeout_ms=level_timeout_ms,
                ends_in_s=ends_in_s,
                moves_on=moves_on,
            )
        )
        answer = call.decoded(_STORED)
        results, ack_info = answer.results, answer.ack
        if len(results) != len(wires):
            raise errors.BrokenAnswer(f"{len(results)} results for {len(wires)} messages")
        for result in results:
            force_setattr(result, "level", ack_info.level)
            force_setattr(result, "copies", ack_info.copies)
        if is_one_record(results):
            self._batch_topics.add(topic)
        return results

    async def _batch_request(
        self,
        topic: str,
        batch: PlainRequest,
        unique_id: object,
        ack: str | None,
        level_timeout_ms: int,
        ends_in_s: float,
        *,
        moves_on: bool,
    ) -> list[SendResult]:
        """Make a batch request. Raises NotPermitted if the topic has no batch queues.

        unique_id: that of the first message, which has one if it was in an ordinary request that
        the broker has rejected because of another message. It must be the id of the batch.
        """
        is_repeated = self._connection.retries
        if unique_id is None and is_repeated:
            unique_id = self._ids.make()
        try:
            call = await self._noted(
                self._connection.call(
                    "POST",
                    path("topics", topic, "batches"),
                    query={
                        "queue": batch.queue,
                        "unique_id": unique_id,
                        "ack": ack,
                        "timeout_ms": level_timeout_ms,
                    },
                    query_again={"retry": "true"} if is_repeated else None,
                    body=batch.entries,
                    content_type=OCTETS,
                    idempotent=is_repeated,
                    is_held=True,
                    ends_in_s=ends_in_s,
                    moves_on=moves_on,
                )
            )
        except errors.TidemarkError as error:
            if "results" in error.facts:
                error.facts["results"] = single_results(error.facts["results"])
            raise
        sent = call.decoded(_SENT_BATCH)
        if sent.batch.message_count != batch.message_count:
            raise errors.BrokenAnswer(
                f"a batch of {sent.batch.message_count} messages for {batch.message_count}"
            )
        return sent.batch.results(level=sent.ack.level, copies=sent.ack.copies)

    async def _noted(self, call: Awaitable[Answer]) -> Answer:
        """Make a call and note when the broker has answered it, with whatever result."""
        try:
            answer = await call
        except errors.TidemarkError as error:
            if not isinstance(error, errors.Unreachable):
                self._answered_at = asyncio.get_running_loop().time()
            raise
        self._answered_at = asyncio.get_running_loop().time()
        return answer

    # -- time -----------------------------------------------------------------------------------

    def _timeout_s(self, timeout_ms: int | None) -> float:
        if timeout_ms is None:
            return self._connection.request_timeout_s
        return timeout_ms / 1000 + ANSWER_GRACE_S

    def _ends_at(self, timeout_ms: int | None, started: float, *, lingers: bool = True) -> float:
        """Time until which a message may wait for its request.

        A message with its own timeout waits until that has passed. Any other waits as long as the
        broker answers earlier sends: a long queue is not a failure; a silent broker is.
        """
        if timeout_ms is not None:
            return started + self._timeout_s(timeout_ms)
        linger_s = self._limits.linger_ms / 1000 if lingers else 0.0
        return max(started + linger_s, self._answered_at) + self._timeout_s(None)

    def _out_of_time(self, timeout_ms: int | None, *, has_left: bool) -> errors.Unreachable:
        node = self._connection.url
        within = f"within {self._timeout_s(timeout_ms):g} s"
        if has_left:
            return errors.Unreachable(
                f"{node} gave no answer {within}. The outcome is unknown: the message may be "
                "stored.",
                "Look for the message by its key before you send it again, or allow more time.",
                url=node,
                sent=True,
            )
        return errors.Unreachable(
            f"the message was not sent {within}, because {node} does not answer "
            "earlier sends. No part of it was sent.",
            "Send it later, or allow more time.",
            url=node,
            sent=False,
        )

    def _sweep(self, lane: _Lane) -> None:
        """Fail the messages that have timed out, and schedule the next check."""
        loop = asyncio.get_running_loop()
        timeout_ms = lane.key.timeout_ms
        now, next_at = loop.time(), math.inf
        for batch in lane.requests.values():
            if batch.has_left and timeout_ms is None:
                continue  # the request itself has a time limit
            for waiting in batch.waiting:
                if waiting.answered.done():
                    continue
                ends_at = self._ends_at(timeout_ms, waiting.taken_at)
                if ends_at > now:
                    next_at = min(next_at, ends_at)
                    continue
                error = self._out_of_time(timeout_ms, has_left=batch.has_left)
                waiting.answered.set_exception(error)
        while lane.waiting:
            answered, waiting = next(iter(lane.waiting.items()))
            ends_at = self._ends_at(timeout_ms, waiting.taken_at)
            if ends_at > now:
                next_at = min(next_at, ends_at)
                break
            self._take_out(lane, answered)
            if not answered.done():
                answered.set_exception(self._out_of_time(timeout_ms, has_left=False))
        lane.late = None if next_at == math.inf else loop.call_at(next_at, self._sweep, lane)
        self._advance(lane)

    # -- lanes ----------------------------------------------------------------------------------

    def _drop(self, lane: _Lane, answered: asyncio.Future[SendResult]) -> None:
        """Drop the message of a cancelled sender if it was not sent yet."""
        if answered in lane.waiting:
            self._take_out(lane, answered)
            self._advance(lane)

    def _take_out(self, lane: _Lane, answered: asyncio.Future[SendResult]) -> None:
        message = lane.waiting.pop(answered).message
        lane.size -= message.weight
        self._room.give(held_size(message.weight, 1))

    def _turn(self, lane: _Lane) -> None:
        lane.turn_is_due = False
        self._advance(lane)

    def _advance(self, lane: _Lane) -> None:
        """Send batches that are full or due; otherwise schedule the next call."""
        loop = asyncio.get_running_loop()
        while True:
            age_s = 0.0
            if lane.waiting:
                age_s = loop.time() - next(iter(lane.waiting.values())).taken_at
            decision = decide(
                count=len(lane.waiting),
                size=lane.size,
                age_ms=age_s * 1000,
                in_flight=len(lane.requests),
                limits=self._limits,
            )
            if decision.verdict is not Verdict.SEND:
                break
            batch = _Batch(self._take_batch(lane))
            lane.size -= batch.size
            task = loop.create_task(self._send_batch(lane.key, batch))
            lane.requests[task] = batch
            task.add_done_callback(functools.partial(self._finished, lane))
        if decision.verdict is Verdict.WAIT_FOR_TIME:
            if lane.timer is None:
                lane.timer = loop.call_later(decision.wait_ms / 1000, self._due, lane)
        elif lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        if decision.verdict is Verdict.EMPTY and not lane.requests:
            if lane.late is not None:
                lane.late.cancel()
                lane.late = None
            if self._lanes.get(lane.key) is lane:
                del self._lanes[lane.key]

    def _take_batch(self, lane: _Lane) -> list[_Waiting]:
        """Take the messages of the next request out of a lane."""
        waiting, limits = lane.waiting, self._limits
        if len(waiting) <= limits.count_max and lane.size <= limits.size_max:
            everything = list(waiting.values())
            waiting.clear()
            return everything
        count = take((each.message.weight for each in waiting.values()), limits)
        return [waiting.popitem(last=False)[1] for _ in range(count)]

    def _due(self, lane: _Lane) -> None:
        lane.timer = None
        self._advance(lane)

    def _finished(self, lane: _Lane, done: asyncio.Task[None]) -> None:
        batch = lane.requests.pop(done)
        error = None if done.cancelled() else done.exception()
        for waiting in batch.waiting:
            # Only if the request ended without a typed error, for example because the client was
            # closed: its senders must not wait forever.
            if not waiting.answered.done():
                if error is None:
                    waiting.answered.cancel()
                else:
                    waiting.answered.set_exception(error)
        self._advance(lane)

    async def _send_batch(self, key: _Key, batch: _Batch) -> None:
        newest = batch.waiting[-1].taken_at
        ends_at = functools.partial(self._ends_at, key.timeout_ms, newest)
        try:
            if not await self._requests.take(1, ends_at):
                self._fail(batch.waiting, self._out_of_time(key.timeout_ms, has_left=False))
                return
            try:
                batch.has_left = True
                await self._send_live(key, batch.waiting)
            finally:
                self._requests.give(1)
        finally:
            self._room.give(batch.held_size)

    async def _send_live(self, key: _Key, messages: Sequence[_Waiting]) -> None:
        """Send the messages whose senders still wait, without those that the broker rejects."""
        while live := [each for each in messages if not each.answered.done()]:
            try:
                results = await self._request(
                    key.topic,
                    [each.message.wire for each in live],
                    ack=key.ack,
                    timeout_ms=key.timeout_ms,
                    moves_on=key.moves_on,
                )
            except errors.TidemarkError as error:
                # The request was rejected as a whole, nothing is stored. Its senders do not know
                # each other, so the invalid message of one must not fail the others.
                index = _named(error, len(live))
                if index is not None and len(live) > 1:
                    self._fail([live[index]], error)
                    messages = live
                    continue
                if error.code in _ALONE and len(live) > 1:
                    middle = len(live) // 2
                    await self._send_live(key, live[:middle])
                    messages = live[middle:]
                    continue
                self._fail(live, error)
                return
            for each, result in zip(live, results, strict=True):
                # Done if its sender was cancelled or timed out during the request.
                if not each.answered.done():
                    each.answered.set_result(result)

    def _fail(self, messages: Sequence[_Waiting], error: errors.TidemarkError) -> None:
        for index, each in enumerate(messages):
            if not each.answered.done():
                each.answered.set_exception(_of_one(error, index, len(messages)))


def _body(
    wires: Sequence[dict[str, object]], ack: str | None, level_timeout_ms: int, *, is_retry: bool
) -> bytes:
    """Build the body of a produce request."""
    fields: dict[str, object] = {"messages": wires, "timeout_ms": level_timeout_ms}
    if ack is not None:
        fields["ack"] = ack
    if is_retry:
        fields["retry"] = True
    packed: bytes = msgpack.packb(fields)
    return packed


def _named(error: errors.TidemarkError, count: int) -> int | None:
    """Index of the message that caused the rejection of a request of ``count``; None if unknown.

    Only for errors that were raised before anything was stored.
    """
    index = error.facts.get("index")
    if not isinstance(error, errors.RequestError) or not isinstance(index, int):
        return None
    return index if 0 <= index < count else None


def _of_one(error: errors.TidemarkError, index: int, count: int) -> errors.TidemarkError:
    """Copy the error of a request of ``count`` messages for the sender of one of them.

    Each sender gets its own copy, with only the result of its own message.
    """
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    own.facts = dict(error.facts)
    stored = error.facts.get("results")
    if isinstance(stored, list) and len(stored) == count:
        own.facts["results"] = [stored[index]]
    return own


def _stored_by(error: errors.TidemarkError) -> list[SendResult]:
    """Results of a request that was stored but did not reach its level; empty if unknown."""
    ack, stored = error.facts.get("ack"), error.facts.get("results")
    if not isinstance(ack, Mapping) or not isinstance(stored, list):
        return []
    try:
        return [msgspec.convert({**one, **ack}, SendResult) for one in stored]
    except (TypeError, msgspec.ValidationError):
        return []  # results of an unknown form must not hide the error


def as_outgoing(messages: Iterable[NewMessage | bytes], queue: int | str | None) -> list[Outgoing]:
    """Check and convert messages and plain bodies. queue: used for those that name none.

    All are checked before the first is sent; an error has the fact ``index`` of its message.
    """
    made: list[Outgoing] = []
    if queue is not None:
        checks.check_queue(queue)
    for index, message in enumerate(messages):
        if isinstance(message, bytes):
            wire: dict[str, object] = {"body": message}
            if queue is not None:
                wire["queue"] = queue
            made.append(Outgoing(wire, len(message) + MESSAGE_OVERHEAD))
            continue
        try:
            if isinstance(message, NewMessage):
                made.append(message.outgoing(queue))
            else:
                made.append(outgoing(message, queue=queue))
        except (TypeError, errors.TidemarkError) as error:
            error.add_note(f"The message has index {index} in the list.")
            if isinstance(error, errors.TidemarkError):
                error.facts["index"] = index
            raise
    return made
