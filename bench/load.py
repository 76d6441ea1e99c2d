"""Load for the HTTP API: prebuilt produce requests that are patched in place; minimal parsing.

The bytes of a request are built before the clock starts. Between two sends only the digits of
unique ids, and topic and queue where they change, are written into them. Of an answer only the
status line and the length are parsed; the first answer of each connection is decoded and checked
completely. Acknowledged messages are counted here, and ``produce`` counts them in the store.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

import msgpack

from bench.exchange import Connection, Exchange, LoadFailed, Outcome, drive
from bench.servers import Node
from tidemark.formats import batch
from tidemark.formats.batch import WireMessage

ANSWER_SIZE_MAX: Final = 1 << 20
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"
_ID_HEAD: Final = os.urandom(10).hex().upper()
"""The first 20 of the 32 digits of this process's unique ids; then 8 for the request and 4 for the
message in it."""
_NUMBER_DIGITS: Final = 8
_QUEUE_PLACE: Final = 0x7FFF
"""Takes three bytes in msgpack, of which two are patched with any queue number."""
_request_numbers: Final = itertools.count()

Place = tuple[str, int | None]
"""Topic and queue; None: the broker chooses."""


class Shape(NamedTuple):
    messages: int = 256
    """Messages per request."""
    body_size: int = 256
    """Size in bytes."""
    ack: str = "memory"
    ids: Literal["none", "made", "given", "batch"] = "made"
    """Unique ids: none, made by the broker, or given by the sender and all different. batch: a
    batch request for a topic with batch queues; the broker makes one id for the batch."""


class Patch(NamedTuple):
    """A field at the same position in every message of a request."""

    start: int
    """Position of the first message's field."""
    stride: int
    """Number of bytes from one message to the next."""
    messages: int

    def write(self, buffer: bytearray, value: bytes, old: bytes) -> None:
        """Write value into every message; bytes that equal those of the current value are skipped.

        old: the current value.
        """
        for number, byte in enumerate(value):
            if old[number] != byte:
                at = self.start + number
                end = at + self.stride * (self.messages - 1) + 1
                buffer[at : end : self.stride] = value[number : number + 1] * self.messages


class Template:
    """Requests of one shape. Each connection has its own, since bytes in flight must not change."""

    def __init__(self, shape: Shape, host: str, places: Sequence[Place]) -> None:
        """host: value of the Host header. places: topics and queues of the requests, used in turn
        over all connections. Their topics' names have the same length, and either all or none have
        a queue.
        """
        self.shape = shape
        self._places = [
            (topic.encode(), b"" if queue is None else queue.to_bytes(2, "big"))
            for topic, queue in places
        ]
        topic, self._queue_now = self._places[0][0], b""
        message: dict[str, object] = {"body": os.urandom(shape.body_size)}
        if shape.ids == "given":
            message["unique_id"] = _ID_HEAD + "0" * (_NUMBER_DIGITS + 4)
        if self._places[0][1]:
            message["queue"] = _QUEUE_PLACE
            self._queue_now = _QUEUE_PLACE.to_bytes(2, "big")
        whole: dict[str, object] = {"ack": shape.ack, "timeout_ms": 60_000}
        if shape.ids == "none":
            whole["make_unique_ids"] = False
        whole["messages"] = [message] * shape.messages
        body, call, content = msgpack.packb(whole), b"messages", b"msgpack"
        if shape.ids == "batch":
            body = batch.encode([WireMessage(os.urandom(shape.body_size))] * shape.messages)
            call, content = f"batches?ack={shape.ack}&timeout_ms=60000".encode(), b"octet-stream"
        head = (
            b"POST /v1/topics/%s/%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/%s\r\n"
            b"Accept: application/msgpack\r\nContent-Length: %d\r\n\r\n"
        ) % (topic, call, host.encode(), content, len(body))
        self.buffer = bytearray(head + body)
        stride = len(msgpack.packb(message))
        self._stride, self._first = stride, len(self.buffer) - stride * shape.messages

        self._topic = Patch(head.index(topic), 1, 1)
        self._topic_now = topic
        self._queue = self._recurring(b"\xa5queue\xcd") if self._queue_now else None
        self._number: Patch | None = None
        self._number_now = b"0" * _NUMBER_DIGITS
        if shape.ids == "given":
            self._number = self._recurring(b"\xa9unique_id\xd9\x20" + _ID_HEAD.encode())
            for index in range(shape.messages):
                at = self._number.start + _NUMBER_DIGITS + index * stride
                self.buffer[at : at + 4] = b"%04X" % index

    def _recurring(self, mark: bytes) -> Patch:
        """Find the field after the mark in every message. The body, random bytes, comes first."""
        end = self._first + self._stride
        start = self.buffer.rindex(mark, self._first, end) + len(mark)
        return Patch(start, self._stride, self.shape.messages)

    def next(self, number: int) -> bytearray:
        """Return the buffer with new ids, for the number-th request of the run."""
        if self._number is not None:
            digits = b"%08X" % next(_request_numbers)
            self._number.write(self.buffer, digits, self._number_now)
            self._number_now = digits
        topic, queue = self._places[number % len(self._places)]
        self._topic.write(self.buffer, topic, self._topic_now)
        self._topic_now = topic
        if self._queue is not None:
            self._queue.write(self.buffer, queue, self._queue_now)
            self._queue_now = queue
        return self.buffer


