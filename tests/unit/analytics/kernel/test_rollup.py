from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analytics.kernel.balance import books
from analytics.kernel.rollup import MINUTE, QUARTER, merge, rollup
from analytics.schema import LAG, OFFSET_EVENTS, PAIR_LAG, RATES, ROLLUP
from tests.unit.analytics.kernel.made_rows import START, at

PERIOD = 15.0


class Ledger:
    """Rows of evaluation of series of one pair, written tick by tick."""

    def __init__(self) -> None:
        self.lag: list[dict[str, Any]] = []
        self.rates: list[dict[str, Any]] = []
        self.pairs: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def tick(self, second: float, series: int, lag: int | None, **more: Any) -> None:
        tick = at(second)
        key = {"tick": tick, "series_id": series, "pair_id": 1}
        status = {"status": more.pop("status", "OK"), "status_since": START, "age_method": "exact"}
        age = more.pop("age_seconds", None)
        sampled = more.pop("ts", tick)
        self.lag.append(key | status | {"ts": sampled, "lag": lag, "age_seconds": age})
        if more:
            self.rates.append(key | {"dt_seconds": PERIOD} | more)

    def pair_tick(self, second: float, lag: int, **more: Any) -> None:
        names = {"cluster": "c", "broker": "g0", "group": "g", "topic": "t"}
        key = {"tick": at(second), "pair_id": 1, "status_since": START}
        self.pairs.append(names | key | {"lag_sum": lag, "status": "OK"} | more)

    def event(self, second: float, series: int, kind: str, from_: int | None, to: int) -> None:
        key = {"ts": at(second), "tick": at(second), "series_id": series, "pair_id": 1}
        self.events.append(key | {"kind": kind, "from_offset": from_, "to_offset": to})

    def tables(self) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
        rows = (self.lag, self.rates, self.pairs, self.events)
        schemas = (LAG, RATES, PAIR_LAG, OFFSET_EVENTS)
        lag, rates, pairs, events = (
            pa.Table.from_pylist(each, schema=schema)
            for each, schema in zip(rows, schemas, strict=True)
        )
        return lag, rates, pairs, events

    def rolled(
        self, grain_s: int = MINUTE, since: datetime = START, before: datetime | None = None
    ) -> pa.Table:
        return rollup(
            *self.tables(),
            grain_s=grain_s,
            period_s=PERIOD,
            since=since,
            before=before or at(86_400),
        )


def ledger_of_random_days(seed: int, ticks: int = 400) -> Ledger:
    """Two series whose books balance: production, consumption, skips of both signs, holes."""
    print("seed", seed)
    random = np.random.default_rng(seed)
    written = Ledger()
    for series in (7, 8):
        lag = 50
        written.tick(0, series, lag, age_seconds=1.0)
        for number in range(1, ticks):
            produced, consumed = int(random.integers(0, 40)), int(random.integers(0, 30))
            skipped = 0
            if random.random() < 0.05:
                skipped = int(random.integers(-20, 20))
                kind = "reset_forward" if skipped > 0 else "rewind"
                written.event(PERIOD * (number - 0.5), series, kind, 100, 100 + skipped)
            lag += produced - consumed - skipped
            moved = {"produced": produced, "consumed": consumed}
            status = str(random.choice(["OK", "OK", "LAGGING", "STALLED"]))
            age = float(random.random())
            written.tick(PERIOD * number, series, lag, age_seconds=age, status=status, **moved)
    for number in range(ticks):
        lags = [row["lag"] for row in written.lag if row["tick"] == at(PERIOD * number)]
        written.pair_tick(PERIOD * number, sum(lags), age_max_seconds=1.0, members=2, queues=2)
    return written


def test_the_books_of_every_step_balance() -> None:
    written = ledger_of_random_days(31)
    lag, rates, _, events = written.tables()
    book = books(lag, rates, events)
    assert np.count_nonzero(np.isnan(book.imbalance)) == 2  # the first row of each series
    assert set(book.imbalance[~np.isnan(book.imbalance)]) == {0.0}
    assert np.nansum(np.abs(book.skipped)) > 0


def test_rows_that_do_not_balance_have_the_difference() -> None:
    written = Ledger()
    written.tick(0, 7, 10)
    written.tick(15, 7, 10, produced=9, consumed=5)
    lag, rates, _, events = written.tables()
    assert books(lag, rates, events).imbalance.tolist()[1] == 4


def test_a_step_with_an_unknown_part_is_not_balanced() -> None:
    written = Ledger()
    written.tick(0, 7, 10)
    written.tick(15, 7, 3, produced=None, consumed=5)
    written.tick(30, 7, None, produced=1, consumed=5)
    written.tick(45, 7, 4, produced=1, consumed=5)
    written.event(50, 7, "reset_forward", None, 20)
    written.tick(60, 7, 4, produced=1, consumed=1)
    lag, rates, _, events = written.tables()
    assert np.isnan(books(lag, rates, events).imbalance).all()


