"""The components that serve reads."""

from __future__ import annotations

from typing import NamedTuple

from services.broker.read.pull import Puller
from services.broker.read.query import Queries
from services.broker.read.topic_views import TopicViews
from shared.files.index import IndexReader


class ReadComponents(NamedTuple):
    """Serve reads of queues, messages and topics."""

    topics: TopicViews
    puller: Puller
    queries: Queries
    index_reader: IndexReader
