"""Load for the HTTP API: produce requests built once and patched in place, answers barely read.

A request's bytes stand ready before the clock starts; only the digits of unique ids, and topic and
queue where they change, are written into them between two sends. Of an answer the status line and
the length are read; the first of each connection is decoded and checked whole. What was
acknowledged is counted here, and ``produce`` counts it again in the store.
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

ANSWER_SIZE_MAX: Final = 1 << 20
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"
_ID_HEAD: Final = os.urandom(10).hex().upper()
"""The first 20 of the 32 digits of this process's unique ids; then 8 of the request, 4 of the
message in it."""
_NUMBER_DIGITS: Final = 8
_QUEUE_PLACE: Final = 0x7FFF
"""Takes three bytes in msgpack, two of which are patched: any queue number may stand there."""
_request_numbers: Final = itertools.count()

Place = tuple[str, int | None]
"""Topic, and queue; None: the broker picks."""


class Shape(NamedTuple):
    """What the requests of one run look like."""

    messages: int = 256
    """Per request."""
    body_size: int = 256
    """Bytes."""
    ack: str = "memory"
    ids: Literal["none", "made", "given"] = "made"
    """Unique ids: none at all, made by the broker, or given by the sender, all different."""


class Patch(NamedTuple):
    """Bytes that stand at the same place of every message of a request."""

    start: int
    """Of the first message's."""
    stride: int
    """Bytes from one message to the next."""
    messages: int

    def write(self, buffer: bytearray, value: bytes, old: bytes) -> None:
        """Put value at every place; where old, which is there now, says the same, do nothing."""
        for number, byte in enumerate(value):
            if old[number] != byte:
                at = self.start + number
                end = at + self.stride * (self.messages - 1) + 1
                buffer[at : end : self.stride] = value[number : number + 1] * self.messages


class Template:
    """Requests of one shape. Each connection has its own: bytes in flight are not patched."""

    def __init__(self, shape: Shape, host: str, places: Sequence[Place]) -> None:
        """host: of the Host header. places: of the requests, in turn, over all connections; their
        topics' names have one length, and a queue is named by all of them or by none.
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
        body = msgpack.packb(whole)
        path = b"/v1/topics/%s/messages" % topic
        head = b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/msgpack\r\n" % (
            path,
            host.encode(),
        )
        head += b"Content-Length: %d\r\n\r\n" % len(body)
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
        """What stands behind the mark in every message. The body, random bytes, comes first."""
        end = self._first + self._stride
        start = self.buffer.rindex(mark, self._first, end) + len(mark)
        return Patch(start, self._stride, self.shape.messages)

    def next(self, number: int) -> bytearray:
        """The buffer with fresh ids, for the number-th request of the run."""
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
    """Sends a template's requests; answers land in a buffer that is used again."""

    def __init__(self, exchange: Exchange, template: Template, *, check: bool = True) -> None:
        """check: whether the first answer must be the broker's to what was asked."""
        super().__init__(exchange)
        self._template = template
        self._answer = bytearray(ANSWER_SIZE_MAX)
        self._room = memoryview(self._answer)
        self._filled = 0
        self._head_size = 0
        self._size = 0
        self._to_check = check

    def request(self, number: int) -> bytearray:
        """The template's, patched."""
        return self._template.next(number)

    def get_buffer(self, _: int) -> memoryview:
        """Where the next bytes of the answer go."""
        return self._room[self._filled :]

    def buffer_updated(self, size: int) -> None:
        """Count the answer once it is whole, then send the next request."""
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
        """Learn the answer's size from its head, if that is there; anything but 200 fails."""
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
        """Decode one whole answer: status, level and the count of results are as asked."""
        answer = msgpack.unpackb(self._room[self._head_size : self._size])
        shape = self._template.shape
        results = answer["results"]
        ids = {result["unique_id"] for result in results}
        if (
            answer["status"] != "PUT_OK"
            or answer["ack"]["level"] != shape.ack
            or len(results) != shape.messages
            or (ids != {None} if shape.ids == "none" else len(ids) != shape.messages)
        ):
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
    """Produce for so long or so many requests; nothing is counted in a store.

    check: False for a server whose answers say nothing.
    """
    host = "{}:{}".format(*address)

    def make(exchange: Exchange) -> Connection:
        return HttpConnection(exchange, Template(shape, host, places), check=check)

    return drive(make, address, connections=connections, seconds=seconds, requests=requests)


class Produced(NamedTuple):
    """One run against a node."""

    outcome: Outcome
    dispatched_s: float
    """From the first request until everything acknowledged was dispatched."""
    broker_cpu_s: float
    reput_cpu_s: float
    """CPU time of the services until then."""

    @property
    def cpu_us(self) -> float:
        """CPU time of the services per message [µs]."""
        return (self.broker_cpu_s + self.reput_cpu_s) / self.outcome.messages * 1e6

    @property
    def shares(self) -> str:
        """How busy everybody was."""
        return (
            f"broker {self.broker_cpu_s / self.dispatched_s:.0%}, reput "
            f"{self.reput_cpu_s / self.dispatched_s:.0%} of their core, load "
            f"{self.outcome.cpu_share:.0%} of its own; {self.cpu_us:.3g} µs of the services per "
            "message"
        )


def produce(node: Node, topic: str, shape: Shape, *, connections: int, seconds: float) -> Produced:
    """Produce into one topic for so long; then as ``measured``."""
    return measured(
        node,
        topic,
        lambda: send(
            node.address, [(topic, None)], shape, connections=connections, seconds=seconds
        ),
    )


def measured(node: Node, topic: str, run: Callable[[], Outcome]) -> Produced:
    """Run something that sends to a topic; then wait for dispatch and count in the store.

    Raises LoadFailed if the topic has not exactly the acknowledged messages more.
    """
    before = node.message_count(topic)
    broker, reput = node.processes["broker"], node.processes["reput"]
    broker_cpu, reput_cpu = broker.cpu_s(), reput.cpu_s()
    outcome = run()
    waited = node.wait_dispatched()
    produced = Produced(
        outcome,
        outcome.seconds + waited,
        broker.cpu_s() - broker_cpu,
        reput.cpu_s() - reput_cpu,
    )
    found = node.message_count(topic) - before
    if found != outcome.messages:
        raise LoadFailed(f"{outcome.messages} messages acknowledged, {found} in the queues")
    return produced
