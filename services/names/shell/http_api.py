"""The HTTP calls of a name service: routes for clients, registrations of brokers.

A route that is kept ready is answered before aiohttp's router, which takes longer than the answer.
Step before: ``shared.runtime.connections``. Step after: ``route_polls``, ``registrations``.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware
from msgspec import Meta, Struct

from services.names.core.answers import Answer
from services.names.core.directory import Directory
from services.names.metrics import NamesMetrics
from services.names.shell.registrations import Registrations
from services.names.shell.route_polls import RoutePolls
from shared.cluster.routes import WAIT_MS_MAX
from shared.runtime.connections import CallHandler, error_fields
from shared.runtime.media_types import Encoding, encoded, of_answer
from shared.runtime.rate_limited_logger import RateLimitedLogger
from tidemark.errors import BadRequest, TidemarkError, UnknownBase, UnknownCall, UnknownMethod

ROUTE: Final = "/v1/route"
TOPIC: Final = ROUTE + "/{topic:.+}"
NODE: Final = "/v1/groups/{group}/nodes/{node}"


class RouteQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a route."""

    after: str = ""
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0


class NamesApi:
    """All calls of one instance."""

    def __init__(
        self,
        directory: Directory,
        registrations: Registrations,
        metrics: NamesMetrics,
        limited_log: RateLimitedLogger,
        polls: RoutePolls,
    ) -> None:
        self._directory = directory
        self._registrations = registrations
        self._metrics = metrics
        self._limited_log = limited_log
        self._polls = polls
        self.app = web.Application(middlewares=[self._error_boundary()])
        self.app.add_routes(
            [
                web.get(ROUTE, self._route, name="route-groups", allow_head=False),
                web.get(TOPIC, self._route, name="route", allow_head=False),
                web.put(NODE, self._register, name="register"),
            ]
        )

    def fast_path(self, otherwise: CallHandler) -> CallHandler:
        """Return a handler that answers kept routes without a query; others go to ``otherwise``."""
        kept, count, prefix = self._directory.kept, self._metrics.topic_routes, ROUTE + "/"

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            path = request.raw_path
            if request.method == "GET" and path.startswith(prefix):
                answer = kept(path[len(prefix) :])
                if answer is not None:
                    count.inc()
                    return _answered(request, answer)
            return await otherwise(request)

        return handle

    # -- calls ----------------------------------------------------------------------------------

    async def _route(self, request: web.Request) -> web.StreamResponse:
        query = _query(request)
        topic = request.match_info.get("topic")
        answer = await self._polls.awaited(topic, query.after, query.wait_ms)
        (self._metrics.group_routes if topic is None else self._metrics.topic_routes).inc()
        return _answered(request, answer, is_changed=answer.route.version != query.after)

    async def _register(self, request: web.Request) -> web.StreamResponse:
        self._polls.wake(await self._registrations.take(request))
        return web.Response(status=204)

    # -- errors ---------------------------------------------------------------------------------

    def _error_boundary(self) -> Middleware:
        @web.middleware
        async def boundary(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except ConnectionError:
                raise  # the client has disconnected: aiohttp closes the connection
            except Exception as error:  # noqa: BLE001 - the error boundary: answer, continue
                return self._refusal(request, error)

        return boundary

    def _refusal(self, request: web.Request, error: Exception) -> web.Response:
        refused = self._known(request, error)
        kind = "register" if request.match_info.route.name == "register" else "route"
        self._metrics.refused.labels(kind, refused.code).inc()
        if kind == "register" and not isinstance(refused, UnknownBase):  # as after each start
            place = request.path
            self._limited_log.say(
                f"{place} {refused.code}",
                "registration-refused",
                "a registration was refused",
                path=place,
                code=refused.code,
                detail=refused.detail,
                peer=request.remote,
            )
        encoding = _encoding(request)
        answer = web.Response(
            body=encoded(error_fields(refused), encoding),
            status=refused.status,
            content_type=encoding.value,
        )
        if refused.retriable and refused.status == 503:
            answer.headers[hdrs.RETRY_AFTER] = "1"
        if not request.content.is_eof():
            answer.force_close()  # the rest of the body is discarded
        return answer

    def _known(self, request: web.Request, error: Exception) -> TidemarkError:
        """Return the error that the caller gets; a defect is logged."""
        match error:
            case TidemarkError():
                return error
            case web.HTTPMethodNotAllowed():
                allowed = ", ".join(sorted(error.allowed_methods))
                return UnknownMethod(f"{error.method} is not known here; {allowed} is.")
            case web.HTTPException():
                return UnknownCall(
                    f"there is no call {request.method} {request.path[:60]!r}.",
                    f"A name service has GET {ROUTE} and GET {ROUTE}/TOPIC.",
                )
        self._limited_log.defect(error, "a call failed because of an internal error")
        return TidemarkError(
            "an internal error.", "See the log of the name service, and report it."
        )


def _query(request: web.Request) -> RouteQuery:
    """Return the checked parameters. Raises BadRequest."""
    try:
        return msgspec.convert(dict(request.query), RouteQuery, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(
            f"the parameters are not understood: {error}.",
            f"after takes a version, wait_ms a number from 0 to {WAIT_MS_MAX}.",
            field="wait_ms",
        ) from None


def _encoding(request: web.BaseRequest) -> Encoding:
    headers = request.headers
    return of_answer(headers.get(hdrs.ACCEPT), headers.get(hdrs.CONTENT_TYPE))


def _answered(
    request: web.BaseRequest, answer: Answer, *, is_changed: bool = True
) -> web.StreamResponse:
    encoding = _encoding(request)
    return web.Response(
        body=answer.body(encoding, is_changed=is_changed), content_type=encoding.value
    )
