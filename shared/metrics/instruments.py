"""What is counted as it happens: counters, gauges, histograms. Pure.

They belong to the event loop: one thread counts and takes, so there are no locks. Hot paths keep a
bound method; it adds to a number, or puts a value on a list. Those with labels are in ``labelled``.
Before: a part of a service makes one from a family of the catalogue. After: ``registry`` takes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import add, sub
from typing import Final, NamedTuple

from shared.metrics.family import Family
from shared.metrics.text import Number


class Samples(NamedTuple):
    """Values taken of a counter or gauge: the label sets as text, and as many values."""

    family: Family
    texts: Sequence[str]
    values: Sequence[Number | None]
    """None: no sample."""


class Buckets(NamedTuple):
    """Values taken of a histogram."""

    family: Family
    texts: Sequence[str]
    counts: Sequence[Sequence[Number]]
    """By label set: how many fell into each bucket, the last being all above the bounds; then the
    sum of the values."""


PUT_DOWN_MAX: Final = 128
"""Values of a histogram that are counted at once; they take 4 KiB."""
PUT_DOWN_FEW: Final = 16
"""Where there are thousands of histograms."""
Taken = Samples | Buckets
Count = Callable[[int], None]
"""A counter's ``inc``, as hot paths keep it."""


class Counter:
    """A number that only grows."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: int = 0

    def inc(self, amount: int = 1) -> None:
        """Count so many; never fewer than none."""
        self._value += amount

    @property
    def value(self) -> int:
        """How many there were."""
        return self._value


class Gauge:
    """A number that is set; unknown until it is."""

    __slots__ = ("value",)

    def __init__(self, start: Number | None = None) -> None:
        self.value = start
        """None: not known, no sample."""

    def set(self, value: Number | None) -> None:
        """It is so much now."""
        self.value = value


class Histogram:
    """How values are spread.

    A value is put down, and counted with others later: in the middle of a request the code that
    counts is in no cache, and took three times as long.
    """

    __slots__ = ("_bounds", "_counts", "_put_down_max", "_spreads", "_sum", "_values")

    def __init__(self, bounds: Sequence[float], put_down_max: int = PUT_DOWN_MAX) -> None:
        """bounds: ascending upper bounds of the buckets, without infinity. put_down_max: values
        counted at once.
        """
        self._bounds, self._put_down_max = bounds, put_down_max
        self._counts = [0] * (len(bounds) + 1)
        self._sum: Number = 0
        self._values: list[float] = []
        """Put down and not counted yet."""
        self._spreads: list[Sequence[int]] = []
        """Counts of many values, put down and not added yet."""

    def observe(self, value: float) -> None:
        """Count one value."""
        values = self._values
        values.append(value)
        if len(values) >= self._put_down_max:
            self._count_up()

    def observe_counts(self, counts: Sequence[int], total: float) -> None:
        """Count many values: how many fall into each bucket, the last being all above the bounds.

        total: the values' sum. Raises ValueError if there are not as many counts as buckets.
        """
        if len(counts) != len(self._counts):
            raise ValueError(f"{len(counts)} counts for {len(self._counts)} buckets")
        self._sum += total
        spreads = self._spreads
        spreads.append(counts)
        if len(spreads) >= self._put_down_max:
            self._add_up()

    @property
    def counts(self) -> list[Number]:
        """As ``Buckets.counts``."""
        if self._values:
            self._count_up()
        if self._spreads:
            self._add_up()
        return [*self._counts, self._sum]

    def _count_up(self) -> None:
        values, self._values = sorted(self._values), []
        ends = [bisect_right(values, bound) for bound in self._bounds]
        spread = map(sub, (*ends, len(values)), (0, *ends))
        self._counts = list(map(add, self._counts, spread))
        self._sum += sum(values)

    def _add_up(self) -> None:
        spreads, self._spreads = self._spreads, []
        self._counts = list(map(sum, zip(self._counts, *spreads, strict=True)))
