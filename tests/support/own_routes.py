"""The route of a standalone node, for tests of an API without a node."""

from __future__ import annotations

from services.broker.api.gate import Gate
from services.broker.api.own_route import OwnRoute
from services.broker.config import BrokerConfig
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health


def own_route() -> OwnRoute:
    """Return the route of a node with default settings that does not serve yet."""
    clock = SystemClock()
    return OwnRoute(BrokerConfig(), Gate(Health(clock)), clock)
