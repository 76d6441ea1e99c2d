"""Sends to the broker groups of a cluster: chooses one for each message, and another if it fails.

``queue_choice`` has the rules, and ``producer`` sends to one broker group. A message without key or
queue goes to another broker group if it certainly was not stored. One whose outcome is unknown is
repeated at its broker group alone, because only that one finds it in its log. A message with a
sharding key or a queue waits for its broker group.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal, NamedTuple, TypeVar

from msgspec.structs import force_setattr

from tidemark import errors
from tidemark.client.answers import Answer
from tidemark.client.batching import Limits, cut
from tidemark.client.checks import NOTHING_SENT, check_send, parse_queue
from tidemark.client.cluster import TOPICS_MAX, Cluster
from tidemark.client.messages import Outgoing, SendResult
from tidemark.client.producer import Producer
from tidemark.client.queue_choice import (
    GroupQueue,
    alternating,
    in_turn,
    queue_of_key,
    writable_queues,
)
from tidemark.client.retries import delay_s, may_move_on
from tidemark.client.routes import NO_TOPIC, Routes, unheard
from tidemark.client.turns import Turns

T = TypeVar("T")

KeyedWhenDown = Literal["wait", "reject"]
"""What a message with a sharding key does while its broker group does not serve."""
CALLS_MAX: Final = 1_000_000
"""Maximum number of calls in progress; the bytes that they hold are bounded before."""


class _Places(NamedTuple):
    """What a topic's route says to a producer."""

    routes: Routes
    queues: Sequence[GroupQueue]
    """Writable queues; empty if no broker group has the topic."""
    order: Sequence[str]
    """Broker groups for messages without key."""


