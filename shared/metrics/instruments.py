"""What is counted as it happens: counters, gauges, histograms. Pure.

They belong to the event loop: one thread counts and takes, so there are no locks. Hot paths keep a
bound method and pay one addition. Those with labels are in ``labelled``.
Before: a part of a service makes one from a family of the catalogue. After: ``registry`` takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

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
    """How values are spread."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: ascending upper bounds of the buckets, without infinity."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum: Number = 0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_counts(self, counts: Sequence[int], total: float) -> None:
        """Count many values: how many fall into each bucket, the last being all above the bounds.

        total: their sum.
        """
        self._counts = [one + more for one, more in zip(self._counts, counts, strict=True)]
        self._sum += total

    @property
    def counts(self) -> list[Number]:
        """As ``Buckets.counts``."""
        return [*self._counts, self._sum]
