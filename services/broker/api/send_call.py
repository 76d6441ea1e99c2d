"""The call that stores messages, with a fast path for the common form of its body.

A body of the common form (msgpack, one queue, nothing to refuse) is parsed in one pass by
``tidemark.formats.produce_wire``, and the answer is packed in one pass as well. Any other body is
decoded and checked field by field, which makes the same kind of request of it, or names the field
that is wrong. Before: ``http_api`` has the head of the request (write path, step 1). After:
``deduplicator`` and ``sender`` (steps 3 and 4); at the end the answer is written here (step 6).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Final

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import SERVER_SOFTWARE

from services.broker.api import encodings
from services.broker.api.encodings import Encoding, Rest
from services.broker.api.fields import plain_name
from services.broker.api.http_requests import Bodies, Body, born_host
from services.broker.api.limits import ACK_TIMEOUT_MS_MAX, MESSAGES_MAX
from services.broker.api.messages import (
    AckLevel,
    ProduceRequest,
    Rules,
    parse_produce,
)
from services.broker.api.pools import REPEAT_SLICES, Pools
from services.broker.api.traces import HEADER as TRACE_HEADER
from services.broker.api.traces import Traces
from services.broker.gate import Gate
from services.broker.log.deduplicator import Deduplicator
from services.broker.log.send_result import result_of
from services.broker.log.unique_ids import UniqueIds
from services.broker.metrics import BrokerMetrics
from tidemark.errors import TidemarkError
from tidemark.formats import native

SEND_PATH: Final = ("/v1/topics/", "/messages")
"""What stands before and behind the topic in the path of a send."""
LEVELS: Final = {level.value: level for level in AckLevel}


_HEAD: Final = (
    "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\nDate: {}\r\nServer: {}\r\n\r\n"
)


def plain_send(request: web.BaseRequest) -> str | None:
    """The topic of a send whose path and head are as plain as nearly all are; else None: then the
    request goes through the router."""
    path = request.raw_path
    if not (path.startswith(SEND_PATH[0]) and path.endswith(SEND_PATH[1])):
        return None
    if hdrs.EXPECT in request.headers:
        return None
    return plain_name(path[len(SEND_PATH[0]) : -len(SEND_PATH[1])])


class SendCall:
    """POST /v1/topics/{topic}/messages, from the request's head to its answer."""

    def __init__(
        self,
        gate: Gate,
        rules: Rules,
        bodies: Bodies,
        unique_ids: UniqueIds,
        metrics: BrokerMetrics,
        sends: Callable[[], Deduplicator],
        traces: Traces,
        pools: Pools,
    ) -> None:
        """sends: returns what stores messages; called once the gate is open."""
        self._traces = traces
        self._pools = pools
        self._gate = gate
        self._rules = rules
        self._properties_size_max = rules.properties_size_max
        self._bodies = bodies
        self._unique_ids = unique_ids
        self._ids_apart = unique_ids.apart()
        """Of bodies that are checked in a thread."""
        self._metrics = metrics
        self._sends = sends

    async def answer(self, request: web.Request, topic: str) -> web.StreamResponse:
        """Store what the request holds. Raises TidemarkError, counted by its result."""
        headers = request.headers
        trace = self._traces.of(headers) if TRACE_HEADER in headers else None
        try:
            self._gate.check_sends()
            content_type = headers.get(hdrs.CONTENT_TYPE)
            encoding = encodings.of_request(content_type)
            body = self._bodies.begin(request)
            try:
                # With the head in one piece and plain, as nearly all are: nothing to wait for.
                data, since = self._bodies.arrived(request, body), None
                produce = None if data is None else self._at_once(data, encoding)
                if produce is None:
                    produce, since = await self._later(request, body, data, encoding)
                appended = None if trace is None else trace.appended
                sends, host = self._sends(), born_host(request)
                if produce.retry:
                    with self._pools.long_send():
                        await self._pools.turn(REPEAT_SLICES)
                        way = self._pools.behind_sends()
                        sent = await sends.send(topic, produce, host, appended, since, way)
                else:
                    sent = await sends.send(topic, produce, host, appended, since)
                    self._pools.note_sent()
            finally:
                self._bodies.end(body)
        except TidemarkError as error:
            self._metrics.put_results.labels(result_of(error)).inc()
            if trace is not None:
                trace.refused(topic, error)
            raise
        if trace is not None:
            trace.answered(topic, sent)
        accepted = encodings.of_answer(headers.get(hdrs.ACCEPT), content_type)
        packed = (
            sent.packed()
            if accepted is Encoding.MSGPACK
            else encodings.encode(sent.as_dict(), accepted)
        )
        return _answer(request, packed, accepted.value)

    async def _later(
        self, request: web.Request, body: Body, data: bytes | None, encoding: Encoding
    ) -> tuple[ProduceRequest, int | None]:
        """Read and check a request that takes a while. Returns it with the count of repeats before
        the wait, for its own repeat may overtake it.

        data: its body; None: that has not arrived.
        """
        sends, produce = self._sends(), None
        count = sends.repeat_count
        if data is None:
            data = await self._bodies.whole(request, body)
            produce = self._at_once(data, encoding)
        if produce is None:
            careful = functools.partial(
                self._careful, data, encoding, self._ids_apart, self._bodies.way.rest_in_thread
            )
            produce = await self._bodies.apart(careful)
        # Another deduplicator has a count of its own: the node's part in its group has changed.
        return produce, count if self._sends() is sends else None

    def _at_once(self, body: bytes, encoding: Encoding) -> ProduceRequest | None:
        """Parse a body in this step of the loop; None: it is long, and not of the common form."""
        rules, unique_ids = self._rules, self._unique_ids
        maker = unique_ids.maker
        if encoding is Encoding.MSGPACK:
            plain = native.read_plain(
                body,
                message_size_max=rules.message_size_max,
                properties_size_max=self._properties_size_max,
                messages_max=MESSAGES_MAX,
                timeout_ms_max=ACK_TIMEOUT_MS_MAX,
                id_head=maker.head,
                id_ms=unique_ids.now_ms(),
                id_count=maker.next_number,
            )
            if plain is not None:
                maker.take(plain.made_ids)
                return ProduceRequest(
                    plain.entries,
                    plain.message_count,
                    plain.queue,
                    rules.ack_default if plain.ack is None else LEVELS[plain.ack],
                    rules.timeout_ms_default if plain.timeout_ms is None else plain.timeout_ms,
                )
        if encodings.is_long(body, encoding):
            return None
        return self._careful(body, encoding, unique_ids)

    def _careful(
        self, body: bytes, encoding: Encoding, unique_ids: UniqueIds, rest: Rest | None = None
    ) -> ProduceRequest:
        """Decode a body and check it field by field. rest: as of ``encodings.decode``."""
        decoded = encodings.decode(body, encoding, rest)
        try:
            return parse_produce(
                decoded,
                rules=self._rules,
                json_body=encoding is Encoding.JSON,
                make_unique_id=unique_ids.make,
                rest=rest,
            )
        finally:
            if rest is not None:
                _let_go(decoded, rest)


