"""Counters and histograms of sends, reads, requests and flushes: all that happens per message.

Metrics of each send or pull are plain additions on the event loop; metrics of rarer events use
``prometheus_client``. ``metrics`` adds the rest of the broker's series. Names, labels and
definitions are in docs/metrics.md.
"""

from __future__ import annotations

from typing import Final

from shared.metrics.catalogue import log as of_log
from shared.metrics.catalogue import requests as of_requests
from shared.metrics.registry import Registry

PUT_RESULTS: Final = (
    "ok", "flush_timeout", "replica_unavailable", "disk_full", "busy", "invalid", "failed",
)  # fmt: skip
MESSAGE_KINDS: Final = ("normal", "fifo", "delay", "retry")
CONNECTIONS_REFUSED: Final = ("limit", "no-request", "answer-not-taken")


class TrafficMetrics:
    """The series that the send path and the read path write."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        counters, histograms = registry.own_counter, registry.own_histogram
        self.messages_in = counters(of_requests.BROKER_MESSAGES_IN_TOTAL)
        self.received_bytes = counters(of_requests.BROKER_RECEIVED_BYTES_TOTAL)
        self.messages_out = counters(of_requests.BROKER_MESSAGES_OUT_TOTAL)
        self.sent_bytes = counters(of_requests.BROKER_SENT_BYTES_TOTAL)
        self.message_size = histograms(of_requests.BROKER_MESSAGE_SIZE_BYTES).labels()
        self.put_results = counters(of_requests.BROKER_PUT_RESULTS_TOTAL)
        self.put_duration = histograms(of_requests.BROKER_PUT_DURATION_SECONDS)
        self.append_duration = histograms(of_requests.BROKER_APPEND_DURATION_SECONDS).labels()
        self.request_duration = histograms(of_requests.BROKER_REQUEST_DURATION_SECONDS)
        self.rejected = counters(of_requests.BROKER_REQUESTS_REJECTED_TOTAL)
        self.connections_refused = registry.counter(of_requests.BROKER_CONNECTIONS_REFUSED_TOTAL)
        self.long_polls = registry.gauge(of_requests.BROKER_LONG_POLLS)
        self.long_poll_wakeups = registry.counter(of_requests.BROKER_LONG_POLL_WAKEUPS_TOTAL)
        self.clock_steps = registry.counter(of_requests.BROKER_CLOCK_STEPS_TOTAL)
        self.flush_duration = histograms(of_log.LOG_FLUSH_DURATION_SECONDS).labels()
        self.group_commit_size = histograms(of_log.LOG_GROUP_COMMIT_REQUESTS).labels()
        for result in PUT_RESULTS:
            self.put_results.labels(result)  # start at 0, so that the first event is an increase
        for reason in CONNECTIONS_REFUSED:
            self.connections_refused.labels(reason)

    def of_topic(self, topic: str) -> tuple[int | None, int | None]:
        """Return messages and bytes that the topic received; None where nothing was counted."""
        counters = (self.messages_in.find(topic, kind) for kind in MESSAGE_KINDS)
        counts = [counter.value for counter in counters if counter is not None]
        size = self.received_bytes.find(topic)
        return sum(counts) if counts else None, None if size is None else size.value

    def sent_back(self, topic: str, messages: int, size: int) -> None:
        """Count messages appended by a nack or a redrive.

        topic: destination topic. size: bytes of their records.
        """
        self.messages_in.labels(topic, "retry").inc(messages)
        self.received_bytes.labels(topic).inc(size)
