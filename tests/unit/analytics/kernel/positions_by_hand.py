"""Rows of positions, pairs and logs written by hand: one queue of one pair, tick by tick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from analytics.kernel.evaluate import evaluate
from analytics.kernel.rules import Rules
from analytics.kernel.window import Evaluated, Window
from analytics.schema import GAPS, LOGS, OFFSET_EVENTS, PAIRS, POSITIONS, SERIES, TIME, fit
from tests.truth.steps import moment

START: Final = 1_767_600_000_000_000
"""A tick [microseconds]; row number n is of the sample a fifth of a second after tick n + 1."""
PERIOD: Final = 15_000_000
PAIR, SERIES_ID = 7, 70
NAMES: Final = {"cluster": "c1", "broker": "g0", "group": "billing", "topic": "orders"}

Row = Mapping[str, Any]


def tick(number: int) -> int:
    return START + (number + 1) * PERIOD


def row(number: int, high: int | None, commit: int | None, **more: Any) -> Row:
    """A sample at the queue. age: of the head [s], exact; without it the head is not known."""
    ts = tick(number) + 200_000
    age = more.pop("age", None)
    return {
        "ts": ts,
        "tick": tick(number),
        "series_id": SERIES_ID,
        "pair_id": PAIR,
        "replica": "n1",
        "epoch": 1,
        "min_offset": 0,
        "max_offset": high,
        "commit_offset": commit,
        "head_store_ts": None if age is None else ts - round(age * 1e6),
        "head_method": "none" if age is None else "exact",
        **more,
    }


def facts(number: int, **more: Any) -> Row:
    """A row of PAIRS at a sample; by default a member subscribes."""
    given = {"subscribed": True, "members": 1, **more}
    return {
        "ts": tick(number) + 200_000,
        "tick": tick(number),
        "pair_id": PAIR,
        "replica": "n1",
        **NAMES,
        **given,
    }


def table(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    names = sorted({name for each in rows for name in each})
    columns = {}
    for name in names:
        kind = schema.field(name).type
        values = [each.get(name) for each in rows]
        columns[name] = pa.array(values, pa.int64()).cast(TIME) if kind == TIME else values
    made = pa.table(columns) if rows else schema.empty_table()
    return fit(made, schema)


def window(
    rows: Sequence[Row],
    pairs: Sequence[Row] | None = None,
    logs: Sequence[Row] = (),
    events: Sequence[Row] = (),
    gaps: Sequence[Row] = (),
) -> Window:
    """Tables of these rows; without pairs one of them, with a member, at each sample."""
    numbers = [(each["tick"] - START) // PERIOD - 1 for each in rows]
    series = {
        **NAMES,
        "series_id": SERIES_ID,
        "pair_id": PAIR,
        "queue": 3,
        "kind": "main",
        "first_seen": START,
        "last_seen": START,
    }
    of_pairs = [facts(number) for number in numbers] if pairs is None else pairs
    return Window(
        table(rows, POSITIONS),
        table([series], SERIES),
        table(of_pairs, PAIRS),
        table([{"replica": "n1", **NAMES_OF_LOG, **each} for each in logs], LOGS),
        table(
            [{"series_id": SERIES_ID, "pair_id": PAIR, **each} for each in events], OFFSET_EVENTS
        ),
        table(gaps, GAPS),
    )


NAMES_OF_LOG: Final = {"cluster": "c1", "broker": "g0"}


def judged(given: Window, ticks: int, rules: Rules | None = None) -> Evaluated:
    """Evaluate ticks number 0 to ticks − 1."""
    return evaluate(given, rules or Rules(), None, moment(START), moment(tick(ticks - 1)))


def column(found: pa.Table, name: str) -> list[Any]:
    return found.column(name).to_pylist()  # type: ignore[no-any-return]
