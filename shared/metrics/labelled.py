"""Our own counters and histograms by label set, with a limit on the series.

Beyond a limit (``bounds``) label sets are shown together as ``_other``. A folded label set keeps
counting; its counts from then on belong to ``_other`` permanently. A label set that is shown again,
after it was folded or idle, starts at 0 like a new one: alert rules treat a new series as events
that just happened. A shown series never decreases, nor does ``_other``, and each count is in
exactly one of them. So rates and sums of rates are correct whichever label sets are shown. The sum
of raw values misses counts that were shown earlier, but raw sums of counters mean nothing anyway. A
second scraper that has not seen the last value of a folded series misses the counts between its
last scrape and that value.
Step before: ``instruments`` count. Step after: ``registry`` takes the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from operator import add, sub
from typing import Final, Generic, TypeVar

from prometheus_client import Metric
from prometheus_client.registry import Collector

from shared.metrics.bounds import Bound, Entry, State
from shared.metrics.family import LABEL_SETS_MAX, OTHER, Family, Kind, Number
from shared.metrics.samples import Buckets, LabelSet, Samples, metric_of

TAKEN_AT_ONCE: Final = 64
"""Label sets whose values are taken between two iterations of the loop."""

Counts = Sequence[Number]
"""A counter's number, or a histogram's counts and sum."""
Place = tuple[Bound, tuple[int, ...]]
"""A limit, and the positions of its key among a family's labels."""
Dropped = Callable[[Family, int], None]


class Child(LabelSet, ABC):
    """The part of a label set's instrument that handles folding."""

    __slots__ = ("entry", "hidden", "mark", "of")
    of: Labelled[Child]
    entry: Entry | None
    """Its entry under the limit; None without one."""
    hidden: Counts
    """Its counts when it was last shown anew: counts of ``_other``, or shown before."""
    mark: Counts | None
    """Its counts when values were last taken; None while it is shown."""

    def join(self, of: Labelled[Child], values: tuple[str, ...], entry: Entry | None) -> None:
        """Become the instrument of a label set. The counts so far are 0."""
        LabelSet.__init__(self, of.family.labels, values)
        self.of, self.entry, self.hidden = of, entry, of.none
        self.mark = None if entry is None or entry.state is State.SHOWN else of.none

    @property
    @abstractmethod
    def counts(self) -> Counts:
        """Everything counted so far."""

    @abstractmethod
    def moved(self) -> float:
        """Return a number that changes whenever something is counted."""

    @property
    def family(self) -> Family:
        """Family of the label set."""
        return self.of.family

    def wake(self) -> None:
        """Show an idle label set again; the new series contains the counts since it became idle."""
        if self.mark is not None:
            self.hidden, self.mark = self.mark, None

    def shut_out(self) -> None:
        """Fold an idle label set with new counts; the values of its old series are dropped."""
        if self.mark is not None:
            self.hidden = self.mark

    def forget(self) -> None:
        """Remove the label set; its counts in ``_other`` stay there."""
        if self.entry is not None and self.entry.state is State.FOLDED:
            self._give_up(self.counts)
        self.of.remove(self.values)

    def take(self) -> Counts | None:
        """Return the counts of the label set's own series; None if it is not shown.

        Counts made while it was folded are moved to ``_other``.
        """
        entry, now = self.entry, self.counts
        if entry is None or entry.state is State.SHOWN:
            if self.mark is not None:
                self._give_up(now)
                self.mark = None
            return list(map(sub, now, self.hidden))
        if self.mark is None:
            self.mark = now
            # Folded label sets are shown once more: otherwise their counts since the last scrape
            # would be in neither series. An idle label set has counted nothing.
            return list(map(sub, now, self.hidden)) if entry.state is State.FOLDED else None
        if entry.state is State.FOLDED:
            self._give_up(now)
            self.hidden = now
        return None

    def _give_up(self, now: Counts) -> None:
        """Move the counts since it was folded, or since the last call, to ``_other``."""
        if self.mark is not None and now != self.mark:
            moved = list(map(sub, now, self.mark))
            self.hidden, self.mark = list(map(add, self.hidden, moved)), now
            self.of.fold(self.values, moved)


C = TypeVar("C", bound=Child, covariant=True)


class Labelled(Collector, Generic[C]):
    """A family by label set."""

    def __init__(
        self, family: Family, make: Callable[[], C], place: Place | None, dropped: Dropped
    ) -> None:
        """make: creates an instrument that has counted nothing. dropped: called for each series
        that is not created."""
        self.family: Final = family
        self._make, self._dropped = make, dropped
        self._bound: Bound | None = None if place is None else place[0]
        self._key_at: tuple[int, ...] = () if place is None else place[1]
        self.none: Final[Counts] = list(make().counts)
        self._children: dict[tuple[str, ...], C] = {}
        self._others: dict[tuple[str, ...], Counts] = {}
        """Counts of the ``_other`` series, by label values."""

    def labels(self, *values: str) -> C:
        """Return the instrument of a label set; a new one is shown, with 0, from now on.

        For families with a label ``topic`` or ``group``, keep the result only in a
        ``Registry.kept``.
        """
        return self._children.get(values) or self._new(values)

    def find(self, *values: str) -> C | None:
        """Return the instrument of a label set; None if nothing was counted for it."""
        return self._children.get(values)

    def describe(self) -> Sequence[Metric]:
        """Return the family without samples."""
        return [metric_of(self.family)]

    def collect(self) -> Iterator[Metric]:
        """Return the family with all samples."""
        for taken in self.take():
            if taken is not None:
                yield taken.metric()

    def take(self) -> Iterator[Samples | Buckets | None]:
        """Take the values of all label sets: yields None between pieces, then all values."""
        yield None
        is_histogram = self.family.kind is Kind.HISTOGRAM
        shown: list[LabelSet] = []
        values: list[Number] = []
        counts: list[Counts] = []
        children = list(self._children.values())
        for start in range(0, len(children), TAKEN_AT_ONCE):
            is_plain = self._bound is None or self._bound.is_plain
            for child in children[start : start + TAKEN_AT_ONCE]:
                own = child.counts if is_plain else child.take()
                if own is None:
                    continue
                shown.append(child)
                if is_histogram:
                    counts.append(own)
                else:
                    values.append(own[0])
            yield None
        shown += [LabelSet(self.family.labels, names) for names in self._others]
        if is_histogram:
            yield Buckets(self.family, shown, [*counts, *self._others.values()])
        else:
            others = [value for (value,) in self._others.values()]
            yield Samples(self.family, shown, [*values, *others])

    def fold(self, values: tuple[str, ...], moved: Counts) -> None:
        """Add counts to ``_other``; they belong to a label set that is not shown."""
        name = tuple(
            OTHER if place in self._key_at else value for place, value in enumerate(values)
        )
        self._others[name] = list(map(add, self._others.get(name, self.none), moved))

    def remove(self, values: tuple[str, ...]) -> None:
        """Remove the label set."""
        del self._children[values]

    def _new(self, values: tuple[str, ...]) -> C:
        assert len(values) == len(self.family.labels), "one value for each label"
        if self._bound is None and len(self._children) >= LABEL_SETS_MAX:
            self._dropped(self.family, 1)
            values = (OTHER,) * len(values)
            if values in self._children:
                return self._children[values]
        entry = None
        if self._bound is not None:
            entry = self._bound.entry(tuple(values[place] for place in self._key_at))
        child = self._children[values] = self._make()
        child.join(self, values, entry)
        if entry is not None and self._bound is not None:
            self._bound.add_child(entry, self.family, child)
        return child
