"""A histogram for the hot path: many values in one call, and one value at the cost of a bisection.

Exposed as ``prometheus_client.Histogram`` exposes its own. That one takes values one by one, with a
lock for each number it changes; this one belongs to the event loop and is only read by others.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Series:
    """The values of one combination of labels."""

    __slots__ = ("_bounds", "_counts", "_created", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: ascending upper bounds of the buckets, without infinity."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._created = time.time()

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_counts(self, counts: Sequence[int], total: float) -> None:
        """Count many values: how many fall into each bucket, the last being all above the bounds.

        total: their sum.
        """
        mine = self._counts
        for bucket, count in enumerate(counts):
            mine[bucket] += count
        self._sum += total

    def add_to(self, metric: Metric, labels: dict[str, str]) -> None:
        """Add the samples: cumulative buckets, count, sum, and when it began."""
        name = metric.name
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        below = list(itertools.accumulate(self._counts))
        for bound, count in zip(bounds, below, strict=True):
            metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, float(count))
        metric.add_sample(f"{name}_count", labels, float(below[-1]))
        metric.add_sample(f"{name}_sum", labels, self._sum)
        metric.add_sample(f"{name}_created", labels, self._created)


class BulkHistogram(Collector):
    """A histogram with or without labels."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """buckets: ascending upper bounds, without infinity."""
        self._name, self._documentation = name, documentation
        self._label_names = tuple(labels)
        self._buckets = tuple(buckets)
        self._series: dict[tuple[str, ...], Series] = {}
        if not labels:
            # Bound here, so that the usual calls cost no look-up.
            only = self.labels()
            self.observe, self.observe_counts = only.observe, only.observe_counts
        registry.register(self)

    def labels(self, *values: str) -> Series:
        """The series of these label values, made now if it is new; keep it if you are hot."""
        series = self._series.get(values)
        if series is None:
            assert len(values) == len(self._label_names), "one value for each label"
            series = self._series[values] = Series(self._buckets)
        return series

    def describe(self) -> Iterable[Metric]:
        """What ``collect`` yields, without samples."""
        return [Metric(self._name, self._documentation, "histogram")]

    def collect(self) -> Iterable[Metric]:
        """All series as they are now."""
        metric = Metric(self._name, self._documentation, "histogram")
        for values, series in self._series.items():
            series.add_to(metric, dict(zip(self._label_names, values, strict=True)))
        return [metric]
