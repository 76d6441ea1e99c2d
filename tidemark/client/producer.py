"""Sends messages: collects them into batches, keeps order, bounds what waits.

Step 1 of a message's walk; the next is the broker's ``http_api``. ``batching`` decides, this shell
does. Messages of one lane (topic, queue if one is named, ack level, time-out) leave in the order
in which ``send`` was called. What is done per message is little and does not grow with how many
wait: one future, and one place in a row.

Every message gets a unique id here. A request that the broker may have stored (``ack-timeout``, a
lost connection, a failover) is repeated with the same ids and says so: the broker then stores only
what it does not find (``retries``).
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidemark import errors
from tidemark.client.answers import Answer
from tidemark.client.batching import (
    MESSAGE_OVERHEAD,
    Limits,
    Verdict,
    cut,
    decide,
    fits_waiting,
    take,
)
from tidemark.client.connection import Connection
from tidemark.client.messages import (
    NewMessage,
    Outgoing,
    SendResult,
    check,
    outgoing,
)
from tidemark.client.paths import path
from tidemark.client.unique_ids import UniqueIds

SEND_TIMEOUT_MS: Final = 3000

_ALONE: Final = frozenset({"bad-request", "bad-property", "too-large", "too-many-messages"})
"""Refusals of a whole request that may be the fault of one message in it."""


class _Key(NamedTuple):
    """What messages of one lane have in common."""

    topic: str
    queue: object
    """The queue that they name; None if they name none."""
    ack: str | None
    timeout_ms: int


class _Waiting(NamedTuple):
    """A message that ``send`` has taken and not answered."""

    wire: dict[str, object]
    weight: int
    taken_at: float
    answered: asyncio.Future[SendResult]


class _Lane:
    """Messages that may share a request, in order, and the requests in flight for them."""

    __slots__ = ("key", "requests", "size", "timer", "turn_is_due", "waiting")

    def __init__(self, key: _Key) -> None:
        self.key = key
        self.waiting: deque[_Waiting] = deque()
        self.size = 0
        self.requests: set[asyncio.Task[None]] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.turn_is_due = False
        """Whether the lane is looked at in the next turn of the loop."""


class Producer:
    """The sending half of a client."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self._ids = UniqueIds()
        self._lanes: dict[_Key, _Lane] = {}
        self._waiting_size = 0
        self._room: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Senders that wait for room, longest first, with the weight of their message."""

    @property
    def unanswered_size(self) -> int:
        """Bytes taken from callers of ``send`` and not answered yet."""
        return self._waiting_size

    async def send(
        self, topic: str, message: Outgoing, *, ack: str | None, timeout_ms: int
    ) -> SendResult:
        """Store one message; return when the broker has answered for it.

        Calls that run at once share requests. Waits at ``waiting_size_max`` unanswered bytes.
        """
        wire, weight = message
        await self._take_room(weight)
        try:
            loop = asyncio.get_running_loop()
            key = _Key(topic, wire.get("queue"), ack, timeout_ms)
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._lanes[key] = _Lane(key)
            answered: asyncio.Future[SendResult] = loop.create_future()
            lane.waiting.append(_Waiting(wire, weight, loop.time(), answered))
            lane.size += weight
            if not lane.turn_is_due:
                # A turn of the loop first: sends that start together leave together.
                lane.turn_is_due = True
                loop.call_soon(self._turn, lane)
            return await answered
        finally:
            self._give_room_back(weight)

    async def _take_room(self, weight: int) -> None:
        """Count weight as waiting, once there is room; first come, first served."""
        if not self._room and self._fits(weight):
            self._waiting_size += weight
            return
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append((weight, ready))
        try:
            await ready  # whoever made room has counted the weight
        except asyncio.CancelledError:
            self._give_room_back(0 if ready.cancelled() else weight)
            raise

    def _give_room_back(self, weight: int) -> None:
        """Let in those who wait, in their order, as far as there is room: each is woken once."""
        self._waiting_size -= weight
        room = self._room
        while room and (room[0][1].done() or self._fits(room[0][0])):
            size, ready = room.popleft()
            if not ready.done():
                self._waiting_size += size
                ready.set_result(None)

    def _fits(self, weight: int) -> bool:
        return fits_waiting(waiting_size=self._waiting_size, size=weight, limits=self._limits)

    async def send_many(
        self,
        topic: str,
        messages: Sequence[Outgoing],
        *,
        ack: str | None,
        timeout_ms: int,
    ) -> list[SendResult]:
        """Store many messages in as few requests as the limits allow, one after another.

        One request is stored all or nothing. If one fails, the error's fact ``results`` holds what
        the earlier ones stored, and what that one did if the broker said so (``ack-timeout``).
        """
        results: list[SendResult] = []
        for part in cut([message.weight for message in messages], self._limits):
            wires = [message.wire for message in messages[part.start : part.stop]]
            try:
                results += await self._request(topic, wires, ack=ack, timeout_ms=timeout_ms)
            except errors.TidemarkError as error:
                error.facts["results"] = [*results, *_stored_by(error)]
                raise
        return results

    async def post(
        self, topic: str, wires: Sequence[dict[str, object]], *, ack: str | None, timeout_ms: int
    ) -> Answer:
        """One produce request, its answer undecoded: for tools that only count.

        Messages without a unique id get one, in the maps that were given.
        """
        body: dict[str, object] = {"messages": wires, "timeout_ms": timeout_ms}
        if ack is not None:
            body["ack"] = ack
        if self._connection.retries:
            for wire in wires:
                if "unique_id" not in wire:
                    wire["unique_id"] = self._ids.make()
        return await self._connection.call(
            "POST",
            path("topics", topic, "messages"),
            body=body,
            again={**body, "retry": True} if self._connection.retries else None,
            idempotent=False,
            wait_s=timeout_ms / 1000,
        )

    async def close(self) -> None:
        """Wait for what was taken, so that nobody's message is dropped by leaving."""
        self._limits = self._limits._replace(linger_ms=0.0)
        while self._lanes or self._room:
            for lane in list(self._lanes.values()):
                self._advance(lane)
            if requests := [task for lane in self._lanes.values() for task in lane.requests]:
                await asyncio.wait(requests)
            else:
                await asyncio.sleep(0)  # senders that were let in put their messages down

    async def _request(
        self, topic: str, wires: Sequence[dict[str, object]], *, ack: str | None, timeout_ms: int
    ) -> list[SendResult]:
        answer = (await self.post(topic, wires, ack=ack, timeout_ms=timeout_ms)).map()
        try:
            level, copies = answer["ack"]["level"], answer["ack"]["copies"]
            results = [_result(stored, level, copies) for stored in answer["results"]]
        except (KeyError, TypeError) as error:
            raise errors.BrokenAnswer(f"the answer to a send lacks {error}") from error
        if len(results) != len(wires):
            raise errors.BrokenAnswer(f"{len(results)} results for {len(wires)} messages")
        return results

    def _turn(self, lane: _Lane) -> None:
        lane.turn_is_due = False
        self._advance(lane)

    def _advance(self, lane: _Lane) -> None:
        """Send what is full or due; else see to it that somebody comes back."""
        loop = asyncio.get_running_loop()
        while True:
            age_s = loop.time() - lane.waiting[0].taken_at if lane.waiting else 0.0
            decision = decide(
                count=len(lane.waiting),
                size=lane.size,
                age_ms=age_s * 1000,
                in_flight=len(lane.requests),
                limits=self._limits,
            )
            if decision.verdict is not Verdict.SEND:
                break
            count = take((waiting.weight for waiting in lane.waiting), self._limits)
            batch = [lane.waiting.popleft() for _ in range(count)]
            lane.size -= sum(waiting.weight for waiting in batch)
            task = loop.create_task(self._send_batch(lane.key, batch))
            lane.requests.add(task)
            task.add_done_callback(functools.partial(self._finished, lane, batch))
        if decision.verdict is Verdict.WAIT_FOR_TIME:
            if lane.timer is None:
                lane.timer = loop.call_later(decision.wait_ms / 1000, self._due, lane)
        elif lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        is_over = decision.verdict is Verdict.EMPTY and not lane.requests
        if is_over and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    def _due(self, lane: _Lane) -> None:
        lane.timer = None
        self._advance(lane)

    def _finished(self, lane: _Lane, batch: Sequence[_Waiting], done: asyncio.Task[None]) -> None:
        lane.requests.discard(done)
        error = None if done.cancelled() else done.exception()
        for waiting in batch:
            # Only where the request ended in no typed way (a closed client, an unpackable value):
            # whoever waits must hear of it all the same.
            if not waiting.answered.done():
                if error is None:
                    waiting.answered.cancel()
                else:
                    waiting.answered.set_exception(error)
        self._advance(lane)

    async def _send_batch(self, key: _Key, batch: Sequence[_Waiting]) -> None:
        live = [waiting for waiting in batch if not waiting.answered.done()]
        if not live:
            return
        wires = [waiting.wire for waiting in live]
        try:
            results = await self._request(key.topic, wires, ack=key.ack, timeout_ms=key.timeout_ms)
        except errors.TidemarkError as error:
            if len(live) > 1 and error.code in _ALONE:
                # Refused whole, nothing stored: senders who do not know each other shared this
                # request, and the fault of one must not become the others'.
                for waiting in live:
                    await self._send_batch(key, [waiting])
                return
            for waiting in live:
                if not waiting.answered.done():
                    waiting.answered.set_exception(error)
            return
        for waiting, result in zip(live, results, strict=True):
            # Done: its sender was cancelled while the request was on its way.
            if not waiting.answered.done():
                waiting.answered.set_result(result)


