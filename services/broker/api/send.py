"""The calls that store messages, with a fast path for the common form of a body.

A body of the common form (msgpack, one queue, nothing to refuse) is parsed in one pass by
``tidemark.formats.produce_wire``, and the answer is packed in one pass as well. Any other body is
decoded and checked field by field; the result is the same kind of request, or an error that names
the wrong field. The body of a batch request is stored as it is (``batches``). ``direct_sends`` has
recognised a plain send before this step (write path, step 1), or ``http_api`` has routed any other.
After it come ``deduplicator`` and ``sender`` (steps 3 and 4).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from aiohttp import hdrs, web

from services.broker.api import encodings
from services.broker.api.batches import batch_request, check
from services.broker.api.connections import PlainSend, repeats_before
from services.broker.api.encodings import Encoding, Rest
from services.broker.api.gate import Gate
from services.broker.api.http_requests import Bodies, Body, born_host
from services.broker.api.messages import Rules, parse_produce
from services.broker.api.request_head import Form
from services.broker.api.traces import HEADER as TRACE_HEADER
from services.broker.api.traces import Traces
from services.broker.limits import ACK_TIMEOUT_MS_MAX, MESSAGES_MAX
from services.broker.log.ack_levels import AckLevel
from services.broker.request_classes import REPEAT_SLICES, RequestClasses
from services.broker.schema.messages import BatchQuery
from services.broker.send.deduplicator import Deduplicator, RepeatCount
from services.broker.send.request import ProduceRequest
from services.broker.send.send_result import SendResult, result_of
from services.broker.send.sender import AppendedSend, Outcome, PendingSend
from services.broker.send.unique_ids import UniqueIds
from services.broker.traffic_metrics import TrafficMetrics
from tidemark.errors import TidemarkError
from tidemark.formats import native

CHECKED_SIZE_MAX: Final = 1 << 15
"""Bytes of a batch with a fault whose check takes a few milliseconds at most."""
LEVELS: Final = {level.value: level for level in AckLevel}


class SendCall:
    """POST /v1/topics/{topic}/messages and …/batches, from the request's head to its answer."""

    def __init__(
        self,
        gate: Gate,
        rules: Rules,
        bodies: Bodies,
        unique_ids: UniqueIds,
        metrics: TrafficMetrics,
        traces: Traces,
        request_classes: RequestClasses,
    ) -> None:
        self._traces = traces
        self._request_classes = request_classes
        self._gate = gate
        self._rules = rules
        self._read_plain = functools.partial(
            native.read_plain,
            message_size_max=rules.message_size_max,
            properties_size_max=rules.properties_size_max,
            messages_max=MESSAGES_MAX,
            timeout_ms_max=ACK_TIMEOUT_MS_MAX,
            id_head=unique_ids.maker.head,
        )
        self._bodies = bodies
        self._unique_ids = unique_ids
        self._thread_ids = unique_ids.for_thread()
        """Id maker for bodies that are checked in a thread."""
        self._metrics = metrics
        self._of_role: Deduplicator | None = None

    def serve(self, deduplicator: Deduplicator) -> None:
        """Store messages with the deduplicator of the present role from now on."""
        self._of_role = deduplicator

    def _deduplicator(self) -> Deduplicator:
        assert self._of_role is not None, "the gate is shut before"
        return self._of_role

    async def answer(
        self, request: web.Request, topic: str, batch: BatchQuery | None = None
    ) -> web.StreamResponse:
        """Store the request's messages and answer. A TidemarkError is counted and raised.

        batch: the parameters of a batch request; None: the messages are those of a send."""
        headers, repeats = request.headers, repeats_before(request)
        trace = self._traces.of(headers) if TRACE_HEADER in headers else None
        try:
            self._gate.check_sends()
            content_type = headers.get(hdrs.CONTENT_TYPE)
            form = Form(topic, _encoding_of(content_type, batch), batch)
            body = self._bodies.begin(request)
            try:
                # The usual body arrived together with the head and has the common form: no wait.
                data = self._bodies.arrived(request, body)
                produce = None if data is None else self._at_once(data, form)
                if produce is None:
                    repeats = repeats or self.repeats_so_far()  # its own repeat may overtake it
                    produce = await self._later(request, body, data, form)
                    self._gate.check_sends()  # the node's role may have changed during the wait
                appended = None if trace is None else trace.appended
                deduplicator, host = self._deduplicator(), born_host(request)
                since = None if repeats is None else repeats.since(deduplicator)
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
        return web.Response(body=packed(sent, accepted), content_type=accepted.value)

    def append_now(self, send: PlainSend, started: float) -> AppendedSend | None:
        """Append a plain send; None, with nothing stored, if it must wait.

        started: when it arrived, on the monotonic clock [s]. Raises the TidemarkError of a refused
        send.
        """
        self._gate.check_sends()
        pending = self._pending(send, 0, started)
        return None if pending is None else self._deduplicator().append_now(pending)

    def append_all(self, sends: Sequence[PlainSend], started: float) -> list[Outcome]:
        """Append plain sends in one step; return what became of each.

        started: when they arrived, on the monotonic clock [s]. Raises the TidemarkError of all of
        them while the node accepts none.
        """
        self._gate.check_sends()
        pending: list[PendingSend | Exception | None] = []
        size = 0
        for send in sends:
            try:
                pending.append(self._pending(send, size, started))
            except Exception as error:  # noqa: BLE001 - the caller answers it
                pending.append(error)
            size += send.head.body_size
        return self._deduplicator().append_all(pending)

    def _pending(self, send: PlainSend, size_before: int, started: float) -> PendingSend | None:
        """Parse the body of a plain send; return None if the send must wait.

        size_before: bytes of bodies that arrived with it and are not counted.
        """
        head, held, body = send.head, send.held, send.request[send.body_start :]
        if held is None:
            self._bodies.check_room(size_before + len(body))
        else:
            self._bodies.grow(held, len(body) - held.size)
        produce = self._at_once(body, head)
        if produce is None or produce.retry:
            return None
        return PendingSend(head.topic, produce, send.born_host, None, started)

    def repeats_so_far(self) -> RepeatCount:
        """Return the count of repeated sends until now."""
        try:
            self._gate.check_sends()
        except TidemarkError:
            return RepeatCount(None, 0)
        deduplicator = self._deduplicator()
        return RepeatCount(deduplicator, deduplicator.repeat_count)

    async def _later(
        self, request: web.Request, body: Body, data: bytes | None, form: Form
    ) -> ProduceRequest:
        """Read and check a request whose body has not arrived or takes long to check.

        data: the body; None: it has not arrived.
        """
        produce = None
        if data is None:
            data = await self._bodies.whole(request, body, form.encoding)
            produce = self._at_once(data, form)
        if produce is None:
            work = functools.partial(
                self._checked,
                data,
                form.encoding,
                self._thread_ids,
                has_batches=self._has_batches(form),
                rest=self._bodies.pauses.rest_in_thread,
            )
            produce = await self._bodies.in_thread(work)
        return produce

    def _has_batches(self, form: Form) -> bool:
        """Return whether the topic has batch queues.

        Then the broker makes an id for a batch, and none for its messages."""
        return self._deduplicator().is_batch(form.topic)

    def _at_once(self, body: bytes, form: Form) -> ProduceRequest | None:
        """Parse a body without an await; None if it is long and not of the common form."""
        rules, unique_ids, encoding = self._rules, self._unique_ids, form.encoding
        if form.batch is not None:
            properties_of = self._deduplicator().batch_properties
            made = batch_request(body, form.batch, rules, properties_of)
            if made is not None or len(body) > CHECKED_SIZE_MAX:
                return made
            return self._checked(body, encoding, unique_ids, has_batches=True)
        maker, has_batches = unique_ids.maker, self._has_batches(form)
        if encoding is Encoding.MSGPACK:
            plain = self._read_plain(
                body,
                makes_ids=not has_batches,
                id_ms=unique_ids.now_ms(),
                id_count=maker.next_number,
            )
            if plain is not None:
                entries, message_count, queue, ack, timeout_ms, made_ids = plain
                maker.take(made_ids)
                return ProduceRequest(
                    entries,
                    message_count,
                    queue,
                    rules.ack_default if ack is None else LEVELS[ack],
                    rules.timeout_ms_default if timeout_ms is None else timeout_ms,
                )
        assert encoding is not None, "only a batch has none"
        if encodings.is_long(body, encoding):
            return None
        return self._checked(body, encoding, unique_ids, has_batches=has_batches)

    def _checked(
        self,
        body: bytes,
        encoding: Encoding | None,
        unique_ids: UniqueIds,
        *,
        has_batches: bool,
        rest: Rest | None = None,
    ) -> ProduceRequest:
        """Decode a body and check it field by field; raise the fault of a batch.

        rest: as in ``encodings.decode``."""
        if encoding is None:
            check(body, self._rules)
            raise AssertionError("both checks of a batch have the same result")
        decoded = encodings.decode(body, encoding, rest)
        try:
            return parse_produce(
                decoded,
                rules=self._rules,
                json_body=encoding is Encoding.JSON,
                make_unique_id=unique_ids.make,
                has_batches=has_batches,
                rest=rest,
            )
        finally:
            if rest is not None:
                _free_in_slices(decoded, rest)


def _encoding_of(content_type: str | None, batch: BatchQuery | None) -> Encoding | None:
    """Return the encoding of a body; None: it has a batch. Raises UnsupportedMediaType."""
    if batch is None:
        return encodings.of_request(content_type)
    encodings.check_octets(content_type)
    return None


def _free_in_slices(decoded: object, rest: Rest) -> None:
    """Free the messages of a long body one by one.

    Freeing them all at once would hold the interpreter lock for milliseconds."""
    messages = decoded.get("messages") if isinstance(decoded, dict) else None
    while isinstance(messages, list) and messages:
        messages.pop()
        rest()


def packed(sent: SendResult, accepted: Encoding) -> bytes:
    """Return the body of a successful answer."""
    if accepted is Encoding.MSGPACK:
        return sent.packed()
    return encodings.encode(sent.as_dict(), accepted)
