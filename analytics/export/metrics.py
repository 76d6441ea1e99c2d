"""The last reading as metrics. Names, labels and definitions are those of docs/metrics.md.

A pair is exported until five minutes after its tick; an older status is out of date. Each gap is
counted once, and each run of a job that became visible after the first reading. Step before:
``reading``. Step after: the registry, which Prometheus scrapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from analytics.export.reading import GAPS_KEPT, Gap, Reading
from analytics.report.facts import Pair
from analytics.runs import Ended
from analytics.statuses import Status
from shared.metrics.catalogue import analytics as of_analytics
from shared.metrics.family import LABEL_SETS_MAX, Family
from shared.metrics.registry import Registry
from shared.metrics.tables import Table

SHOWN_FOR_S: Final = 300.0
"""How long after its tick the status of a pair is exported."""
Value = Callable[[Pair], float | None]
BY_PAIR: Final[Sequence[tuple[Family, Value]]] = (
    (of_analytics.GROUP_AGE_SECONDS, lambda pair: pair.age_s),
    (of_analytics.GROUP_DRAIN_SECONDS, lambda pair: pair.drain_p50_s),
    (of_analytics.GROUP_PROGRESS_RATIO, lambda pair: pair.progress),
    (of_analytics.GROUP_HIDDEN_LAG_MESSAGES, lambda pair: pair.hidden_lag),
    (of_analytics.QUEUE_SKEW_RATIO, lambda pair: pair.skew),
)


class ExportMetrics:
    """All metrics of one exporter."""

    def __init__(self, registry: Registry, wall_s: Callable[[], float]) -> None:
        """wall_s: seconds since 1970."""
        self._wall_s = wall_s
        self._seen: Reading | None = None
        self._counted: set[tuple[str, str, datetime]] = set()
        self._finished: dict[str, float] = {}
        self._sources: dict[str, float] = {}
        self._gaps: set[Gap] = set()
        self._durations = registry.own_histogram(of_analytics.RUN_DURATION_SECONDS)
        self._rows = registry.own_counter(of_analytics.ROWS_TOTAL)
        self._gap_counts = registry.own_counter(of_analytics.SOURCE_GAPS_TOTAL)
        registry.read(of_analytics.NEWEST_TICK_TIMESTAMP_SECONDS, self._newest)
        registry.read(
            of_analytics.LAST_SUCCESS_TIMESTAMP_SECONDS,
            lambda: dict(list(self._finished.items())[:LABEL_SETS_MAX]),
        )
        registry.read(of_analytics.SOURCE_WATERMARK_TIMESTAMP_SECONDS, self._watermarks)
        registry.read_table((of_analytics.PAIRS,), self._counts)
        registry.read_table(tuple(family for family, _ in BY_PAIR), self._by_pair)
        registry.read_table((of_analytics.GROUP_STATUS,), self._status)
        registry.read_table((of_analytics.GROUP_BOTTLENECK,), self._blamed)
        registry.read(
            of_analytics.STORE_FULL_SECONDS,
            lambda: dict(self._seen.full_s) if self._seen is not None else {},
        )
        registry.read_table((of_analytics.ANOMALY_SCORE,), self._anomalies)

    def show(self, seen: Reading) -> None:
        """Replace the exported values by those of a reading."""
        is_first, self._seen = self._seen is None, seen
        for run in seen.runs:
            if (run.job, run.writer, run.finished_at) not in self._counted:
                self._note(run, is_new=not is_first)
        self._counted = {(run.job, run.writer, run.finished_at) for run in seen.runs}
        for gap in seen.gaps:
            counter = self._gap_counts.labels(gap[0])
            if gap not in self._gaps and len(self._gaps) < GAPS_KEPT:
                self._gaps.add(gap)
                counter.inc()
        self._gaps.intersection_update(seen.gaps)
        for source in self._watermarks():
            self._gap_counts.labels(source)  # exported as 0 first, so that an alert sees it rise

    def _note(self, run: Ended, *, is_new: bool) -> None:
        """is_new: False for a run that an exporter before this one may have counted."""
        durations = self._durations.labels(run.job)
        if is_new:
            durations.observe(run.seconds)
        for table, count in run.rows.items():
            self._rows.labels(table).inc(count if is_new else 0)
        finished_at = run.finished_at.timestamp()
        self._finished[run.job] = max(finished_at, self._finished.get(run.job, finished_at))
        for source, newest in run.sources.items():
            mark = newest.timestamp()
            self._sources[source] = max(mark, self._sources.get(source, mark))

    def _newest(self) -> float | None:
        if self._seen is None or self._seen.newest is None:
            return None
        return self._seen.newest.timestamp()

    def _watermarks(self) -> dict[str, float]:
        return dict(list(self._sources.items())[:LABEL_SETS_MAX])

    @property
    def _young(self) -> Reading | None:
        newest = self._newest()
        return None if newest is None or self._wall_s() - newest > SHOWN_FOR_S else self._seen

    def _pairs(self) -> Sequence[Pair]:
        seen = self._young
        return () if seen is None else seen.pairs

    def _counts(self) -> Table:
        seen = self._young
        counts = {} if seen is None else dict(list(seen.counts.items())[:LABEL_SETS_MAX])
        return Table(list(counts), [list(counts.values())])

    def _by_pair(self) -> Table:
        pairs = self._pairs()
        columns = [[_known(value(pair)) for pair in pairs] for _, value in BY_PAIR]
        return Table([_labels(pair) for pair in pairs], columns, weights=[1.0] * len(pairs))

    def _status(self) -> Table:
        shown = [pair for pair in self._pairs() if pair.status != Status.OK]
        labels = [(*_labels(pair), pair.status.lower()) for pair in shown]
        return Table(labels, [[1] * len(shown)], weights=[1.0] * len(shown))

    def _blamed(self) -> Table:
        shown = [pair for pair in self._pairs() if pair.blamed]
        labels = [(*_labels(pair), pair.blamed or "") for pair in shown]
        return Table(labels, [[1] * len(shown)], weights=[1.0] * len(shown))

    def _anomalies(self) -> Table:
        scores = {} if self._seen is None else self._seen.anomalies
        return Table(list(scores), [list(scores.values())])


def _labels(pair: Pair) -> tuple[str, str, str, str]:
    return pair.cluster, pair.broker, pair.group, pair.topic


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
