"""The API port's connections: what each last asked for, and whether a request is on its way.

The bounds are those of ``shared.runtime.connections``. After: ``http_api`` answers the request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.web_request import BaseRequest

from services.broker.api.pools import Role
from services.broker.metrics import BrokerMetrics
from shared.runtime.connections import BoundedHandler, BoundedServer, Bounds, CallHandler
from shared.runtime.give_way import GiveWay

NEWS_S: Final = 0.002
"""Bytes that came so lately may be a request that is not in hand yet."""


class ApiHandler(BoundedHandler):
    """One connection of the API port."""

    __slots__ = ("_heard", "role")

    def __init__(self, manager: web.Server, server: ApiServer, **settings: Any) -> None:
        super().__init__(manager, server, **settings)
        self._heard = server.heard
        self.role = Role.NEW

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._heard()
        super().data_received(data)


def note_role(request: BaseRequest, role: Role) -> None:
    """The request's connection asks for something of this role."""
    connection = request.protocol
    if isinstance(connection, ApiHandler):
        connection.role = role


class ApiServer(BoundedServer):
    """The API port: counts refusals, and connections by what they last asked."""

    def __init__(
        self,
        app: web.Application,
        metrics: BrokerMetrics,
        bounds: Bounds,
        handler: Callable[[CallHandler], CallHandler] = lambda handler: handler,
        way: GiveWay | None = None,
    ) -> None:
        super().__init__(app, bounds, handler, way)
        self._metrics = metrics
        self._heard_at = float("-inf")

    def note_refused(self, reason: str) -> None:
        """Count a connection that was refused or closed by its reason."""
        self._metrics.connections_refused.labels(reason).inc()

    def make_handler(self, manager: web.Server, **settings: Any) -> ApiHandler:
        """The protocol of a new connection."""
        return ApiHandler(manager, self, **settings)

    def roles(self) -> dict[str, int]:
        """Connections open now by what they last asked."""
        found = dict.fromkeys((role.value for role in Role), 0)
        handlers = () if self._manager is None else self._manager.connections
        for handler in handlers:
            if isinstance(handler, ApiHandler):
                found[handler.role.value] += 1
        # One is open from its acceptance on, and aiohttp hears of it a moment later.
        rest = self.connections - (sum(found.values()) - found[Role.NEW.value])
        found[Role.NEW.value] = max(0, rest)
        return found

    @property
    def has_news(self) -> bool:
        """Whether bytes have come in the last NEWS_S: several turns of the loop lie between the
        bytes of a request and its call."""
        return time.monotonic() < self._heard_at + NEWS_S

    def heard(self) -> None:
        """Bytes have come on a connection."""
        self._heard_at = time.monotonic()
