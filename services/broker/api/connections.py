"""The API port's connections: the role of each connection's last request, and recent activity.

The limits are those of ``shared.runtime.connections``. After this step ``http_api`` answers the
request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.web_request import BaseRequest

from services.broker.request_classes import ClientRole
from services.broker.traffic_metrics import TrafficMetrics
from shared.runtime.connections import BoundedHandler, BoundedServer, Bounds, CallHandler
from shared.runtime.pauses import Pauses

RECENT_INPUT_S: Final = 0.002
"""Bytes received within this time may belong to a request whose handler has not started yet."""


class ApiHandler(BoundedHandler):
    """One connection of the API port."""

    __slots__ = ("_note_input", "role")

    def __init__(self, manager: web.Server, server: ApiServer, **settings: Any) -> None:
        super().__init__(manager, server, **settings)
        self._note_input = server.note_input
        self.role = ClientRole.NEW

    def data_received(self, data: bytes) -> None:
        """Record the activity and process the bytes."""
        self._note_input()
        super().data_received(data)


def note_role(request: BaseRequest, role: ClientRole) -> None:
    """Set the role of the request's connection."""
    connection = request.protocol
    if isinstance(connection, ApiHandler):
        connection.role = role


class ApiServer(BoundedServer):
    """The server of the API port: counts refusals, and connections by role."""

    def __init__(
        self,
        app: web.Application,
        metrics: TrafficMetrics,
        bounds: Bounds,
        wrap: Callable[[CallHandler], CallHandler] = lambda handler: handler,
        pauses: Pauses | None = None,
    ) -> None:
        super().__init__(app, bounds, wrap, pauses)
        self._metrics = metrics
        self._input_at = float("-inf")

    def note_refused(self, reason: str) -> None:
        """Count a refused or closed connection under its reason."""
        self._metrics.connections_refused.labels(reason).inc()

    def make_handler(self, manager: web.Server, **settings: Any) -> ApiHandler:
        """Create the protocol of a new connection."""
        return ApiHandler(manager, self, **settings)

    def roles(self) -> dict[str, int]:
        """Return the number of open connections by the role of their last request."""
        found = dict.fromkeys((role.value for role in ClientRole), 0)
        handlers = () if self._manager is None else self._manager.connections
        for handler in handlers:
            if isinstance(handler, ApiHandler):
                found[handler.role.value] += 1
        # A connection counts from its acceptance on, but aiohttp registers it slightly later.
        rest = self.connections - (sum(found.values()) - found[ClientRole.NEW.value])
        found[ClientRole.NEW.value] = max(0, rest)
        return found

    @property
    def has_recent_input(self) -> bool:
        """Whether bytes arrived within the last RECENT_INPUT_S.

        Several iterations of the event loop pass between the arrival of a request and the start of
        its handler."""
        return time.monotonic() < self._input_at + RECENT_INPUT_S

    def note_input(self) -> None:
        """Record that bytes arrived on a connection."""
        self._input_at = time.monotonic()
