"""The call that stores messages: the one that is worth a short way from its bytes to the log.

A request of the common form (msgpack, one queue, nothing to refuse) is taken from its bytes in one
pass by ``tidemark.formats.produce_wire``, and answered the same way. Whatever that does not take,
goes the careful way, decoded and checked field by field, which accepts it or names what is wrong:
the result is the same request. Before: ``http_api`` or ``connections`` has the head of the request.
After: ``produce`` (walk step 1).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from aiohttp import hdrs, web

from services.broker import encodings, ready_answer
from services.broker.encodings import Encoding, Rest
from services.broker.gate import Gate
from services.broker.http_requests import Bodies, Body, born_host
from services.broker.limits import ACK_TIMEOUT_MS_MAX, MESSAGES_MAX
from services.broker.messages import (
    AckLevel,
    ProduceRequest,
    Rules,
    parse_produce,
)
from services.broker.metrics import BrokerMetrics
from services.broker.pools import REPEAT_SLICES, Pools
from services.broker.produce import Sends
from services.broker.sent import result_of
from services.broker.traces import Traces
from services.broker.unique_ids import UniqueIds
from tidemark.errors import TidemarkError
from tidemark.formats import twins

LEVELS: Final = {level.value: level for level in AckLevel}


class SendCall:
    """POST /v1/topics/{topic}/messages, from the request's head to its answer."""

    def __init__(
        self,
        gate: Gate,
        rules: Rules,
        bodies: Bodies,
        unique_ids: UniqueIds,
        metrics: BrokerMetrics,
        sends: Callable[[], Sends],
        traces: Traces,
        pools: Pools,
    ) -> None:
        """sends: who stores; asked for once the gate is open."""
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
        trace = self._traces.of(headers)
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
        return ready_answer.answer(request, packed, accepted.value)

    async def _later(
        self, request: web.Request, body: Body, data: bytes | None, encoding: Encoding
    ) -> tuple[ProduceRequest, int | None]:
        """A request that takes a while, and how many repeats there were before: its own may
        overtake it. data: its body, None if that has not arrived."""
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
        # Others count anew: the node's part in its group has changed.
        return produce, count if self._sends() is sends else None

    def _at_once(self, body: bytes, encoding: Encoding) -> ProduceRequest | None:
        """The request of a body; None: it is long, and not of the common form."""
        rules, unique_ids = self._rules, self._unique_ids
        if encoding is Encoding.MSGPACK:
            plain = twins.read_plain(
                body,
                message_size_max=rules.message_size_max,
                properties_size_max=self._properties_size_max,
                messages_max=MESSAGES_MAX,
                timeout_ms_max=ACK_TIMEOUT_MS_MAX,
                id_head=unique_ids.head,
                id_ms=unique_ids.now_ms(),
                id_count=unique_ids.take(0),
            )
            if plain is not None:
                unique_ids.take(plain.made_ids)
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
        """Decoded and checked field by field. rest: as of ``encodings.decode``."""
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
