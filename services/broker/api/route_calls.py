"""``GET /v1/route`` and ``GET /v1/route/{topic}``: clients find broker groups and nodes with them.

They need no open gate: a client asks any node, and learns from it where the master is.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from services.broker.api.calls import Route, answer
from services.broker.api.http_requests import query_of, topic_of
from services.broker.api.own_route import OwnRoute
from services.broker.schema.routes import RouteQuery


class RouteCalls:
    """The calls for routes."""

    def __init__(self, own_route: OwnRoute) -> None:
        self._own_route = own_route

    @property
    def routes(self) -> Sequence[Route]:
        """Return all routes."""
        return (
            Route("GET", "/v1/route", "route-groups", self._groups),
            Route("GET", "/v1/route/{topic}", "route", self._topic),
        )

    async def _groups(self, request: web.Request) -> web.StreamResponse:
        query = query_of(request, RouteQuery)
        return answer(request, await self._own_route.awaited(None, query))

    async def _topic(self, request: web.Request) -> web.StreamResponse:
        query = query_of(request, RouteQuery)
        return answer(request, await self._own_route.awaited(topic_of(request), query))
