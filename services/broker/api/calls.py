"""Shared parts of the modules with calls: routes, the tools of handlers, and answers.

``http_api`` registers the routes of each module, measures their duration and turns exceptions into
answers. A handler therefore only reads and checks the request, makes the call, and answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
from aiohttp import hdrs, web

from services.broker.api import encodings
from services.broker.api.components import Components
from services.broker.api.encodings import Encoding
from services.broker.api.gate import Gate
from services.broker.api.http_requests import Bodies
from services.broker.api.traces import Traces
from services.broker.schema.values import Answer
from services.broker.traffic_metrics import TrafficMetrics
from tidemark.clock import Clock

if TYPE_CHECKING:  # large_answers imports this module
    from services.broker.api.large_answers import LargeAnswers


class Route(NamedTuple):
    """One call."""

    method: str
    path: str
    """Path pattern for aiohttp's router, with {names}."""
    name: str
    """Label value in the metric of request durations; unique."""
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]]


class Calls(Protocol):
    """The calls of one module."""

    @property
    def routes(self) -> Sequence[Route]:
        """All routes of the module; read once, before the store is open."""
        ...


class CallTools(NamedTuple):
    """The components that handlers use."""

    gate: Gate
    bodies: Bodies
    answers: LargeAnswers
    clock: Clock
    metrics: TrafficMetrics
    components: Callable[[], Components]
    """Returns the broker's components; call it only after ``gate.check_reads`` or ``check_sends``,
    because they do not exist before the gate opens."""
    traces: Traces


def encoding_of(request: web.Request) -> Encoding:
    """Return the encoding of the answer to a request."""
    headers = request.headers
    return encodings.of_answer(headers.get(hdrs.ACCEPT), headers.get(hdrs.CONTENT_TYPE))


def answer(
    request: web.Request, value: Answer | Mapping[str, Any], status: int = 200
) -> web.Response:
    """Return the answer in the caller's encoding."""
    encoding = encoding_of(request)
    fields = msgspec.to_builtins(value) if isinstance(value, Answer) else value
    return web.Response(
        body=encodings.encode(fields, encoding), status=status, content_type=encoding.value
    )