def _stored_by(error: errors.TidemarkError) -> list[SendResult]:
    """What a request stored that failed only in reaching its level; empty if nothing is known."""
    ack, stored = error.facts.get("ack"), error.facts.get("results")
    if not isinstance(ack, Mapping) or not isinstance(stored, list):
        return []
    try:
        return [_result(one, ack["level"], ack["copies"]) for one in stored]
    except (KeyError, TypeError) as lacking:
        raise errors.BrokenAnswer(f"the answer to a send lacks {lacking}") from lacking


def _result(stored: Mapping[str, Any], level: str, copies: int) -> SendResult:
    # _make, and not the class with nine arguments: half of the time, for every message sent.
    return SendResult._make(
        (
            stored["message_id"],
            stored["queue"],
            stored["queue_offset"],
            stored["physical_offset"],
            stored["store_timestamp_ms"],
            level,
            copies,
            stored.get("deliver_at_ms"),
            stored.get("unique_id"),
        )
    )


def as_outgoing(messages: Iterable[NewMessage | bytes], queue: int | None) -> list[Outgoing]:
    """Messages to send, plain bodies among them; ``queue`` for those that name none."""
    made: list[Outgoing] = []
    placed: dict[str, object] = {} if queue is None else {"queue": queue}
    for message in messages:
        if isinstance(message, bytes):
            wire: dict[str, object] = {"body": message, **placed}
            made.append(Outgoing(wire, len(message) + MESSAGE_OVERHEAD))
        elif isinstance(message, NewMessage):
            made.append(message.outgoing(queue))
        else:
            check(message, ())
            made.append(outgoing(message, queue=queue))
    return made
