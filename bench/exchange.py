"""A closed loop of requests over N connections: each sends the next after its answer.

The load generators of all compared servers share it, so that they differ only in the bytes. A
connection has one request in flight, with as many messages as the shape says; nothing is built per
message. It runs in the calling process on its own event loop.
"""

from __future__ import annotations

import asyncio
import struct
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar, cast

import uvloop

T = TypeVar("T")
STALLED_S: Final = 60.0
"""A run without an answer for this long has failed."""


class LoadFailed(RuntimeError):
    """A server rejected a request, answered something unexpected, or closed the connection."""


class Outcome(NamedTuple):
    messages: int
    """Number of acknowledged messages; no others were sent."""
    requests: int
    seconds: float
    """Time from the first request to the last answer."""
    cpu_s: float
    """CPU time of this process during that time."""
    server_cpu_s: float = 0.0
    """CPU time of the server for the run, if ``Compared.measured`` measured it."""

    @property
    def server_cpu_us(self) -> float:
        """CPU time of the server per message [µs]."""
        return self.server_cpu_s / self.messages * 1e6

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def cpu_share(self) -> float:
        """CPU utilization of the load generator; at 1 the generator was the bottleneck."""
        return self.cpu_s / self.seconds

    @property
    def shares(self) -> str:
        """CPU utilization of server and load, as text."""
        return (
            f"server {self.server_cpu_s / self.seconds:.0%} of its core, "
            f"load {self.cpu_share:.0%} of its own"
        )


async def repeated(
    clients: Sequence[T], send: Callable[[T], Awaitable[object]], messages: int, seconds: float
) -> Outcome:
    """Let each client send again and again. messages: number of messages in one send."""

    async def work(client: T, deadline: float) -> int:
        requests = 0
        while time.perf_counter() < deadline:
            await send(client)
            requests += 1
        return requests

    cpu, began = time.process_time(), time.perf_counter()
    done = await asyncio.gather(*(work(client, began + seconds) for client in clients))
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return Outcome(sum(done) * messages, sum(done), took, cpu)


class Exchange:
    """State of one run: requests sent, answers received, and when it ends."""

    def __init__(self, connections: int, seconds: float | None, requests: int | None) -> None:
        """seconds: time after which no request is sent. requests: maximum number of requests. At
        least one of them is given."""
        self._open = connections
        self._seconds = seconds
        self._requests_max = requests
        self.begun = 0
        """Number of requests sent so far."""
        self._began = 0.0
        self._deadline = float("inf")
        self.messages = 0
        self.requests = 0
        self.finished: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Start the clock, after all connections are made."""
        self._began = time.perf_counter()
        if self._seconds is not None:
            self._deadline = self._began + self._seconds

    def may_send(self) -> bool:
        """Whether the caller shall send one more request."""
        if time.perf_counter() >= self._deadline or self.begun == self._requests_max:
            return False
        self.begun += 1
        return True

    def answered(self, messages: int) -> None:
        self.messages += messages
        self.requests += 1

    def done(self) -> None:
        """Record that one connection has its last answer."""
        self._open -= 1
        if self._open == 0 and not self.finished.done():
            self.finished.set_result(time.perf_counter() - self._began)

    def fail(self, reason: str) -> None:
        """End the run: a figure with errors is invalid."""
        if not self.finished.done():
            self.finished.set_exception(LoadFailed(reason))


ANSWER_SIZE: Final = struct.Struct(">i")
"""Size of the rest, before an answer of Kafka or RocketMQ."""


class Connection(asyncio.BaseProtocol):
    """One connection of an exchange; subclasses define requests and answers."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.transport: asyncio.Transport | None = None

    @abstractmethod
    def request(self, number: int) -> bytes | bytearray:
        """Return the bytes of the number-th request of the run; unchanged until its answer."""

    async def prepare(self) -> None:
        """Do the handshake, before the clock starts."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the run, which would otherwise wait for answers of a closed connection."""
        self.exchange.fail(f"the server closed a connection: {error}")

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def send_next(self) -> None:
        """Send the next request, or record that this connection is done."""
        assert self.transport is not None, "connected before"
        if self.transport.is_closing():
            self.exchange.fail("the server closed a connection")
        elif self.exchange.may_send():
            self.transport.write(self.request(self.exchange.begun - 1))
        else:
            self.exchange.done()


class SizedConnection(Connection, asyncio.Protocol):
    """Sends one request again and again; each answer begins with its size."""

    def __init__(self, exchange: Exchange, request: bytes, messages: int) -> None:
        """messages: number of messages in the request."""
        super().__init__(exchange)
        self._request = request
        self._messages = messages
        self._answer = b""

    @abstractmethod
    def fault(self, answer: bytes) -> str | None:
        """Return what is wrong with a complete answer."""

    def request(self, number: int) -> bytes:
        return self._request

    def data_received(self, data: bytes) -> None:
        """Count an answer when it is complete."""
        self._answer += data
        if len(self._answer) < ANSWER_SIZE.size:
            return
        missing = ANSWER_SIZE.size + ANSWER_SIZE.unpack_from(self._answer)[0] - len(self._answer)
        if missing > 0:
            return
        answer, self._answer = self._answer, b""
        fault = "more than one answer" if missing < 0 else self.fault(answer)
        if fault is not None:
            self.exchange.fail(f"the server answered {fault}: {answer[:500]!r}")
            return
        self.exchange.answered(self._messages)
        self.send_next()


def drive(
    make: Callable[[Exchange], Connection],
    address: tuple[str, int],
    *,
    connections: int,
    seconds: float | None = None,
    requests: int | None = None,
) -> Outcome:
    """Connect, exchange, close. Raises LoadFailed; OSError if the connection is refused."""

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
            await asyncio.sleep(0)  # connection_lost is called in the next loop iteration
        return Outcome(exchange.messages, exchange.requests, took, cpu)

    return uvloop.run(run())
