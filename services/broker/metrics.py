"""What the broker measures. Names, labels and definitions are those of docs/metrics.md.

Counters are plain increments on the event loop; offsets are read from the positions page when
Prometheus asks, so that they cost nothing per message. Labels stay few and bounded: no topic beyond
``TOPICS_MAX`` gets a series of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.broker.bulk_metrics import BulkCounter, BulkHistogram
from services.broker.groups.counters import SERIES_MAX, GroupCounters
from services.broker.groups.metrics import GroupGauges
from services.broker.retention.metrics import RetentionMetrics
from shared.runtime.metrics import SECONDS_BUCKETS

TOPICS_MAX: Final = 1000
OTHER_TOPICS: Final = "_other"
SIZE_BUCKETS: Final = (64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
GROUP_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class BrokerMetrics:
    """All series of one broker, in a registry given by the service."""

    def __init__(self, registry: CollectorRegistry, group_series_max: int = SERIES_MAX) -> None:
        """group_series_max: pairs of a consumer group and a topic with series of their own."""
        self._registry = registry
        self.groups = GroupCounters(registry, group_series_max)
        self.group_gauges = GroupGauges(registry, group_series_max)
        self.retention = RetentionMetrics(registry)
        self._topics: set[str] = set()
        self.messages_in = BulkCounter(
            "tidemark_broker_messages_in_total",
            "Messages accepted and appended.",
            ["topic", "kind"],
            registry=registry,
        )
        self.received_bytes = BulkCounter(
            "tidemark_broker_received_bytes_total",
            "Bytes appended to the log for the topic, record framing included.",
            ["topic"],
            registry=registry,
        )
        self.messages_out = Counter(
            "tidemark_broker_messages_out_total",
            "Messages handed to consumers, redeliveries included.",
            ["topic", "group"],
            registry=registry,
        )
        self.sent_bytes = Counter(
            "tidemark_broker_sent_bytes_total",
            "Record bytes handed to consumers.",
            ["topic", "group"],
            registry=registry,
        )
        self.put_results = BulkCounter(
            "tidemark_broker_put_results_total",
            "Result of every put: ok, flush_timeout, replica_unavailable, disk_full, busy, "
            "invalid, failed.",
            ["result"],
            registry=registry,
        )
        self.append_duration = BulkHistogram(
            "tidemark_broker_append_duration_seconds",
            "Time from numbering a request to its bytes in the log.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.put_duration = BulkHistogram(
            "tidemark_broker_put_duration_seconds",
            "Put request until its answer, by ack level.",
            ["ack"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.request_duration = BulkHistogram(
            "tidemark_broker_request_duration_seconds",
            "Service time per kind of call; held pulls include the time they were held.",
            ["request"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.rejected = Counter(
            "tidemark_broker_requests_rejected_total",
            "Requests answered with an error, by its code.",
            ["code"],
            registry=registry,
        )
        self.long_polls = Gauge(
            "tidemark_broker_long_polls",
            "Pulls held until a message arrives.",
            registry=registry,
        )
        self.long_poll_wakeups = Counter(
            "tidemark_broker_long_poll_wakeups_total",
            "Held pulls that ended, by reason: message, timeout, close (the node stops).",
            ["reason"],
            registry=registry,
        )
        self.connections_refused = Counter(
            "tidemark_broker_connections_refused_total",
            "Connections closed at the limit, or because their request or answer stalled.",
            ["reason"],
            registry=registry,
        )
        self.message_size = BulkHistogram(
            "tidemark_broker_message_size_bytes",
            "Body size of accepted messages.",
            buckets=SIZE_BUCKETS,
            registry=registry,
        )
        self.flush_duration = BulkHistogram(
            "tidemark_log_flush_duration_seconds",
            "One flush of the log to disk.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.group_commit_size = BulkHistogram(
            "tidemark_log_group_commit_requests",
            "Requests released by one flush; flushes that nobody waited for are not counted.",
            buckets=GROUP_BUCKETS,
            registry=registry,
        )
        self.clock_steps = Counter(
            "tidemark_broker_clock_steps_total",
            "Times the wall clock stepped back further than store times are held.",
            registry=registry,
        )

    def read(self, name: str, definition: str, function: Callable[[], float]) -> None:
        """Add a gauge whose value is read when Prometheus asks."""
        Gauge(name, definition, registry=self._registry).set_function(function)

    def topic_label(self, topic: str) -> str:
        """The topic, or ``_other`` once TOPICS_MAX have a series."""
        if topic in self._topics:
            return topic
        if len(self._topics) >= TOPICS_MAX:
            return OTHER_TOPICS
        self._topics.add(topic)
        return topic
