"""Metrics of retention. Names and definitions are those of docs/metrics.md.

Every value is read at the scrape. ``groups.counters`` counts messages that groups lost, together
with the other reasons for skipped messages.
"""

from __future__ import annotations

from collections.abc import Callable

from services.broker.retention.keeper import Retention
from services.broker.retention.retention import Why
from shared.files.commit_log import CommitLogReader
from shared.metrics.catalogue import log as of_log
from shared.metrics.family import Number
from shared.metrics.registry import Registry
from tidemark.formats.record import RECORD_SIZE_MIN, peek_store_timestamp
from tidemark.offsets import PhysicalOffset


class RetentionMetrics:
    """Exports a retention's numbers; before the store is open it exports only that nothing was
    deleted."""

    def __init__(self, registry: Registry) -> None:
        self._shown: tuple[Retention, CommitLogReader, Callable[[], PhysicalOffset]] | None = None
        """The retention, its log, and the end of what is visible."""
        registry.read(of_log.LOG_SEGMENTS_DELETED_TOTAL, self._deleted)
        registry.read(of_log.LOG_OLDEST_MESSAGE_TIMESTAMP_SECONDS, self._oldest)
        for family, read in (
            (of_log.STORE_USED_RATIO, _used_ratio),
            (of_log.STORE_FULL_SECONDS, lambda kept: kept.fullness.forecast.full_in_s),
            (of_log.RETENTION_SENDS_REFUSED, lambda kept: int(kept.fullness.sends_refused)),
            (of_log.RETENTION_EXPIRING_GROUPS, lambda kept: kept.expiring_groups),
        ):
            registry.read(family, lambda read=read: self._of(read))  # type: ignore[misc]

    def show(
        self, retention: Retention, reader: CommitLogReader, confirmed: Callable[[], PhysicalOffset]
    ) -> None:
        """Export this retention from now on. reader: the reader of its log."""
        self._shown = retention, reader, confirmed

    def _of(self, read: Callable[[Retention], Number | None]) -> Number | None:
        return None if self._shown is None else read(self._shown[0])

    def _deleted(self) -> dict[str, Number | None]:
        if self._shown is None:
            return dict.fromkeys((why.value for why in Why), 0)
        return {why.value: self._shown[0].deleted[why] for why in Why}

    def _oldest(self) -> float | None:
        if self._shown is None:
            return None
        _, reader, confirmed = self._shown
        at_ms = oldest_ms(reader, confirmed())
        return None if at_ms is None else at_ms / 1000


def oldest_ms(reader: CommitLogReader, end: PhysicalOffset) -> int | None:
    """Return the store time of the log's first record below end; None if there is none."""
    view = reader.read(reader.min_offset, RECORD_SIZE_MIN, end)
    return None if view is None else peek_store_timestamp(view, 0)


def _used_ratio(kept: Retention) -> float | None:
    percent = kept.fullness.used_percent
    return None if percent is None else percent / 100
