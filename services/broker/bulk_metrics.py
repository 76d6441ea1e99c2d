"""Counters and histograms for the hot path: cheap to count with, many values in one call.

Exposed as ``prometheus_client`` exposes its own. Those take values one by one, with a lock for each
number they change; these belong to the event loop and are only read by others.
"""

from __future__ import annotations

import bisect
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Total:
    """The count of one combination of labels."""

    __slots__ = ("_created", "_value")

    def __init__(self) -> None:
        self._value = 0
        self._created = time.time()

    def inc(self, amount: int = 1) -> None:
        """Count so many."""
        self._value += amount

    def add_to(self, metric: Metric, labels: dict[str, str]) -> None:
        """Add the samples: the count, and when it began."""
        metric.add_sample(f"{metric.name}_total", labels, float(self._value))
        metric.add_sample(f"{metric.name}_created", labels, self._created)


class Distribution:
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


Series = TypeVar("Series", Total, Distribution)


class _Family(Collector, ABC, Generic[Series]):
    """All series of one name."""

    def __init__(self, name: str, documentation: str, kind: str, labels: Sequence[str]) -> None:
        self._name, self._documentation, self._kind = name, documentation, kind
        self._label_names = tuple(labels)
        self._series: dict[tuple[str, ...], Series] = {}

    @abstractmethod
    def _new(self) -> Series:
        """A series without values."""

    def labels(self, *values: str) -> Series:
        """The series of these label values, made now if it is new; keep it if you are hot."""
        series = self._series.get(values)
        if series is None:
            assert len(values) == len(self._label_names), "one value for each label"
            series = self._series[values] = self._new()
        return series

    def describe(self) -> Iterable[Metric]:
        """What ``collect`` yields, without samples."""
        return [Metric(self._name, self._documentation, self._kind)]

    def collect(self) -> Iterable[Metric]:
        """All series as they are now."""
        metric = Metric(self._name, self._documentation, self._kind)
        for values, series in self._series.items():
            series.add_to(metric, dict(zip(self._label_names, values, strict=True)))
        return [metric]


class BulkCounter(_Family[Total]):
    """A counter with labels."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], *, registry: CollectorRegistry
    ) -> None:
        """name: with its ``_total``."""
        super().__init__(name.removesuffix("_total"), documentation, "counter", labels)
        registry.register(self)

    def _new(self) -> Total:
        return Total()


class BulkHistogram(_Family[Distribution]):
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
        super().__init__(name, documentation, "histogram", labels)
        self._buckets = tuple(buckets)
        if not labels:
            # Bound here, so that the usual calls cost no look-up.
            only = self.labels()
            self.observe, self.observe_counts = only.observe, only.observe_counts
        registry.register(self)

    def _new(self) -> Distribution:
        return Distribution(self._buckets)
