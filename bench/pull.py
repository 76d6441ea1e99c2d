"""Figure 6: pulls: raw records over HTTP at 256 B and 1 KiB, and the client's ``async for``."""

from __future__ import annotations

import asyncio
import re
import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import tidemark
from bench.harness import Figure, Options, Result, Series, benchmark, interleave
from bench.latency import HttpSocket
from bench.load import Shape, produce
from bench.servers import Compared, Node, peer, pin_to_load_core
from tidemark.formats import native

CONNECTIONS: Final = 4
"""Each reads one queue; with a single one the server would wait while the answer is read."""
QUEUES: Final = 4
MESSAGES_MAX: Final = 1024
"""Messages per pull: the largest ``max`` that the broker accepts."""
SIZES: Final = (16, 256, 1024, 4096, 16384)
STORED_BYTES: Final = 192 << 20
"""Bodies of each size in the log: more than any processor cache holds."""
STORED_MESSAGES_MAX: Final = 400_000
BATCH: Final = 256
FILL_S: Final = 0.5
_COUNT: Final = re.compile(rb"\r\nTidemark-Count: (\d+)\r\n")
_NEXT: Final = re.compile(rb"\r\nTidemark-Next-Offset: (\d+)\r\n")
_END: Final = re.compile(rb"\r\nTidemark-Max-Offset: (\d+)\r\n")
_LENGTH: Final = re.compile(rb"\r\nContent-Length: (\d+)\r\n")
_HEAD_SIZE_MAX: Final = 1024
_BUFFER_SIZE: Final = 1 << 20


def canned_server(answer: bytes, directory: Path) -> Compared:
    """Return a server that sends one answer of the broker repeatedly."""
    path = directory / f"answer-{len(answer)}"
    path.write_bytes(answer)
    return peer("canned", str(path))


def _request(topic: str, queue: int) -> bytes:
    """Return a raw pull; %d is for its offset."""
    return (
        f"GET /v1/topics/{topic}/queues/{queue}/messages?max={MESSAGES_MAX}&offset=%d "
        f"HTTP/1.1\r\nHost: bench\r\nAccept: application/vnd.tidemark.records\r\n\r\n"
    ).encode()


class Puller:
    """One connection that reads one queue repeatedly with minimal parsing."""

    def __init__(
        self, address: tuple[str, int], topic: str, queue: int, buffer: memoryview
    ) -> None:
        """buffer: receives answers that are not used later, so all connections share it."""
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = _request(topic, queue)
        self._buffer = buffer
        self._head = b""
        self._left = -1
        """Remaining bytes of the answer; -1 until its head is complete."""
        self._next = 0
        self.messages = 0

    def ask(self) -> None:
        self.socket.sendall(self._request % self._next)

    def read(self) -> bool:
        """Read available bytes; return whether an answer ended. Raises ValueError, OSError."""
        taken = self.socket.recv_into(self._buffer)
        if not taken:
            raise ConnectionError("the server closed the connection")
        if self._left < 0:
            self._head += bytes(self._buffer[: min(taken, _HEAD_SIZE_MAX)])
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return False
            self._left = self._begin(self._head[: end + 2]) + end + 4
            self._head = b""
        self._left -= taken
        if self._left:
            return False
        self._left = -1
        return True

    def _begin(self, head: bytes) -> int:
        """Parse an answer's head; return the size of its body."""
        if not head.startswith(b"HTTP/1.1 200"):
            raise ValueError(head.decode(errors="replace"))
        length = _number(_LENGTH, head)
        self.messages += _number(_COUNT, head)
        self._next = _number(_NEXT, head)
        if self._next >= _number(_END, head):
            self._next = 0
        return length


def _number(pattern: re.Pattern[bytes], head: bytes) -> int:
    found = pattern.search(head)
    if found is None:
        raise ValueError(head.decode(errors="replace"))
    return int(found[1])


class Read(NamedTuple):
    messages: int
    seconds: float


def pull(address: tuple[str, int], topic: str, seconds: float) -> Read:
    """Read all queues of topic for the given seconds, each over its own connection."""
    buffer = memoryview(bytearray(_BUFFER_SIZE))
    pullers = [Puller(address, topic, number % QUEUES, buffer) for number in range(CONNECTIONS)]
    by_number = {puller.socket.fileno(): puller for puller in pullers}
    ready = select.epoll()
    for number, puller in by_number.items():
        ready.register(number, select.EPOLLIN)
        puller.ask()
    began = time.perf_counter()
    end = began + seconds
    while (now := time.perf_counter()) < end:
        for number, _ in ready.poll(1.0):
            puller = by_number[number]
            if puller.read():
                puller.ask()
    ready.close()
    for puller in pullers:
        puller.socket.close()
    return Read(sum(puller.messages for puller in pullers), now - began)


def one_answer(address: tuple[str, int], topic: str) -> bytes:
    """Return the first answer as received, head and records."""
    connection = HttpSocket(address)
    with connection.socket:
        head, records = connection.exchange(_request(topic, 0) % 0)
    messages = native.decode_messages(records)
    if [message.queue_offset for message in messages] != list(range(MESSAGES_MAX)):
        raise ValueError(f"{len(messages)} messages, or others than were asked for")
    return head + b"\r\n" + records


