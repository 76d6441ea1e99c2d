"""Shared parts of the modules with calls: routes, the tools of handlers, and answers.

``http_api`` registers the routes of each module, measures their duration and turns exceptions into
answers. A handler therefore only reads and checks the request, makes the call, and answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec
from aiohttp import hdrs, web

from services.broker.api import encodings
from services.broker.api.components import Components
from services.broker.api.encodings import Encoding
from services.broker.api.gate import Gate
from services.broker.api.http_requests import Bodies
from services.broker.api.traces import Traces
from services.broker.schema.parsing import parsed
from services.broker.schema.values import Request
from services.broker.traffic_metrics import TrafficMetrics
from tidemark.clock import Clock

if TYPE_CHECKING:  # large_answers imports this module
    from services.broker.api.large_answers import LargeAnswers

R = TypeVar("R", bound=Request)


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


@dataclass(frozen=True, slots=True)
class CallTools:
    """The components that handlers use.

    Those of the broker depend on its role, so a handler gets them only together with a check of the
    gate, and does not keep them over a wait for its client."""

    gate: Gate
    bodies: Bodies
    answers: LargeAnswers
    clock: Clock
    metrics: TrafficMetrics
    _components: Callable[[], Components]
    """Returns the broker's components, which exist once the gate has opened."""
    traces: Traces

    def for_reads(self) -> Components:
        """Return the broker's components. Raises the gate's error unless reads are served."""
        self.gate.check_reads()
        return self._components()

    def for_changes(self) -> Components:
        """Return the broker's components. Raises the gate's error unless sends are served."""
        self.gate.check_sends()
        return self._components()

    @asynccontextmanager
    async def change(
        self, request: web.Request, kind: type[R], without_body: R | None = None
    ) -> AsyncIterator[tuple[Components, R]]:
        """Provide the broker's components and the parsed body of a call that changes something.

        without_body: the value if the request has no body; None: it must have one. The gate is
        checked before the body, so that a refused one is not read, and after it. Otherwise: 1. a
        body arrives slowly; 2. meanwhile this node becomes a slave; 3. it accepts a commit into the
        state that it follows, answers, and never appends it.
        """
        components = self.for_changes()
        if without_body is not None and not request.body_exists:
            yield components, without_body
            return
        async with self.bodies.read(request) as body:
            changes = parsed(body, kind)
        # The body's memory is released: the change may wait for the disk or the group.
        yield self.for_changes(), changes


def encoding_of(request: web.Request) -> Encoding:
    """Return the encoding of the answer to a request."""
    headers = request.headers
    return encodings.of_answer(headers.get(hdrs.ACCEPT), headers.get(hdrs.CONTENT_TYPE))


def answer(
    request: web.Request, value: msgspec.Struct | Mapping[str, Any], status: int = 200
) -> web.Response:
    """Return the answer in the caller's encoding."""
    encoding = encoding_of(request)
    fields = msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
    return web.Response(
        body=encodings.encode(fields, encoding), status=status, content_type=encoding.value
    )
