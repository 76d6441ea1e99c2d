"""HTTP to a broker, or to the master of a group: pool, encodings, errors, repetition.

A broker that restarts costs a retry, not a new client, and so does a failover: connections are
made on demand, what may be repeated (``retries``) is, with growing pauses, for up to
``retry_for_s``, and the master is looked for (``nodes``) when the one of before is not it any more.
Bodies are msgpack. Knows no call by name but the one that tells the nodes of a group.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote, urlencode

import aiohttp
import msgpack
from yarl import URL

from tidemark import errors
from tidemark.client.nodes import Nodes
from tidemark.client.retries import Failure, delay_s, failure_of, may_repeat

MSGPACK: Final = "application/msgpack"
RECORDS: Final = "application/vnd.tidemark.records"
CONNECT_TIMEOUT_S: Final = 5.0
CONNECT_TIMEOUT_GROUP_S: Final = 1.0
"""Of one node among several: a lost one must not hold up the way to the next."""
CLUSTER: Final = "/v1/cluster"
LEARN_AFTER_S: Final = 5.0
"""A group is asked for its nodes at most so often."""
ELSEWHERE: Final = frozenset({errors.Fenced.code, errors.NotServing.code})
"""A node that says this was perhaps the master: another one may know better."""
ANSWER_SIZE_MAX: Final = 256 << 20
"""An answer that announces more than this is refused: the caller bounds what it asks for."""


class Answer(NamedTuple):
    """A success: headers and body as they came."""

    headers: Mapping[str, str]
    body: bytes

    def map(self) -> dict[str, Any]:
        """Decode the body; raises BrokenAnswer if it is not a msgpack map."""
        try:
            value = msgpack.unpackb(self.body, strict_map_key=False)
        except (ValueError, msgpack.UnpackException) as error:
            raise errors.BrokenAnswer(f"the broker's answer is not msgpack: {error}") from error
        if not isinstance(value, dict):
            raise errors.BrokenAnswer(f"the broker's answer is a {type(value).__name__}, not a map")
        return cast(dict[str, Any], value)

    def number(self, header: str) -> int:
        """A whole number in a header; raises BrokenAnswer if it is missing or none."""
        try:
            return int(self.headers[header])
        except (KeyError, ValueError) as error:
            raise errors.BrokenAnswer(
                f"the broker's answer has no number in header {header}"
            ) from error


class Connection:
    """A pool of HTTP connections to one broker, or to the nodes of one group."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        retry_for_s: float = 15.0,
        answer_timeout_s: float = 30.0,
        connections_max: int = 100,
    ) -> None:
        """urls: scheme, host and port, of one node or of several. retry_for_s: 0 never repeats a
        call by itself. connections_max: to all nodes together.
        """
        given = [urls] if isinstance(urls, str) else list(urls)
        if not given:
            raise ValueError("no URL of a broker")
        self._nodes = Nodes([_base(url) for url in given])
        self._retry_for_s = retry_for_s
        self._answer_timeout_s = answer_timeout_s
        self._connections_max = connections_max
        self._session: aiohttp.ClientSession | None = None
        self._held: aiohttp.ClientSession | None = None
        self._learning: asyncio.Task[None] | None = None
        self._learn_at: float | None = 0.0
        """On the loop's clock; None: who answers is in no group."""

    @property
    def url(self) -> str:
        """Of the node that is asked now."""
        return self._nodes.current

    @property
    def retries(self) -> bool:
        """Whether calls are repeated at all."""
        return self._retry_for_s > 0

    async def __aenter__(self) -> Connection:
        self._session = _session(self._connections_max)
        # Without a limit of their own: there are as many as subscriptions. In the same pool, a
        # hundred fetches that wait for messages would keep every heartbeat from leaving.
        self._held = _session(0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)
        sessions = self._session, self._held
        self._session = self._held = None
        for session in sessions:
            if session is not None:
                await session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, object] | None = None,
        again: Mapping[str, object] | None = None,
        idempotent: bool,
        accept: str = MSGPACK,
        wait_s: float = 0.0,
        retry_for_s: float | None = None,
        answer_timeout_s: float | None = None,
        is_held: bool = False,
    ) -> Answer:
        """Make one call; repeat it while that is safe and time is left.

        path: quoted (see ``path``). query: None values are left out. again: the body from then on
        that the broker may have carried out the call once; with it a call is idempotent. wait_s:
        how long the broker may hold the call on purpose, added to the time-out. retry_for_s,
        answer_timeout_s: other bounds than the client's. is_held: takes no place in the pool from
        other calls. Raises the typed error of the code that the broker named, Unreachable if it
        named none.
        """
        with _utf8(errors.BadRequest, "a value of the request"):
            rest = path + _query(query)
            data = None if body is None else cast(bytes, msgpack.packb(body))
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + (self._retry_for_s if retry_for_s is None else retry_for_s)
        timeout_s = (
            self._answer_timeout_s if answer_timeout_s is None else answer_timeout_s
        ) + wait_s
        attempt = 0
        while True:
            attempt += 1
            node = self._nodes.current
            url = URL(node + rest, encoded=True)
            try:
                answer = await self._once(
                    method, url, data, accept=accept, timeout_s=timeout_s, is_held=is_held
                )
            except _Failed as failed:
                failure = failed.failure
                pause_s = self._pause_s(node, failed, attempt)
                if (
                    not may_repeat(failure, idempotent=idempotent or again is not None)
                    or loop.time() + pause_s > give_up_at
                ):
                    raise failed.error from failed.__cause__
                if again is not None and failure in (Failure.LOST, Failure.UNKNOWN_OUTCOME):
                    data = cast(bytes, msgpack.packb(again))
                await asyncio.sleep(pause_s)
            else:
                self._learn_soon(loop)
                return answer

    def _pause_s(self, node: str, failed: _Failed, attempt: int) -> float:
        """Turn to the node that is asked next; how long to wait before."""
        nodes, failure, error = self._nodes, failed.failure, failed.error
        if failure is Failure.NOT_MASTER:
            master = error.facts.get("api")
            self._learn_at = 0.0  # the group has changed since it told its nodes
            if nodes.sent_on(node, master if isinstance(master, str) else None) and attempt == 1:
                return 0.0
        elif failure in (Failure.NOT_SENT, Failure.LOST) or error.code in ELSEWHERE:
            nodes.failed(node)
        searching = len(nodes.urls) > 1 or failure is Failure.NOT_MASTER
        return delay_s(attempt, jitter=random.random(), searching=searching)

    def _learn_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask the node that has just answered for the others, now and then."""
        if self._learn_at is None or loop.time() < self._learn_at or self._learning is not None:
            return
        self._learn_at = loop.time() + LEARN_AFTER_S
        self._learning = loop.create_task(self._learn())

    async def _learn(self) -> None:
        try:
            node = self._nodes.current
            answer = await self._once(
                "GET",
                URL(node + CLUSTER),
                None,
                accept=MSGPACK,
                timeout_s=self._answer_timeout_s,
                is_held=False,
            )
            found = [each["api"] for each in answer.map()["nodes"]]
            self._nodes.learned([_base(url) for url in found])
            # Known until a node says that it is not the master any more.
            self._learn_at = None
        except _Failed as failed:
            if failed.failure is Failure.REFUSED:
                self._learn_at = None  # a node alone, or one of an earlier version
        except (errors.BrokenAnswer, KeyError, TypeError, ValueError):
            self._learn_at = None
        finally:
            self._learning = None

    async def _once(
        self,
        method: str,
        url: URL,
        data: bytes | None,
        *,
        accept: str,
        timeout_s: float,
        is_held: bool,
    ) -> Answer:
        session = self._held if is_held else self._session
        if session is None:
            raise RuntimeError("the client is closed; use it inside `async with`")
        headers = {"Accept": accept}
        if data is not None:
            headers["Content-Type"] = MSGPACK
        timeout = aiohttp.ClientTimeout(
            total=timeout_s, sock_connect=min(self._connect_timeout_s, timeout_s)
        )
        try:
            async with session.request(
                method, url, data=data, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                if (response.content_length or 0) > ANSWER_SIZE_MAX:
                    raise errors.BrokenAnswer(
                        f"the answer has {response.content_length} bytes, over {ANSWER_SIZE_MAX}"
                    )
                body = await response.read()
                if response.status < 300:
                    return Answer(response.headers, body)
                error = error_of(response.status, response.headers, body)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as failure:
            raise _Failed(
                Failure.NOT_SENT, self._unreachable(url, failure, sent=False)
            ) from failure
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as failure:
            raise _Failed(Failure.LOST, self._unreachable(url, failure, sent=True)) from failure
        raise _Failed(failure_of(status=error.status, retriable=error.retriable), error)

    @property
    def _connect_timeout_s(self) -> float:
        return CONNECT_TIMEOUT_GROUP_S if len(self._nodes.urls) > 1 else CONNECT_TIMEOUT_S

    def _unreachable(self, url: URL, failure: BaseException, *, sent: bool) -> errors.Unreachable:
        reason, node = str(failure) or type(failure).__name__, str(url.origin())
        if not sent:
            return errors.Unreachable(
                f"no connection to {node}: {reason}. Nothing was sent.",
                "Start a node with `tidemark dev`, or check the URL.",
                url=node,
                sent=False,
            )
        return errors.Unreachable(
            f"{node} gave no answer: {reason}. If this was a send, its outcome is unknown.",
            "Check the node's /ready; look for the message by its key before you send it again.",
            url=node,
            sent=True,
        )


def _base(url: str) -> str:
    """Scheme, host and port of a broker. Raises ValueError."""
    base = URL(url)
    if base.scheme not in ("http", "https") or not base.host:
        raise ValueError(f"not a broker's URL: {url!r}; it looks like http://localhost:8080")
    return str(base).rstrip("/")


def _session(connections_max: int) -> aiohttp.ClientSession:
    """A pool; connections_max 0: without a limit.

    keepalive_timeout is below any server's: a request on a connection that the server is just
    closing would be a send of unknown outcome for no reason.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections_max, keepalive_timeout=10.0),
        auto_decompress=False,
    )


