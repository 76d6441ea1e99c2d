"""Makes calls to a broker or to the master of a group: chooses the node and repeats failed calls.

A restart of a broker or a failover costs retries, not a new client. Calls that may be repeated
(``retries``) are, with growing pauses, for up to ``retry_for_s``. The client follows the master
(``nodes``) and searches for it (``master_discovery``) when the previous one is no longer the master
or does not respond. ``transport`` makes a single attempt. The only call that this module knows by
name is the one that lists the nodes of a group.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Final, Literal, NamedTuple, TypeVar, get_args

import msgpack
from yarl import URL

from tidemark import errors
from tidemark.client.answers import MSGPACK, Answer
from tidemark.client.master_discovery import QUESTION_TIMEOUT_S, MasterDiscovery
from tidemark.client.nodes import Nodes, View, base_of, read_view
from tidemark.client.paths import query_of, utf8_only
from tidemark.client.retries import Failure, delay_s, is_of_failover, is_transient, may_repeat
from tidemark.client.transport import Failed, Transport, no_answer
from tidemark.client.turns import Turns

T = TypeVar("T")

RETRY_FOR_S: Final = 30.0
"""Longer than a failover. With the longest of ha's time profiles a group has no master for up to
21 s, and for the time of a few requests to the lease store and of opening."""
REQUEST_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0
CONNECT_TIMEOUT_GROUP_S: Final = 1.0
"""For one node among several: short, so that a dead node does not delay the next attempt."""
CLUSTER: Final = "/v1/cluster"
LEARN_AFTER_S: Final = 5.0
"""Minimum time between two queries for the group's nodes, until a node has answered."""
LEAVE_TIMEOUT_S: Final = 0.1
JOINS_MAX: Final = 32
"""Maximum number of members of one client that join groups at the same time."""

ReadFrom = Literal["master", "any"]
"""Which nodes may answer plain reads."""
OnConnected = Callable[[str], None]
"""Called with the address of a node that answers."""
OnDisconnected = Callable[[str, errors.TidemarkError], None]
"""Called with the address of a node that stopped answering, and the error."""


class ConnectionSettings(NamedTuple):
    """Settings of a connection; ``connect`` describes those that are not described here."""

    retry_for_s: float = RETRY_FOR_S
    """0 disables retries."""
    request_timeout_s: float | None = None
    connections_max: int = 100
    """Total for all nodes, not counting sends and calls that a broker holds."""
    read_from: ReadFrom = "master"
    """``any`` sends plain reads to the given nodes, whether master or slave."""
    trace: str | None = None
    headers: Mapping[str, str] | None = None
    ssl: SSLContext | None = None


