"""The HTTP API (bytes → request → call → answer → bytes): aiohttp's shell around the broker.

Each call has one handler without rules of its own. Every exception becomes an answer with code,
message and advice by ``refusals``. The calls are described in ``api_document`` and tested against
it. Most plain sends do not come here: ``direct_sends`` serves them. The read path ends here.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from services.broker.api import api_document, encodings
from services.broker.api.calls import Calls, CallTools, Route, answer, encoding_of
from services.broker.api.cluster_calls import ALONE, ClusterCalls, Known, View
from services.broker.api.components import Components
from services.broker.api.connections import note_role
from services.broker.api.delay_calls import DelayCalls
from services.broker.api.direct_sends import DirectSends
from services.broker.api.drain_calls import DrainCalls
from services.broker.api.encodings import Encoding, Items
from services.broker.api.gate import Gate
from services.broker.api.group_calls import GroupCalls
from services.broker.api.group_view_calls import GroupViewCalls
from services.broker.api.http_requests import (
    Bodies,
    BodyBounds,
    query_of,
    topic_of,
)
from services.broker.api.large_answers import MANY, LargeAnswers
from services.broker.api.messages import Rules
from services.broker.api.own_route import OwnRoute
from services.broker.api.refusals import Refusals, retry_after
from services.broker.api.retention_calls import RetentionCalls
from services.broker.api.retry_calls import RetryCalls
from services.broker.api.route_calls import RouteCalls
from services.broker.api.send import SendCall
from services.broker.api.traces import Traces
from services.broker.api.zero_copy import records_answer
from services.broker.fields import (
    I64_MAX,
    parameter_int,
    plain_name,
    shown,
)
from services.broker.limits import (
    DECODED_BYTES_MAX,
)
from services.broker.read.message_map import message_map, tags_code
from services.broker.read.pull import PullRequest, parse_tags
from services.broker.read.unpacking import message_at, pulled_messages
from services.broker.request_classes import (
    CHANGE_SLICES,
    CHANGES,
    KINDS,
    UNKNOWN,
    ClientRole,
    RequestClass,
    RequestClasses,
)
from services.broker.schema.calls import ANYWHERE, READ_FROM
from services.broker.schema.messages import BatchQuery
from services.broker.schema.parsing import query
from services.broker.schema.topics import (
    FindQuery,
    MessageQuery,
    NewTopic,
    OffsetQuery,
    PullQuery,
)
from services.broker.schema.values import ListQuery, NoParameters
from services.broker.send.unique_ids import UniqueIds
from services.broker.traffic_metrics import TrafficMetrics
from shared.files.index import IndexPlace
from shared.files.pull import PullResult, PullStatus
from shared.files.queue_math import Boundary
from shared.metrics.instruments import Count
from shared.runtime.connections import BoundedHandler, CallHandler, error_fields
from tidemark.clock import Clock
from tidemark.errors import (
    BadRequest,
    CorruptRecord,
    TidemarkError,
    UnknownCall,
    UnknownMessage,
    UnknownMethod,
)
from tidemark.formats import ids, record

PULL_PATH: Final = re.compile(
    r"/v1/topics/([^/%?#]+)/queues/([0-9]{1,9})/messages\?([A-Za-z0-9_=&*.-]+)"
)
"""Path of a usual pull. Paths with escapes or mistakes are handled by the router."""
SEND_BATCH: Final = "send-batch"
"""Name of the route of batch requests."""


def modules(tools: CallTools) -> Sequence[Calls]:
    """Create the calls that are implemented in other modules."""
    return (
        GroupCalls(tools),
        GroupViewCalls(tools),
        RetryCalls(tools),
        DelayCalls(tools),
        RetentionCalls(tools),
        DrainCalls(tools),
    )


class Api:
    """All calls of the API port."""

    def __init__(
        self,
        gate: Gate,
        rules: Rules,
        clock: Clock,
        metrics: TrafficMetrics,
        unique_ids: UniqueIds,
        bounds: BodyBounds,
        own_route: OwnRoute,
        *,
        version: str,
    ) -> None:
        self._gate = gate
        self._clock = clock
        self._refusals = Refusals(gate, clock, metrics)
        self.traces = Traces(clock)
        self._metrics = metrics
        self._delay_levels_ms = rules.delay_levels_ms
        self.request_classes: Final = RequestClasses(clock)
        self._bodies = Bodies(bounds, self.request_classes)
        self._answers = LargeAnswers(bounds.waiting_max, clock, self.request_classes)
        self._send_call = SendCall(
            gate,
            rules,
            self._bodies,
            unique_ids,
            metrics,
            self.traces,
            self.request_classes,
        )
        self.direct_sends: Final = DirectSends(
            self._send_call, self._bodies, self._refusals, self.request_classes, metrics, clock
        )
        self._version, self._rules, self._request_size_max = version, rules, bounds.size_max
        self._counted_out: dict[str, tuple[Count, Count]] = metrics.registry.kept()
        self.components: Components | None = None
        """None before the store is open."""
        self._cluster: View = Known(ALONE)
        self.app = web.Application(
            middlewares=[self._error_boundary()],
            # Bodies are read and limited by Bodies; 0 disables aiohttp's own limit.
            client_max_size=0,
        )
        self._tools = tools = CallTools(
            gate, self._bodies, self._answers, clock, metrics, self._components, self.traces
        )
        calls = (
            *modules(tools),
            ClusterCalls(lambda: self._cluster, lambda: self.components),
            RouteCalls(own_route),
        )
        for route in (*self._routes(), *itertools.chain(*(each.routes for each in calls))):
            self.app.router.add_route(
                route.method,
                route.path,
                self._timed(route.name, route.handler),
                name=route.name,
                expect_handler=self._expect,
            )

    def serve(self, components: Components) -> None:
        """Use these components for all calls from now on."""
        self.components = components
        self._send_call.serve(components.deduplicator)

    def show_cluster(self, cluster: View) -> None:
        """Answer ``GET /v1/cluster`` from this view; without a call the node is standalone."""
        self._cluster = cluster

    def _routes(self) -> Sequence[Route]:
        return (
            Route("GET", "/v1/openapi.json", "openapi", self._openapi),
            Route("GET", "/v1/topics", "topics", self._list_topics),
            Route("PUT", "/v1/topics/{topic}", "topic-put", self._put_topic),
            Route("GET", "/v1/topics/{topic}", "topic-get", self._get_topic),
            Route("DELETE", "/v1/topics/{topic}", "topic-delete", self._delete_topic),
            Route("POST", "/v1/topics/{topic}/messages", "send", self._send),
            Route("POST", "/v1/topics/{topic}/batches", SEND_BATCH, self._send_batch),
            Route("GET", "/v1/topics/{topic}/messages", "query", self._query),
            Route("GET", "/v1/topics/{topic}/queues/{queue}/messages", "pull", self._pull),
            Route("GET", "/v1/topics/{topic}/queues/{queue}/offset", "offset", self._offset),
            Route("GET", "/v1/messages/{message_id}", "message", self._message),
        )

    def fast_path(self, otherwise: CallHandler) -> CallHandler:
        """Return a handler that serves usual pulls directly; other requests go to otherwise.

        It bypasses aiohttp's router and middleware, which take a third of the time of a pull.
        """
        pull_time = self._metrics.request_duration.labels("pull")
        pull, monotonic = self._answer_pull, self._clock.monotonic
        pulling, large, refused = self.request_classes.pulling, self._answers, self._answer_to

        async def timed_pull(
            request: web.Request, topic: str, queue: int, given: Mapping[str, str]
        ) -> web.StreamResponse:
            note_role(request, ClientRole.CONSUMER)
            started = monotonic()
            try:
                with pulling():
                    answered = await pull(request, topic, queue, query(given, PullQuery))
                    return large.bounded(request, answered)
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001 - as _error_boundary
                return refused(request, error, RequestClass.PULL)
            finally:
                pull_time.observe(monotonic() - started)

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            assert isinstance(request, web.Request)
            if request.method == "GET" and (plain := _fast_path_pull(request.raw_path)) is not None:
                return await timed_pull(request, *plain)
            return await otherwise(request)

        return handle

    # -- calls ----------------------------------------------------------------------------------

    @cached_property
    def _document(self) -> bytes:
        """The OpenAPI document; made when it is first read, because that takes 40 ms."""
        schema = api_document.document(
            version=self._version, rules=self._rules, request_size_max=self._request_size_max
        )
        return encodings.encode(schema, Encoding.JSON)

    async def _openapi(self, request: web.Request) -> web.StreamResponse:
        body = await asyncio.to_thread(lambda: self._document)
        return web.Response(body=body, content_type=encodings.JSON)

    async def _list_topics(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, ListQuery)
        self._check_reads(request)
        return answer(request, await self._components().read.topics.page(asked))

    async def _get_topic(self, request: web.Request) -> web.StreamResponse:
        query_of(request, NoParameters)
        topic = topic_of(request)
        self._check_reads(request)
        return answer(request, await self._components().read.topics.one(topic))

    async def _put_topic(self, request: web.Request) -> web.StreamResponse:
        query_of(request, NoParameters)
        topic = topic_of(request)
        async with self._tools.change(request, NewTopic, NewTopic()) as (components, wanted):
            await components.read.topics.put(topic, wanted)
        return answer(request, await components.read.topics.one(topic))

    async def _delete_topic(self, request: web.Request) -> web.StreamResponse:
        query_of(request, NoParameters)
        topic = topic_of(request)
        self._gate.check_sends()
        await self._components().read.topics.delete(topic)
        return web.Response(status=204)

    async def _send(self, request: web.Request) -> web.StreamResponse:
        query_of(request, NoParameters)
        return await self._send_call.answer(request, topic_of(request))

    async def _send_batch(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, BatchQuery)
        return await self._send_call.answer(request, topic_of(request), asked)

    async def _pull(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, PullQuery)
        topic, queue = self._queue(request)
        return await self._answer_pull(request, topic, queue, asked)

    async def _answer_pull(
        self, request: web.Request, topic: str, queue: int, asked: PullQuery
    ) -> web.StreamResponse:
        raw = encodings.wants_records(request.headers.get(hdrs.ACCEPT))
        pull = PullRequest(
            topic,
            queue,
            offset=asked.offset,
            count_max=asked.count_max,
            bytes_max=asked.bytes_max if raw else min(asked.bytes_max, DECODED_BYTES_MAX),
            tags=parse_tags(asked.tags),
            wait_ms=asked.wait_ms,
            bulk=raw,
        )
        self._check_reads(request)
        components = self._components()
        components.read.topics.check_readable(topic, queue, may_be_missing=True)
        transport = request.transport
        result = await components.read.puller.pull(
            pull, lambda: transport is None or transport.is_closing()
        )
        if pull.wait_ms and self._gate.role is not None:
            self._check_reads(request)  # the node's role may have changed during the wait
        handed_out = result.message_count
        if not raw:
            handed_out = min(handed_out, max(1, pull.count_max))  # a batch is divided
        self._count_out(topic, handed_out, result.bytes_total)
        if result.message_count and (trace := self.traces.of(request.headers)) is not None:
            trace.delivered(topic, queue, result)
        return records_answer(result) if raw else await self._pull_answer(request, pull, result)

    async def _offset(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, OffsetQuery)
        topic, queue = self._queue(request)
        self._check_reads(request)
        topics = self._components().read.topics
        topics.check_readable(topic, queue)
        return answer(
            request,
            topics.offset_by_time(
                topic, queue, asked.timestamp_ms, Boundary[asked.boundary.upper()]
            ),
        )

    async def _message(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, MessageQuery)
        text = request.match_info["message_id"]
        try:
            _, offset = ids.parse_offset_id(text)
        except ValueError:
            raise BadRequest(
                f"{shown(text)} is not a message id: 32 or 56 hexadecimal digits.",
                "A unique id is asked for with /v1/topics/{topic}/messages?unique_id=.",
                field="message_id",
            ) from None
        self._check_reads(request)
        found = self._components().read.queries.by_offset(offset)
        if found.message_id != text.upper():
            raise UnknownMessage(
                f"the message at physical offset {offset} was stored by another host: its id is "
                f"{found.message_id}.",
                "Ask the node that stored it, or by that id.",
                physical_offset=int(offset),
            )
        message = message_at(found, asked.queue_offset)
        return answer(request, self._as_map(message, encoding_of(request)))

    async def _query(self, request: web.Request) -> web.StreamResponse:
        asked = query_of(request, FindQuery)
        topic = topic_of(request)
        self._check_reads(request)
        components = self._components()
        components.read.topics.check_known(topic)
        page = await components.read.queries.find(
            topic,
            asked.word,
            begin_ms=asked.begin_ms or 0,
            end_ms=I64_MAX if asked.end_ms is None else asked.end_ms,
            hits_max=asked.count_max,
            unique_id_only=asked.unique_id is not None,
            before=_place(asked.before),
            pauses=self.request_classes.behind_sends(),
        )
        encoding = encoding_of(request)
        messages = (self._as_map(each, encoding) for each in page.messages)
        count = len(page.messages)
        next_place = None if page.next is None else str(page.next)
        said = {"messages": Items(count, messages), "next": next_place}
        reserved = self._answers.reserve(request, size=page.size, count=count)
        return self._answers.answer(request, said, reserved)

    # -- requests -------------------------------------------------------------------------------

    def _components(self) -> Components:
        assert self.components is not None, "the gate opens after the components are set"
        return self.components

    def _check_reads(self, request: web.Request) -> None:
        """Raise the gate's error unless reads are served here.

        A slave serves a read only if the request's header allows it."""
        standing = self._gate.role
        anywhere = standing is not None and request.headers.get(READ_FROM) == ANYWHERE
        self._gate.check_reads(anywhere=anywhere)

    def _queue(self, request: web.Request) -> tuple[str, int]:
        topic = topic_of(request)
        return topic, parameter_int(request.match_info["queue"], "queue", 0, (1 << 31) - 1)

    async def _expect(self, request: web.Request) -> web.StreamResponse | None:
        """Check an announced body (Expect: 100-continue) before the client sends it."""
        try:
            is_octets = request.match_info.route.name == SEND_BATCH
            self._bodies.check_announced(request, is_octets=is_octets)
        except TidemarkError as error:
            return self._answer_to(request, error, _class_of(request))
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
        return None

    # -- answers --------------------------------------------------------------------------------

    def _as_map(self, found: record.Record, encoding: Encoding) -> dict[str, object]:
        return message_map(
            found,
            code=tags_code(found, self._delay_levels_ms),
            json_body=encoding is Encoding.JSON,
        )

    async def _pull_answer(
        self, request: web.Request, pull: PullRequest, result: PullResult
    ) -> web.Response:
        json_body = encoding_of(request) is Encoding.JSON
        count = min(result.message_count, max(1, pull.count_max))
        reserved = self._answers.reserve(request, size=result.bytes_total, count=count)
        try:
            said = await self._said(pull, result, json_body=json_body)
        except BaseException:
            reserved.release()
            raise
        return self._answers.answer(request, said, reserved)

    async def _said(
        self, pull: PullRequest, result: PullResult, *, json_body: bool
    ) -> dict[str, object]:
        """Return the decoded answer to a pull; checks CRCs. Raises CorruptRecord, DamagedFile.

        A batch is divided where the caller's limit of messages is reached.
        """
        sound: list[tuple[record.Record, int]] = []
        count_max, next_offset = max(1, pull.count_max), result.next_offset
        checks_at = self._components().read.puller.checks_at
        # One more than the caller gets, to know where the next pull begins.
        steps = itertools.islice(pulled_messages(result, checks_at, pull.tags), count_max + 1)
        while taken := (
            list(steps) if result.message_count <= MANY else await self._answers.take(steps)
        ):
            for queue_offset, found, code in taken:
                if isinstance(found, CorruptRecord):
                    if not sound:
                        raise found
                    # The messages before the damage are valid and are returned. The pull that
                    # begins at the damage raises the error.
                    self._gate.judge(found)
                    next_offset = queue_offset
                elif len(sound) < count_max:
                    sound.append((found, code))
                else:
                    next_offset = queue_offset
        messages = (message_map(found, code=code, json_body=json_body) for found, code in sound)
        status = result.status
        if status is PullStatus.FOUND and not sound:
            status = PullStatus.NO_MATCHED_MESSAGE  # in batches without a tag of their own
        said: dict[str, object] = {
            "status": status.value,
            "next_offset": next_offset,
            "min_offset": result.min_offset,
            "max_offset": result.max_offset,
            "messages": Items(len(sound), messages),
        }
        if result.poll_after_ms is not None:
            said["poll_after_ms"] = result.poll_after_ms
        return said

    def _count_out(self, topic: str, message_count: int, size: int) -> None:
        if message_count:
            counters = self._counted_out.get(topic)
            if counters is None:  # looked up once: a lookup by labels costs more than counting
                counters = self._counted_out[topic] = (
                    self._metrics.messages_out.labels(topic, "").inc,
                    self._metrics.sent_bytes.labels(topic, "").inc,
                )
            counters[0](message_count)
            counters[1](size)

    def _timed(self, name: str, handler: Handler) -> Handler:
        series = self._metrics.request_duration.labels(name)
        kind, monotonic = KINDS[name], self._clock.monotonic
        requests, is_change = self.request_classes.of[kind.request_class], name in CHANGES

        @functools.wraps(handler)
        async def timed(request: web.Request) -> web.StreamResponse:
            note_role(request, kind.role)
            started = monotonic()
            number = requests.begin(started)
            try:
                if is_change:
                    await self.request_classes.turn(CHANGE_SLICES)
                return await handler(request)
            finally:
                requests.end(number)
                series.observe(monotonic() - started)

        @functools.wraps(handler)
        async def timed_pull(request: web.Request) -> web.StreamResponse:
            note_role(request, kind.role)
            started = monotonic()
            try:
                with self.request_classes.pulling():
                    return await handler(request)
            finally:
                series.observe(monotonic() - started)

        return timed_pull if kind.request_class is RequestClass.PULL else timed

    def _error_boundary(self) -> Middleware:
        @web.middleware
        async def boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return self._answers.bounded(request, await handler(request))
            except ConnectionError:
                raise  # the client has disconnected: aiohttp closes the connection
            except Exception as error:  # noqa: BLE001 - the error boundary: answer, continue
                return self._answer_to(request, error, _class_of(request))

        return boundary

    def _answer_to(
        self, request: web.Request, error: Exception, request_class: RequestClass
    ) -> web.Response:
        allowed: Collection[str] = ()
        if isinstance(error, web.HTTPMethodNotAllowed):
            allowed = sorted(error.allowed_methods)
            error = UnknownMethod(
                f"{error.method} is not known here; {', '.join(allowed)} is.",
                "See /v1/openapi.json.",
                allowed=allowed,
            )
        elif isinstance(error, web.HTTPException):
            error = UnknownCall(
                f"there is no call {request.method} {shown(request.path)}.", "See /v1/openapi.json."
            )
        refused = self._refusals.of(error, request_class, request.path)
        refusal = answer(request, error_fields(refused), refused.status)
        if allowed:
            refusal.headers[hdrs.ALLOW] = ", ".join(allowed)
        if retry_after(refused):
            refusal.headers[hdrs.RETRY_AFTER] = "1"
        if request.content.exception() is not None:
            refusal.force_close()  # the following bytes on the connection are not HTTP
        elif not request.content.is_eof():
            refusal.force_close()  # the rest of the body is discarded
            if isinstance(request.protocol, BoundedHandler):
                request.protocol.note_refused(request)
        return refusal


def _fast_path_pull(path: str) -> tuple[str, int, dict[str, str]] | None:
    """Return topic, queue and parameters of a pull if its path has no escapes or mistakes."""
    matched = PULL_PATH.fullmatch(path)
    if matched is None or (topic := plain_name(matched[1])) is None:
        return None
    pairs = [pair.split("=") for pair in matched[3].split("&")]
    given = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
    if len(given) != len(pairs):
        return None
    return topic, int(matched[2]), given


def _class_of(request: web.Request) -> RequestClass:
    """Return the class of a request that the router has resolved."""
    name = request.match_info.route.name
    return (UNKNOWN if name is None else KINDS[name]).request_class


def _place(text: str | None) -> IndexPlace | None:
    """Parse the place at which a look-up continues. Raises BadRequest."""
    try:
        return None if text is None else IndexPlace.parse(text)
    except ValueError:
        assert text is not None
        raise BadRequest(
            f"before is {shown(text)}, which is not the `next` of an earlier answer.",
            field="before",
        ) from None
