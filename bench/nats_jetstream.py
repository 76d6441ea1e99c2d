"""Load for NATS JetStream: publish with acknowledgement, many in flight, over several connections.

Two clients have the same shape: nats-py, the client that a Python program would use, and raw
connections like those of ``load``, with prebuilt publishes and counted acknowledgements. The Go
program ``nats bench`` is not in Debian.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Final

import nats
import uvloop
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StorageType, StreamConfig
from nats.js.errors import NotFoundError

from bench.exchange import Connection, Exchange, LoadFailed, Outcome, drive, repeated
from bench.redis_streams import Shape
from bench.servers import Compared

STREAM: Final = "bench"
SUBJECT: Final = "bench.messages"
_GREETING_S: Final = 10.0


def python_client(server: Compared, shape: Shape, seconds: float) -> Outcome:
    """Use nats-py; each connection publishes a batch of messages, then waits for all answers."""
    body = os.urandom(shape.body_size)

    async def send(context: JetStreamContext) -> None:
        waiting = [await context.publish_async(SUBJECT, body) for _ in range(shape.messages)]
        await asyncio.gather(*waiting)

    async def run() -> Outcome:
        clients = [await nats.connect(_url(server)) for _ in range(shape.connections)]
        most = shape.messages
        contexts = [client.jetstream(publish_async_max_pending=most) for client in clients]
        outcome = await repeated(contexts, send, shape.messages, seconds)
        for client in clients:
            await client.close()
        return outcome

    return _counted(server, lambda: uvloop.run(run()))


def raw_connections(server: Compared, shape: Shape, seconds: float) -> Outcome:
    """Send prebuilt publishes; acknowledgements are counted by their braces."""
    body = os.urandom(shape.body_size)
    return _counted(
        server,
        lambda: drive(
            lambda exchange: NatsConnection(exchange, body, shape.messages),
            server.address,
            connections=shape.connections,
            seconds=seconds,
        ),
    )


class NatsConnection(Connection, asyncio.Protocol):
    """Publishes the same messages repeatedly, with the same inbox for the answers."""

    def __init__(self, exchange: Exchange, body: bytes, messages: int) -> None:
        super().__init__(exchange)
        self._inbox = b"_INBOX." + os.urandom(8).hex().encode()
        publish = b"PUB %s %s %d\r\n%s\r\n" % (SUBJECT.encode(), self._inbox, len(body), body)
        self._request = publish * messages
        self._messages = messages
        self._acks_left = 0
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def prepare(self) -> None:
        """Subscribe to the inbox; the server answers PONG afterwards."""
        assert self.transport is not None, "connected before"
        self.transport.write(b'CONNECT {"verbose":false}\r\nSUB %s 1\r\nPING\r\n' % self._inbox)
        async with asyncio.timeout(_GREETING_S):
            await self._greeted

    def request(self, number: int) -> bytes:
        self._acks_left = self._messages
        return self._request

    def data_received(self, data: bytes) -> None:
        """Count acknowledgements; each is one map, {"stream":…,"seq":…}."""
        if not self._greeted.done():
            if b"PONG\r\n" in data:
                self._greeted.set_result(None)
            return
        if b"-ERR" in data or b'"error"' in data:
            self.exchange.fail(f"NATS answered: {data[:500]!r}")
            return
        if b"PING\r\n" in data:
            assert self.transport is not None, "connected before"
            self.transport.write(b"PONG\r\n")
        acks = data.count(b"}")
        self._acks_left -= acks
        if acks and self._acks_left == 0:
            self.exchange.answered(self._messages)
            self.send_next()


def _url(server: Compared) -> str:
    return "nats://{}:{}".format(*server.address)


def _counted(server: Compared, run: Callable[[], Outcome]) -> Outcome:
    """Run with a new file-backed stream, check that it has all acknowledged messages, delete it."""

    async def with_client(act: Callable[[Client], Awaitable[int]]) -> int:
        client = await nats.connect(_url(server))
        try:
            return await act(client)
        finally:
            await client.close()

    async def make(client: Client) -> int:
        config = StreamConfig(name=STREAM, subjects=[SUBJECT], storage=StorageType.FILE)
        with contextlib.suppress(NotFoundError):
            await client.jetstream().delete_stream(STREAM)
        await client.jetstream().add_stream(config)
        return 0

    async def count(client: Client) -> int:
        return (await client.jetstream().stream_info(STREAM)).state.messages

    asyncio.run(with_client(make))
    outcome = server.measured(run)
    stored = asyncio.run(with_client(count))
    if stored != outcome.messages:
        raise LoadFailed(f"{outcome.messages} messages acknowledged, {stored} in NATS")
    return outcome