class ClusterProducer:
    """The sending part of a client."""

    def __init__(
        self,
        cluster: Cluster,
        limits: Limits,
        *,
        retry_for_s: float,
        keyed_when_down: KeyedWhenDown,
    ) -> None:
        self._cluster, self._limits = cluster, limits
        self._retry_for_s = retry_for_s
        self._rejects = keyed_when_down == "reject"
        self._turn = random.randrange(1 << 16)
        """Place of the next message without key. It begins anywhere: otherwise programs that send
        one message each would all send to the first queue."""
        self._places: dict[str, _Places] = {}
        self._calls = Turns(CALLS_MAX)
        """Calls in progress."""

    @property
    def unanswered_size(self) -> int:
        """Bytes accepted from callers that are neither answered nor dropped."""
        return self._cluster.unanswered_size

    async def send(
        self, topic: str, message: Outgoing, *, ack: str | None, timeout_ms: int | None
    ) -> SendResult:
        """Store one message; see ``Client.send``."""
        check_send(topic, ack, timeout_ms)
        async with self._counted():
            return await self._send(topic, message, ack=ack, timeout_ms=timeout_ms)

    async def close(self) -> None:
        """Wait until all calls are answered."""
        await self._calls.empty()

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        """Count a call, so that ``close`` waits for it while it only waits for a route."""
        await self._calls.take(1, lambda: math.inf)
        try:
            yield
        finally:
            self._calls.give(1)

    async def _send(
        self, topic: str, message: Outgoing, *, ack: str | None, timeout_ms: int | None
    ) -> SendResult:

        async def send_to(producer: Producer, *, moves_on: bool) -> SendResult:
            return await producer.send(
                topic, message, ack=ack, timeout_ms=timeout_ms, moves_on=moves_on
            )

        alone = await self._cluster.only(timeout_ms)
        if alone is not None:
            return await send_to(alone.producer, moves_on=False)
        places = await self._places_for(topic, [message], timeout_ms)
        place = _place(topic, places, message.wire)
        if place is None:
            sent, broker_group = await self._to_any(topic, send_to, timeout_ms)
        else:
            message.wire["queue"], broker_group = place.queue, place.broker_group
            is_keyed = "sharding_key" in message.wire
            sent = await self._to_one(places.routes, broker_group, send_to, is_keyed=is_keyed)
        force_setattr(sent, "broker_group", broker_group)
        return sent

    async def send_many(
        self,
        topic: str,
        messages: Sequence[Outgoing],
        *,
        ack: str | None,
        timeout_ms: int | None,
    ) -> list[SendResult]:
        """Store many messages; see ``Client.send_many``.

        Messages of one queue keep their order. If a request fails, the error's fact ``results`` has
        the results of what is stored, and ``indexes`` the indexes of these messages in the list.
        """
        check_send(topic, ack, timeout_ms)
        async with self._counted():
            return await self._send_many(topic, messages, ack=ack, timeout_ms=timeout_ms)

    async def _send_many(
        self,
        topic: str,
        messages: Sequence[Outgoing],
        *,
        ack: str | None,
        timeout_ms: int | None,
    ) -> list[SendResult]:
        alone = await self._cluster.only(timeout_ms)
        if alone is not None:
            return await alone.producer.send_many(topic, messages, ack=ack, timeout_ms=timeout_ms)
        places = await self._places_for(topic, messages, timeout_ms)
        stored: dict[int, SendResult] = {}
        for broker_group, indexes in self._parts(topic, places, messages):
            part = [messages[index] for index in indexes]

            async def send_to(
                producer: Producer, *, moves_on: bool, part: Sequence[Outgoing] = part
            ) -> list[SendResult]:
                return await producer.send_many(
                    topic, part, ack=ack, timeout_ms=timeout_ms, moves_on=moves_on
                )

            try:
                if broker_group is None:
                    results, name = await self._to_any(topic, send_to, timeout_ms)
                else:
                    name = broker_group
                    is_keyed = any("sharding_key" in each.wire for each in part)
                    results = await self._to_one(places.routes, name, send_to, is_keyed=is_keyed)
            except errors.TidemarkError as error:
                stored.update(zip(indexes, error.facts.get("results", ()), strict=False))
                raise _of_list(error, stored, indexes) from error.__cause__
            for index, result in zip(indexes, results, strict=True):
                force_setattr(result, "broker_group", name)
                stored[index] = result
        return [stored[index] for index in range(len(messages))]

    def _parts(
        self, topic: str, places: _Places, messages: Sequence[Outgoing]
    ) -> list[tuple[str | None, Sequence[int]]]:
        """Split a list: the indexes for each broker group, and for None those of requests that may
        go anywhere."""
        placed: dict[str, list[int]] = {}
        free: list[int] = []
        for index, message in enumerate(messages):
            place = _place(topic, places, message.wire)
            if place is None:
                free.append(index)
            else:
                message.wire["queue"] = place.queue
                placed.setdefault(place.broker_group, []).append(index)
        requests = cut([messages[index].weight for index in free], self._limits)
        return [
            *((None, [free[at] for at in request]) for request in requests),
            *placed.items(),
        ]

    async def post(
        self, topic: str, wires: Sequence[dict[str, object]], *, ack: str | None, timeout_ms: int
    ) -> Answer:
        """Make one produce request and return its answer; see ``Producer.post``.

        All messages have the same queue, or none.
        """
        alone = await self._cluster.only()
        if alone is not None:
            return await alone.producer.post(topic, wires, ack=ack, timeout_ms=timeout_ms)

        async def post_to(producer: Producer, *, moves_on: bool) -> Answer:
            return await producer.post(
                topic, wires, ack=ack, timeout_ms=timeout_ms, moves_on=moves_on
            )

        places = await self._places_of(topic)
        place = _place(topic, places, wires[0])
        if place is None:
            answer, _ = await self._to_any(topic, post_to, None)
            return answer
        for wire in wires:
            wire["queue"] = place.queue
        return await self._to_one(places.routes, place.broker_group, post_to, is_keyed=False)

    async def _places_for(
        self, topic: str, messages: Sequence[Outgoing], timeout_ms: int | None
    ) -> _Places:
        """Return the places, for messages with a sharding key only those of a complete route.

        1. A name service restarts; 2. a new client asks it before all broker groups have registered
        again; 3. with the queues of a part of them, a key would get another queue, and its messages
        would be read out of order. Raises RouteIncomplete if that lasts.
        """
        places = await self._places_of(topic)
        if places.routes.complete or not any(map(_needs_all, messages)):
            return places
        within_s = self._retry_for_s
        if timeout_ms is not None:
            within_s = min(within_s, timeout_ms / 1000)
        if not self._rejects:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    while not places.routes.complete:
                        await self._cluster.changed.wait()
                        places = await self._places_of(topic)
        if not places.routes.complete:
            raise unheard(places.routes, NOTHING_SENT)
        return places

    async def _places_of(self, topic: str) -> _Places:
        routes = await self._cluster.route(topic)
        if routes is NO_TOPIC:
            # If brokers create topics automatically, the first broker group creates it.
            everything = await self._cluster.route(None)
            if not everything.groups:
                raise unheard(everything, NOTHING_SENT)
            return _Places(everything, (), [each.broker_group for each in everything.groups])
        found = self._places.get(topic)
        if found is None or found.routes is not routes:
            if len(self._places) >= TOPICS_MAX:
                self._places.clear()
            queues = writable_queues(routes)
            if not queues:
                raise errors.NotPermitted(
                    f"no broker group accepts messages for topic {topic}. {NOTHING_SENT}",
                    "`tidemark topic show` lists its broker groups.",
                    topic=topic,
                )
            found = self._places[topic] = _Places(routes, queues, alternating(queues))
        return found

    async def _to_any(
        self,
        topic: str,
        send_to: Callable[..., Awaitable[T]],
        timeout_ms: int | None,
    ) -> tuple[T, str]:
        """Send to the broker group whose turn it is, or to the next one if nothing was stored.

        Returns the result and the broker group. Tries all of them again while time is left.
        """
        loop, outages = asyncio.get_running_loop(), self._cluster.outages
        within_s = self._retry_for_s
        if timeout_ms is not None:
            within_s = min(within_s, timeout_ms / 1000)
        give_up_at = loop.time() + within_s
        turn, attempt = self._turn, 0
        self._turn += 1
        while True:
            places = await self._places_of(topic)
            turn = turn if places.queues else 0
            failure: errors.TidemarkError | None = None
            for name in in_turn(places.order, turn, outages, loop.time()):
                try:
                    producer = self._producer(places.routes, name)
                    sent = await send_to(producer, moves_on=True)
                except errors.TidemarkError as error:
                    if not may_move_on(error) or (failure and loop.time() > give_up_at):
                        raise
                    outages.failed(name, loop.time())
                    failure = error
                else:
                    outages.answered(name)
                    return sent, name
            assert failure is not None
            attempt += 1
            pause_s = delay_s(attempt, jitter=random.random())
            if not failure.retriable or loop.time() + pause_s > give_up_at:
                raise failure
            await asyncio.sleep(pause_s)

    async def _to_one(
        self,
        routes: Routes,
        broker_group: str,
        send_to: Callable[..., Awaitable[T]],
        *,
        is_keyed: bool,
    ) -> T:
        """Send to one broker group, and wait for it within the time of the call."""
        loop, outages = asyncio.get_running_loop(), self._cluster.outages
        rejects = is_keyed and self._rejects
        if rejects and outages.is_out(broker_group, loop.time()):
            raise errors.BrokerGroupDown(broker_group, "the last call to it has failed")
        try:
            sent = await send_to(self._producer(routes, broker_group), moves_on=rejects)
        except errors.TidemarkError as error:
            if not may_move_on(error):
                raise
            outages.failed(broker_group, loop.time())
            if rejects:
                raise errors.BrokerGroupDown(broker_group, error.detail) from error
            raise
        outages.answered(broker_group)
        return sent

    def _producer(self, routes: Routes, broker_group: str) -> Producer:
        route = routes.group(broker_group)
        if route is None:
            known = [each.broker_group for each in routes.groups]
            raise errors.UnknownBrokerGroup(broker_group, known)
        return self._cluster.group(route).producer


