"""Sends to the broker groups of a cluster: chooses one for each message, and another if it fails.

``queue_choice`` has the rules, and ``producer`` sends to one broker group. A message without key or
queue goes to another broker group if it certainly was not stored. One whose outcome is unknown is
repeated at its broker group alone, because only that one finds it in its log. A message with a
sharding key or a queue waits for its broker group. If that one is drained or loses the topic, a
message with a sharding key waits for the new route, which has another queue for the key.

One deadline bounds a send: the calls for routes, the wait for a route, and the send itself. The
bytes of messages that wait for a route are bounded like those that wait for a broker group.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Literal, NamedTuple, TypeVar

from msgspec.structs import force_setattr
from yarl import URL

from tidemark import errors
from tidemark.client.answers import Answer
from tidemark.client.batching import Limits, cut, held_size
from tidemark.client.broker_group import BrokerGroup
from tidemark.client.checks import NOTHING_SENT, check_send, parse_queue
from tidemark.client.cluster import TOPICS_MAX, Cluster
from tidemark.client.messages import Outgoing, SendResult
from tidemark.client.producer import Producer
from tidemark.client.pulse import Pulse
from tidemark.client.queue_choice import (
    GroupQueue,
    alternating,
    in_turn,
    queue_of_key,
    writable_queues,
)
from tidemark.client.retries import delay_s, is_not_there, is_outage, may_move_on
from tidemark.client.routes import NO_TOPIC, Routes, unheard
from tidemark.client.transport import not_sent
from tidemark.client.turns import Turns

T = TypeVar("T")

KeyedWhenDown = Literal["wait", "reject"]
"""What a message with a sharding key does while its broker group does not serve."""
HARDLY_USED: Final = 0.98
"""Share of its timeout that a message must have left to count as one that has it all."""
TIMEOUTS_MAX: Final = 16
"""Number of different timeouts that the messages of one timeout may have left."""


class _Places(NamedTuple):
    """What a topic's route says to a producer."""

    routes: Routes
    queues: Sequence[GroupQueue]
    """Writable queues; empty if no broker group has the topic."""
    order: Sequence[str]
    """Broker groups for messages without key."""


