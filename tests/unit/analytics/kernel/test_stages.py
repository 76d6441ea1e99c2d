from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from analytics.kernel.stages import split
from analytics.schema import STAGES
from tests.unit.analytics.kernel.made_rows import at, logs, pairs

BEFORE = at(-1)
AGES = pa.schema(
    [
        ("tick", STAGES.field("tick").type),
        ("pair_id", pa.int64()),
        ("lag_sum", pa.int64()),
        ("age_max_seconds", pa.float64()),
        ("skew_kind", pa.string()),
    ]
)


def delayed(
    second: float, replication: float, dispatch: float, delivery: float, processing: float
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A pair, its log and its age at a tick, with these delays and one idle second."""
    tick = at(second)
    newest = second - 1.0
    confirmed = newest - replication
    dispatched = confirmed - dispatch
    delivered = dispatched - delivery
    committed = delivered - processing
    log = {
        "tick": tick,
        "t_max": at(newest),
        "t_confirm": at(confirmed),
        "t_dispatched": at(dispatched),
    }
    pair = {
        "tick": tick,
        "oldest_undelivered_ts": at(delivered),
        "oldest_uncommitted_ts": at(committed),
    }
    behind = delivery + processing > 0
    age = {
        "tick": tick,
        "pair_id": 1,
        "lag_sum": 10 if behind else 0,
        "age_max_seconds": second - committed if behind else 0.0,
    }
    return pair, log, age


def stages(
    *made: tuple[dict[str, Any], dict[str, Any], dict[str, Any]],
    after: datetime = BEFORE,
    more_of_pair: dict[str, Any] | None = None,
    more_of_log: dict[str, Any] | None = None,
    skew_kind: str | None = None,
) -> list[dict[str, Any]]:
    found = split(
        pairs(*(pair | (more_of_pair or {}) for pair, _, _ in made)),
        logs(*(log | (more_of_log or {}) for _, log, _ in made)),
        pa.Table.from_pylist([age | {"skew_kind": skew_kind} for _, _, age in made], schema=AGES),
        period_s=15.0,
        after=after,
    )
    assert found.schema == STAGES
    return [dict(row) for row in found.to_pylist()]


def steady(*delays: float, ticks: int = 4) -> list[Any]:
    return [delayed(15 * tick, *delays) for tick in range(ticks)]


def test_delays_of_one_to_four_seconds_are_the_four_terms() -> None:
    last = stages(*steady(1, 2, 3, 4))[-1]
    terms = [last[f"{stage}_seconds"] for stage in ("replication", "dispatch", "delivery")]
    assert terms == pytest.approx([1, 2, 3])
    assert last["processing_seconds"] == pytest.approx(4)
    assert last["idle_seconds"] == pytest.approx(1)
    assert last["residual_seconds"] == pytest.approx(0, abs=1e-6)
    assert last["blamed"] == "processing"
    assert last["confidence"] == pytest.approx(0.4)


def test_two_equal_stages_are_mixed_when_neither_is_half() -> None:
    last = stages(*steady(0.5, 10, 0.5, 10))[-1]
    assert last["blamed"] == "mixed"
    assert last["confidence"] == round(10 / 21, 3)


def test_a_short_delay_blames_no_stage() -> None:
    last = stages(*steady(0.1, 0.2, 0.1, 0.3))[-1]
    assert (last["blamed"], last["confidence"]) == (None, None)


def test_a_quarter_of_the_objective_is_what_counts() -> None:
    below = stages(*steady(0, 0, 0, 9.9), more_of_pair={"objective_seconds": 40.0})[-1]
    above = stages(*steady(0, 0, 0, 10), more_of_pair={"objective_seconds": 40.0})[-1]
    assert (below["blamed"], above["blamed"]) == (None, "processing")


def test_blame_needs_three_of_the_last_four_ticks() -> None:
    shape = [0, 9, 9, 9, 0, 0, 0]
    made = [delayed(15 * tick, 0, 0, 0, delay) for tick, delay in enumerate(shape)]
    blamed = [row["blamed"] for row in stages(*made)]
    assert blamed == [None, None, None, "processing", "processing", None, None]


def test_ticks_that_are_missing_do_not_agree() -> None:
    made = steady(0, 0, 0, 9, ticks=4)
    assert stages(*made[:1], *made[2:])[-1]["blamed"] == "processing"
    assert stages(*made[:1], *made[3:])[-1]["blamed"] is None


def test_the_blame_is_the_same_however_time_is_cut() -> None:
    shape = [0, 9, 9, 1, 9, 0, 9, 9, 9, 0, 0, 9]
    made = [delayed(15 * tick, 0, delay, 0, 2) for tick, delay in enumerate(shape)]
    whole = stages(*made)
    cut = [
        stages(*made[max(0, tick - 3) : tick + 1], after=at(15 * tick - 1)) for tick in range(12)
    ]
    assert [row for (row,) in cut] == whole


def test_an_age_that_is_not_the_sum_is_shown_as_what_is_missing() -> None:
    pair, log, age = delayed(0, 1, 1, 1, 1)
    (row,) = stages((pair, log, age | {"age_max_seconds": age["age_max_seconds"] + 20}))
    assert row["residual_seconds"] == pytest.approx(20)
    assert row["detail"] == "age and stages differ by 20 s: the data contradict"


def test_store_times_that_run_backwards_make_no_negative_delay() -> None:
    pair, log, age = delayed(0, 0, 0, 0, 5)
    (row,) = stages((pair, log | {"t_confirm": at(30)}, age))
    assert row["replication_seconds"] == 0
    assert row["processing_seconds"] == pytest.approx(5)


def test_a_lag_of_zero_with_uncommitted_messages_is_a_contradiction() -> None:
    pair, log, age = delayed(0, 0, 0, 0, 20)
    (row,) = stages((pair, log, age | {"lag_sum": 0, "age_max_seconds": 0.0}))
    assert row["residual_seconds"] == pytest.approx(-20)


def test_a_log_that_is_not_known_leaves_what_needs_it_unknown() -> None:
    pair, _, age = delayed(0, 1, 1, 1, 1)
    found = split(
        pairs(pair),
        logs({"tick": at(15), "t_max": at(0)}, {"tick": at(0), "replica": "n1", "t_max": at(0)}),
        pa.Table.from_pylist([age], schema=AGES),
        period_s=15.0,
        after=BEFORE,
    )
    (row,) = found.to_pylist()
    unknown = ("replication_seconds", "dispatch_seconds", "delivery_seconds", "idle_seconds")
    assert [row[name] for name in unknown] == [None] * 4
    assert row["blamed"] is None
    assert row["residual_seconds"] is None


def test_no_logs_and_no_ages_are_unknown_too() -> None:
    pair, _, _ = delayed(0, 1, 1, 1, 1)
    found = split(pairs(pair), logs(), AGES.empty_table(), period_s=15.0, after=BEFORE)
    assert found.column("replication_seconds").to_pylist() == [None]


def test_no_pairs_make_no_rows() -> None:
    found = split(pairs(), logs(), AGES.empty_table(), period_s=15.0, after=BEFORE)
    assert found == STAGES.empty_table()


def test_producers_that_wait_blame_append_when_nothing_else_is_slow() -> None:
    waits = {"put_wait_seconds": 2.0}
    assert stages(*steady(0, 0, 0, 0.1), more_of_log=waits)[-1]["blamed"] == "append"
    assert stages(*steady(0, 0, 0, 9), more_of_log=waits)[-1]["blamed"] == "processing"
    row = stages(*steady(0, 0, 0, 0), more_of_log=waits)[-1]
    assert row["detail"] == "a send request has waited 2 s"


@pytest.mark.parametrize(
    ("delays", "pair", "log", "kind", "detail"),
    [
        (
            # It dies of the message, and is not there at some samples.
            (0, 0, 0, 9),
            {"members": 0},
            {},
            "poison_message",
            "one message is delivered again and again",
        ),
        ((0, 0, 9, 0), {"members": 0}, {}, None, "no member is there to ask"),
        # The member reads other topics of the group; it was said not to ask.
        ((0, 0, 9, 0), {"members": 1, "subscribed": False}, {}, None, "no member is there to ask"),
        ((0, 0, 9, 0), {"members": 2}, {"pulls_queued": 7}, None, "7 pulls wait in the broker"),
        (
            (0, 0, 9, 0),
            {"members": 2},
            {"pulls_queued": 0, "long_polls": 0},
            None,
            "no pull is open: members do not ask",
        ),
        ((0, 0, 9, 0), {"members": 2}, {"pulls_queued": 0, "long_polls": 3}, None, None),
        (
            (0, 0, 0, 9),
            {"members": 2, "inflight": 30},
            {},
            "poison_message",
            "one message is delivered again and again",
        ),
        ((0, 0, 0, 9), {"members": 2, "inflight": 30}, {}, None, "30 messages are in flight"),
        (
            (0, 0, 0, 9),
            {"members": 0, "inflight": 30},
            {},
            "hot_queue",
            "no member is there to finish what it took",
        ),
        ((0, 9, 0, 0), {"members": 2, "inflight": 30}, {}, "hot_queue", None),
    ],
)
def test_details_have_what_is_known_beyond_the_delay(
    delays: tuple[float, ...],
    pair: dict[str, Any],
    log: dict[str, Any],
    kind: str | None,
    detail: str | None,
) -> None:
    last = stages(*steady(*delays), more_of_pair=pair, more_of_log=log, skew_kind=kind)[-1]
    assert last["detail"] == detail


def test_repeated_deliveries_are_named_unless_the_process_began_anew() -> None:
    made = [
        (pair | {"redelivered_total": 5 * number}, log, age)
        for number, (pair, log, age) in enumerate(steady(0, 0, 0, 9))
    ]
    assert stages(*made)[-1]["detail"] == "5 deliveries since were repeated"
    pair, log, age = made[-1]
    restarted = (pair, log | {"up_since": at(40)}, age)
    assert stages(*made[:-1], restarted)[-1]["detail"] is None


def test_of_two_nodes_that_speak_at_a_tick_the_later_one_counts() -> None:
    pair, log, age = delayed(0, 0, 0, 0, 9)
    other = pair | {"ts": at(1), "replica": "n1", "oldest_uncommitted_ts": at(-2)}
    found = split(
        pairs(other, pair),
        logs(log, log | {"replica": "n1"}),
        pa.Table.from_pylist([age], schema=AGES),
        period_s=15.0,
        after=BEFORE,
    )
    assert found.column("processing_seconds").to_pylist() == pytest.approx([1])


def test_delivery_ends_at_the_oldest_message_that_awaits_it() -> None:
    """A hung handler: nothing more is fetched, and what waits in the broker waits for it."""
    made = [
        ({**pair, "awaiting_delivery_ts": log["t_dispatched"]}, log, age)
        for pair, log, age in steady(0, 0, 600, 5)
    ]
    last = stages(*made)[-1]
    assert (last["delivery_seconds"], last["processing_seconds"]) == (0, 605)
    assert last["blamed"] == "processing"
    of_before = stages(*steady(0, 0, 600, 5))[-1]
    assert (of_before["delivery_seconds"], of_before["blamed"]) == (600, "delivery")
