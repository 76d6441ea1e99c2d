"""What the modules with calls share: a route, the tools to read a request, the way to answer it.

``http_api`` registers the routes of each module, times them and turns what they raise into answers,
so a handler holds no more than: read, check, call, answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from aiohttp import hdrs, web

from services.broker.api import encodings
from services.broker.api.encodings import Encoding
from services.broker.api.http_requests import Bodies
from services.broker.api.traces import Traces
from services.broker.gate import Gate
from services.broker.metrics import BrokerMetrics
from services.broker.parts import Parts
from tidemark.clock import Clock

if TYPE_CHECKING:  # it answers with what is here
    from services.broker.api.large_answers import LargeAnswers


class Route(NamedTuple):
    """One call."""

    method: str
    path: str
    """As aiohttp's router takes it, with {names}."""
    name: str
    """Of its series in the metric of request durations; unique."""
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]]


class Calls(Protocol):
    """A module's calls."""

    @property
    def routes(self) -> Sequence[Route]:
        """All of them; asked for once, before the store is open."""
        ...


class CallTools(NamedTuple):
    """What handlers work with."""

    gate: Gate
    bodies: Bodies
    answers: LargeAnswers
    clock: Clock
    metrics: BrokerMetrics
    parts: Callable[[], Parts]
    """To be called after ``gate.check_reads`` or ``check_sends``: before, there are none."""
    traces: Traces


def encoding_of(request: web.Request) -> Encoding:
    """The encoding of the answer to a request."""
    headers = request.headers
    return encodings.of_answer(headers.get(hdrs.ACCEPT), headers.get(hdrs.CONTENT_TYPE))


def answer(request: web.Request, value: Mapping[str, Any], status: int = 200) -> web.Response:
    """The answer in the caller's encoding."""
    encoding = encoding_of(request)
    return web.Response(
        body=encodings.encode(value, encoding), status=status, content_type=encoding.value
    )