class _Time(NamedTuple):
    """The time that a call has, on the loop's clock."""

    timeout_ms: int | None
    """Given by the caller."""
    retry_until: float
    """Until then, a call that certainly stored nothing is repeated, and a route is waited for."""
    ends_at: float
    """Until then, calls for a route are answered."""

    @property
    def left_ms(self) -> int | None:
        """The timeout of a send that begins now; None if the caller has given none.

        Only messages with the same timeout share a request. Therefore it is the caller's if hardly
        any time has passed, and is otherwise rounded down to a part of it.
        """
        if self.timeout_ms is None:
            return None
        left_ms = int((self.ends_at - asyncio.get_running_loop().time()) * 1000)
        if left_ms >= self.timeout_ms * HARDLY_USED:
            return self.timeout_ms
        rounded_ms = left_ms - left_ms % max(1, self.timeout_ms // TIMEOUTS_MAX)
        return max(1, rounded_ms or left_ms)


class _Refused(NamedTuple):
    """A broker group does not have the queue any more that a route gives to a sharding key."""

    routes: Routes
    error: errors.TidemarkError


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
        self._waiting_size = 0
        """Bytes of messages that wait for a route, or until any broker group serves."""
        self._waiting_ended = Pulse()
        """Rings when some of them wait no more."""
        self._calls = Turns(sys.maxsize)
        """Calls in progress, except first attempts at a broker group, whose producer counts them.
        The bytes of their messages are what is bounded."""

    @property
    def unanswered_size(self) -> int:
        """Bytes accepted from callers that are neither answered nor dropped."""
        return self._waiting_size + self._cluster.unanswered_size

    async def close(self) -> None:
        """Wait until all calls are answered."""
        await self._calls.empty()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a call, so that ``close`` waits for it while it only waits for a route."""
        self._calls.take_now(1)
        try:
            yield
        finally:
            self._calls.give(1)

    def _has_room(self, size: int) -> bool:
        """Whether messages of this size may wait; those of one call always may."""
        return not self._waiting_size or self._waiting_size + size <= self._limits.waiting_size_max

    async def _next_room(self, topic: str, size: int, time: _Time) -> None:
        """Wait until there may be room for messages. Raises Unreachable if their time is over."""
        left_s = time.ends_at - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise errors.Unreachable(
                f"{self._waiting_size} bytes of messages wait for a route or a broker group, and "
                f"the {size} bytes for topic {topic} would exceed the limit of "
                f"{self._limits.waiting_size_max} (`Limits.waiting_size_max`). {NOTHING_SENT}",
                "Send them when a name service and the brokers answer, or allow more.",
                url=self._cluster.home.connection.url,
                sent=False,
            )
        await self._waiting_ended.wait(left_s * 1000)

    @contextmanager
    def _waiting(self, size: int) -> Iterator[None]:
        """Count the bytes of messages that wait."""
        self._waiting_size += size
        try:
            yield
        finally:
            self._waiting_size -= size
            self._waiting_ended.ring()

    def _time(self, timeout_ms: int | None, began: float) -> _Time:
        """Return the time of a call. began: on the loop's clock."""
        if timeout_ms is None:
            within_s = self._cluster.home.connection.request_timeout_s
            return _Time(None, began + self._retry_for_s, began + within_s)
        within_s = timeout_ms / 1000
        return _Time(timeout_ms, began + min(self._retry_for_s, within_s), began + within_s)

    # -- one message ----------------------------------------------------------------------------

    async def send(
        self, topic: str, message: Outgoing, *, ack: str | None, timeout_ms: int | None
    ) -> SendResult:
        """Store one message; see ``Client.send``."""
        check_send(topic, ack, timeout_ms)
        began = asyncio.get_running_loop().time()
        at = self._next_at_once(topic, message.wire, began)
        if at is not None:
            try:
                sent = await at.producer.send(
                    topic, message, ack=ack, timeout_ms=timeout_ms, moves_on=True
                )
            except errors.TidemarkError as error:
                self._note_failure(at.name, error)
            else:
                self._cluster.outages.answered(at.name)
                force_setattr(sent, "broker_group", at.name)
                return sent
        with self._counted():
            return await self._send(topic, message, self._time(timeout_ms, began), ack=ack)

    def _next_at_once(
        self, topic: str, wire: dict[str, object], now_s: float
    ) -> BrokerGroup | None:
        """Return the broker group whose turn it is. None if the message has a key or a queue, if
        the route is not known yet, or if that broker group has failed lately."""
        if _is_placed(wire):
            return None
        places = self._places.get(topic)
        if places is None or places.routes is not self._cluster.known(topic):
            return None
        name = places.order[self._turn % len(places.order)]
        if self._cluster.outages.is_out(name, now_s):
            return None
        self._turn += 1
        return self._cluster.used(name)

    async def _send(
        self, topic: str, message: Outgoing, time: _Time, *, ack: str | None
    ) -> SendResult:

        async def send_to(producer: Producer, *, moves_on: bool) -> SendResult:
            return await producer.send(
                topic, message, ack=ack, timeout_ms=time.left_ms, moves_on=moves_on
            )

        is_chosen = _needs_all(message.wire)
        refused: _Refused | None = None
        while True:
            places = await self._places_for(topic, [message], time, refused)
            if places is None:
                return await send_to(self._cluster.home.producer, moves_on=False)
            place = _place(topic, places, message.wire)
            if place is None:
                sent, broker_group = await self._to_any(topic, places, [message], send_to, time)
                break
            message.wire["queue"], broker_group = place.queue, place.broker_group
            is_keyed = "sharding_key" in message.wire
            try:
                sent = await self._to_one(places.routes, broker_group, send_to, is_keyed=is_keyed)
                break
            except errors.TidemarkError as error:
                if not is_chosen or not is_not_there(error):
                    raise
                refused = _Refused(places.routes, error)
                del message.wire["queue"]
        force_setattr(sent, "broker_group", broker_group)
        return sent

    # -- lists ----------------------------------------------------------------------------------

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
        with self._counted():
            return await self._send_many(topic, messages, ack=ack, timeout_ms=timeout_ms)

    async def _send_many(
        self,
        topic: str,
        messages: Sequence[Outgoing],
        *,
        ack: str | None,
        timeout_ms: int | None,
    ) -> list[SendResult]:
        loop = asyncio.get_running_loop()
        time = self._time(timeout_ms, loop.time())
        stored: dict[int, SendResult] = {}
        left: Sequence[int] = range(len(messages))
        refused: _Refused | None = None
        refused_part: Sequence[int] = ()
        while left:
            try:
                waiting = [messages[index] for index in left]
                places = await self._places_for(topic, waiting, time, refused)
            except errors.TidemarkError as error:
                raise _of_list(error, stored, refused_part) from error.__cause__
            if places is None:
                return await self._cluster.home.producer.send_many(
                    topic, messages, ack=ack, timeout_ms=time.left_ms
                )
            refused = None
            placed = [index for index in left if _is_placed(messages[index].wire)]
            chosen = {index for index in placed if _needs_all(messages[index].wire)}
            for broker_group, indexes in self._parts(topic, places, messages, left, placed):
                part = [messages[index] for index in indexes]
                try:
                    sent = await self._send_part(topic, places, broker_group, part, time, ack=ack)
                except errors.TidemarkError as error:
                    stored.update(zip(indexes, _stored_by(error, broker_group), strict=False))
                    if not is_not_there(error) or not chosen.issuperset(indexes):
                        raise _of_list(error, stored, indexes) from error.__cause__
                    # Another route has other queues for these keys.
                    refused, refused_part = _Refused(places.routes, error), indexes
                else:
                    if len(sent) == len(messages):
                        return sent
                    stored.update(zip(indexes, sent, strict=True))
                if indexes[0] in stored:
                    time = self._time(timeout_ms, loop.time())  # each request has its own
            left = [index for index in left if index not in stored]
            for index in chosen.intersection(left):
                del messages[index].wire["queue"]
        return [stored[index] for index in range(len(messages))]

    async def _send_part(
        self,
        topic: str,
        places: _Places,
        broker_group: str | None,
        part: Sequence[Outgoing],
        time: _Time,
        *,
        ack: str | None,
    ) -> list[SendResult]:
        """Send messages to a broker group; None: to any, in one request."""

        async def send_to(producer: Producer, *, moves_on: bool) -> list[SendResult]:
            return await producer.send_many(
                topic, part, ack=ack, timeout_ms=time.left_ms, moves_on=moves_on
            )

        if broker_group is None:
            results, name = await self._to_any(topic, places, part, send_to, time)
        else:
            name = broker_group
            is_keyed = any("sharding_key" in each.wire for each in part)
            results = await self._to_one(places.routes, name, send_to, is_keyed=is_keyed)
        for result in results:
            force_setattr(result, "broker_group", name)
        return results

    def _parts(
        self,
        topic: str,
        places: _Places,
        messages: Sequence[Outgoing],
        indexes: Sequence[int],
        placed: Sequence[int],
    ) -> list[tuple[str | None, Sequence[int]]]:
        """Split a list: the indexes for each broker group, and for None those of requests that may
        go anywhere. placed: indexes of the messages that have a key or a queue."""
        by_group: dict[str | None, list[int]] = {}
        for index in placed:
            place = _place(topic, places, messages[index].wire)
            if place is not None:
                messages[index].wire["queue"] = place.queue
            by_group.setdefault(None if place is None else place.broker_group, []).append(index)
        free: Sequence[int] = indexes
        if placed:
            free = sorted({*indexes}.difference(placed).union(by_group.pop(None, ())))
        requests = cut([messages[index].weight for index in free], self._limits)
        return [
            *((None, free[request.start : request.stop]) for request in requests),
            *by_group.items(),
        ]

    async def post(
        self, topic: str, wires: Sequence[dict[str, object]], *, ack: str | None, timeout_ms: int
    ) -> Answer:
        """Make one produce request and return its answer; see ``Producer.post``.

        All messages have the same queue, or none.
        """

        async def post_to(producer: Producer, *, moves_on: bool) -> Answer:
            return await producer.post(
                topic, wires, ack=ack, timeout_ms=timeout_ms, moves_on=moves_on
            )

        time = self._time(None, asyncio.get_running_loop().time())
        places = await self._places_for(topic, [], time)
        if places is None:
            return await post_to(self._cluster.home.producer, moves_on=False)
        place = _place(topic, places, wires[0])
        if place is None:
            answer, _ = await self._to_any(topic, places, [], post_to, time)
            return answer
        for wire in wires:
            wire["queue"] = place.queue
        return await self._to_one(places.routes, place.broker_group, post_to, is_keyed=False)

    # -- routes ---------------------------------------------------------------------------------

    async def _places_for(
        self,
        topic: str,
        messages: Sequence[Outgoing],
        time: _Time,
        refused: _Refused | None = None,
    ) -> _Places | None:
        """Return the places, for messages with a sharding key only those of a complete route.

        None: the broker is alone. refused: wait for another route than this one, or raise its
        error.

        1. A name service restarts; 2. a new client asks it before all broker groups have registered
        again; 3. with the queues of a part of them, a key would get another queue, and its messages
        would be read out of order. Raises RouteIncomplete if that lasts, and Unreachable if no
        address answers in time or too many messages wait already.
        """
        needs_all = any([_needs_all(each.wire) for each in messages if "sharding_key" in each.wire])
        size = _size_of(messages)
        while True:
            if self._cluster.alone is not None:
                return None
            routes = self._cluster.known(topic)
            if refused is None and routes is not None and (routes.complete or not needs_all):
                return self._places_at(topic, routes)
            if self._has_room(size):
                break
            await self._next_room(topic, size, time)
        with self._waiting(size):
            return await self._awaited_places(topic, time, refused, needs_all=needs_all)

    async def _awaited_places(
        self, topic: str, time: _Time, refused: _Refused | None, *, needs_all: bool
    ) -> _Places | None:
        """Wait for a route that ``_places_for`` may return."""
        loop = asyncio.get_running_loop()
        places: _Places | None = None
        is_same = True
        with suppress(TimeoutError):
            async with asyncio.timeout_at(time.ends_at):
                if await self._cluster.only() is not None:
                    return None
                while places is None or loop.time() < time.retry_until:
                    places = await self._places_of(topic)
                    is_same = (
                        refused is not None and refused.routes.version == places.routes.version
                    )
                    if not is_same and (places.routes.complete or not needs_all):
                        return places
                    if self._rejects and not is_same:
                        break
                    await self._cluster.changed.wait((time.retry_until - loop.time()) * 1000)
        if refused is not None and is_same:
            raise refused.error
        if places is None:
            home = URL(self._cluster.home.connection.url)
            raise not_sent(home, "no address has answered a call for routes in time")
        raise unheard(places.routes, NOTHING_SENT)

    async def _places_of(self, topic: str) -> _Places:
        routes = await self._cluster.route(topic)
        if routes is NO_TOPIC:
            # If brokers create topics automatically, the first broker group creates it.
            everything = await self._cluster.route(None)
            if not everything.groups:
                raise unheard(everything, NOTHING_SENT)
            return _Places(everything, (), [each.broker_group for each in everything.groups])
        return self._places_at(topic, routes)

    def _places_at(self, topic: str, routes: Routes) -> _Places:
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

    # -- broker groups --------------------------------------------------------------------------

    async def _to_any(
        self,
        topic: str,
        places: _Places,
        messages: Sequence[Outgoing],
        send_to: Callable[..., Awaitable[T]],
        time: _Time,
    ) -> tuple[T, str]:
        """Send to the broker group whose turn it is, or to the next one if nothing was stored.

        Returns the result and the broker group. Tries all of them again while time is left.
        """
        loop = asyncio.get_running_loop()
        turn, attempt = self._turn, 0
        self._turn += 1
        while True:
            turn = turn if places.queues else 0
            failure: errors.TidemarkError | None = None
            for name in in_turn(places.order, turn, self._cluster.outages, loop.time()):
                try:
                    producer = self._group(places.routes, name).producer
                    sent = await send_to(producer, moves_on=True)
                except errors.TidemarkError as error:
                    if failure and loop.time() > time.retry_until:
                        raise
                    self._note_failure(name, error)
                    # One that may end counts more than one that stays, like a drain.
                    if failure is None or error.retriable:
                        failure = error
                else:
                    self._cluster.outages.answered(name)
                    return sent, name
            assert failure is not None
            attempt += 1
            pause_s = delay_s(attempt, jitter=random.random())
            if not failure.retriable or loop.time() + pause_s > time.retry_until:
                raise failure
            size = _size_of(messages)
            while not self._has_room(size):
                await self._next_room(topic, size, time)
            with self._waiting(size):
                await self._cluster.changed.wait(pause_s * 1000)
                places = await self._awaited_places(topic, time, None, needs_all=False) or places

    def _note_failure(self, broker_group: str, error: errors.TidemarkError) -> None:
        """Leave a broker group out if it is down. Raises the error if the message may be stored, or
        no other broker group would accept it."""
        if not may_move_on(error):
            raise error
        if is_outage(error):
            self._cluster.outages.failed(broker_group, asyncio.get_running_loop().time())

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
            sent = await send_to(self._group(routes, broker_group).producer, moves_on=rejects)
        except errors.TidemarkError as error:
            if is_outage(error):
                outages.failed(broker_group, loop.time())
                if rejects:
                    raise errors.BrokerGroupDown(broker_group, error.detail) from error
            raise
        outages.answered(broker_group)
        return sent

    def _group(self, routes: Routes, broker_group: str) -> BrokerGroup:
        route = routes.group(broker_group)
        if route is None:
            known = [each.broker_group for each in routes.groups]
            raise errors.UnknownBrokerGroup(broker_group, known)
        return self._cluster.group(route)


def _stored_by(error: errors.TidemarkError, broker_group: str | None) -> list[SendResult]:
    """Results of the messages that a failed part of a list has stored."""
    results: list[SendResult] = list(error.facts.get("results", ()))
    for result in results:
        force_setattr(result, "broker_group", result.broker_group or broker_group)
    return results


def _size_of(messages: Sequence[Outgoing]) -> int:
    """Bytes of memory that messages take."""
    return held_size(sum([message.weight for message in messages]), len(messages))


def _is_placed(wire: dict[str, object]) -> bool:
    """Whether a message has a key or a queue."""
    return "sharding_key" in wire or "queue" in wire


def _needs_all(wire: dict[str, object]) -> bool:
    """Whether the queue of a message depends on all queues of its topic."""
    return wire.get("queue") is None and wire.get("sharding_key") is not None


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
    """Make the facts of an error about a part of a list those of the whole list.

    indexes: of the part's messages in the list.
    """
    error.facts["indexes"] = sorted(stored)
    error.facts["results"] = [stored[index] for index in sorted(stored)]
    at = error.facts.get("index")
    if isinstance(at, int):
        error.facts["index"] = indexes[at]
        error.__notes__ = [f"The message has index {indexes[at]} in the list."]
    return error
