"""Counters of consumer groups: deliveries, commits, resets, dead letters.

The parts that fetch, commit and nack call them once per queue and response, never per message. The
gauges, lag above all, are in ``metrics``. ``shared.metrics.bounds`` limits how many groups and
topics have series of their own.
Step before: a fetch, a commit, a nack. Step after: ``GET /metrics``.
"""

from __future__ import annotations

from shared.metrics.catalogue import groups as of_groups
from shared.metrics.registry import Registry


class GroupCounters:
    """The counters of all groups of one broker. Only the event loop uses it."""

    def __init__(self, registry: Registry, *, delays: bool = True) -> None:
        """delays: whether groups have histograms of their delays, 38 series each."""
        counters, histograms = registry.own_counter, registry.own_histogram
        self._has_delays = delays
        self._consumed = counters(of_groups.GROUP_CONSUMED_MESSAGES_TOTAL)
        self._skipped = counters(of_groups.GROUP_SKIPPED_MESSAGES_TOTAL)
        self._filtered = counters(of_groups.GROUP_FILTERED_MESSAGES_TOTAL)
        self._resets = counters(of_groups.GROUP_OFFSET_RESETS_TOTAL)
        self._redelivered = counters(of_groups.GROUP_REDELIVERED_MESSAGES_TOTAL)
        self._dead = counters(of_groups.GROUP_DEAD_MESSAGES_TOTAL)
        self._delivery_delay = histograms(of_groups.GROUP_DELIVERY_DELAY_SECONDS)
        self._consume_delay = histograms(of_groups.GROUP_CONSUME_DELAY_SECONDS)

    def delivered(
        self,
        group: str,
        topic: str,
        *,
        redelivered: int = 0,
        filtered: int = 0,
        oldest_delay_s: float | None = None,
    ) -> None:
        """Count one queue's share of a fetch.

        redelivered: messages that were handed out before. filtered: messages that the tags
        excluded. oldest_delay_s: age of the first message since it was stored; None without one.
        """
        if redelivered:
            self._redelivered.labels(group, topic).inc(redelivered)
        if filtered:
            self._filtered.labels(group, topic).inc(filtered)
        if oldest_delay_s is not None and self._has_delays:
            self._delivery_delay.labels(group).observe(oldest_delay_s)

    def committed(
        self,
        group: str,
        topic: str,
        *,
        before: int | None,
        after: int,
        oldest_delay_s: float | None = None,
    ) -> None:
        """Count a member's commit in one queue.

        before: None if the group had no offset there. oldest_delay_s: age of the message at before
        since it was stored; None if that is unknown.
        """
        if before is not None and after > before:
            self._consumed.labels(group, topic).inc(after - before)
            if oldest_delay_s is not None and self._has_delays:
                self._consume_delay.labels(group).observe(oldest_delay_s)

    def was_reset(self, group: str, topic: str, *, before: int | None, after: int) -> None:
        """Count a reset of one queue's committed offset; the messages between count as skipped."""
        if before is None or after == before:
            return
        direction = "forward" if after > before else "backward"
        self._resets.labels(group, topic, direction).inc()
        if after > before:
            self.skipped(group, topic, after - before, "reset_forward")

    def skipped(self, group: str, topic: str, messages: int, reason: str) -> None:
        """Count messages that the group will never read. reason: expired or reset_forward."""
        self._skipped.labels(group, topic, reason).inc(messages)

    def of_pair(self, group: str, topic: str) -> tuple[int | None, ...]:
        """Return messages redelivered, consumed, skipped as expired and by a reset, and resets
        backward; None where nothing was counted."""
        found = (
            self._redelivered.find(group, topic),
            self._consumed.find(group, topic),
            self._skipped.find(group, topic, "expired"),
            self._skipped.find(group, topic, "reset_forward"),
            self._resets.find(group, topic, "backward"),
        )
        return tuple(None if counter is None else counter.value for counter in found)

    def dead(self, group: str, topic: str) -> None:
        """Count a message of the topic that became a dead letter."""
        self._dead.labels(group, topic).inc()
