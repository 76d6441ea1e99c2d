"""The calls that drain a node and end that: ``/v1/drain``.

Step before: ``http_api`` has the routes. Step after: ``drain``.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from services.broker.api.calls import CallTools, Route, answer
from services.broker.api.http_requests import query_of
from services.broker.schema.node import Draining
from services.broker.schema.values import NoParameters


class DrainCalls:
    """The calls that close the node to producers."""

    def __init__(self, tools: CallTools) -> None:
        self._tools = tools

    @property
    def routes(self) -> Sequence[Route]:
        """Return all routes."""
        return [
            Route("GET", "/v1/drain", "drain-get", self._get),
            Route("PUT", "/v1/drain", "drain", self._drain),
            Route("DELETE", "/v1/drain", "undrain", self._undrain),
        ]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        query_of(request, NoParameters)
        since_ms = self._tools.for_reads().drain.since_ms
        return answer(request, Draining(since_ms is not None, since_ms))

    async def _drain(self, request: web.Request) -> web.StreamResponse:
        return await self._set(request, is_drained=True)

    async def _undrain(self, request: web.Request) -> web.StreamResponse:
        return await self._set(request, is_drained=False)

    async def _set(self, request: web.Request, *, is_drained: bool) -> web.StreamResponse:
        query_of(request, NoParameters)
        drain = self._tools.for_changes().drain
        changed = await drain.set(is_drained=is_drained)
        return answer(request, Draining(is_drained, drain.since_ms, changed))
