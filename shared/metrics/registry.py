"""All metrics of a process: instruments and read functions, checked against the catalogue. Pure.

Each service object has one registry, so that several can run in one test. A family that the
catalogue does not list for the service is refused: everything exported is documented. Everything
belongs to the event loop. Before: parts of the service count, or provide functions. After:
``exposition`` formats.

Consistency: all functions are called, and all numbers without labels read, in one iteration of the
loop, before anything else. Label sets by topic, pair and group follow, some hundreds per iteration.
A histogram's buckets, count and sum are always consistent.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from shared.metrics.bounds import Bounds, Limits
from shared.metrics.catalogue import families_of
from shared.metrics.catalogue.every import TELEMETRY_SERIES_DROPPED_TOTAL
from shared.metrics.family import Family, Kind
from shared.metrics.instruments import Buckets, Counter, Gauge, Histogram, Samples, Taken
from shared.metrics.labelled import Counters, Histograms
from shared.metrics.tables import Table, TableSource
from shared.metrics.text import Number, label_text

Reading = Number | Mapping[str, Number | None] | None
"""A family's value, or its values by the value of its only label."""
K = TypeVar("K")
V = TypeVar("V")

_ALONE: Final = ("",)
"""The text of the only label set of a family without labels."""


class Kept(dict[K, V]):
    """Cache of children by label set; it is cleared when a label set is removed."""


