"""The boards, in the order of their links: from symptoms to causes."""

from __future__ import annotations

from typing import Final

from deploy.grafana.boards.analytics import ANALYTICS
from deploy.grafana.boards.broker import BROKER
from deploy.grafana.boards.broker_groups import BROKER_GROUPS
from deploy.grafana.boards.cluster import CLUSTER
from deploy.grafana.boards.consumer_group import CONSUMER_GROUP
from deploy.grafana.boards.pipeline import PIPELINE
from deploy.grafana.panels import Board

BOARDS: Final[tuple[Board, ...]] = (
    CLUSTER,
    CONSUMER_GROUP,
    BROKER,
    PIPELINE,
    BROKER_GROUPS,
    ANALYTICS,
)
