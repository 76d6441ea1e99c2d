"""The rules, by subject. The order matters: recordings come first."""

from __future__ import annotations

from typing import Final

from deploy.prometheus.areas.analytics import ANALYTICS
from deploy.prometheus.areas.consumers import CONSUMERS
from deploy.prometheus.areas.nodes import NODES
from deploy.prometheus.areas.recording import MEMORY, RECORDING
from deploy.prometheus.areas.replication import REPLICATION
from deploy.prometheus.areas.requests import REQUESTS
from deploy.prometheus.areas.storage import STORAGE
from deploy.prometheus.model import Alert, Group, Record

GROUPS: Final[tuple[Group, ...]] = (
    RECORDING,
    MEMORY,
    CONSUMERS,
    NODES,
    REQUESTS,
    STORAGE,
    REPLICATION,
    ANALYTICS,
)
ALERTS: Final[tuple[Alert, ...]] = tuple(alert for group in GROUPS for alert in group.alerts)
RECORDS: Final[tuple[Record, ...]] = tuple(
    rule for group in GROUPS for rule in group.rules if isinstance(rule, Record)
)
