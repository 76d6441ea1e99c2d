"""A workload through the kernel, and its columns as arrays to compare."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.evaluate import evaluate
from analytics.kernel.rules import Rules
from analytics.kernel.window import Evaluated, Window
from tests.truth import cases, tables
from tests.truth.steps import SECOND, Floats, Ints, moment
from tests.truth.workload import Pair, Truth

ALARMS = frozenset({"AHEAD", "LOST", "STOPPED", "STALLED", "RACING", "FALLING_BEHIND", "LAGGING"})
"""Statuses that page or raise a ticket."""


def window_of(collected: tables.Collected) -> Window:
    """The whole input of ``evaluate``."""
    return Window(
        collected.positions,
        collected.series,
        collected.pairs,
        collected.logs,
        collected.offset_events,
        collected.gaps,
    )


def judge(truth: Truth, rules: Rules | None = None, cuts: Sequence[int] = ()) -> Evaluated:
    """All ticks of a workload, in one evaluation or in several that end at these ticks (times)."""
    rules = Rules(period_s=truth.period / SECOND) if rules is None else rules
    return judge_window(window_of(tables.collected(truth)), rules, truth.start, [*cuts, truth.end])


@functools.cache
def truth_of(case: str) -> Truth:
    """A workload of `cases.EVERY`. One copy for all callers: do not change it."""
    return cases.EVERY[case]()


@functools.cache
def judged_case(case: str) -> Evaluated:
    """All rows of a case, evaluated once for all tests of the process."""
    return judge(truth_of(case))


def judge_window(window: Window, rules: Rules, start: int, ends: Sequence[int]) -> Evaluated:
    """The rows of evaluations from `start` to each of the ends in turn, together."""
    made: list[Evaluated] = []
    state: pa.Table | None = None
    after = start
    for until in ends:
        made.append(evaluate(window, rules, state, moment(after), moment(until)))
        state, after = made[-1].state, until
    together = Evaluated(*(pa.concat_tables(each) for each in zip(*made, strict=True)))
    return together._replace(state=made[-1].state)


@dataclass(frozen=True, slots=True)
class Columns:
    """A table of one series or pair in order of time."""

    table: pa.Table

    def __getitem__(self, name: str) -> Floats:
        """Numbers, null as NaN; times as microseconds."""
        column = self.table.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))

    def words(self, name: str) -> npt.NDArray[np.str_]:
        """Strings, null as empty."""
        return np.array(self.table.column(name).fill_null("").to_pylist(), np.str_)

    def bound(self, end: str) -> Floats:
        """A bound of the age, low or high; an exact age without one is its own bound."""
        own = (self.words("age_method") == "exact") & np.isnan(self[f"age_{end}_seconds"])
        return np.where(own, self["age_seconds"], self[f"age_{end}_seconds"])

    def rate(self, name: str) -> Floats:
        """Messages per second, from rows of rates; NaN at a cut."""
        return np.where(self["segment"] == self["tick"], np.nan, self[name] / self["dt_seconds"])

    @property
    def seconds(self) -> Floats:
        """The tick of each row, after the beginning of 1970."""
        return self["tick"] / SECOND


def of_series(table: pa.Table, truth: Truth, pair: Pair | None = None, queue: int = 0) -> Columns:
    """The rows of one queue of a pair, by default of the first pair."""
    wanted = tables.series_id(truth, truth.pairs[0] if pair is None else pair, queue)
    return _rows(table, "series_id", wanted)


def of_pair(table: pa.Table, truth: Truth, pair: Pair | None = None) -> Columns:
    """The rows of one pair, by default of the first."""
    wanted = tables.pair_id(truth, truth.pairs[0] if pair is None else pair)
    return _rows(table, "pair_id", wanted)


def _rows(table: pa.Table, key: str, wanted: int) -> Columns:
    mine = table.filter(pc.equal(table.column(key), wanted))
    return Columns(mine.sort_by([("tick", "ascending")]))


def after(truth: Truth, ticks: Floats) -> Floats:
    """Seconds of ticks (microseconds) after the workload's beginning, at the sample of each."""
    return (ticks + truth.sample_delay - truth.start) / SECOND


def first(rows: Columns, status: str, since: int = 0) -> float:
    """The first tick at or after `since` with this status, microseconds; NaN if none."""
    ticks = rows["tick"]
    found = ticks[(rows.words("status") == status) & (ticks >= since)]
    return float(found[0]) if len(found) else float("nan")


def statuses(rows: Columns) -> list[str]:
    """One after another, without repetition."""
    words = rows.words("status").tolist()
    return [word for index, word in enumerate(words) if index == 0 or words[index - 1] != word]


def int_or_nan(values: Ints) -> Floats:
    """An answer's column in the form of the kernel's, for comparison: absent is NaN."""
    absent = np.iinfo(np.int64).min
    return np.where(values == absent, np.nan, values.astype(np.float64))