def fill(node: Node, topic: str, body_size: int) -> None:
    """Create a topic and fill it with requests of BATCH messages until it has enough."""
    node.make_topic(topic, QUEUES)
    goal = min(STORED_BYTES // body_size, STORED_MESSAGES_MAX)
    shape = Shape(messages=BATCH, body_size=body_size, ack="memory")
    while node.message_count(topic) < goal:
        produce(node, topic, shape, connections=2, seconds=FILL_S)
    node.wait_dispatched()


async def _read_all(url: str, topic: str, seconds: float) -> float:
    end = time.perf_counter() + seconds
    began, count, queue = time.perf_counter(), 0, 0
    async with tidemark.connect(url) as mq:
        while True:
            async for _ in mq.read(topic, queue):
                count += 1
                if not count & 1023 and (now := time.perf_counter()) >= end:
                    return count / (now - began)
            queue = (queue + 1) % QUEUES


def decode_rate(records: bytes, seconds: float) -> float:
    """Return the messages per second of the decoder alone."""
    began = time.perf_counter()
    end, count = began + seconds, 0
    while (now := time.perf_counter()) < end:
        count += len(native.decode_messages(records))
    return count / (now - began)


def main(given: Options) -> Result:
    seconds = given.pick(3.0, quick=1.0)
    pin_to_load_core()
    shares: dict[str, str] = {}

    with ExitStack() as running:
        node = running.enter_context(Node())
        answers: dict[int, bytes] = {}
        canned: dict[int, Compared] = {}
        for size in (256, 1024):
            fill(node, f"pull-{size}", size)
            answers[size] = one_answer(node.address, f"pull-{size}")
            canned[size] = running.enter_context(canned_server(answers[size], node.directory))
        records = answers[256][answers[256].index(b"\r\n\r\n") + 4 :]

        def from_broker(size: int) -> Read:
            server_s, load_s = node.cpu_s(), time.process_time()
            read = pull(node.address, f"pull-{size}", seconds)
            shares[f"raw, {size} B"] = (
                f"server {(node.cpu_s() - server_s) / read.seconds:.0%}, "
                f"load {(time.process_time() - load_s) / read.seconds:.0%}"
            )
            return read

        def messages(read: Read) -> float:
            return read.messages / read.seconds

        def body_bytes(read: Read, size: int) -> float:
            return read.messages * size / read.seconds / 1e9

        jobs: dict[str, Callable[[], float]] = {
            "raw 256": lambda: messages(from_broker(256)),
            "canned 256": lambda: messages(pull(canned[256].address, "x", seconds)),
            "raw 1024": lambda: body_bytes(from_broker(1024), 1024),
            "canned 1024": lambda: body_bytes(pull(canned[1024].address, "x", seconds), 1024),
            "async for": lambda: asyncio.run(_read_all(node.url, "pull-256", seconds)),
            "decode": lambda: decode_rate(records, seconds / 3),
        }
        rates = interleave(jobs, given.runs)
        notes = [f"{what}, CPU in the last run: {seen}" for what, seen in shares.items()]
        series = []
        if not given.quick:
            lines: dict[str, list[tuple[float, float]]] = {"broker": [], "loopback TCP": []}
            for size in SIZES:
                topic = f"pull-{size}"
                if size not in answers:
                    fill(node, topic, size)
                    answer = one_answer(node.address, topic)
                    canned[size] = running.enter_context(canned_server(answer, node.directory))
                lines["broker"].append((size, messages(from_broker(size))))
                read = pull(canned[size].address, "x", seconds)
                lines["loopback TCP"].append((size, messages(read)))
            title = f"Raw pulls of up to {MESSAGES_MAX} messages, {CONNECTIONS} connections"
            series = [Series("pull", title, "body [bytes]", "messages/s", lines)]

    loopback, client = "loopback TCP, the same answers", "client, async for over decoded messages"
    figures = [
        Figure(what, unit, rates[job], goal, baseline, rates[base])
        for what, unit, job, goal, baseline, base in (
            ("pull, raw, 256 B", "msg/s", "raw 256", 1_500_000, loopback, "canned 256"),
            ("pull, raw, 1 KiB, bytes of bodies", "GB/s", "raw 1024", 1.0, loopback, "canned 1024"),
            (f"{client}, 256 B", "msg/s", "async for", 300_000, "decoding alone", "decode"),
        )
    ]
    method = f"""Broker and reput with the default profile on core 0, reader on core 1; records with
        unique ids, appended in batches of {BATCH}, page cache warm. Raw: {CONNECTIONS} connections,
        each pulls up to {MESSAGES_MAX} messages of its queue, again and again, the next when it has
        the last one's answer; of an answer the head is read, of the first all records are checked.
        The baseline is a process on core 0 that sends the first answer's bytes from a mapped file.
        async for: the asyncio client on its default loop, one reader, every body checked against
        its CRC. {seconds:.0f} s per run, {given.runs} runs of each in turn after a warm-up."""
    return Result(figures, method, series=series, notes=notes)


if __name__ == "__main__":
    benchmark(main)
