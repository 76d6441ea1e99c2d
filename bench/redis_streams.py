"""Load for Redis Streams: XADD, pipelined, over several connections.

Three clients have the same shape: redis.asyncio, the client that a Python program would use;
``redis-benchmark``, Redis's own in C; and raw connections like those of ``load``, with prebuilt
requests and counted answers. The result depends on the client: the best one shows the capacity of
Redis here, the first one what a Python program gets.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import redis.asyncio
import uvloop

from bench.exchange import Connection, Exchange, LoadFailed, Outcome, drive, repeated
from bench.servers import HOST, Compared, program

KEY: Final = "stream"
PROBE_PIPELINES: Final = 200
"""Pipelines of a run that determines the speed of redis-benchmark."""


class Shape(NamedTuple):
    messages: int = 256
    """Messages in flight per connection: commands of one pipeline."""
    body_size: int = 256
    """Size in bytes of the value of the one field of an XADD."""
    connections: int = 8


def python_client(server: Compared, shape: Shape, seconds: float) -> Outcome:
    """Use redis.asyncio; each connection sends a pipeline of XADD after the previous answer."""
    body = os.urandom(shape.body_size)

    async def send(client: redis.asyncio.Redis) -> None:
        pipe = client.pipeline(transaction=False)
        for _ in range(shape.messages):
            pipe.xadd(KEY, {"body": body})
        await pipe.execute()

    async def run() -> Outcome:
        clients = [
            redis.asyncio.Redis(host=HOST, port=server.port, single_connection_client=True)
            for _ in range(shape.connections)
        ]
        for client in clients:
            await client.ping()
        outcome = await repeated(clients, send, shape.messages, seconds)
        for client in clients:
            await client.aclose()
        return outcome

    return _counted(server, lambda: uvloop.run(run()))


def raw_connections(server: Compared, shape: Shape, seconds: float) -> Outcome:
    """Send prebuilt requests; answers are counted by lines."""
    parts = [b"XADD", KEY.encode(), b"*", b"body", os.urandom(shape.body_size)]
    command = b"*%d\r\n" % len(parts)
    command += b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    request = command * shape.messages
    return _counted(
        server,
        lambda: drive(
            lambda exchange: RedisConnection(exchange, request, shape.messages),
            server.address,
            connections=shape.connections,
            seconds=seconds,
        ),
    )


def own_tool(server: Compared, shape: Shape, seconds: float) -> Outcome:
    """Use redis-benchmark with the number of commands that takes it about the given seconds."""

    def command(pipelines: int) -> list[str]:
        return [
            *(program("redis-benchmark", "redis-tools"), "-h", HOST, "-p", str(server.port)),
            *("-c", str(shape.connections), "-P", str(shape.messages), "--csv"),
            *("-n", str(pipelines * shape.messages)),
            *("XADD", KEY, "*", "body", "x" * shape.body_size),
        ]

    def run(pipelines: int) -> Outcome:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command(pipelines), capture_output=True, check=True)  # inherits pinning
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return Outcome(pipelines * shape.messages, pipelines, took, cpu)

    probe = _counted(server, lambda: run(PROBE_PIPELINES))
    pipelines = max(PROBE_PIPELINES, round(probe.requests / probe.seconds * seconds))
    return _counted(server, lambda: run(pipelines))


class RedisConnection(Connection, asyncio.Protocol):
    def __init__(self, exchange: Exchange, request: bytes, messages: int) -> None:
        super().__init__(exchange)
        self._request = request
        self._messages = messages
        self._lines_left = 0

    def request(self, number: int) -> bytes:
        """Return the pipeline; each command's answer has two lines: a size, and the new id."""
        self._lines_left = 2 * self._messages
        return self._request

    def data_received(self, data: bytes) -> None:
        """Count answers. An error contains letters, an id does not."""
        if b"E" in data:
            self.exchange.fail(f"Redis answered: {data[:500]!r}")
            return
        self._lines_left -= data.count(b"\n")
        if self._lines_left == 0:
            self.exchange.answered(self._messages)
            self.send_next()


def _counted(server: Compared, run: Callable[[], Outcome]) -> Outcome:
    """Run with an empty stream, and check that it has the acknowledged messages."""
    with redis.Redis(host=HOST, port=server.port) as client:
        outcome = server.measured(run)
        stored = client.xlen(KEY)
        client.delete(KEY)
    if stored != outcome.messages:
        raise LoadFailed(f"{outcome.messages} messages acknowledged, {stored} in Redis")
    return outcome
