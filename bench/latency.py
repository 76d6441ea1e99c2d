"""Figure 7: from sending a message until a held pull returns it, 1,000 per second, safe on disk.

The load is an open loop: a message is sent when it is due, whether or not earlier ones are
answered, so a stall of the server delays all messages that are due during it. It uses plain sockets
and ``select``, because an event loop's timers have a resolution of milliseconds.
"""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from math import ceil
from typing import Final, NamedTuple

import msgpack

from bench.exchange import LoadFailed
from bench.harness import Options, Result, Series, at_most, benchmark, interleave
from bench.servers import Compared, Node, peer, pin_to_load_core, settle, work_dir

RATE: Final = 1000
"""Messages per second at even intervals."""
SETTLE_MESSAGES: Final = 1000
"""Messages sent first and not counted, because connections, files and caches are new."""
BODY_SIZE: Final = 256
BODY_SIZES: Final = (64, 256, 1024, 4096, 16384, 65536)
SERIES_SECONDS: Final = 3.0
CONNECTIONS: Final = 16
"""Producer connections: while one waits for its answer, the next message uses another."""
WAIT_MS: Final = 20_000
PULL_MAX: Final = 1024
STALLED_S: Final = 30.0
TOPIC: Final = "latency"
BASELINE: Final = "one bare fdatasync of 4 KiB + one loopback round trip"
PAGE_SIZE: Final = 4096
READ_SIZE: Final = 1 << 20
PROBES: Final = 1000
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_NEXT: Final = re.compile(rb"\r\ntidemark-next-offset: *(\d+)\r\n", re.IGNORECASE)


class Percentiles(NamedTuple):
    """Percentiles of one run in milliseconds."""

    p50: float
    p99: float
    most: float


def percentiles(seconds: Sequence[float]) -> Percentiles:
    """Compute percentiles of times in seconds, at least one."""
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return ordered[ceil(share * len(ordered)) - 1] * 1000

    return Percentiles(at(0.5), at(0.99), at(1.0))


class HttpSocket:
    """One connection with at most one request in flight; it collects answers as they arrive."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host = "{}:{}".format(*address).encode()
        self._received = b""

    def fileno(self) -> int:
        """Return the descriptor for ``select``."""
        return self.socket.fileno()

    def send(self, request: bytes) -> None:
        """Write a whole request; it must fit into the socket's buffer."""
        self.socket.sendall(request)

    def exchange(self, request: bytes) -> tuple[bytes, bytes]:
        """Send a request; wait for its answer and return head and body."""
        self.send(request)
        while (answer := self.receive()) is None:
            pass
        return answer

    def receive(self) -> tuple[bytes, bytes] | None:
        """Read the available bytes; return head and body once the answer is complete, else None.

        Raises LoadFailed if the status is not 200 or the connection ends.
        """
        data = self._read()
        if not data:
            raise LoadFailed("the broker closed a connection")
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return None
        length = _LENGTH.search(head + b"\r\n")
        if length is None or not head.startswith(b"HTTP/1.1 200 "):
            raise LoadFailed(f"the broker answered: {self._received[:2000]!r}")
        if len(body) < int(length[1]):
            return None
        self._received = b""
        return head + b"\r\n", body

    def _read(self) -> bytes:
        return self.socket.recv(READ_SIZE)


class OpenLoop:
    """One run: producers, one puller, and the times of every message by its number."""

    def __init__(self, node: Node, seconds: float, body_size: int) -> None:
        self._body_size = body_size
        self.total = SETTLE_MESSAGES + round(RATE * seconds)
        run = os.urandom(8).hex().encode()
        self._mark = b"<run %s number %%010d>" % run
        self._marked = re.compile(rb"<run %s number (\d{10})>" % run)
        self._producers = [HttpSocket(node.address) for _ in range(CONNECTIONS)]
        self._puller = HttpSocket(node.address)
        self._offset = node.message_count(TOPIC)
        self._sent_at: list[float] = []
        self._seen_at: list[float] = [0.0] * self.total
        self._seen = 0
        self.late_count = 0

    def close(self) -> None:
        for each in (*self._producers, self._puller):
            each.socket.close()

    def run(self) -> list[float]:
        """Seconds from send to arrival of each message, in sending order, without the first."""
        idle, busy = list(self._producers), set[HttpSocket]()
        self._pull()
        began = time.perf_counter() + 0.01
        answered_at = began
        while self._seen < self.total or busy:
            due = began + len(self._sent_at) / RATE
            now = time.perf_counter()
            if len(self._sent_at) < self.total and now >= due and idle:
                producer = idle.pop(0)
                request = self._request(producer, len(self._sent_at))
                # All connections were busy, or this process had no core: the message has waited
                # since it was due.
                late = now - due > 1 / RATE
                self.late_count += late
                self._sent_at.append(due if late else time.perf_counter())
                producer.send(request)
                busy.add(producer)
                continue
            more = len(self._sent_at) < self.total and idle
            wait = max(0.0, due - now) if more else 1.0
            readable, _, _ = select.select([self._puller, *busy], [], [], wait)
            # The puller is read first, because its time is measured.
            if self._puller in readable:
                readable.remove(self._puller)
                self._take_pulled()
            for producer in readable:
                answer = producer.receive()
                if answer is not None:
                    self._check(answer[1])
                    busy.discard(producer)
                    idle.append(producer)
            if readable:
                answered_at = time.perf_counter()
            elif now - answered_at > STALLED_S:
                raise LoadFailed(f"nothing came for {STALLED_S} s, {self._seen} messages seen")
        pairs = zip(self._sent_at, self._seen_at, strict=True)
        return [seen - sent for sent, seen in pairs][SETTLE_MESSAGES:]

    def _request(self, producer: HttpSocket, number: int) -> bytes:
        mark = self._mark % number
        message = {"body": mark + os.urandom(self._body_size - len(mark))}
        body: bytes = msgpack.packb({"ack": "disk", "messages": [message]})
        head = (
            b"POST /v1/topics/%s/messages HTTP/1.1\r\nHost: %s\r\n"
            b"Content-Type: application/msgpack\r\nContent-Length: %d\r\n\r\n"
        )
        return head % (TOPIC.encode(), producer.host, len(body)) + body

    def _pull(self) -> None:
        path = f"/v1/topics/{TOPIC}/queues/0/messages"
        query = f"offset={self._offset}&max={PULL_MAX}&wait_ms={WAIT_MS}"
        head = f"GET {path}?{query} HTTP/1.1\r\nAccept: application/vnd.tidemark.records\r\nHost: "
        self._puller.send(head.encode() + self._puller.host + b"\r\n\r\n")

    def _take_pulled(self) -> None:
        answer = self._puller.receive()
        if answer is None:
            return
        arrived = time.perf_counter()
        head, body = answer
        following = _NEXT.search(head)
        if following is None:
            raise LoadFailed(f"a pull without next offset: {head!r}")
        self._offset = int(following[1])
        self._pull()
        for found in self._marked.finditer(body):
            number = int(found[1])
            if self._seen_at[number]:
                raise LoadFailed(f"message {number} was seen twice")
            self._seen_at[number] = arrived
            self._seen += 1

    def _check(self, body: bytes) -> None:
        answer = msgpack.unpackb(body)
        if answer["ack"]["level"] != "disk" or len(answer["results"]) != 1:
            raise LoadFailed(f"not what was asked: {answer}")