def test_a_cut_of_the_queue_moves_no_commit() -> None:
    written = Ledger()
    written.tick(0, 7, 40)
    written.event(10, 7, "truncate", 1000, 963)
    written.tick(15, 7, 3, produced=None, consumed=0)
    lag, rates, _, events = written.tables()
    assert books(lag, rates, events).skipped.tolist()[1] == 0


def test_an_event_counts_at_the_first_sample_after_it() -> None:
    written = Ledger()
    written.tick(0, 7, 40)
    written.event(1, 7, "reset_forward", 5, 15)
    written.tick(15, 7, 30, produced=0, consumed=0)
    written.event(31, 7, "expire", 15, 18)
    written.tick(30, 7, 30, produced=0, consumed=0)
    written.tick(45, 7, 27, produced=0, consumed=0)
    lag, rates, _, events = written.tables()
    book = books(lag, rates, events)
    assert book.skipped.tolist()[1:] == [10, 0, 3]
    assert book.imbalance.tolist()[1:] == [0, 0, 0]


def test_rows_without_a_sample_are_skipped() -> None:
    written = Ledger()
    written.tick(0, 7, 10)
    written.tick(45, 7, None, ts=None, status="UNKNOWN")
    written.tick(60, 7, 12, produced=3, consumed=1)
    lag, rates, _, events = written.tables()
    assert books(lag, rates, events).imbalance.tolist()[1] == 0
    (row,) = [row for row in written.rolled().to_pylist() if row["bucket_start"] == at(0)]
    assert (row["ticks"], row["lag_last"], row["worst_status"]) == (2, 10, "UNKNOWN")


def test_a_minute_sums_its_ticks() -> None:
    written = Ledger()
    for number, (lag, age) in enumerate([(4, 1.0), (9, 2.5), (None, None), (6, 0.5)]):
        status = "LAGGING" if lag == 9 else "OK"
        moved = {"produced": 8, "consumed": 2} if number else {}
        written.tick(15 * number, 7, lag, age_seconds=age, status=status, **moved)
    (row,) = written.rolled().to_pylist()
    assert row["bucket_start"] == START
    assert (row["grain_seconds"], row["ticks"], row["series_id"]) == (60, 4, 7)
    assert [row[f"lag_{name}"] for name in ("first", "last", "min", "max")] == [4, 6, 4, 9]
    assert row["lag_mean"] == pytest.approx(19 / 3)
    assert (row["age_min_seconds"], row["age_max_seconds"]) == (0.5, 2.5)
    assert (row["produced"], row["consumed"], row["rate_seconds"]) == (24, 6, 45)
    assert row["worst_status"] == "LAGGING"
    assert json.loads(row["seconds_in_status"]) == {"OK": 45, "LAGGING": 15}


def test_a_pair_has_the_sums_of_its_series() -> None:
    found = ledger_of_random_days(5).rolled(grain_s=QUARTER).to_pylist()
    assert [row["series_id"] for row in found[:3]] == [None, 7, 8]
    for pair, first, second in zip(found[::3], found[1::3], found[2::3], strict=True):
        assert pair["bucket_start"] == first["bucket_start"] == second["bucket_start"]
        assert pair["members"] == 2
        assert pair["lag_last"] == first["lag_last"] + second["lag_last"]
        assert pair["rate_seconds"] == first["rate_seconds"]
        for name in ("produced", "consumed", "skipped", "imbalance"):
            assert pair[name] == first[name] + second[name]
        assert pair["imbalance"] == 0


def test_what_is_rolled_up_at_once_is_what_is_rolled_up_from_parts() -> None:
    written = ledger_of_random_days(77)
    hour = written.rolled(grain_s=3600)
    merged = merge(written.rolled(grain_s=MINUTE), grain_s=3600)
    assert merged.schema == ROLLUP
    for whole, parts in zip(hour.to_pylist(), merged.to_pylist(), strict=True):
        assert json.loads(whole.pop("seconds_in_status")) == json.loads(
            parts.pop("seconds_in_status")
        )
        assert parts.pop("bucket_start") == whole.pop("bucket_start")
        assert parts == pytest.approx(whole)


def test_time_may_be_cut_at_any_bucket() -> None:
    """Rows before the range are there for the first step alone."""
    written = ledger_of_random_days(78)
    whole = written.rolled()
    cut = at(1800)
    first, second = written.rolled(before=cut), written.rolled(since=cut)
    assert pa.concat_tables([first, second]).equals(whole)


def test_grains_are_not_mixed() -> None:
    written = ledger_of_random_days(79, ticks=20)
    both = pa.concat_tables([written.rolled(), written.rolled(grain_s=QUARTER)])
    with pytest.raises(ValueError, match="two grains"):
        merge(both, grain_s=3600)


def test_nothing_rolls_up_into_nothing() -> None:
    assert Ledger().rolled() == ROLLUP.empty_table()
    assert merge(ROLLUP.empty_table(), grain_s=60) == ROLLUP.empty_table()