class HttpConnection(Connection, asyncio.BufferedProtocol):
    """Sends a template's requests; answers are received into one reused buffer."""

    def __init__(self, exchange: Exchange, template: Template, *, check: bool = True) -> None:
        """check: whether the first answer is checked as an answer of the broker."""
        super().__init__(exchange)
        self._template = template
        self._answer = bytearray(ANSWER_SIZE_MAX)
        self._room = memoryview(self._answer)
        self._filled = 0
        self._head_size = 0
        self._size = 0
        self._to_check = check

    def request(self, number: int) -> bytearray:
        return self._template.next(number)

    def get_buffer(self, _: int) -> memoryview:
        """Return the buffer for the next bytes of the answer."""
        return self._room[self._filled :]

    def buffer_updated(self, size: int) -> None:
        """Count the answer once it is complete, then send the next request."""
        self._filled += size
        if self._size == 0:
            self._read_head()
        if self._size == 0 or self._filled < self._size:
            return
        if self._to_check:
            self._to_check = False
            self._check()
        self._filled = self._size = 0
        self.exchange.answered(self._template.shape.messages)
        self.send_next()

    def _read_head(self) -> None:
        """Parse the answer's size from a complete head; any status but 200 fails the run."""
        head_end = self._answer.find(_HEAD_END, 0, self._filled)
        if head_end < 0:
            return
        head = bytes(self._room[: head_end + 2])
        length = _LENGTH.search(head)
        self._head_size = head_end + len(_HEAD_END)
        if length is None or not head.startswith(b"HTTP/1.1 200 "):
            text = bytes(self._room[: min(self._filled, 2000)]).decode(errors="replace")
            self.exchange.fail(f"the broker answered: {text}")
            return
        self._size = self._head_size + int(length[1])
        if self._size > ANSWER_SIZE_MAX:
            self.exchange.fail(f"an answer of {self._size} bytes, of {ANSWER_SIZE_MAX} expected")

    def _check(self) -> None:
        """Decode one answer and check status, level and number of results."""
        answer = msgpack.unpackb(self._room[self._head_size : self._size])
        shape = self._template.shape
        if shape.ids == "batch":
            is_whole = answer["batch"]["message_count"] == shape.messages
        else:
            results = answer["results"]
            ids = {result["unique_id"] for result in results}
            is_whole = len(results) == shape.messages and (
                ids == {None} if shape.ids == "none" else len(ids) == shape.messages
            )
        if not is_whole or answer["status"] != "PUT_OK" or answer["ack"]["level"] != shape.ack:
            self.exchange.fail(f"not what was asked: {str(answer)[:2000]}")


def send(
    address: tuple[str, int],
    places: Sequence[Place],
    shape: Shape,
    *,
    connections: int,
    seconds: float | None = None,
    requests: int | None = None,
    check: bool = True,
) -> Outcome:
    """Produce for the given seconds or requests, without counting in a store.

    check: False for a server with arbitrary answers.
    """
    host = "{}:{}".format(*address)

    def make(exchange: Exchange) -> Connection:
        return HttpConnection(exchange, Template(shape, host, places), check=check)

    return drive(make, address, connections=connections, seconds=seconds, requests=requests)


class Produced(NamedTuple):
    """Result of one run against a node."""

    outcome: Outcome
    dispatched_s: float
    """Time from the first request until everything acknowledged was dispatched."""
    broker_cpu_s: float
    reput_cpu_s: float
    """CPU time of the services until then."""

    @property
    def cpu_us(self) -> float:
        """CPU time of the services per message [µs]."""
        return (self.broker_cpu_s + self.reput_cpu_s) / self.outcome.messages * 1e6

    @property
    def shares(self) -> str:
        """CPU utilization of services and load, as text."""
        return (
            f"broker {self.broker_cpu_s / self.dispatched_s:.0%}, reput "
            f"{self.reput_cpu_s / self.dispatched_s:.0%} of their core, load "
            f"{self.outcome.cpu_share:.0%} of its own; {self.cpu_us:.3g} µs of the services per "
            "message"
        )


def produce(node: Node, topic: str, shape: Shape, *, connections: int, seconds: float) -> Produced:
    """Produce into one topic for the given seconds, and return what ``measured`` returns."""
    return measured(
        node,
        topic,
        lambda: send(
            node.address, [(topic, None)], shape, connections=connections, seconds=seconds
        ),
    )


def measured(node: Node, topic: str, run: Callable[[], Outcome]) -> Produced:
    """Run a function that sends to a topic, wait for dispatch, and count in the store.

    Raises LoadFailed if the topic did not grow by exactly the acknowledged messages.
    """
    before = node.message_count(topic)
    broker, reput = node.processes["broker"], node.processes["reput"]
    broker_cpu, reput_cpu = broker.cpu_s(), reput.cpu_s()
    outcome = run()
    waited = node.wait_dispatched()
    produced = Produced(
        outcome, outcome.seconds + waited, broker.cpu_s() - broker_cpu, reput.cpu_s() - reput_cpu
    )
    found = node.message_count(topic) - before
    if found != outcome.messages:
        raise LoadFailed(f"{outcome.messages} messages acknowledged, {found} in the queues")
    return produced
