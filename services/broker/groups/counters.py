"""What is counted where it happens in consumer groups: deliveries, commits, resets, dead letters.

Called by the parts that fetch, commit and send back, once per queue and answer and never per
message. The gauges beside them, lag above all, are in ``metrics``. How many groups and pairs have
series of their own is bounded by ``shared.metrics.bounds``.
Before: a fetch, a commit, a nack. After: ``GET /metrics``.
"""

from __future__ import annotations

from shared.metrics.catalogue import groups as of_groups
from shared.metrics.registry import Registry


class GroupCounters:
    """Counters of all groups of one broker. For use in the event loop."""

    def __init__(self, registry: Registry, *, delays: bool = True) -> None:
        """delays: whether groups get histograms of their delays, 38 series each."""
        counters, histograms = registry.counters, registry.histograms
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
        """One queue's share of a fetch was handed out.

        redelivered: of its messages, those handed out before. filtered: messages that its tags held
        back. oldest_delay_s: since its first message was stored; None if there is none.
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
        """A member's commit moved one queue.

        before: None if the group had no offset there. oldest_delay_s: since the message at before
        was stored, None if that is not known.
        """
        if before is not None and after > before:
            self._consumed.labels(group, topic).inc(after - before)
            if oldest_delay_s is not None and self._has_delays:
                self._consume_delay.labels(group).observe(oldest_delay_s)

    def was_reset(self, group: str, topic: str, *, before: int | None, after: int) -> None:
        """A reset moved one queue's committed offset; what it jumps over counts as skipped."""
        if before is None or after == before:
            return
        direction = "forward" if after > before else "backward"
        self._resets.labels(group, topic, direction).inc()
        if after > before:
            self.skipped(group, topic, after - before, "reset_forward")

    def skipped(self, group: str, topic: str, messages: int, reason: str) -> None:
        """The group will never read so many messages. reason: expired or reset_forward."""
        self._skipped.labels(group, topic, reason).inc(messages)

    def dead(self, group: str, topic: str) -> None:
        """A message of the topic became a dead letter."""
        self._dead.labels(group, topic).inc()
