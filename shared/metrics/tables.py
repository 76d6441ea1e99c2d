"""Tables: values of several families with the same labels, sampled together, read at a scrape.

Rows beyond a limit are combined into one, ``_other``, by each family's rule, so sums and maxima
stay correct. Pure. Before: a part of a service sampled the values. After: ``registry`` takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from shared.metrics.bounds import Bound, State
from shared.metrics.family import OTHER, Family, Fold
from shared.metrics.instruments import Samples
from shared.metrics.labelled import Place
from shared.metrics.text import Number, label_text

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


class TableSource:
    """Families that are read as one table."""

    def __init__(self, families: tuple[Family, ...], place: Place | None) -> None:
        """families: all with the same labels. place: their limit and the positions of its key."""
        self.families = families
        self.function: Callable[[], Table] | None = None
        self._bound: Bound | None = None if place is None else place[0]
        self._key_at: tuple[int, ...] = () if place is None else place[1]
        self._number = 0 if self._bound is None else self._bound.add_table(families)
        self._texts: dict[Labels, str] = {}
        """Texts of the last rows; a row's labels rarely change between scrapes."""

    def take(self, table: Table) -> Iterator[list[Samples] | None]:
        """Return samples of every family: yields None between pieces, then all of them."""
        assert len(table.columns) == len(self.families), "a column for each family"
        shown: list[int] = []
        folded: list[int] = []
        texts: list[str] = []
        kept: dict[Labels, str] = {}
        names, known = self.families[0].labels, self._texts
        for start in range(0, len(table.labels), ROWS_AT_ONCE):
            for row in range(start, min(start + ROWS_AT_ONCE, len(table.labels))):
                labels = table.labels[row]
                if self._bound is not None:
                    state = self._stands(table, row)
                    if state is not State.SHOWN:
                        if state is State.FOLDED:
                            folded.append(row)
                        continue
                text = known.get(labels)
                if text is None:
                    text = label_text(names, labels)
                kept[labels] = text
                texts.append(text)
                shown.append(row)
            yield None
        self._texts = kept
        columns = table.columns
        if len(shown) < len(table.labels):
            columns = []
            for column in table.columns:
                columns.append([column[row] for row in shown])
                yield None
        rest: dict[str, list[Number | None]] = {}
        if folded:
            for piece in self._fold(table, folded):
                yield None
                rest = piece
        yield [
            Samples(
                family,
                [*texts, *rest] if rest else texts,
                [*columns[place], *(values[place] for values in rest.values())]
                if rest
                else columns[place],
            )
            for place, family in enumerate(self.families)
        ]

    def _stands(self, table: Table, row: int) -> State:
        assert self._bound is not None
        labels = table.labels[row]
        key = tuple(labels[place] for place in self._key_at)
        weight = 0.0 if table.weights is None else table.weights[row]
        activity = 0.0 if table.activity is None else table.activity[row]
        return self._bound.add_row(key, self._number, weight, activity).state

    def _fold(self, table: Table, rows: Sequence[int]) -> Iterator[dict[str, list[Number | None]]]:
        """Combine rows into one for each value of the labels that are not folded, by label text.
        Yields the same dict after each piece; it is complete after the last."""
        names = self.families[0].labels
        rest: dict[str, list[Number | None]] = {}
        texts: dict[Labels, str] = {}
        at_once = max(1, _FOLDED_AT_ONCE // len(self.families))
        for start in range(0, len(rows), at_once):
            for row in rows[start : start + at_once]:
                labels = tuple(
                    OTHER if place in self._key_at else value
                    for place, value in enumerate(table.labels[row])
                )
                text = texts.get(labels)
                if text is None:
                    text = texts[labels] = label_text(names, labels)
                    rest[text] = [None] * len(self.families)
                sums = rest[text]
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
