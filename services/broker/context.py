"""What all components of one broker process share."""

from __future__ import annotations

from typing import NamedTuple

from services.broker.config import BrokerConfig
from services.broker.traffic_metrics import TrafficMetrics
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import Health
from tidemark.clock import Clock


class BrokerContext(NamedTuple):
    """The shared components of one process, in every role."""

    config: BrokerConfig
    clock: Clock
    metrics: TrafficMetrics
    health: Health
    doorbell: Doorbell
    port: int
    """API port, which is stored in the records."""