def _needs_all(message: Outgoing) -> bool:
    """Whether the queue of a message depends on all queues of its topic."""
    return message.wire.get("queue") is None and message.wire.get("sharding_key") is not None


def _place(topic: str, places: _Places, wire: dict[str, object]) -> GroupQueue | None:
    """Return the queue to which a message belongs; None if it may go to any.

    Raises BadRequest for a number in a topic of several broker groups.
    """
    queue, key = wire.get("queue"), wire.get("sharding_key")
    if isinstance(queue, str):
        return GroupQueue(*parse_queue(queue))
    if isinstance(queue, int):
        names = {each.broker_group for each in places.queues}
        if len(names) > 1:
            raise errors.BadRequest(
                f"queue is {queue}, and {len(names)} broker groups have topic {topic}. "
                f"{NOTHING_SENT}",
                f"Write for example {min(names)}/{queue}.",
                field="queue",
            )
        return GroupQueue(places.order[0], queue)
    if isinstance(key, str) and places.queues:
        return queue_of_key(places.queues, key)
    return None


def _of_list(
    error: errors.TidemarkError, stored: dict[int, SendResult], indexes: Sequence[int]
) -> errors.TidemarkError:
    """Make the facts of an error about a part of a list those of the whole list."""
    error.facts["indexes"] = sorted(stored)
    error.facts["results"] = [stored[index] for index in sorted(stored)]
    at = error.facts.get("index")
    if isinstance(at, int):
        error.facts["index"] = indexes[at]
        error.__notes__ = [f"The message has index {indexes[at]} in the list."]
    return error
