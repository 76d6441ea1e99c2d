"""Counters and histograms by label set, with a limit on the series. Pure.

Beyond a limit (``bounds``) label sets are shown together as ``_other``. A folded label set goes on
counting; its counts from that time belong to ``_other`` for ever. A label set that is shown again,
after it was folded or idle, starts at 0 like a new one: alert rules treat a new series as events
that just happened. A shown series never decreases, nor does ``_other``, and each count is in
exactly one of them. So rates and sums of rates are correct whichever label sets are shown. The sum
of raw values misses counts that were shown earlier, but raw sums of counters mean nothing anyway. A
second scraper that has not seen the last value of a folded series misses the counts between its
last scrape and that value.
Before: ``instruments``. After: ``registry`` takes the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from shared.metrics.bounds import Bound, Entry, State
from shared.metrics.family import OTHER, Family
from shared.metrics.instruments import (
    PUT_DOWN_FEW,
    PUT_DOWN_MAX,
    Buckets,
    Counter,
    Histogram,
    Samples,
    Taken,
)
from shared.metrics.text import Number, label_text

LABEL_SETS_MAX: Final = 256
"""Limit for a family without a limit of its own, so that a bug cannot flood the scraper."""
TAKEN_AT_ONCE: Final = 64
"""Label sets whose values are taken between two iterations of the loop."""

Amount = TypeVar("Amount")
"""Type of the counted value: a counter's number, or a histogram's counts and sum."""
Place = tuple[Bound, tuple[int, ...]]
"""A limit, and the positions of its key among a family's labels."""
Dropped = Callable[[Family, int], None]


class _Child(ABC, Generic[Amount]):
    """The part of a label set's instrument that handles folding."""

    __slots__ = tuple[str, ...]()  # subclasses, which have a second base, declare the slots
    of: _ByLabels[Amount]
    values: tuple[str, ...]
    text: str
    entry: Entry | None
    """Its entry under the limit; None without one."""
    hidden: Amount
    """Its count when it was last shown anew: counts of ``_other``, or shown before."""
    mark: Amount | None
    """Its count when values were last taken; None while it is shown."""

    @abstractmethod
    def now(self) -> Amount:
        """Return everything counted so far."""

    @property
    def family(self) -> Family:
        """The family that it belongs to."""
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
            self._give_up(self.now())
        self.of.remove(self.values)

    def take(self) -> Amount | None:
        """Return its own value; None if it is not shown. Counts made while it was folded are moved
        to ``_other``."""
        entry, now = self.entry, self.now()
        if entry is None or entry.state is State.SHOWN:
            if self.mark is not None:
                self._give_up(now)
                self.mark = None
            return self.of.minus(now, self.hidden)
        if self.mark is None:
            self.mark = now
            # Shown once more after folding: otherwise its counts since the last scrape would be in
            # neither series. An idle label set has counted nothing.
            return self.of.minus(now, self.hidden) if entry.state is State.FOLDED else None
        if entry.state is State.FOLDED:
            self._give_up(now)
            self.hidden = now
        return None

    def _give_up(self, now: Amount) -> None:
        """Move the counts since it was folded, or since the last call, to ``_other``."""
        if self.mark is not None and now != self.mark:
            moved = self.of.minus(now, self.mark)
            self.hidden, self.mark = self.of.plus(self.hidden, moved), now
            self.of.fold(self.values, moved)


class LabelledCounter(Counter, _Child[int]):
    """The count of one label set; see ``Counters.labels``."""

    __slots__ = ("entry", "hidden", "mark", "of", "text", "values")

    def now(self) -> int:
        """Return everything counted so far."""
        return self._value

    def moved(self) -> float:
        """See ``bounds.Child``."""
        return self._value


class LabelledHistogram(Histogram, _Child[Sequence[Number]]):
    """The values of one label set; see ``Histograms.labels``."""

    __slots__ = ("entry", "hidden", "mark", "of", "text", "values")

    def now(self) -> Sequence[Number]:
        """Return everything counted so far, in the format of ``Buckets.counts``."""
        return self.counts

    def moved(self) -> float:
        """See ``bounds.Child``."""
        return sum(self._counts) + len(self._values) + sum(map(sum, self._spreads))


