"""Calls to a broker, or to the master of a group: where they go, and how often they are repeated.

A broker that restarts costs a retry, not a new client, and so does a failover: what may be repeated
(``retries``) is, with growing pauses, for up to ``retry_for_s``; the master is followed (``nodes``)
and looked for (``lookout``) when the one of before is not it any more, or says nothing. One attempt
is ``transport``. Knows no call by name but the one that tells the nodes of a group.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Literal, get_args

import msgpack
from yarl import URL

from tidemark import errors
from tidemark.client.answers import MSGPACK, Answer
from tidemark.client.lookout import QUESTION_TIMEOUT_S, Lookout
from tidemark.client.nodes import Nodes, View, base_of, read_view
from tidemark.client.paths import query_of, utf8_only
from tidemark.client.retries import Failure, delay_s, is_of_failover, may_repeat
from tidemark.client.transport import Failed, Transport, no_answer
from tidemark.client.turns import Turns

REQUEST_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0
CONNECT_TIMEOUT_GROUP_S: Final = 1.0
"""Of one node among several: a lost one must not hold up the way to the next."""
CLUSTER: Final = "/v1/cluster"
LEARN_AFTER_S: Final = 5.0
"""A group is asked for its nodes at most so often, until it has told them."""
LEAVE_TIMEOUT_S: Final = 0.1
JOINS_MAX: Final = 32
"""Members of one client that join groups at once."""

ReadFrom = Literal["master", "any"]
"""Which nodes plain reads may be asked of."""
OnConnected = Callable[[str], None]
"""Called with the address of a node that answers."""
OnDisconnected = Callable[[str, errors.TidemarkError], None]
"""Called with the address of a node that answers no more, and what went wrong."""


class Connection:
    """A pool of HTTP connections to one broker, or to the nodes of one group."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        retry_for_s: float = 15.0,
        request_timeout_s: float | None = None,
        connections_max: int = 100,
        read_from: ReadFrom = "master",
        trace: str | None = None,
        headers: Mapping[str, str] | None = None,
        ssl: ssl.SSLContext | None = None,
        on_connected: OnConnected | None = None,
        on_disconnected: OnDisconnected | None = None,
    ) -> None:
        """urls: scheme, host and port, of one node or of several. retry_for_s: 0 never repeats a
        call by itself. connections_max: to all nodes together, but for sends and for calls that a
        broker holds. read_from: ``any`` sends plain reads to the nodes given, the master or not.
        The others: see ``connect``. Raises ValueError, TypeError.
        """
        given = [urls] if isinstance(urls, str) else list(urls)
        if not given:
            raise ValueError("no URL of a broker")
        if read_from not in get_args(ReadFrom):
            raise ValueError(f"read_from must be master or any, not {read_from!r}")
        self._nodes = Nodes([base_of(url) for url in given])
        self._retry_for_s = retry_for_s
        self.given_timeout_s = request_timeout_s
        """Ends calls of a member that go on by themselves otherwise; None: nothing was given."""
        if request_timeout_s is None:
            request_timeout_s = max(REQUEST_TIMEOUT_S, retry_for_s)
        if not request_timeout_s > 0:
            raise ValueError(f"request_timeout_s must be more than 0, not {request_timeout_s}")
        for callback in (on_connected, on_disconnected):
            if inspect.iscoroutinefunction(callback):
                raise TypeError(f"{callback.__name__} must be a plain function, not a coroutine's")
        self.request_timeout_s = request_timeout_s
        """A call ends by then, with all its repetitions, but for what a broker holds it."""
        self._on_connected, self._on_disconnected = on_connected, on_disconnected
        self._connected_to: str | None = None
        self._joins = Turns(JOINS_MAX)
        self._joined_at = -math.inf
        """When somebody joined a group last, on the loop's clock."""
        self._reads_anywhere = read_from == "any"
        self._transport = Transport(connections_max, trace, headers=headers, ssl=ssl)
        self._lookout = Lookout(self._nodes, self._ask)
        self._learning: asyncio.Task[None] | None = None
        self._learn_at: float | None = 0.0
        """On the loop's clock; None: the nodes are known, or there is no group."""

    @property
    def url(self) -> str:
        """Of the node that is asked now."""
        return self._nodes.current

    @property
    def retries(self) -> bool:
        """Whether calls are repeated at all."""
        return self._retry_for_s > 0

    @property
    def readers(self) -> int:
        """How many nodes plain reads may be asked of."""
        return len(self._nodes.urls) if self._reads_anywhere else 1

    def read_elsewhere(self) -> None:
        """The node that answered the last plain read is behind: the next one's turn."""
        self._nodes.reader_failed(self._nodes.reader)

    async def __aenter__(self) -> Connection:
        self._transport.open()
        if len(self._nodes.urls) > 1:
            self._lookout.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._learning is not None:
            # It is answered at once, or not: cut off while it connects, it would leave a socket.
            await asyncio.wait({self._learning}, timeout=LEAVE_TIMEOUT_S)
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)
        await self._lookout.close()
        await self._transport.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        query_again: Mapping[str, object] | None = None,
        body: Mapping[str, object] | bytes | None = None,
        again: Callable[[], bytes] | None = None,
        done_before: type[errors.TidemarkError] | None = None,
        idempotent: bool,
        accept: str = MSGPACK,
        wait_s: float = 0.0,
        retry_for_s: float | None = None,
        ends_in_s: float | None = None,
        is_held: bool = False,
        is_plain_read: bool = False,
    ) -> Answer:
        """Make one call; repeat it while that is safe and time is left.

        path: quoted (see ``path``). query: None values are left out. query_again: added to the
        query of every repetition, for what may have been carried out before. body: bytes are packed
        already. again: makes the body from then on that the broker may have carried out the call
        once; with it a call is idempotent. done_before: the refusal of a repetition which means
        that an earlier attempt did it, whose answer was lost: then the answer is empty. wait_s: how
        long the broker may hold the call on purpose, added to the time-out. retry_for_s, ends_in_s:
        for how long the call is repeated, and until when it ends in any case, if not as the
        client's other calls. is_held: takes no place in the pool from other calls. is_plain_read:
        any node answers it, if the client was told to take that. Raises the typed error of the code
        that the broker named, Unreachable if it named none.
        """
        with utf8_only(errors.BadRequest, "a value of the request"):
            rest = path + query_of(query)
            data = body if body is None or isinstance(body, bytes) else _packed(body)
        loop = asyncio.get_running_loop()
        started = loop.time()
        ends_at = started + (self.request_timeout_s if ends_in_s is None else ends_in_s) + wait_s
        retry_for_s = self._retry_for_s if retry_for_s is None else retry_for_s
        give_up_at = min(started + retry_for_s, ends_at)
        is_read = is_plain_read and self._reads_anywhere
        doubtful: Failed | None = None
        attempt = 0
        while True:
            attempt += 1
            if attempt == 2 and query_again is not None:
                rest = path + query_of({**(query or {}), **query_again})
            node = self._nodes.reader if is_read else self._nodes.current
            try:
                answer = await self._attempt(
                    node,
                    method,
                    rest,
                    data,
                    accept=accept,
                    timeout_s=max(ends_at - loop.time(), 0.001),  # aiohttp takes 0 for no bound
                    is_held=is_held or wait_s > 0,
                    is_read=is_read,
                )
            except Failed as failed:
                failure = failed.failure
                pause_s = self._turn(node, failed, attempt, is_read=is_read)
                if doubtful and done_before and isinstance(failed.error, done_before):
                    return Answer({}, b"")
                if failure in (Failure.LOST, Failure.UNKNOWN_OUTCOME):
                    doubtful = failed if again or query_again or done_before else None
                    if again is not None and loop.time() + pause_s <= give_up_at:
                        data = again()
                if (
                    not may_repeat(failure, idempotent=idempotent or again is not None)
                    or loop.time() + pause_s > give_up_at
                ):
                    raise _verdict(failed, doubtful) from failed.__cause__
                await self._wait(pause_s, failed.error)
            else:
                if self._connected_to != node and not is_read:
                    self._connected(node)
                self._learn_soon(loop, node)
                return answer

    def _connected(self, node: str) -> None:
        self._connected_to = node
        if self._on_connected is not None:
            # In a turn of its own: what it raises must not end a call.
            asyncio.get_running_loop().call_soon(self._on_connected, node)

    def _disconnected(self, node: str, error: errors.TidemarkError) -> None:
        if node != self._connected_to:
            return
        self._connected_to = None
        if self._on_disconnected is not None:
            asyncio.get_running_loop().call_soon(self._on_disconnected, node, error)

    @asynccontextmanager
    async def joining(self) -> AsyncIterator[None]:
        """A turn to join a group, first come, first served.

        Few at once: 1. a program subscribes to a thousand groups; 2. a thousand joins are ahead of
        the heartbeats of the first that have joined; 3. the broker takes those for dead. Waits for
        as long as others are answered; then raises Unreachable.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        if not await self._joins.take(
            1, lambda: max(started, self._joined_at) + self.request_timeout_s
        ):
            raise errors.Unreachable(
                f"{self.url} does not answer those that join groups before. Nothing was sent.",
                "Check the node's /ready.",
                url=self.url,
                sent=False,
            )
        try:
            yield
            self._joined_at = loop.time()
        finally:
            self._joins.give(1)

    async def pause(
        self, failed: int, error: errors.TidemarkError, *, at_most_s: float = math.inf
    ) -> None:
        """Wait before a call is made again that failed for the ``failed``-th time in a row.

        For callers who repeat by themselves and for ever; not longer than until the group has
        another master.
        """
        searching = self._lookout.is_looking and is_of_failover(error)
        pause_s = min(delay_s(failed, jitter=random.random(), searching=searching), at_most_s)
        await self._wait(pause_s, error)

    async def _attempt(
        self,
        node: str,
        method: str,
        rest: str,
        data: bytes | None,
        *,
        accept: str,
        timeout_s: float,
        is_held: bool,
        is_read: bool,
    ) -> Answer:
        """One attempt, looked after if there are other nodes. Raises Failed."""
        url = URL(node + rest, encoded=True)
        attempt = self._transport.once(
            method,
            url,
            data,
            accept=accept,
            timeout_s=timeout_s,
            connect_timeout_s=self._connect_timeout_s,
            is_held=is_held,
            from_any=is_read,
        )
        if not self._lookout.is_looking:
            return await attempt
        try:
            async with asyncio.timeout(None) as deadline:
                with self._lookout.over(node, deadline, is_held=is_held, is_read=is_read):
                    return await attempt
        except TimeoutError as silent:
            reason = "it has fallen silent, and another node answers"
            raise Failed(Failure.LOST, no_answer(url, reason)) from silent

    def _turn(self, node: str, failed: Failed, attempt: int, *, is_read: bool) -> float:
        """Turn to the node that is asked next; how long to wait before."""
        nodes, failure, error = self._nodes, failed.failure, failed.error
        if failure in (Failure.NOT_SENT, Failure.LOST):
            self._disconnected(node, error)
        searching = self._lookout.is_looking and is_of_failover(error)
        pause_s = delay_s(attempt, jitter=random.random(), searching=searching)
        if is_read:
            if is_of_failover(error):
                nodes.reader_failed(node)
            return 0.0 if searching and attempt < len(nodes.urls) else pause_s
        if failure is Failure.NOT_MASTER:
            self._learn_at = 0.0  # the group has changed since it told its nodes
            self._lookout.start()
            master = error.facts.get("api")
            if nodes.sent_on(node, master if isinstance(master, str) else None) and attempt == 1:
                return 0.0
        elif failure in (Failure.NOT_SENT, Failure.LOST) or _is_past(error):
            nodes.failed(node)
        return pause_s

    async def _wait(self, pause_s: float, error: errors.TidemarkError) -> None:
        if self._lookout.is_looking and is_of_failover(error):
            await self._lookout.pause(pause_s)
        else:
            await asyncio.sleep(pause_s)

    def _learn_soon(self, loop: asyncio.AbstractEventLoop, node: str) -> None:
        """Ask the node that has just answered for the others, now and then."""
        if self._learn_at is None or loop.time() < self._learn_at or self._learning is not None:
            return
        self._learn_at = loop.time() + LEARN_AFTER_S
        self._learning = loop.create_task(self._learn(node))

    async def _learn(self, node: str) -> None:
        try:
            view = await self._ask(node, is_held=False)
            if view is None:
                return
            self._nodes.heard(node, view)
            if view.is_alone or view.master is not None:
                self._learn_at = None
            if len(self._nodes.urls) > 1:
                self._lookout.start()
        finally:
            self._learning = None

    async def _ask(self, node: str, *, is_held: bool = True) -> View | None:
        """What a node says of its group; None: nothing that could be understood.

        is_held: not from the pool whose connections may all wait for a node that is silent.
        """
        try:
            answer = await self._transport.once(
                "GET",
                URL(node + CLUSTER),
                None,
                timeout_s=QUESTION_TIMEOUT_S,
                connect_timeout_s=QUESTION_TIMEOUT_S,
                is_held=is_held,
            )
            return read_view(answer.map())
        except Failed as failed:
            if failed.failure is Failure.REFUSED:
                return ALONE  # of an earlier version
            return None
        except (errors.BrokenAnswer, AttributeError, KeyError, TypeError, ValueError):
            return None

    @property
    def _connect_timeout_s(self) -> float:
        return CONNECT_TIMEOUT_GROUP_S if len(self._nodes.urls) > 1 else CONNECT_TIMEOUT_S


def _packed(body: Mapping[str, object]) -> bytes:
    packed: bytes = msgpack.packb(body)
    return packed


ALONE: Final = View((), 0, None, is_alone=True)


def _is_past(error: errors.TidemarkError) -> bool:
    """Whether the node that says this was the master, perhaps, and another one knows better.

    One that is being promoted is the one to come back to.
    """
    if error.code == errors.NotServing.code:
        return error.facts.get("state") != "promoting"
    return error.code == errors.Fenced.code


def _verdict(failed: Failed, doubtful: Failed | None) -> errors.TidemarkError:
    """What the caller is told. doubtful: an earlier attempt that may have been carried out.

    A later one that says that nothing was done speaks of itself alone: 1. a send is stored, the
    answer is lost; 2. the next attempt finds nobody, who would say that nothing was sent.
    """
    if doubtful is None or doubtful is failed:
        return failed.error
    doubtful.error.add_note(f"The last attempt to repeat it failed: {failed.error}")
    return doubtful.error
