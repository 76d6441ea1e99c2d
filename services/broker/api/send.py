"""The call that stores messages, with a fast path for the common form of its body.

A body of the common form (msgpack, one queue, nothing to refuse) is parsed in one pass by
``tidemark.formats.produce_wire``, and the answer is packed in one pass as well. Any other body is
decoded and checked field by field; the result is the same kind of request, or an error that names
the wrong field. ``http_api`` receives the head of the request before this step (write path, step
1). After it come ``deduplicator`` and ``sender`` (steps 3 and 4); finally the answer is written
here (step 6).
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
from services.broker.api.gate import Gate
from services.broker.api.http_requests import Bodies, Body, born_host
from services.broker.api.messages import Rules, parse_produce
from services.broker.api.traces import HEADER as TRACE_HEADER
from services.broker.api.traces import Traces
from services.broker.fields import plain_name
from services.broker.limits import ACK_TIMEOUT_MS_MAX, MESSAGES_MAX
from services.broker.log.ack_levels import AckLevel
from services.broker.request_classes import REPEAT_SLICES, RequestClasses
from services.broker.send.deduplicator import Deduplicator
from services.broker.send.request import ProduceRequest
from services.broker.send.send_result import result_of
from services.broker.send.unique_ids import UniqueIds
from services.broker.traffic_metrics import TrafficMetrics
from tidemark.errors import TidemarkError
from tidemark.formats import native

SEND_PATH: Final = ("/v1/topics/", "/messages")
"""Parts of the path of a send before and after the topic."""
LEVELS: Final = {level.value: level for level in AckLevel}


_HEAD: Final = (
    "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\nDate: {}\r\nServer: {}\r\n\r\n"
)


def fast_path_topic(request: web.BaseRequest) -> str | None:
    """Return the topic of a send that the fast path can serve.

    Returns None for a path with escapes or a request with Expect: the router handles these."""
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
        metrics: TrafficMetrics,
        deduplicator: Callable[[], Deduplicator],
        traces: Traces,
        request_classes: RequestClasses,
    ) -> None:
        """deduplicator: returns the one of the present role; called once the gate is open."""
        self._traces = traces
        self._request_classes = request_classes
        self._gate = gate
        self._rules = rules
        self._properties_size_max = rules.properties_size_max
        self._bodies = bodies
        self._unique_ids = unique_ids
        self._thread_ids = unique_ids.for_thread()
        """Id maker for bodies that are checked in a thread."""
        self._metrics = metrics
        self._deduplicator = deduplicator

    async def answer(self, request: web.Request, topic: str) -> web.StreamResponse:
        """Store the request's messages and answer. A TidemarkError is counted and raised."""
        headers = request.headers
        trace = self._traces.of(headers) if TRACE_HEADER in headers else None
        try:
            self._gate.check_sends()
            content_type = headers.get(hdrs.CONTENT_TYPE)
            encoding = encodings.of_request(content_type)
            body = self._bodies.begin(request)
            try:
                # The usual body arrived together with the head and has the common form: no wait.
                data, since = self._bodies.arrived(request, body), None
                produce = None if data is None else self._at_once(data, encoding)
                if produce is None:
                    produce, since = await self._later(request, body, data, encoding)
                appended = None if trace is None else trace.appended
                deduplicator, host = self._deduplicator(), born_host(request)
                if produce.retry:
                    with self._request_classes.long_send():
                        await self._request_classes.turn(REPEAT_SLICES)
                        pauses = self._request_classes.behind_sends()
                        sent = await deduplicator.send(
                            topic, produce, host, appended, since, pauses
                        )
                else:
                    sent = await deduplicator.send(topic, produce, host, appended, since)
                    self._request_classes.note_sent()
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
        """Read and check a request whose body has not arrived or takes long to check.

        Returns the request and the count of repeats before the wait, because its own repeat may
        overtake it. data: the body; None: it has not arrived.
        """
        deduplicator, produce = self._deduplicator(), None
        count = deduplicator.repeat_count
        if data is None:
            data = await self._bodies.whole(request, body)
            produce = self._at_once(data, encoding)
        if produce is None:
            check = functools.partial(
                self._check_fields,
                data,
                encoding,
                self._thread_ids,
                self._bodies.pauses.rest_in_thread,
            )
            produce = await self._bodies.in_thread(check)
        # After a change of role there is another deduplicator, whose count is not comparable.
        return produce, count if self._deduplicator() is deduplicator else None

    def _at_once(self, body: bytes, encoding: Encoding) -> ProduceRequest | None:
        """Parse a body without an await; None if it is long and not of the common form."""
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
        return self._check_fields(body, encoding, unique_ids)

    def _check_fields(
        self, body: bytes, encoding: Encoding, unique_ids: UniqueIds, rest: Rest | None = None
    ) -> ProduceRequest:
        """Decode a body and check it field by field. rest: as in ``encodings.decode``."""
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
                _free_in_slices(decoded, rest)


def _free_in_slices(decoded: object, rest: Rest) -> None:
    """Free the messages of a long body one by one.

    Freeing them all at once would hold the interpreter lock for milliseconds."""
    messages = decoded.get("messages") if isinstance(decoded, dict) else None
    while isinstance(messages, list) and messages:
        messages.pop()
        rest()


class ReadyAnswer(web.StreamResponse):
    """A response with status 200, written in one piece on a connection that stays open.

    aiohttp builds the head of a response from a map of headers, which takes a tenth of the time of
    a small send. This class writes a finished head instead. Other answers use aiohttp's classes.
    """

    def __init__(self, data: bytes) -> None:
        """data: head and body."""
        super().__init__()
        self._data = data

    @property
    def keep_alive(self) -> bool:
        """Always True: if the connection is to close, ``_answer`` returns a ``web.Response``."""
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Pass everything to the transport, then wait while its buffer is over the limit.

        Raises ConnectionResetError if the client has disconnected.
        """
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        transport.write(self._data)
        writer = request.writer
        writer.output_size += len(self._data)  # prevents a second answer by aiohttp
        await writer.drain()
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: ``prepare`` has written the whole answer."""
        assert not data


def _answer(request: web.BaseRequest, body: bytes, content_type: str) -> web.StreamResponse:
    """Return the answer to a successful request."""
    if request.keep_alive and request.version == HttpVersion11:
        return ReadyAnswer(_head(content_type, len(body), int(time.time())) + body)
    return web.Response(body=body, content_type=content_type)


@functools.lru_cache(maxsize=64)
def _head(content_type: str, size: int, now_s: int) -> bytes:
    """Return the head of an answer; cached, because answers of one second have few sizes."""
    return _HEAD.format(
        content_type, size, formatdate(now_s, usegmt=True), SERVER_SOFTWARE
    ).encode()
