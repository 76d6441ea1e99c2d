from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analytics.kernel.skew import SKEW, skew
from analytics.schema import TIME

TICK = datetime(2026, 3, 1, 12, tzinfo=UTC)


def rows(*queues: dict[str, Any], pair: int = 1, tick: datetime = TICK) -> pa.Table:
    usual = {
        "produce_per_second": 1.0,
        "consume_per_second": 1.0,
        "is_lagging": False,
        "stands_still": False,
        "redeliveries_rise": None,
        "member": None,
    }
    made = [
        usual | {"tick": tick, "pair_id": pair, "series_id": 100 * pair + at, "queue": at} | queue
        for at, queue in enumerate(queues)
    ]
    return pa.Table.from_pylist(
        made,
        schema=pa.schema(
            [
                ("tick", TIME),
                ("pair_id", pa.int64()),
                ("series_id", pa.int64()),
                ("queue", pa.int32()),
                ("lag", pa.int64()),
                ("produce_per_second", pa.float64()),
                ("consume_per_second", pa.float64()),
                ("is_lagging", pa.bool_()),
                ("stands_still", pa.bool_()),
                ("redeliveries_rise", pa.bool_()),
                ("member", pa.int64()),
            ]
        ),
    )


def only(table: pa.Table) -> dict[str, Any]:
    (row,) = skew(table).to_pylist()
    return dict(row)


def gini_by_pairs(lags: list[int]) -> float:
    """The definition: mean difference of two queues over twice the mean."""
    differences = sum(abs(a - b) for a, b in combinations(lags, 2)) * 2
    return differences / (2 * len(lags) * sum(lags))


def test_skew_is_the_largest_lag_over_the_mean_of_the_others() -> None:
    lags = [10, 20, 30, 400]
    row = only(rows(*({"lag": lag} for lag in lags)))
    assert row["skew"] == pytest.approx(400 / 20)
    assert row["gini"] == pytest.approx(gini_by_pairs(lags))
    assert row["top_queue"] == 3


def test_gini_of_many_random_lags_is_that_of_its_definition() -> None:
    seed = 20260301
    print("seed", seed)
    random = np.random.default_rng(seed)
    tables, expected = [], {}
    for pair in range(60):
        lags = [int(lag) for lag in random.integers(0, 1000, random.integers(2, 17))]
        tables.append(rows(*({"lag": lag} for lag in lags), pair=pair))
        expected[pair] = gini_by_pairs(lags)
    whole = pa.concat_tables(tables)
    shuffled = whole.take(pa.array(random.permutation(whole.num_rows)))
    found = skew(shuffled)
    assert found.schema == SKEW
    assert found.column("pair_id").to_pylist() == sorted(expected)
    for row in found.to_pylist():
        assert row["gini"] == pytest.approx(expected[row["pair_id"]], abs=1e-12)


def test_all_lag_on_one_queue_is_an_infinite_skew() -> None:
    row = only(rows({"lag": 7}, *({"lag": 0} for _ in range(15))))
    assert row["skew"] == math.inf
    assert row["gini"] == pytest.approx(1 - 1 / 16)


def test_without_lag_there_is_no_skew() -> None:
    row = only(rows({"lag": 0}, {"lag": 0}))
    assert (row["skew"], row["gini"], row["skew_kind"], row["top_queue"]) == (None,) * 4


def test_one_queue_has_no_others() -> None:
    assert only(rows({"lag": 5}))["skew"] is None


def test_a_queue_of_unknown_lag_is_in_no_number() -> None:
    row = only(rows({"lag": None}, {"lag": 10}, {"lag": 30}, {"lag": None}))
    assert row["skew"] == pytest.approx(3)
    assert row["gini"] == pytest.approx(gini_by_pairs([10, 30]))
    nothing = only(rows({"lag": None}, {"lag": None}))
    assert (nothing["skew"], nothing["gini"]) == (None, None)


def test_one_stuck_queue_of_sixteen_with_redeliveries_is_a_poison_message() -> None:
    queues: list[dict[str, Any]] = [{"lag": 3, "redeliveries_rise": True} for _ in range(16)]
    queues[5] = {"lag": 900, "stands_still": True, "is_lagging": True, "redeliveries_rise": True}
    row = only(rows(*queues))
    assert row["skew_kind"] == "poison_message"
    assert row["skew"] == pytest.approx(300)
    assert row["top_queue"] == 5


@pytest.mark.parametrize("rise", [False, None])
def test_a_stuck_queue_without_redeliveries_is_only_stuck(rise: bool | None) -> None:
    row = only(rows({"lag": 90, "stands_still": True, "redeliveries_rise": rise}, {"lag": 1}))
    assert row["skew_kind"] == "stuck_queue"


def test_a_group_that_stands_still_as_a_whole_is_no_skew() -> None:
    stuck = {"lag": 90, "stands_still": True, "is_lagging": True, "redeliveries_rise": True}
    assert only(rows(*(stuck for _ in range(4))))["skew_kind"] is None


