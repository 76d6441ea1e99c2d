"""The components that API calls use once the store is open."""

from __future__ import annotations

from typing import NamedTuple

from services.broker.delay.delayed import DelayedMessages
from services.broker.groups.components import GroupComponents
from services.broker.read.components import ReadComponents
from services.broker.retention.keeper import Retention
from services.broker.send.deduplicator import Deduplicator
from services.broker.state.drain import Drain


class Components(NamedTuple):
    """The serving components of an open store."""

    deduplicator: Deduplicator
    read: ReadComponents
    groups: GroupComponents
    delayed: DelayedMessages
    retention: Retention
    drain: Drain