def bare_syncs() -> Percentiles:
    """Measure fdatasync of 4 KiB written into an existing file, one after another."""
    directory = work_dir("sync")
    path = directory / "file"
    try:
        path.write_bytes(bytes(PAGE_SIZE * PROBES))
        page, taken = os.urandom(PAGE_SIZE), []
        with path.open("r+b", buffering=0) as file:
            os.fsync(file.fileno())
            for number in range(PROBES):
                file.seek(number * PAGE_SIZE)
                began = time.perf_counter()
                file.write(page)
                os.fdatasync(file.fileno())
                taken.append(time.perf_counter() - began)
        return percentiles(taken)
    finally:
        path.unlink(missing_ok=True)
        directory.rmdir()


def round_trips(echo: Compared) -> Percentiles:
    """Measure round trips of a body's bytes, one after another."""
    data, taken = os.urandom(BODY_SIZE), []
    with socket.create_connection(echo.address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PROBES):
            began = time.perf_counter()
            connection.sendall(data)
            left = len(data)
            while left:
                left -= len(connection.recv(left))
            taken.append(time.perf_counter() - began)
    return percentiles(taken)


def main(given: Options) -> Result:
    seconds = given.pick(20.0, quick=3.0)
    pin_to_load_core()
    runs: list[Percentiles] = []
    floors: list[Percentiles] = []
    waited = 0
    with ExitStack() as running:
        node = running.enter_context(Node())
        echo = running.enter_context(peer("echo"))
        node.make_topic(TOPIC, 1)

        def run(seconds: float, body_size: int) -> Percentiles:
            nonlocal waited
            settle()
            loop = OpenLoop(node, seconds, body_size)
            try:
                found = percentiles(loop.run())
            finally:
                loop.close()
            waited += loop.late_count
            return found

        def measure() -> float:
            runs.append(run(seconds, BODY_SIZE))
            return runs[-1].p50

        def floor() -> float:
            settle()
            sync, trip = bare_syncs(), round_trips(echo)
            floors.append(Percentiles(*(a + b for a, b in zip(sync, trip, strict=True))))
            return floors[-1].p50

        interleave({"visible": measure, "floor": floor}, given.runs, warm_up=0)
        notes = [f"{waited} messages were sent more than one period late"]
        series = []
        if not given.quick:
            sizes = {size: run(SERIES_SECONDS, size) for size in BODY_SIZES}
            lines = {
                "p50": [(size, found.p50) for size, found in sizes.items()],
                "p99": [(size, found.p99) for size, found in sizes.items()],
            }
            title = f"send → visible to a held pull, {RATE:,} messages/s, disk"
            series = [Series("latency", title, "body [bytes]", "latency [ms]", lines)]

    what = f"send → visible to a held pull, {RATE:,} msg/s, {BODY_SIZE} B, disk"
    figures = []
    for name, field, goal in (("p50", "p50", 2.0), ("p99", "p99", 8.0), ("max", "most", None)):
        values, bases = ([getattr(each, field) for each in of] for of in (runs, floors))
        figures.append(at_most(f"{what}, {name}", "ms", values, goal, BASELINE, bases))
    method = f"""Broker and reput with the default profile on core 0, load on core 1; open loop: one
        message is due every {1000 / RATE:g} ms and goes over one of {CONNECTIONS} connections; one
        raw pull is always held. The time runs from just before the request is written (from when
        it was due, if it is sent more than one period late) until the puller has read the answer
        with its bytes. {seconds:.0f} s per run after {SETTLE_MESSAGES} messages that are not
        counted, {given.runs} runs, each with {PROBES} bare syncs and {PROBES} round trips beside
        it; every message must arrive exactly once."""
    return Result(figures, method, notes=notes, series=series)


if __name__ == "__main__":
    benchmark(main)
