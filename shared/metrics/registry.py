"""All metrics of a process: a registry of ``prometheus_client`` that knows the catalogue.

Each service object has one registry, so that several can run in one test. A family that the
catalogue does not list for the service is refused: everything exported by us is documented. A
program that runs a service inside itself registers its own instruments and collectors here as in
any other registry of the library. Everything belongs to the event loop. Step before: parts of the
service count, or provide functions. Step after: ``exposition`` formats.

Consistency: a scrape first calls all functions, in one iteration of the loop. Next, it takes the
label sets by topic, pair and group, some hundreds per iteration. Last, it takes the library's
instruments and other collectors, one per iteration. A histogram's buckets, count and sum are always
consistent.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Final, TypeVar

import prometheus_client as library
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

from shared.metrics.bounds import Bounds, Limits
from shared.metrics.catalogue import families_of
from shared.metrics.catalogue.every import TELEMETRY_SERIES_DROPPED_TOTAL
from shared.metrics.exposition import Taken
from shared.metrics.family import Family, Kind, Reading
from shared.metrics.instruments import BUFFERED_FEW, BUFFERED_MAX, Counter, Histogram
from shared.metrics.labelled import Labelled
from shared.metrics.samples import metric_of
from shared.metrics.tables import Table, TableSource

K = TypeVar("K")
V = TypeVar("V")

library.disable_created_metrics()  # type: ignore[no-untyped-call]


class Kept(dict[K, V]):
    """Cache of children by label set; it is cleared when a label set is removed."""


class Readings(Collector):
    """Families without labels, or with one, whose values a function returns at each scrape.

    ``Registry.read`` makes one of those that are read at the same instant; one that is slow is
    registered like any other collector.
    """

    def __init__(
        self, families: Sequence[Family], function: Callable[[], Mapping[Family, Reading]]
    ) -> None:
        self.families, self.function = families, function

    def describe(self) -> list[library.Metric]:
        """Return the families without samples."""
        return [metric_of(family) for family in self.families]

    def collect(self) -> Iterator[library.Metric]:
        """Call the function."""
        readings = self.function()
        for family in self.families:
            metric, reading = metric_of(family), readings.get(family)
            values = reading if isinstance(reading, Mapping) else {"": reading}
            metric.samples = [
                Sample(family.name, dict.fromkeys(family.labels, label), value)
                for label, value in values.items()
                if value is not None
            ]
            yield metric


class Registry(CollectorRegistry):
    """All metrics of one service."""

    def __init__(self, service: str, limits: Limits | None = None) -> None:
        """service: its name in the catalogue. limits: largest numbers of label sets shown."""
        super().__init__()
        self.families: Final = families_of(service)
        self._collectors: dict[Collector, None] = {}
        self._read: dict[tuple[Family, ...], Readings | TableSource] = {}
        self._kept: list[weakref.ref[Kept[object, object]]] = []
        self._dropped = self.counter(TELEMETRY_SERIES_DROPPED_TOTAL)
        self.bounds: Final = Bounds(limits or Limits(), self.note_dropped, self._empty_kept)

    def register(self, collector: Collector) -> None:
        """Add a collector. Raises ValueError if one of its names has a source already."""
        super().register(collector)
        self._collectors[collector] = None

    def unregister(self, collector: Collector) -> None:
        """Remove a collector."""
        super().unregister(collector)
        del self._collectors[collector]

    # -- instruments ----------------------------------------------------------------------------

    def counter(self, family: Family) -> library.Counter:
        """Create the library's counter of a family whose labels have few values.

        A label set is shown from its first ``labels`` call on. Create those that an alert needs
        early: an increase is not visible in a series that begins at 1.
        """
        self._check(family, Kind.COUNTER)
        return library.Counter(
            family.name, family.meaning, family.labels, unit=family.base_unit, registry=self
        )

    def gauge(self, family: Family) -> library.Gauge:
        """Create the library's gauge of a family whose labels have few values."""
        self._check(family, Kind.GAUGE)
        return library.Gauge(
            family.name, family.meaning, family.labels, unit=family.base_unit, registry=self
        )

    def histogram(self, family: Family) -> library.Histogram:
        """Create the library's histogram of a family whose labels have few values."""
        self._check(family, Kind.HISTOGRAM)
        return library.Histogram(
            family.name,
            family.meaning,
            family.labels,
            unit=family.base_unit,
            buckets=family.buckets,
            registry=self,
        )

    def own_counter(self, family: Family) -> Labelled[Counter]:
        """Create our own counter, for a hot path or a family by topic, group or both."""
        self._check(family, Kind.COUNTER)
        made = Labelled(family, Counter, self.bounds.of(family), self.note_dropped)
        self.register(made)
        return made

    def own_histogram(self, family: Family) -> Labelled[Histogram]:
        """Create our own histogram, for a hot path or a family by topic, group or both."""
        self._check(family, Kind.HISTOGRAM)
        place = self.bounds.of(family)
        buffered_max = BUFFERED_MAX if place is None else BUFFERED_FEW
        made = Labelled(
            family, lambda: Histogram(family.buckets, buffered_max), place, self.note_dropped
        )
        self.register(made)
        return made

    def kept(self) -> Kept[K, V]:
        """Create a cache for children with a label ``topic`` or ``group``, or for their methods.

        When the topic or group is deleted, its counters are removed. Code that kept them elsewhere
        would go on counting in an object that is no longer exported.
        """
        made: Kept[K, V] = Kept()
        self._kept = [each for each in self._kept if each() is not None]
        self._kept.append(weakref.ref(made))  # type: ignore[arg-type]
        return made

    # -- readings -------------------------------------------------------------------------------

    def read(self, family: Family, function: Callable[[], Reading]) -> None:
        """Call the function at each scrape: it returns the value, or the values by label value.

        The function must be fast. A second call replaces the function.
        """
        self.read_pass((family,), lambda: {family: function()})

    def read_pass(
        self, families: Sequence[Family], function: Callable[[], Mapping[Family, Reading]]
    ) -> None:
        """Like ``read`` for several families, read at the same instant.

        A family that the function leaves out has no sample.
        """
        together = tuple(families)
        source = self._read.get(together)
        if isinstance(source, Readings):
            source.function = function
            return
        for family in together:
            self._check(family, Kind.COUNTER, Kind.GAUGE)
            assert len(family.labels) < 2, "one label at most"
            assert self.bounds.of(family) is None, "use a table"
        self._add(together, Readings(together, function))

    def reading(self, family: Family) -> Reading:
        """Return what the function of ``read`` returns for a family now; None without one."""
        for families, source in self._read.items():
            if family in families and isinstance(source, Readings):
                return source.function().get(family)
        return None

    def read_table(self, families: Sequence[Family], function: Callable[[], Table]) -> None:
        """Like ``read`` for families that share their labels: one row for each label set."""
        together = tuple(families)
        source = self._read.get(together)
        if isinstance(source, TableSource):
            source.function = function
            return
        assert len({family.labels for family in together}) == 1, "one set of labels"
        place = self.bounds.of(together[0])
        for family in together:
            self._check(family, Kind.COUNTER, Kind.GAUGE)
            assert place is None or family.kind is Kind.GAUGE, "folding may make it smaller"
        self._add(together, TableSource(together, function, place))

    def note_dropped(self, family: Family, count: int) -> None:
        """Count label sets of the family that have no series of their own."""
        self._dropped.labels(family.name).inc(count)

    # -- a scrape -------------------------------------------------------------------------------

    def take(self, now_s: float) -> Iterator[Taken | None]:
        """Take all values, family by family; yields None where other tasks may run.

        now_s: monotonic clock. Run one at a time and exhaust it. Exceptions of functions propagate.
        """
        ours = [each for each in self._collectors if isinstance(each, Labelled | TableSource)]
        readings = [each for each in self._read.values() if isinstance(each, Readings)]
        others = [each for each in self._collectors if each not in {*ours, *readings}]
        steps = [each.take() for each in ours]
        for each in steps:
            next(each)  # calls the functions of the tables
        for reading in readings:
            yield from reading.collect()
        yield None
        yield from self.bounds.round(now_s)
        for each in steps:
            yield from each
        for other in others:
            yield from other.collect()
            yield None

    def collect(self) -> Iterator[library.Metric]:
        """Take all values at once, as the library does; for programs that use its exposition."""
        for taken in self.take(monotonic()):
            if taken is not None:
                yield taken if isinstance(taken, library.Metric) else taken.metric()

    # -- rules ----------------------------------------------------------------------------------

    def _add(self, families: tuple[Family, ...], source: Readings | TableSource) -> None:
        self.register(source)
        self._read[families] = source

    def _check(self, family: Family, *kinds: Kind) -> None:
        """Check a family against the catalogue. Raises ValueError, which means a bug of ours."""
        if family not in self.families:
            raise ValueError(f"{family.name} is not in the catalogue of this service")
        if family.kind not in kinds:
            raise ValueError(f"{family.name} is a {family.kind.value}")

    def _empty_kept(self) -> None:
        for reference in self._kept:
            kept = reference()
            if kept:
                kept.clear()
