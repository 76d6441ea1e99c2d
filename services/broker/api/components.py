"""The components that API calls use once the store is open."""

from __future__ import annotations

from typing import NamedTuple

from services.broker.delay.delayed import DelayedMessages
from services.broker.groups.configs import GroupConfigs
from services.broker.groups.consumer_groups import ConsumerGroups
from services.broker.groups.redrive import Redrive
from services.broker.groups.send_back import SendBack
from services.broker.groups.trace import Tracer
from services.broker.groups.views import GroupViews
from services.broker.read.pull import Puller
from services.broker.read.query import Queries
from services.broker.read.topic_views import TopicViews
from services.broker.retention.keeper import Retention
from services.broker.send.deduplicator import Deduplicator


class Components(NamedTuple):
    """The serving components of an open store."""

    sends: Deduplicator
    puller: Puller
    queries: Queries
    topics: TopicViews
    group_configs: GroupConfigs
    groups: ConsumerGroups
    group_views: GroupViews
    send_back: SendBack
    redrive: Redrive
    tracer: Tracer
    delayed: DelayedMessages
    retention: Retention
