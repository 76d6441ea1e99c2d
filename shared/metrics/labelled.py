"""Counters and histograms by label set, within a bound. Pure.

Beyond a bound (``bounds``) label sets are shown together as ``_other``. Every one goes on counting
for itself; what it counts meanwhile is ``_other``'s for ever. One that comes back, folded or idle
before, begins at 0 like one that is new: rules take a series that appears for events that just
happened. While it is shown it never goes back, nor does ``_other``, and each count is in exactly
one of them: rates, and sums of rates, are right whoever is shown. The sum of raw values misses what
was shown before; it means nothing of counters anyhow. A second scraper, which has not seen the last
value that a folded one showed to the first, misses what was counted between the two.
Before: ``instruments``. After: ``registry`` takes.
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
"""Of a family without a bound of its own: a mistake must not flood whoever scrapes."""
TAKEN_AT_ONCE: Final = 64
"""Label sets whose values are taken between two turns of the loop."""

Amount = TypeVar("Amount")
"""What was counted: a counter's number, a histogram's counts and sum."""
Place = tuple[Bound, tuple[int, ...]]
"""A bound, and which of a family's labels are the key there."""
Dropped = Callable[[Family, int], None]


class _Child(ABC, Generic[Amount]):
    """What a label set's instrument knows of being folded."""

    __slots__ = tuple[str, ...]()  # those below are slots of each class that has another base
    of: _ByLabels[Amount]
    values: tuple[str, ...]
    text: str
    entry: Entry | None
    """Its place under the bound; None without one."""
    hidden: Amount
    """What it had counted when it was last shown anew: ``_other``'s, or shown before."""
    mark: Amount | None
    """Where it stood when values were last taken; None while it is shown."""

    @abstractmethod
    def now(self) -> Amount:
        """All that was ever counted."""

    @property
    def family(self) -> Family:
        """Of which it is."""
        return self.of.family

    def wake(self) -> None:
        """It was idle: what was counted since is its own, and nothing else."""
        if self.mark is not None:
            self.hidden, self.mark = self.mark, None

    def shut_out(self) -> None:
        """It was idle, and finds no room: what it had shown is over, should it find some."""
        if self.mark is not None:
            self.hidden = self.mark

    def forget(self) -> None:
        """The label set is gone; what it counted under ``_other`` stays there."""
        if self.entry is not None and self.entry.state is State.FOLDED:
            self._give_up(self.now())
        self.of.remove(self.values)

    def take(self) -> Amount | None:
        """Its own value; None if it is not shown. What it counted while folded becomes
        ``_other``'s."""
        entry, now = self.entry, self.now()
        if entry is None or entry.state is State.SHOWN:
            if self.mark is not None:
                self._give_up(now)
                self.mark = None
            return self.of.minus(now, self.hidden)
        if self.mark is None:
            self.mark = now
            # Shown once more when it is folded: else what it counted since the last scrape would
            # be in neither series. An idle one has counted nothing.
            return self.of.minus(now, self.hidden) if entry.state is State.FOLDED else None
        if entry.state is State.FOLDED:
            self._give_up(now)
            self.hidden = now
        return None

    def _give_up(self, now: Amount) -> None:
        """What was counted since it was folded, or since the last time, is ``_other``'s."""
        if self.mark is not None and now != self.mark:
            moved = self.of.minus(now, self.mark)
            self.hidden, self.mark = self.of.plus(self.hidden, moved), now
            self.of.fold(self.values, moved)


class LabelledCounter(Counter, _Child[int]):
    """The count of one label set; see ``Counters.labels``."""

    __slots__ = ("entry", "hidden", "mark", "of", "text", "values")

    def now(self) -> int:
        """All that was ever counted."""
        return self._value

    def moved(self) -> float:
        """See ``bounds.Child``."""
        return self._value


class LabelledHistogram(Histogram, _Child[Sequence[Number]]):
    """The values of one label set; see ``Histograms.labels``."""

    __slots__ = ("entry", "hidden", "mark", "of", "text", "values")

    def now(self) -> Sequence[Number]:
        """All that was ever counted, as ``Buckets.counts``."""
        return self.counts

    def moved(self) -> float:
        """See ``bounds.Child``."""
        return sum(self._counts) + len(self._values) + sum(map(sum, self._spreads))


class _ByLabels(ABC, Generic[Amount]):
    """A family by label set, whatever its kind."""

    def __init__(self, family: Family, place: Place | None, dropped: Dropped, none: Amount) -> None:
        """dropped: told of series not made. none: the amount of nothing."""
        self.family, self.none = family, none
        self._bound: Bound | None = None if place is None else place[0]
        self._key_at: tuple[int, ...] = () if place is None else place[1]
        self._dropped = dropped
        self._others: dict[tuple[str, ...], Amount] = {}
        """What is shown as ``_other``, by the labels that are not folded."""

    @staticmethod
    @abstractmethod
    def plus(one: Amount, other: Amount) -> Amount:
        """Both together."""

    @staticmethod
    @abstractmethod
    def minus(one: Amount, other: Amount) -> Amount:
        """One without the other, which is part of it."""

    @abstractmethod
    def remove(self, values: tuple[str, ...]) -> None:
        """Keep the label set no longer."""

    @abstractmethod
    def take(self) -> Iterator[Taken | None]:
        """Values of all label sets: None between pieces, all of them at last."""

    def fold(self, values: tuple[str, ...], moved: Amount) -> None:
        """A label set that is not shown counted so much more."""
        name = tuple(
            OTHER if place in self._key_at else value for place, value in enumerate(values)
        )
        self._others[name] = self.plus(self._others.get(name, self.none), moved)

    def _admitted(self, values: tuple[str, ...], count: int) -> tuple[str, ...]:
        """The label set to count under, of one that is new; count: how many there are."""
        assert len(values) == len(self.family.labels), "one value for each label"
        if self._bound is not None or count < LABEL_SETS_MAX:
            return values
        self._dropped(self.family, 1)
        return (OTHER,) * len(values)

    def _settle(self, child: LabelledCounter | LabelledHistogram, values: tuple[str, ...]) -> State:
        """Put a new child under the bound, if there is one; returns how it stands there."""
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
        """The count of a label set, 0 and shown from now on if it is new.

        With a label ``topic`` or ``group`` keep it only in a ``Registry.kept``.
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
        """Keep the label set no longer."""
        del self._series[values]

    @staticmethod
    def plus(one: int, other: int) -> int:
        """Both together."""
        return one + other

    @staticmethod
    def minus(one: int, other: int) -> int:
        """One without the other."""
        return one - other

    def take(self) -> Iterator[Samples | None]:
        """Values of all label sets: None between pieces, the samples at last."""
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
        """The values of a label set; see ``Counters.labels``."""
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
        """Keep the label set no longer."""
        del self._series[values]

    @staticmethod
    def plus(one: Sequence[Number], other: Sequence[Number]) -> Sequence[Number]:
        """Both together."""
        return [mine + yours for mine, yours in zip(one, other, strict=True)]

    @staticmethod
    def minus(one: Sequence[Number], other: Sequence[Number]) -> Sequence[Number]:
        """One without the other."""
        return [mine - yours for mine, yours in zip(one, other, strict=True)]

    def take(self) -> Iterator[Buckets | None]:
        """Values of all label sets: None between pieces, the buckets at last."""
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
