"""Tables: values of several families with the same labels, sampled together, read at a scrape.

Rows beyond a limit are combined into one, ``_other``, by each family's rule, so sums and maxima
stay correct. Step before: a part of a service sampled the values. Step after: ``registry`` takes
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client import Metric
from prometheus_client.registry import Collector

from shared.metrics.bounds import Bound, State
from shared.metrics.family import OTHER, Family, Fold, Number
from shared.metrics.labelled import Place
from shared.metrics.samples import LabelSet, Samples, metric_of

ROWS_AT_ONCE: Final = 64
"""Rows processed between two iterations of the loop."""
_FOLDED_AT_ONCE: Final = 512
"""Values folded or copied between two iterations of the loop."""

Labels = tuple[str, ...]
Column = Sequence[Number | None]


class Table(NamedTuple):
    """One sampled table. The scrape borrows it: the lists must not change any more."""

    labels: Sequence[Labels]
    """Label values of each row, in the order of the families' labels; without duplicates."""
    columns: Sequence[Column]
    """For each family one value per row; None if unknown."""
    weights: Sequence[float] | None = None
    """Importance of each row: a row with 0 becomes idle after a day, and is folded first."""
    activity: Sequence[float] | None = None
    """Per row a number that changes whenever the row is used, for example a sum of offsets."""


class TableSource(Collector):
    """Families that are read as one table."""

    def __init__(
        self, families: tuple[Family, ...], function: Callable[[], Table], place: Place | None
    ) -> None:
        """families: all have the same labels. function: called at each scrape. place: the limit on
        their series and the positions of its key labels; None: no limit."""
        self.families = families
        self.function = function
        self._bound: Bound | None = None if place is None else place[0]
        self._key_at: tuple[int, ...] = () if place is None else place[1]
        self._number = 0 if self._bound is None else self._bound.add_table(families)
        self._label_sets: dict[Labels, LabelSet] = {}
        """Those of the last rows; a row's labels rarely change between scrapes."""

    def describe(self) -> list[Metric]:
        """Return the families without samples."""
        return [metric_of(family) for family in self.families]

    def collect(self) -> Iterator[Metric]:
        """Return the families with all samples."""
        for taken in self.take():
            if taken is not None:
                yield taken.metric()

    def take(self) -> Iterator[Samples | None]:
        """Call the function and yield None, then None between pieces, then all samples."""
        table = self.function()
        assert len(table.columns) == len(self.families), "a column for each family"
        yield None
        shown: list[int] = []
        folded: list[int] = []
        label_sets: list[LabelSet] = []
        known, self._label_sets = self._label_sets, {}
        names = self.families[0].labels
        for start in range(0, len(table.labels), ROWS_AT_ONCE):
            for row in range(start, min(start + ROWS_AT_ONCE, len(table.labels))):
                labels = table.labels[row]
                state = self._state(table, row)
                if state is State.FOLDED:
                    folded.append(row)
                elif state is State.SHOWN:
                    found = known.get(labels) or LabelSet(names, labels)
                    self._label_sets[labels] = found
                    label_sets.append(found)
                    shown.append(row)
            yield None
        columns = table.columns
        if len(shown) < len(table.labels):
            columns = []
            for column in table.columns:
                columns.append([column[row] for row in shown])
                yield None
        rest: dict[Labels, list[Number | None]] = {}
        for rest in self._fold(table, folded):  # noqa: B007 - the last is complete
            yield None
        label_sets += [LabelSet(names, labels) for labels in rest]
        for place, family in enumerate(self.families):
            column = columns[place]
            if rest:
                column = [*column, *(values[place] for values in rest.values())]
            yield Samples(family, label_sets, column)

    def _state(self, table: Table, row: int) -> State:
        if self._bound is None:
            return State.SHOWN
        labels = table.labels[row]
        key = tuple(labels[place] for place in self._key_at)
        weight = 0.0 if table.weights is None else table.weights[row]
        activity = 0.0 if table.activity is None else table.activity[row]
        return self._bound.add_row(key, self._number, weight, activity).state

    def _fold(
        self, table: Table, rows: Sequence[int]
    ) -> Iterator[dict[Labels, list[Number | None]]]:
        """Combine rows into one for each value of the labels that are not folded. Yields the same
        dict after each piece; it is complete after the last."""
        rest: dict[Labels, list[Number | None]] = {}
        at_once = max(1, _FOLDED_AT_ONCE // len(self.families))
        for start in range(0, len(rows), at_once):
            for row in rows[start : start + at_once]:
                labels = tuple(
                    OTHER if place in self._key_at else value
                    for place, value in enumerate(table.labels[row])
                )
                sums = rest.setdefault(labels, [None] * len(self.families))
                for place, family in enumerate(self.families):
                    value = table.columns[place][row]
                    if value is not None:
                        sums[place] = folded_into(sums[place], value, family.fold)
            yield rest


def folded_into(known: Number | None, value: Number, fold: Fold) -> Number | None:
    """Combine two values by a family's rule. known: None before the first."""
    match fold:
        case Fold.NONE:
            return None
        case _ if known is None:
            return value
        case Fold.SUM:
            return known + value
        case Fold.MAX:
            return max(known, value)
        case Fold.MIN:
            return min(known, value)
