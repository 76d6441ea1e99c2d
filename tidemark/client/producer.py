"""Sends messages: collects them into batches, keeps order, bounds what waits.

Step 1 of a message's walk; the next is the broker's ``http_api``. ``batching`` decides, this shell
does. Messages of one lane (topic and ack level) leave in the order in which ``send`` was called.

A send is never repeated by itself once the broker may have stored it: ``ack-timeout`` and a lost
connection raise, and the caller decides (``retries``).
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from tidemark import errors
from tidemark.client.batching import Limits, Verdict, cut, decide, fits_waiting, take
from tidemark.client.connection import Answer, Connection, path
from tidemark.client.messages import NewMessage, SendResult

SEND_TIMEOUT_MS: Final = 3000

_ALONE: Final = frozenset({"bad-request", "bad-property", "too-large", "too-many-messages"})
"""Refusals of a whole request that may be the fault of one message in it."""


_Key = tuple[str, str | None, int]
"""What messages of one lane have in common: topic, ack level, time-out [ms]."""


class _Waiting(NamedTuple):
    """A message that ``send`` has taken and not answered."""

    message: NewMessage
    weight: int
    taken_at: float
    answered: asyncio.Future[SendResult]


class _Lane:
    """Messages that may share a request, in order, and the requests in flight for them."""

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.size = 0
        self.requests: set[asyncio.Task[None]] = set()
        self.timer: asyncio.TimerHandle | None = None


class Producer:
    """The sending half of a client."""

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self._lanes: dict[_Key, _Lane] = {}
        self._waiting_size = 0
        self._room = asyncio.Condition()

    @property
    def unanswered_size(self) -> int:
        """Bytes taken from callers of ``send`` and not answered yet."""
        return self._waiting_size

    async def send(
        self, topic: str, message: NewMessage, *, ack: str | None, timeout_ms: int
    ) -> SendResult:
        """Store one message; return when the broker has answered for it.

        Calls that run at once share requests. Waits at ``waiting_size_max`` unanswered bytes.
        """
        weight = message.weight
        async with self._room:
            await self._room.wait_for(
                lambda: fits_waiting(
                    waiting_size=self._waiting_size, size=weight, limits=self._limits
                )
            )
            self._waiting_size += weight
        loop = asyncio.get_running_loop()
        key = (topic, ack, timeout_ms)
        lane = self._lanes.setdefault(key, _Lane())
        waiting = _Waiting(message, weight, loop.time(), loop.create_future())
        lane.waiting.append(waiting)
        lane.size += weight
        try:
            # A turn of the loop first: sends that start together leave together.
            await asyncio.sleep(0)
            self._advance(key, lane)
            return await waiting.answered
        finally:
            self._waiting_size -= weight
            async with self._room:
                self._room.notify_all()

    async def send_many(
        self,
        topic: str,
        messages: Sequence[NewMessage],
        *,
        ack: str | None,
        timeout_ms: int,
    ) -> list[SendResult]:
        """Store many messages in as few requests as the limits allow, one after another.

        One request is stored all or nothing. If a later one fails, the error's fact ``results``
        holds what the earlier ones stored.
        """
        results: list[SendResult] = []
        for part in cut([message.weight for message in messages], self._limits):
            wires = [messages[index].to_wire() for index in part]
            try:
                results += await self._request(topic, wires, ack=ack, timeout_ms=timeout_ms)
            except errors.TidemarkError as error:
                error.facts["results"] = results
                raise
        return results

    async def post(
        self, topic: str, wires: Sequence[Mapping[str, object]], *, ack: str | None, timeout_ms: int
    ) -> Answer:
        """One produce request as it stands, its answer undecoded: for tools that only count."""
        body: dict[str, object] = {"messages": wires, "timeout_ms": timeout_ms}
        if ack is not None:
            body["ack"] = ack
        return await self._connection.call(
            "POST",
            path("topics", topic, "messages"),
            body=body,
            idempotent=False,
            wait_s=timeout_ms / 1000,
        )

    async def close(self) -> None:
        """Wait for what was taken, so that nobody's message is dropped by leaving."""
        while requests := [task for lane in self._lanes.values() for task in lane.requests]:
            await asyncio.gather(*requests)

    async def _request(
        self, topic: str, wires: Sequence[Mapping[str, object]], *, ack: str | None, timeout_ms: int
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

    def _advance(self, key: _Key, lane: _Lane) -> None:
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
            task = loop.create_task(self._send_batch(key, batch))
            lane.requests.add(task)
            task.add_done_callback(functools.partial(self._finished, key, lane, batch))
        if decision.verdict is Verdict.WAIT_FOR_TIME and lane.timer is None:
            lane.timer = loop.call_later(decision.wait_ms / 1000, self._due, key, lane)
        elif decision.verdict is Verdict.EMPTY and not lane.requests:
            self._lanes.pop(key, None)

    def _due(self, key: _Key, lane: _Lane) -> None:
        lane.timer = None
        self._advance(key, lane)

    def _finished(
        self,
        key: _Key,
        lane: _Lane,
        batch: Sequence[_Waiting],
        done: asyncio.Task[None],
    ) -> None:
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
        self._advance(key, lane)

    async def _send_batch(self, key: _Key, batch: Sequence[_Waiting]) -> None:
        topic, ack, timeout_ms = key
        live = [waiting for waiting in batch if not waiting.answered.done()]
        if not live:
            return
        wires = [waiting.message.to_wire() for waiting in live]
        try:
            results = await self._request(topic, wires, ack=ack, timeout_ms=timeout_ms)
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
            # The sender may have been cancelled while the request was on its way.
            with suppress(asyncio.InvalidStateError):
                waiting.answered.set_result(result)


def _result(stored: Mapping[str, Any], level: str, copies: int) -> SendResult:
    return SendResult(
        stored["message_id"],
        stored["queue"],
        stored["queue_offset"],
        stored["physical_offset"],
        stored["store_timestamp_ms"],
        level,
        copies,
    )


def as_new_messages(messages: Iterable[NewMessage | bytes], queue: int | None) -> list[NewMessage]:
    """Messages to send, plain bodies made into messages; ``queue`` for those that name none."""
    made: list[NewMessage] = []
    for message in messages:
        if not isinstance(message, NewMessage):
            message = NewMessage(message, queue=queue)
        elif queue is not None and message.queue is None and message.sharding_key is None:
            message = NewMessage(
                message.body,
                message.tags,
                message.keys,
                message.properties,
                queue,
                None,
                message.flag,
                message.delay_level,
                message.delay_ms,
                message.deliver_at_ms,
            )
        made.append(message)
    return made
