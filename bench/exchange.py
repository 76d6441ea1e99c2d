"""A closed loop of requests over N connections: each sends its next one when it has its answer.

What the load generators of all compared servers share: they differ in nothing but the bytes. A
connection keeps one request in flight (of as many messages as the shape says); nothing is made
per message. Run in the calling process, on an event loop of its own.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import uvloop

STALLED_S: Final = 60.0
"""A run in which nothing is answered for so long has failed."""


class LoadFailed(RuntimeError):
    """A server refused a request, answered something unexpected, or closed the connection."""


class Outcome(NamedTuple):
    """What one run did."""

    messages: int
    """Acknowledged, and nothing else was sent."""
    requests: int
    seconds: float
    """From the first request to the last answer."""
    cpu_s: float
    """CPU time of this process meanwhile."""

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds

    @property
    def cpu_share(self) -> float:
        """How busy the load was: at 1 it was the load that was measured."""
        return self.cpu_s / self.seconds


class Exchange:
    """When to go on, what was answered, when it is over. One per run."""

    def __init__(self, connections: int, seconds: float | None, requests: int | None) -> None:
        """seconds: no request is begun after so long. requests: no more than so many; or both."""
        self._open = connections
        self._seconds = seconds
        self._requests_max = requests
        self.begun = 0
        """Requests sent so far."""
        self._began = 0.0
        self._deadline = float("inf")
        self.messages = 0
        self.requests = 0
        self.finished: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """All connections stand: the clock starts."""
        self._began = time.perf_counter()
        if self._seconds is not None:
            self._deadline = self._began + self._seconds

    def may_send(self) -> bool:
        """Whether one more request is to be sent; the caller sends it."""
        if time.perf_counter() >= self._deadline or self.begun == self._requests_max:
            return False
        self.begun += 1
        return True

    def answered(self, messages: int) -> None:
        """One request was answered."""
        self.messages += messages
        self.requests += 1

    def done(self) -> None:
        """One connection has its last answer."""
        self._open -= 1
        if self._open == 0 and not self.finished.done():
            self.finished.set_result(time.perf_counter() - self._began)

    def fail(self, reason: str) -> None:
        """End the run: a figure with errors in it is none."""
        if not self.finished.done():
            self.finished.set_exception(LoadFailed(reason))


class Connection(asyncio.BaseProtocol):
    """One connection of an exchange; a subclass knows requests and answers."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.transport: asyncio.Transport | None = None

    @abstractmethod
    def request(self, number: int) -> bytes | bytearray:
        """Bytes of the request that is the number-th of the run; unchanged until its answer."""

    async def prepare(self) -> None:
        """Shake hands, before the clock starts."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, error: Exception | None) -> None:
        """Be sure that the run does not wait for answers of a connection that is gone."""
        self.exchange.fail(f"the server closed a connection: {error}")

    def close(self) -> None:
        """Close at once; nothing is in flight, or nobody wants it any more."""
        if self.transport is not None:
            self.transport.abort()

    def send_next(self) -> None:
        """Send the next request, or say that this was the last."""
        assert self.transport is not None, "connected before"
        if self.transport.is_closing():
            self.exchange.fail("the server closed a connection")
        elif self.exchange.may_send():
            self.transport.write(self.request(self.exchange.begun - 1))
        else:
            self.exchange.done()


def drive(
    make: Callable[[Exchange], Connection],
    address: tuple[str, int],
    *,
    connections: int,
    seconds: float | None = None,
    requests: int | None = None,
) -> Outcome:
    """Connect, exchange, close. Raises LoadFailed; OSError if nobody listens."""

    async def run() -> Outcome:
        loop = asyncio.get_running_loop()
        exchange = Exchange(connections, seconds, requests)
        made: list[Connection] = []
        try:
            for _ in range(connections):
                made.append((await loop.create_connection(lambda: make(exchange), *address))[1])
            for connection in made:
                await connection.prepare()
            cpu = time.process_time()
            exchange.begin()
            for connection in made:
                connection.send_next()
            while not exchange.finished.done():
                seen = exchange.requests
                await asyncio.wait([exchange.finished], timeout=STALLED_S)
                if not exchange.finished.done() and exchange.requests == seen:
                    exchange.fail(f"no answer for {STALLED_S:g} s")
            took = exchange.finished.result()
            cpu = time.process_time() - cpu
        finally:
            for connection in made:
                connection.close()
            await asyncio.sleep(0)  # their ends are told in the next turn of the loop
        return Outcome(exchange.messages, exchange.requests, took, cpu)

    return uvloop.run(run())
