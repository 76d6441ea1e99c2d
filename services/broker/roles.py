"""What a role of this process works with: a standalone node, a slave, or a master.

``service`` opens the ports before this step. In a group one role follows another on the same API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from services.broker.api.components import Components
from services.broker.api.gate import Gate
from services.broker.api.http_api import Api
from services.broker.api.own_route import OwnRoute
from services.broker.context import BrokerContext
from services.broker.log.log_context import LogContext
from services.broker.metrics import BrokerMetrics
from services.broker.watch import Watch


class RoleContext(NamedTuple):
    """The components of the process that outlive a role."""

    broker: BrokerContext
    metrics: BrokerMetrics
    gate: Gate
    api: Api
    watch: Watch
    own_route: OwnRoute
    on_serving: Callable[[], None]
    """Called when sends open, in a group 2 s after the role begins: for work that only makes later
    requests faster."""

    def serve(self, components: Components, log_context: LogContext) -> None:
        """Use these components for the calls of the API. The gate opens separately."""
        self.api.serve(components)
        self.own_route.serve(components.read.topics)
        self.watch.follow(log_context.queues)
        self.gate.check_units_with(log_context.unit_checks)