class Connection:
    """HTTP connections to one broker or to the nodes of one group."""

    def __init__(
        self,
        urls: str | Sequence[str],
        settings: ConnectionSettings,
        *,
        on_connected: OnConnected | None = None,
        on_disconnected: OnDisconnected | None = None,
    ) -> None:
        """urls: scheme, host and port of one or several nodes. Raises ValueError, TypeError."""
        given = [urls] if isinstance(urls, str) else list(urls)
        if not given:
            raise ValueError("no URL of a broker")
        if settings.read_from not in get_args(ReadFrom):
            raise ValueError(f"read_from must be master or any, not {settings.read_from!r}")
        self._nodes = Nodes([base_of(url) for url in given])
        self._retry_for_s = settings.retry_for_s
        self.given_timeout_s = request_timeout_s = settings.request_timeout_s
        """Time limit of a member's calls that would otherwise wait forever; None: no limit."""
        if request_timeout_s is None:
            request_timeout_s = max(REQUEST_TIMEOUT_S, settings.retry_for_s)
        if not request_timeout_s > 0:
            raise ValueError(f"request_timeout_s must be more than 0, not {request_timeout_s}")
        self.request_timeout_s = request_timeout_s
        """Time limit of a call with all retries, not counting the time that a broker holds it."""
        self._on_connected, self._on_disconnected = on_connected, on_disconnected
        self._connected_to: str | None = None
        self._joins = Turns(JOINS_MAX)
        self._joined_at = -math.inf
        """Time of the last successful join of a group, on the loop's clock."""
        self._reads_anywhere = settings.read_from == "any"
        self._transport = Transport(
            settings.connections_max,
            settings.trace,
            headers=settings.headers,
            ssl=settings.ssl,
        )
        self._discovery = MasterDiscovery(self._nodes, self._ask)
        self._learning: asyncio.Task[None] | None = None
        self._learn_at: float | None = 0.0
        """Time of the next query for nodes, on the loop's clock; None: not needed any more."""

    @property
    def url(self) -> str:
        """Address of the node to which calls go now."""
        return self._nodes.current

    @property
    def urls(self) -> Sequence[str]:
        """All known addresses."""
        return self._nodes.urls

    def learn_nodes(self, urls: Sequence[str], master: str | None, epoch: int) -> None:
        """Note what a name service has reported: the nodes of the group and, if it is known, the
        address of the master of an epoch. Calls that pause for a new master go on."""
        if urls and not set(urls) <= set(self._nodes.urls):
            self._nodes.learned(urls)
            self._discovery.start()
        if master is not None and self._nodes.reported(master, epoch):
            self._discovery.go_on()

    @property
    def retries(self) -> bool:
        """Whether failed calls are repeated at all."""
        return self._retry_for_s > 0

    @property
    def readers(self) -> int:
        """Number of nodes that may answer plain reads."""
        return len(self._nodes.urls) if self._reads_anywhere else 1

    def read_elsewhere(self) -> None:
        """Send plain reads to the next node, because the last one to answer is behind."""
        self._nodes.reader_failed(self._nodes.reader)

    def open(self) -> None:
        """Create the pools in the loop that uses them."""
        self._transport.open()
        if len(self._nodes.urls) > 1:
            self._discovery.start()

    async def __aenter__(self) -> Connection:
        self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._learning is not None:
            # A cancellation during the connect would leak a socket, so the query gets a moment.
            await asyncio.wait({self._learning}, timeout=LEAVE_TIMEOUT_S)
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)
        await self._discovery.close()
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
        content_type: str = MSGPACK,
        wait_s: float = 0.0,
        retry_for_s: float | None = None,
        ends_in_s: float | None = None,
        is_held: bool = False,
        is_plain_read: bool = False,
        moves_on: bool = False,
    ) -> Answer:
        """Make one call, and repeat it while that is safe and time is left.

        path: quoted (see ``path``).
        query: None values are left out.
        query_again: added to the query of every repetition, in case the first was carried out.
        body: bytes are sent as they are, a map is packed.
        again: builds the body of all repetitions once the broker may have carried out the call;
        with it a call counts as idempotent.
        done_before: the error of a repetition which means that an earlier attempt succeeded and its
        answer was lost; then an empty answer is returned.
        wait_s: how long the broker may hold the call on purpose; added to the timeout.
        retry_for_s, ends_in_s: how long the call is repeated, and its time limit, if they differ
        from the client's defaults.
        is_held: the call uses a connection outside the bounded pool.
        is_plain_read: any node may answer, if the client was created with read_from ``any``.
        moves_on: raise the error of an attempt that certainly did nothing instead of waiting for
        the next one, because the caller can make the call at another broker group.
        Raises the typed error of the broker's error code, Unreachable if there was no answer.
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
                    content_type=content_type,
                    timeout_s=max(ends_at - loop.time(), 0.001),  # aiohttp takes 0 as no limit
                    is_held=is_held or wait_s > 0,
                    is_read=is_read,
                )
            except Failed as failed:
                failure = failed.failure
                pause_s = self._turn(node, failed, attempt, is_read=is_read)
                if doubtful and done_before and isinstance(failed.error, done_before):
                    return Answer({}, b"")
                if failure in (Failure.LOST, Failure.UNKNOWN_OUTCOME):
                    if again or query_again or done_before:
                        doubtful = _more_certain(doubtful, failed)
                    if again is not None and loop.time() + pause_s <= give_up_at:
                        data = again()
                if (
                    not may_repeat(failure, idempotent=idempotent or again is not None)
                    or loop.time() + pause_s > give_up_at
                    or (moves_on and pause_s > 0 and doubtful is None)
                ):
                    raise _verdict(failed, doubtful) from failed.__cause__
                await self._wait(pause_s, failed.error)
            else:
                if self._connected_to != node and not is_read:
                    self._connected(node)
                self._query_nodes_soon(loop, node)
                return answer

    def _connected(self, node: str) -> None:
        self._connected_to = node
        if self._on_connected is not None:
            # Called by the loop, because an exception of the callback must not end a call.
            asyncio.get_running_loop().call_soon(self._on_connected, node)

    def _disconnected(self, node: str, error: errors.TidemarkError) -> None:
        if node != self._connected_to:
            return
        self._connected_to = None
        if self._on_disconnected is not None:
            asyncio.get_running_loop().call_soon(self._on_disconnected, node, error)

    @asynccontextmanager
    async def joining(self) -> AsyncIterator[None]:
        """Wait for a turn to join a group, in first-come, first-served order.

        The number of joins at once is bounded. Otherwise: 1. a program subscribes to a thousand
        groups; 2. a thousand joins are queued before the heartbeats of the first members; 3. the
        broker expires those members. Waits as long as other joins are answered, then raises
        Unreachable.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        if not await self._joins.take(
            1, lambda: max(started, self._joined_at) + self.request_timeout_s
        ):
            raise errors.Unreachable(
                f"{self.url} does not answer the group joins before this one. Nothing was sent.",
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

        For callers with their own unbounded retries. Ends early when a new master is found.
        """
        searching = self._discovery.is_started and is_of_failover(error)
        pause_s = min(delay_s(failed, jitter=random.random(), searching=searching), at_most_s)
        await self._wait(pause_s, error)

    async def repeated(
        self, call: Callable[[], Awaitable[T]], is_over: Callable[[], bool] = lambda: False
    ) -> T:
        """Make a call of a group member until it succeeds. Raises errors that are not transient.

        is_over: whether to raise transient errors as well, because the group is being left.
        """
        failed = 0
        while True:
            try:
                return await call()
            except errors.TidemarkError as error:
                if not is_transient(error) or is_over():
                    raise
                failed += 1
                await self.pause(failed, error)

    async def _attempt(
        self,
        node: str,
        method: str,
        rest: str,
        data: bytes | None,
        *,
        accept: str,
        content_type: str,
        timeout_s: float,
        is_held: bool,
        is_read: bool,
    ) -> Answer:
        """Make one attempt; watch it if there are other nodes. Raises Failed."""
        url = URL(node + rest, encoded=True)
        attempt = self._transport.once(
            method,
            url,
            data,
            accept=accept,
            content_type=content_type,
            timeout_s=timeout_s,
            connect_timeout_s=self._connect_timeout_s,
            is_held=is_held,
            from_any=is_read,
        )
        if not self._discovery.is_started:
            return await attempt
        try:
            async with asyncio.timeout(None) as deadline:
                with self._discovery.watching(node, deadline, is_held=is_held, is_read=is_read):
                    return await attempt
        except TimeoutError as silent:
            reason = "it does not respond, and another node answers"
            raise Failed(Failure.LOST, no_answer(url, reason)) from silent

    def _turn(self, node: str, failed: Failed, attempt: int, *, is_read: bool) -> float:
        """Choose the node of the next attempt. Returns how long to wait before it."""
        nodes, failure, error = self._nodes, failed.failure, failed.error
        if failure in (Failure.NOT_SENT, Failure.LOST):
            self._disconnected(node, error)
        searching = self._discovery.is_started and is_of_failover(error)
        pause_s = delay_s(attempt, jitter=random.random(), searching=searching)
        if is_read:
            if is_of_failover(error):
                nodes.reader_failed(node)
            return 0.0 if searching and attempt < len(nodes.urls) else pause_s
        if failure is Failure.NOT_MASTER:
            self._learn_at = 0.0  # the known list of nodes is out of date
            self._discovery.start()
            master = error.facts.get("api")
            if nodes.redirected(node, master if isinstance(master, str) else None) and attempt == 1:
                return 0.0
        elif failure in (Failure.NOT_SENT, Failure.LOST) or _is_past(error):
            nodes.failed(node)
        return pause_s

    async def _wait(self, pause_s: float, error: errors.TidemarkError) -> None:
        if self._discovery.is_started and is_of_failover(error):
            await self._discovery.pause(pause_s)
        else:
            await asyncio.sleep(pause_s)

    def _query_nodes_soon(self, loop: asyncio.AbstractEventLoop, node: str) -> None:
        """Query the node that has just answered for the other nodes, if a query is due."""
        if self._learn_at is None or loop.time() < self._learn_at or self._learning is not None:
            return
        self._learn_at = loop.time() + LEARN_AFTER_S
        self._learning = loop.create_task(self._query_nodes(node))

    async def _query_nodes(self, node: str) -> None:
        try:
            view = await self._ask(node, is_held=False)
            if view is None:
                return
            self._nodes.record_view(node, view)
            if view.is_alone or view.master is not None:
                self._learn_at = None
            if len(self._nodes.urls) > 1:
                self._discovery.start()
        finally:
            self._learning = None

    async def _ask(self, node: str, *, is_held: bool = True) -> View | None:
        """Return a node's view of its group; None if there is no answer that can be parsed.

        is_held: use a connection outside the pool, whose connections may all wait for a node that
        does not respond.
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
                return ALONE  # an earlier version without this call
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
    """Whether the error shows that the node is no longer the master and another one may be.

    Not for a node that is being promoted: the client comes back to it.
    """
    if error.code == errors.NotServing.code:
        return error.facts.get("state") != "promoting"
    return error.code == errors.Fenced.code


def _more_certain(earlier: Failed | None, later: Failed) -> Failed:
    """Choose between two attempts that may have been carried out: the later one, unless only the
    earlier one is known to have been."""
    if earlier is not None and earlier.failure is Failure.UNKNOWN_OUTCOME:
        return earlier if later.failure is Failure.LOST else later
    return later


def _verdict(failed: Failed, doubtful: Failed | None) -> errors.TidemarkError:
    """Choose the error to raise. doubtful: an earlier attempt that may have been carried out.

    The error of a later attempt says only that this attempt did nothing: 1. a send is stored and
    its answer is lost; 2. the next attempt cannot connect and reports that nothing was sent.
    """
    if doubtful is None or doubtful is failed:
        return failed.error
    doubtful.error.add_note(f"The last attempt to repeat it failed: {failed.error}")
    return doubtful.error
