"""Makes one attempt of an HTTP call: connection pools, encodings, timeouts, kinds of failure.

Connections are made on demand. Bodies are msgpack. The step before is ``connection``, which chooses
the node and decides whether an attempt is repeated.
"""

from __future__ import annotations

import io
import os
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp
from yarl import URL

from tidemark import errors
from tidemark.client.answers import MSGPACK, Answer, error_of
from tidemark.client.retries import Failure, failure_of

ANSWER_SIZE_MAX: Final = 256 << 20
"""A larger answer is rejected; callers bound what they ask for."""
READ_FROM: Final = "Tidemark-Read-From"
TRACE: Final = "Tidemark-Trace"
WHOLE_BODY_MAX: Final = 1 << 20
"""A larger body is written in pieces, because aiohttp warns of larger ones in one write."""
TRACE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Failed(Exception):
    """The failure of one attempt with its classification. The client raises its ``error``."""

    def __init__(self, failure: Failure, error: errors.TidemarkError) -> None:
        super().__init__(str(error))
        self.failure, self.error = failure, error


class Transport:
    """Pools of HTTP connections to any number of nodes."""

    def __init__(
        self,
        connections_max: int,
        trace: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        ssl: ssl.SSLContext | None = None,
    ) -> None:
        """connections_max: total for all nodes, not counting held calls.

        trace: id under which the brokers log every request; None: requests are not traced.
        headers: added to every request. ssl: for https; None: Python's defaults. Raises ValueError.
        """
        if trace is not None and TRACE_ID.fullmatch(trace) is None:
            raise ValueError(
                f"trace has 1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-', not {trace!r}"
            )
        self._headers = dict(headers or {})
        if trace is not None:
            self._headers[TRACE] = trace
        self._ssl = ssl
        self._connections_max = connections_max
        self._session: aiohttp.ClientSession | None = None
        self._held: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Create the pools in the loop that uses them."""
        self._session = _session(self._connections_max, self._headers, self._ssl)
        # This pool has no limit of its own; the numbers of subscriptions and of sends in flight
        # (``producer``) bound it. In a shared pool, a hundred calls that wait for messages or disks
        # would delay every heartbeat.
        self._held = _session(0, self._headers, self._ssl)

    async def close(self) -> None:
        """Close the pools."""
        sessions = self._session, self._held
        self._session = self._held = None
        for session in sessions:
            if session is not None:
                await session.close()

    async def once(
        self,
        method: str,
        url: URL,
        data: bytes | None,
        *,
        accept: str = MSGPACK,
        content_type: str = MSGPACK,
        timeout_s: float,
        connect_timeout_s: float,
        is_held: bool = False,
        from_any: bool = False,
    ) -> Answer:
        """Make one attempt. is_held: use the pool for held calls. from_any: a slave may answer.

        Raises Failed; BrokenAnswer for an answer that is too large.
        """
        session = self._held if is_held else self._session
        if session is None:
            raise RuntimeError("the client is closed; use it inside `async with`")
        headers = {"Accept": accept}
        if data is not None:
            headers["Content-Type"] = content_type
        if from_any:
            headers[READ_FROM] = "any"
        timeout = aiohttp.ClientTimeout(
            total=timeout_s, sock_connect=min(connect_timeout_s, timeout_s)
        )
        whole = data is None or len(data) <= WHOLE_BODY_MAX
        try:
            async with session.request(
                method,
                url,
                data=data if whole else io.BytesIO(data or b""),
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
                middlewares=(_Once(),) if method == "DELETE" else (),
            ) as response:
                body = await _body_of(response)
                if response.status < 300:
                    return Answer(response.headers, body)
                error = error_of(response.status, response.headers, body)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as failure:
            raise Failed(Failure.NOT_SENT, not_sent(url, reason_of(failure))) from failure
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as failure:
            reason = str(failure) or f"none came within {timeout_s:.3g} s"
            raise Failed(Failure.LOST, no_answer(url, reason)) from failure
        raise Failed(failure_of(status=error.status, retriable=error.retriable), error)


async def _body_of(response: aiohttp.ClientResponse) -> bytes:
    """Read the whole body. Raises BrokenAnswer if it has more than ANSWER_SIZE_MAX bytes."""
    size = response.content_length
    if size is None:  # chunked: count the bytes as they arrive
        parts, size = list[bytes](), 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > ANSWER_SIZE_MAX:
                break
            parts.append(part)
        else:
            return b"".join(parts)
    elif size <= ANSWER_SIZE_MAX:
        return await response.read()
    response.close()  # otherwise aiohttp would read the rest before reusing the connection
    raise errors.BrokenAnswer(f"the answer has {size} bytes or more, over {ANSWER_SIZE_MAX}")


class _Once:
    """Middleware that prevents aiohttp from repeating a request itself after a broken connection.

    1. A broker deletes a topic, and the connection breaks; 2. aiohttp repeats the request unseen,
    and the broker answers that there is no such topic; 3. the caller gets this error although its
    own call deleted the topic.
    """

    def __init__(self) -> None:
        self._is_sent = False

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if self._is_sent:
            raise aiohttp.ServerDisconnectedError("the connection broke before the answer")
        self._is_sent = True
        return await handler(request)


def not_sent(url: URL, reason: str) -> errors.Unreachable:
    """Return the error for an attempt without a connection."""
    node = str(url.origin())
    return errors.Unreachable(
        f"no connection to {node}: {reason}. Nothing was sent.",
        "Start a node with `tidemark dev`, or check the URL.",
        url=node,
        sent=False,
    )


def no_answer(url: URL, reason: str) -> errors.Unreachable:
    """Return the error for an attempt whose request may have been sent."""
    node = str(url.origin())
    return errors.Unreachable(
        f"{node} gave no answer: {reason}. If this was a send, its outcome is unknown.",
        "Check the node's /ready; look for the message by its key before you send it again.",
        url=node,
        sent=True,
    )


def reason_of(failure: BaseException) -> str:
    """Return why a request failed, in the operating system's words if it has any."""
    if isinstance(failure, aiohttp.ClientConnectorError):
        error = failure.os_error
        # TLS and the resolver have their own error numbers and texts.
        if isinstance(error, (ssl.SSLError, socket.gaierror)) or not error.errno:
            return error.strerror or str(error)
        return os.strerror(error.errno).lower()
    return str(failure) or type(failure).__name__


def _session(
    connections_max: int, headers: Mapping[str, str], context: ssl.SSLContext | None
) -> aiohttp.ClientSession:
    """Create a pool. connections_max: 0 for no limit. headers: added to every request.

    keepalive_timeout is shorter than any server's: a send on a connection that the server is just
    closing would have an unknown outcome without need.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=connections_max,
            keepalive_timeout=10.0,
            ssl=True if context is None else context,
        ),
        auto_decompress=False,
        headers=headers,
    )