def _let_go(decoded: object, rest: Rest) -> None:
    """Free the messages of a long body one by one: freed as one value, they keep the interpreter
    for milliseconds."""
    messages = decoded.get("messages") if isinstance(decoded, dict) else None
    while isinstance(messages, list) and messages:
        messages.pop()
        rest()


class ReadyAnswer(web.StreamResponse):
    """200 with a body, written as one piece over a connection that stays open.

    aiohttp builds the head of an answer from a map of headers that may still change; for an answer
    that does not change that is a tenth of a small send's time. Other answers are aiohttp's own.
    """

    def __init__(self, data: bytes) -> None:
        """data: head and body."""
        super().__init__()
        self._data = data

    @property
    def keep_alive(self) -> bool:
        """Always: for a connection that closes ``_answer`` makes an answer of aiohttp's."""
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Hand everything to the transport, then wait while it buffers too much.

        Raises ConnectionResetError if the client is gone.
        """
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        transport.write(self._data)
        writer = request.writer
        writer.output_size += len(self._data)  # aiohttp sends no second answer then
        await writer.drain()
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to do."""
        assert not data


def _answer(request: web.BaseRequest, body: bytes, content_type: str) -> web.StreamResponse:
    """The answer to a request that was carried out."""
    if request.keep_alive and request.version == HttpVersion11:
        return ReadyAnswer(_head(content_type, len(body), int(time.time())) + body)
    return web.Response(body=body, content_type=content_type)


@functools.lru_cache(maxsize=64)
def _head(content_type: str, size: int, now_s: int) -> bytes:
    """The head of an answer. Cached: the answers of one second have few sizes."""
    return _HEAD.format(
        content_type, size, formatdate(now_s, usegmt=True), SERVER_SOFTWARE
    ).encode()
