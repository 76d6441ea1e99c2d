"""What is counted of sends, beside the request: as little as that can be.

Before: ``produce`` has appended, or answered. After: the registry's next scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from services.broker.append import Appended
from services.broker.delay.placing import Wait
from services.broker.messages import AckLevel, ProduceRequest
from services.broker.metrics import BrokerMetrics
from shared.metrics.family import SIZE_BUCKETS
from tidemark.formats import twins


class _TopicCounters(NamedTuple):
    """What is counted for a topic's sends."""

    messages: Callable[[int], None]
    received_bytes: Callable[[int], None]


class SendCounts:
    """Counts what senders sent. Belongs to one loop."""

    def __init__(self, metrics: BrokerMetrics) -> None:
        self._messages_in, self._received_bytes = metrics.messages_in, metrics.received_bytes
        # Every series is looked up once: by its labels it costs more than the counting itself.
        self._counters: dict[str, _TopicCounters] = metrics.registry.kept()
        self._message_size = metrics.message_size
        self._put_duration = {level: metrics.put_duration.labels(level.value) for level in AckLevel}
        self._put_ok = metrics.put_results.labels("ok").inc

    def answered(self, level: AckLevel, took_s: float) -> None:
        """A request's messages have reached its level."""
        self._put_duration[level].observe(took_s)
        self._put_ok()

    def accepted(
        self,
        topic: str,
        request: ProduceRequest,
        appended: Appended,
        waits: Sequence[Wait | None] | None,
    ) -> None:
        """A request's messages are in the log. waits: what of each waits; None: none does."""
        message_count = request.message_count
        counters = self._counters.get(topic)
        if counters is None:
            counters = self._counters[topic] = _TopicCounters(
                self._messages_in.labels(topic, "normal").inc,
                self._received_bytes.labels(topic).inc,
            )
        if waits is None and not isinstance(request.picks, list):
            counters.messages(message_count)
        else:
            self._count_kinds(topic, request, waits, counters.messages)
        counters.received_bytes(appended.end - appended.start)
        counts = twins.body_size_counts(request.entries, SIZE_BUCKETS)
        total = counts.pop()
        if message_count == 1:
            self._message_size.observe(total)
        else:
            self._message_size.observe_counts(counts, total)

    def _count_kinds(
        self,
        topic: str,
        request: ProduceRequest,
        waits: Sequence[Wait | None] | None,
        normal: Callable[[int], None],
    ) -> None:
        """Count messages that differ in kind: those that wait, those with a sharding key, others.

        A message is counted when it is accepted, under the topic that it is meant for; not again
        when its time has come.
        """
        count, picks = request.message_count, request.picks
        waiting = [False] * count if waits is None else [wait is not None for wait in waits]
        each = picks if isinstance(picks, list) else [picks] * count
        delayed = sum(waiting)
        fifo = sum(
            isinstance(pick, str) and not waits for pick, waits in zip(each, waiting, strict=True)
        )
        labels = self._messages_in.labels
        if delayed:
            labels(topic, "delay").inc(delayed)
        if fifo:
            labels(topic, "fifo").inc(fifo)
        if count > delayed + fifo:
            normal(count - delayed - fifo)