class _ByLabels(ABC, Generic[Amount]):
    """A family by label set, of any kind."""

    def __init__(self, family: Family, place: Place | None, dropped: Dropped, none: Amount) -> None:
        """dropped: called for each series that is not created. none: the zero amount."""
        self.family, self.none = family, none
        self._bound: Bound | None = None if place is None else place[0]
        self._key_at: tuple[int, ...] = () if place is None else place[1]
        self._dropped = dropped
        self._others: dict[tuple[str, ...], Amount] = {}
        """Values of the ``_other`` series, by the labels that are not folded."""

    @staticmethod
    @abstractmethod
    def plus(one: Amount, other: Amount) -> Amount:
        """Add two amounts."""

    @staticmethod
    @abstractmethod
    def minus(one: Amount, other: Amount) -> Amount:
        """Subtract an amount from one that contains it."""

    @abstractmethod
    def remove(self, values: tuple[str, ...]) -> None:
        """Remove the label set."""

    @abstractmethod
    def take(self) -> Iterator[Taken | None]:
        """Take the values of all label sets: yields None between pieces, then all values."""

    def fold(self, values: tuple[str, ...], moved: Amount) -> None:
        """Add counts of a label set that is not shown to ``_other``."""
        name = tuple(
            OTHER if place in self._key_at else value for place, value in enumerate(values)
        )
        self._others[name] = self.plus(self._others.get(name, self.none), moved)

    def _admitted(self, values: tuple[str, ...], count: int) -> tuple[str, ...]:
        """Return the label set to count under for a new one. count: number of existing ones."""
        assert len(values) == len(self.family.labels), "one value for each label"
        if self._bound is not None or count < LABEL_SETS_MAX:
            return values
        self._dropped(self.family, 1)
        return (OTHER,) * len(values)

    def _settle(self, child: LabelledCounter | LabelledHistogram, values: tuple[str, ...]) -> State:
        """Add a new child to the limit, if there is one; returns its display state."""
        child.values, child.text = values, label_text(self.family.labels, values)
        child.mark = child.entry = None
        if self._bound is None:
            return State.SHOWN
        key = tuple(values[place] for place in self._key_at)
        child.entry = self._bound.entry(key)
        self._bound.add_child(child.entry, self.family, child)
        return child.entry.state

    @property
    def _is_plain(self) -> bool:
        return self._bound is None or self._bound.is_plain

    def _other_texts(self) -> list[str]:
        return [label_text(self.family.labels, name) for name in self._others]


class Counters(_ByLabels[int]):
    """A counter by label set."""

    def __init__(self, family: Family, place: Place | None, dropped: Dropped) -> None:
        """See the base."""
        super().__init__(family, place, dropped, 0)
        self._series: dict[tuple[str, ...], LabelledCounter] = {}

    def labels(self, *values: str) -> LabelledCounter:
        """Return the counter of a label set; a new one is shown, with 0, from now on.

        For families with a label ``topic`` or ``group``, keep the result only in a
        ``Registry.kept``.
        """
        return self._series.get(values) or self._new(values)

    def _new(self, values: tuple[str, ...]) -> LabelledCounter:
        values = self._admitted(values, len(self._series))
        child = self._series.get(values)
        if child is None:
            child = self._series[values] = LabelledCounter()
            child.of, child.hidden = self, 0
            if self._settle(child, values) is not State.SHOWN:
                child.mark = 0
        return child

    def remove(self, values: tuple[str, ...]) -> None:
        """Remove the label set."""
        del self._series[values]

    @staticmethod
    def plus(one: int, other: int) -> int:
        """Add two counts."""
        return one + other

    @staticmethod
    def minus(one: int, other: int) -> int:
        """Subtract two counts."""
        return one - other

    def take(self) -> Iterator[Samples | None]:
        """Take the values of all label sets: yields None between pieces, then the samples."""
        texts: list[str] = []
        values: list[Number | None] = []
        children = list(self._series.values())
        for start in range(0, len(children), TAKEN_AT_ONCE):
            piece = children[start : start + TAKEN_AT_ONCE]
            texts += [child.text for child in piece]
            if self._is_plain:
                values += [child.value for child in piece]
            else:
                values += [child.take() for child in piece]
            yield None
        yield Samples(
            self.family, [*texts, *self._other_texts()], [*values, *self._others.values()]
        )


class Histograms(_ByLabels[Sequence[Number]]):
    """A histogram by label set."""

    def __init__(self, family: Family, place: Place | None, dropped: Dropped) -> None:
        """See the base."""
        super().__init__(family, place, dropped, (0,) * (len(family.buckets) + 2))
        self._series: dict[tuple[str, ...], LabelledHistogram] = {}
        self._put_down: Final = PUT_DOWN_MAX if place is None else PUT_DOWN_FEW

    def labels(self, *values: str) -> LabelledHistogram:
        """Return the histogram of a label set; see ``Counters.labels``."""
        return self._series.get(values) or self._new(values)

    def _new(self, values: tuple[str, ...]) -> LabelledHistogram:
        values = self._admitted(values, len(self._series))
        child = self._series.get(values)
        if child is None:
            child = self._series[values] = LabelledHistogram(self.family.buckets, self._put_down)
            child.of, child.hidden = self, self.none
            if self._settle(child, values) is not State.SHOWN:
                child.mark = self.none
        return child

    def remove(self, values: tuple[str, ...]) -> None:
        """Remove the label set."""
        del self._series[values]

    @staticmethod
    def plus(one: Sequence[Number], other: Sequence[Number]) -> Sequence[Number]:
        """Add counts and sums."""
        return [mine + yours for mine, yours in zip(one, other, strict=True)]

    @staticmethod
    def minus(one: Sequence[Number], other: Sequence[Number]) -> Sequence[Number]:
        """Subtract counts and sums."""
        return [mine - yours for mine, yours in zip(one, other, strict=True)]

    def take(self) -> Iterator[Buckets | None]:
        """Take the values of all label sets: yields None between pieces, then the buckets."""
        texts: list[str] = []
        counts: list[Sequence[Number]] = []
        children = list(self._series.values())
        for start in range(0, len(children), TAKEN_AT_ONCE):
            for child in children[start : start + TAKEN_AT_ONCE]:
                own = child.counts if self._is_plain else child.take()
                if own is not None:
                    texts.append(child.text)
                    counts.append(own)
            yield None
        yield Buckets(
            self.family, [*texts, *self._other_texts()], [*counts, *self._others.values()]
        )