class Registry:
    """All metrics of one service."""

    def __init__(self, service: str, limits: Limits | None = None) -> None:
        """service: its name in the catalogue. limits: largest numbers of label sets shown."""
        self.families: Final = families_of(service)
        self._known = frozenset(self.families)
        self._alone: dict[Family, Counter | Gauge | Histogram] = {}
        self._labelled: dict[Family, Counters | Histograms] = {}
        self._read: dict[Family, Callable[[], Number | None]] = {}
        self._passes: dict[tuple[Family, ...], Callable[[], Mapping[Family, Reading]]] = {}
        self._apart: dict[tuple[Family, ...], None] = {}
        self._tables: dict[tuple[Family, ...], TableSource] = {}
        self._kept: list[weakref.ref[Kept[object, object]]] = []
        self._dropped = Counters(TELEMETRY_SERIES_DROPPED_TOTAL, None, lambda *_: None)
        self._labelled[TELEMETRY_SERIES_DROPPED_TOTAL] = self._dropped
        self.bounds: Final = Bounds(limits or Limits(), self.note_dropped, self._empty_kept)

    # -- instruments ----------------------------------------------------------------------------

    def counter(self, family: Family) -> Counter:
        """Create the counter of a family without labels; it starts at 0."""
        self._check(family, Kind.COUNTER, labelled=False)
        made = self._alone[family] = Counter()
        return made

    def gauge(self, family: Family, start: Number | None = None) -> Gauge:
        """Create the gauge of a family without labels; start None: unknown until it is set."""
        self._check(family, Kind.GAUGE, labelled=False)
        made = self._alone[family] = Gauge(start)
        return made

    def histogram(self, family: Family) -> Histogram:
        """Create the histogram of a family without labels."""
        self._check(family, Kind.HISTOGRAM, labelled=False)
        made = self._alone[family] = Histogram(family.buckets)
        return made

    def counters(self, family: Family) -> Counters:
        """Create the counters of a family with labels.

        A label set is shown from its first ``labels`` call on. Create those that an alert needs
        early: an increase is not visible in a series that begins at 1.
        """
        self._check(family, Kind.COUNTER, labelled=True)
        made = Counters(family, self.bounds.of(family), self.note_dropped)
        self._labelled[family] = made
        return made

    def histograms(self, family: Family) -> Histograms:
        """Create the histograms of a family with labels."""
        self._check(family, Kind.HISTOGRAM, labelled=True)
        made = Histograms(family, self.bounds.of(family), self.note_dropped)
        self._labelled[family] = made
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

    def read(self, family: Family, function: Callable[[], Number | None]) -> None:
        """Call the function at each scrape, for a family without labels; None: unknown.

        The function must be fast. A second call replaces the function.
        """
        if family not in self._read:
            self._check(family, None, labelled=False)
        self._read[family] = function

    def read_pass(
        self,
        families: Sequence[Family],
        function: Callable[[], Mapping[Family, Reading]],
        *,
        apart: bool = False,
    ) -> None:
        """Like ``read`` for several families, with at most one label, read at the same instant.

        A family that the function leaves out has no sample. apart: the function is slow, and may
        run at another instant than the other functions.
        """
        together = tuple(families)
        if apart:
            self._apart[together] = None
        if together not in self._passes:
            for family in together:
                self._check(family, None, labelled=None)
                assert len(family.labels) < 2, "one label at most"
                assert self.bounds.of(family) is None, "use a table"
        self._passes[together] = function

    def read_each(
        self, family: Family, function: Callable[[], Mapping[str, Number | None]]
    ) -> None:
        """Like ``read`` for a family with one label: values by label value."""
        self.read_pass((family,), lambda: {family: function()})

    def read_table(self, families: Sequence[Family], function: Callable[[], Table]) -> None:
        """Like ``read`` for families that share their labels: one row for each label set."""
        together = tuple(families)
        source = self._tables.get(together)
        if source is None:
            assert len({family.labels for family in together}) == 1, "one set of labels"
            place = self.bounds.of(together[0])
            for family in together:
                self._check(family, None, labelled=True)
                assert place is None or family.kind is Kind.GAUGE, "folding may make it smaller"
            source = self._tables[together] = TableSource(together, place)
        source.function = function

    def note_dropped(self, family: Family, count: int) -> None:
        """Count label sets of the family that have no series of their own."""
        self._dropped.labels(family.name).inc(count)

    def missing(self) -> tuple[Family, ...]:
        """Return the service's families that have no source of values."""
        return tuple(family for family in self.families if not self._has_source(family))

    # -- a scrape -------------------------------------------------------------------------------

    def take(self, now_s: float) -> Iterator[list[Taken] | None]:
        """Take all values: yields None where other tasks may run, then the list of all values by
        family, in the order of the catalogue.

        now_s: monotonic clock. Run one at a time and exhaust it. Exceptions of functions propagate.
        """
        found: dict[Family, Taken] = {}
        for family, function in self._read.items():
            found[family] = Samples(family, _ALONE, (function(),))
        for families, read_all in self._passes.items():
            if families not in self._apart:
                found.update(_read(families, read_all))
        tables = [
            (source, source.function())
            for source in self._tables.values()
            if source.function is not None
        ]
        for family, alone in self._alone.items():
            if isinstance(alone, Histogram):
                found[family] = Buckets(family, _ALONE, [alone.counts])
            else:
                found[family] = Samples(family, _ALONE, (alone.value,))
        yield None
        for families in self._apart:
            found.update(_read(families, self._passes[families]))
            yield None
        for _ in self.bounds.round(now_s):
            yield None
        for labelled in self._labelled.values():
            for taken in labelled.take():
                if taken is not None:
                    found[taken.family] = taken
                yield None
        for source, table in tables:
            for samples in source.take(table):
                for each in samples or ():
                    found[each.family] = each
                yield None
        yield [found.get(family) or Samples(family, (), ()) for family in self.families]

    # -- rules ----------------------------------------------------------------------------------

    def _check(self, family: Family, kind: Kind | None, *, labelled: bool | None) -> None:
        """Check a family against the catalogue. Raises ValueError, which means a bug of ours."""
        name = family.name
        if family not in self._known:
            raise ValueError(f"{name} is not in the catalogue of this service")
        if kind is None and family.kind is Kind.HISTOGRAM:
            raise ValueError(f"{name} is a histogram: it cannot be read, only observed")
        if kind is not None and family.kind is not kind:
            raise ValueError(f"{name} is a {family.kind.value}")
        if labelled is not None and bool(family.labels) != labelled:
            raise ValueError(f"{name} has {'no' if labelled else 'the'} labels {family.labels}")
        if self._has_source(family):
            raise ValueError(f"{name} has a source already")

    def _has_source(self, family: Family) -> bool:
        return (
            family in self._alone
            or family in self._labelled
            or family in self._read
            or any(family in families for families in (*self._passes, *self._tables))
        )

    def _empty_kept(self) -> None:
        for reference in self._kept:
            kept = reference()
            if kept:
                kept.clear()


def _read(
    families: Sequence[Family], function: Callable[[], Mapping[Family, Reading]]
) -> dict[Family, Taken]:
    readings = function()
    return {family: _samples_of(family, readings.get(family)) for family in families}


def _samples_of(family: Family, reading: Reading) -> Samples:
    if isinstance(reading, Mapping):
        texts = [label_text(family.labels, (value,)) for value in reading]
        return Samples(family, texts, [*reading.values()])
    return Samples(family, _ALONE, (reading,))