def test_lagging_queues_of_one_member_name_the_member() -> None:
    slow = [{"lag": 500, "is_lagging": True, "member": 1} for _ in range(4)]
    quick = [{"lag": 2, "member": number} for number in (2, 3, 4) for _ in range(4)]
    assert only(rows(*slow, *quick))["skew_kind"] == "slow_member"


def test_lagging_queues_of_two_members_name_none() -> None:
    slow = [{"lag": 500, "is_lagging": True, "member": number} for number in (1, 2)]
    assert only(rows(*slow, {"lag": 2, "member": 2}))["skew_kind"] is None


def test_a_single_member_cannot_be_the_slow_one() -> None:
    slow = [{"lag": 500, "is_lagging": late, "member": 1} for late in (True, True, False)]
    assert only(rows(*slow))["skew_kind"] is None
    assert only(rows(*slow, {"lag": 0, "member": 0}))["skew_kind"] is None, "no owner, no other"


def test_a_queue_with_lag_and_without_a_member_is_unassigned() -> None:
    row = only(rows({"lag": 50, "member": 0}, {"lag": 1, "member": 1}))
    assert row["skew_kind"] == "unassigned_queue"
    empty = only(rows({"lag": 0, "member": 0}, {"lag": 1, "member": 1}))
    assert empty["skew_kind"] is None


def test_unknown_members_give_no_kind() -> None:
    held: dict[str, Any] = {"lag": 1, "member": 1}
    assert only(rows({"lag": 500, "is_lagging": True}, held))["skew_kind"] is None


def test_a_queue_that_gets_more_than_twice_the_mean_of_the_others_is_hot() -> None:
    hot = {"lag": 1000, "produce_per_second": 30.0}
    row = only(rows(hot, *({"lag": 10, "produce_per_second": 1.0} for _ in range(9))))
    assert row["skew_kind"] == "hot_queue"
    assert row["top_share"] == pytest.approx(30 / 39)


@pytest.mark.parametrize(
    ("rate", "kind"), [(19.0, "hot_queue"), (2.1, "hot_queue"), (2.0, "slow_member")]
)
def test_one_of_two_queues_may_be_hot(rate: float, kind: str) -> None:
    # Twice its share was all messages of both: the member of a hot queue was called slow.
    hot = {"lag": 1000, "produce_per_second": rate, "is_lagging": True, "member": 2}
    cold = {"lag": 10, "produce_per_second": 1.0, "member": 1}
    assert only(rows(cold, hot))["skew_kind"] == kind


@pytest.mark.parametrize(("rate", "kind"), [(30.0, "hot_queue"), (9.0, "slow_member")])
def test_a_member_as_quick_as_the_others_is_not_slow(rate: float, kind: str) -> None:
    # It serves its queues in the order of arrival, so its other queue waits behind the hot one.
    late = {"lag": 500, "is_lagging": True, "member": 1, "consume_per_second": rate / 2}
    hot = late | {"lag": 9_000, "produce_per_second": 20.0}
    others = [{"lag": 2, "member": at, "consume_per_second": 5.0} for at in (2, 2, 3, 3, 4, 4)]
    assert only(rows(hot, late, *others))["skew_kind"] == kind
    unknown = {"lag": 2, "member": 4, "consume_per_second": None}
    assert only(rows(hot, late, *others, unknown))["skew_kind"] == kind


def test_two_hot_queues_of_four_are_hot() -> None:
    hot = {"lag": 1000, "produce_per_second": 12.0, "is_lagging": True}
    cold = {"lag": 0, "produce_per_second": 0.1, "member": 1}
    assert (
        only(rows(hot | {"member": 2}, cold, hot | {"lag": 5000, "member": 3}, cold))["skew_kind"]
        == "hot_queue"
    )


def test_a_hot_queue_that_keeps_up_is_no_skew_of_lag() -> None:
    hot = {"lag": 10, "produce_per_second": 30.0}
    row = only(rows(hot, *({"lag": 10, "produce_per_second": 1.0} for _ in range(9))))
    assert row["skew_kind"] is None
    assert row["top_share"] == pytest.approx(30 / 39)


def test_ticks_and_pairs_are_apart() -> None:
    later = TICK.replace(minute=1)
    table = pa.concat_tables(
        [
            rows({"lag": 1}, {"lag": 2}, pair=9, tick=later),
            rows({"lag": 1}, {"lag": 4}, pair=9),
            rows({"lag": 1}, {"lag": 3}, pair=-4),
        ]
    )
    found = [(row["tick"], row["pair_id"], row["skew"]) for row in skew(table).to_pylist()]
    assert found == [(TICK, -4, 3.0), (TICK, 9, 4.0), (later, 9, 2.0)]


def test_no_rows_make_no_rows() -> None:
    assert skew(rows().slice(0, 0)) == SKEW.empty_table()
