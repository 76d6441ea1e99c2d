"""What is counted where it happens in consumer groups: deliveries, commits, resets, dead letters.

Called by the parts that fetch, commit and send back, once per queue and answer and never per
message. The gauges beside them, lag above all, are in ``metrics``. Labels are bounded: beyond
``series_max`` groups and topics the rest counts under ``_other``, so that sums stay right.
Before: a fetch, a commit, a nack. After: ``GET /metrics``.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry

from services.broker.bulk_metrics import BulkCounter, BulkHistogram

OTHER: Final = "_other"
SERIES_MAX: Final = 1000
"""Pairs of a group and a topic with series of their own, and groups with histograms of their own,
unless the configuration says otherwise."""
DELAY_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0,
    3600.0,
)  # fmt: skip
"""From a consumer that waits to one that has stood still for an hour."""


class GroupCounters:
    """Counters of all groups of one broker. For use in the event loop."""

    def __init__(self, registry: CollectorRegistry, series_max: int = SERIES_MAX) -> None:
        """series_max: see the module."""
        self._series_max = series_max
        self._pairs: set[tuple[str, str]] = set()
        self._groups: set[str] = set()
        self._consumed = BulkCounter(
            "tidemark_group_consumed_messages_total",
            "Sum of forward commit moves: messages that the group is done with.",
            ["group", "topic"],
            registry=registry,
        )
        self._skipped = BulkCounter(
            "tidemark_group_skipped_messages_total",
            "Messages passed over unread, by reason: expired, reset_forward.",
            ["group", "topic", "reason"],
            registry=registry,
        )
        self._filtered = BulkCounter(
            "tidemark_group_filtered_messages_total",
            "Messages withheld by a subscription's tags.",
            ["group", "topic"],
            registry=registry,
        )
        self._resets = BulkCounter(
            "tidemark_group_offset_resets_total",
            "Resets that moved a queue's committed offset, by direction: backward, forward.",
            ["group", "topic", "direction"],
            registry=registry,
        )
        self._redelivered = BulkCounter(
            "tidemark_group_redelivered_messages_total",
            "Deliveries of a message beyond the first, from the same queue.",
            ["group", "topic"],
            registry=registry,
        )
        self._dead = BulkCounter(
            "tidemark_group_dead_messages_total",
            "Messages moved to the group's dead-letter topic, by the topic they came from.",
            ["group", "topic"],
            registry=registry,
        )
        self._delivery_delay = BulkHistogram(
            "tidemark_group_delivery_delay_seconds",
            "Store time to delivery of the oldest message of each queue's share of a fetch.",
            ["group"],
            buckets=DELAY_BUCKETS,
            registry=registry,
        )
        self._consume_delay = BulkHistogram(
            "tidemark_group_consume_delay_seconds",
            "Store time to commit of the oldest message that each commit of a queue covers.",
            ["group"],
            buckets=DELAY_BUCKETS,
            registry=registry,
        )

    def delivered(
        self,
        group: str,
        topic: str,
        *,
        redelivered: int = 0,
        filtered: int = 0,
        oldest_delay_s: float | None = None,
    ) -> None:
        """One queue's share of a fetch was handed out.

        redelivered: of its messages, those handed out before. filtered: messages that its tags held
        back. oldest_delay_s: since its first message was stored; None if there is none.
        """
        if redelivered:
            self._redelivered.labels(*self._pair(group, topic)).inc(redelivered)
        if filtered:
            self._filtered.labels(*self._pair(group, topic)).inc(filtered)
        if oldest_delay_s is not None:
            self._delivery_delay.labels(self._group(group)).observe(oldest_delay_s)

    def committed(
        self,
        group: str,
        topic: str,
        *,
        before: int | None,
        after: int,
        oldest_delay_s: float | None = None,
    ) -> None:
        """A member's commit moved one queue.

        before: None if the group had no offset there. oldest_delay_s: since the message at before
        was stored, None if that is not known.
        """
        if before is not None and after > before:
            self._consumed.labels(*self._pair(group, topic)).inc(after - before)
            if oldest_delay_s is not None:
                self._consume_delay.labels(self._group(group)).observe(oldest_delay_s)

    def was_reset(self, group: str, topic: str, *, before: int | None, after: int) -> None:
        """A reset moved one queue's committed offset; what it jumps over counts as skipped."""
        if before is None or after == before:
            return
        direction = "forward" if after > before else "backward"
        self._resets.labels(*self._pair(group, topic), direction).inc()
        if after > before:
            self.skipped(group, topic, after - before, "reset_forward")

    def skipped(self, group: str, topic: str, messages: int, reason: str) -> None:
        """The group will never read so many messages. reason: expired or reset_forward."""
        self._skipped.labels(*self._pair(group, topic), reason).inc(messages)

    def dead(self, group: str, topic: str) -> None:
        """A message of the topic became a dead letter."""
        self._dead.labels(*self._pair(group, topic)).inc()

    def _pair(self, group: str, topic: str) -> tuple[str, str]:
        pair = (group, topic)
        if pair in self._pairs:
            return pair
        if len(self._pairs) >= self._series_max:
            return OTHER, OTHER
        self._pairs.add(pair)
        return pair

    def _group(self, group: str) -> str:
        if group in self._groups:
            return group
        if len(self._groups) >= self._series_max:
            return OTHER
        self._groups.add(group)
        return group
