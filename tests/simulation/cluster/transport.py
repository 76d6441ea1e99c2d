"""The ends of connections: the client's transport and the HTTP session of a registrar."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from ssl import SSLContext
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from tests.simulation.cluster.network import Broken, Network, Refused, caller_name, headers_of
from tidemark.client.answers import MSGPACK, Answer, error_of
from tidemark.client.retries import Failure, failure_of
from tidemark.client.transport import Failed, no_answer, not_sent


class Transport:
    """Replaces ``tidemark.client.transport.Transport``."""

    network: Network
    """The network of the present world."""

    def __init__(
        self,
        connections_max: int,
        trace: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        ssl: SSLContext | None = None,
    ) -> None:
        self._caller = caller_name()

    def open(self) -> None:
        """Do nothing: there are no pools."""

    async def close(self) -> None:
        """Do nothing: there are no pools."""

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
        """Make one attempt. Raises Failed."""
        try:
            reply = await self.network.call(
                self._caller,
                method,
                url,
                data or b"",
                timeout_s=timeout_s,
                connect_timeout_s=connect_timeout_s,
            )
        except Refused as failure:
            raise Failed(Failure.NOT_SENT, not_sent(url, str(failure))) from failure
        except Broken as failure:
            reason = str(failure) or f"none came within {timeout_s:.3g} s"
            raise Failed(Failure.LOST, no_answer(url, reason)) from failure
        headers = headers_of(reply)
        if reply.status < 300:
            return Answer(headers, reply.body)
        error = error_of(reply.status, headers, reply.body)
        raise Failed(failure_of(status=error.status, retriable=error.retriable), error)


class Session:
    """Replaces the ``aiohttp.ClientSession`` of a registrar."""

    def __init__(self, *, connector: object, timeout: float) -> None:
        self._timeout_s = timeout

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    @asynccontextmanager
    async def put(self, url: str, *, data: bytes, headers: Mapping[str, str]) -> AsyncIterator[Any]:
        """Make one call. Raises aiohttp.ClientError, TimeoutError."""
        try:
            reply = await Transport.network.call(
                caller_name(),
                "PUT",
                URL(url),
                data,
                timeout_s=self._timeout_s,
                connect_timeout_s=self._timeout_s,
            )
        except Refused as failure:
            raise aiohttp.ClientConnectionError(str(failure)) from failure
        except Broken as failure:
            raise TimeoutError(str(failure)) from failure
        content = asyncio.StreamReader()
        content.feed_data(reply.body)
        content.feed_eof()
        yield SimpleNamespace(status=reply.status, content=content)


AIOHTTP = SimpleNamespace(
    ClientError=aiohttp.ClientError,
    ClientSession=Session,
    ClientTimeout=lambda total: total,
    TCPConnector=lambda **_: None,
)
"""Replaces ``aiohttp`` in the registrar."""