class _Failed(Exception):
    """One attempt's end, judged; never leaves this module."""

    def __init__(self, failure: Failure, error: errors.TidemarkError) -> None:
        super().__init__(str(error))
        self.failure, self.error = failure, error


def path(*segments: str | int) -> str:
    """``/v1/…`` with every segment quoted: a topic may be called ``%RETRY%billing``.

    Raises BadName for what cannot stand in a path, so that it does not reach another call.
    """
    quoted: list[str] = []
    for segment in map(str, segments):
        if segment in ("", ".", ".."):
            raise errors.BadName(
                f"{segment!r} is no name. Nothing was sent.", "Names are letters, digits, %|_-."
            )
        with _utf8(errors.BadName, segment):
            quoted.append(quote(segment, safe=""))
    return "/v1/" + "/".join(quoted)


@contextmanager
def _utf8(kind: type[errors.RequestError], what: str) -> Iterator[None]:
    """Text from a command line may hold bytes that are no text; the wire cannot."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise kind(f"{what!a} is not UTF-8 text: {error.reason}. Nothing was sent.") from None


def _query(query: Mapping[str, object] | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return "?" + urlencode(given, quote_via=quote) if given else ""


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> errors.TidemarkError:
    """The typed error for an answer that is none: by its code, else one that names the status."""
    try:
        if headers.get("Content-Type", "").startswith(MSGPACK):
            wire = msgpack.unpackb(body, strict_map_key=False)
        else:
            wire = json.loads(body)
        code = str(wire["code"])
    except (ValueError, KeyError, TypeError, msgpack.UnpackException):
        start = body[:200].decode("utf-8", "replace")
        broken = errors.BrokenAnswer(f"HTTP status {status} without an error code: {start!r}")
        broken.facts["http_status"] = status
        return broken
    facts = {name: value for name, value in wire.items() if name not in _ERROR_FIELDS}
    kind = _kinds().get(code) or _unknown_kind(
        code, str(wire.get("title", "")), status, wire.get("retriable") is True
    )
    # Not kind(...): some errors take the store's own facts instead of a ready sentence.
    error = kind.__new__(kind)
    errors.TidemarkError.__init__(
        error, str(wire.get("detail", "")), str(wire.get("advice", "")), **facts
    )
    return error


_ERROR_FIELDS: Final = frozenset({"code", "title", "detail", "advice", "retriable", "status"})


@functools.cache
def _kinds() -> dict[str, type[errors.TidemarkError]]:
    """Every error class of ``tidemark.errors`` by its code."""
    found: dict[str, type[errors.TidemarkError]] = {}
    pending: list[type[errors.TidemarkError]] = [errors.TidemarkError]
    while pending:
        kind = pending.pop()
        if kind.__module__ == errors.__name__:
            found.setdefault(kind.code, kind)
            pending.extend(kind.__subclasses__())
    return found


def _unknown_kind(
    code: str, title: str, status: int, retriable: bool
) -> type[errors.TidemarkError]:
    """A class for a code of a later broker: still a TidemarkError with that code."""
    members = {
        "__module__": "answered",  # not ours: no heading of the runbook speaks of it
        "code": code,
        "title": title,
        "status": status,
        "retriable": retriable,
    }
    return type("TidemarkError", (errors.TidemarkError,), members)
