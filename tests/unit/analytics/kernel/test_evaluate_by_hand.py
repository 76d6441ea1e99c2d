"""One queue, a few samples, and what must come out of each: rates, ages, events, statuses."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analytics.kernel.age import Age
from analytics.kernel.evaluate import evaluate
from analytics.kernel.progress import recovery_of
from analytics.kernel.rules import Rules
from analytics.schema import SERIES
from tests.truth.steps import moment
from tests.unit.analytics.kernel.positions_by_hand import (
    NAMES,
    PAIR,
    SERIES_ID,
    START,
    column,
    facts,
    judged,
    row,
    table,
    tick,
    window,
)


def late(number: int, *, commit: int = 100, age: float | None = None, **more: Any) -> Any:
    """A sample at a queue with a backlog that grows by ten messages a second."""
    head = 90.0 + 15 * number if age is None else age
    return row(number, 1_000 + 150 * number, commit, age=head, **more)


def skip(*, by_request: bool) -> Any:
    """A reset by 500 messages, between the first sample and the second."""
    at = {"ts": tick(0) + 9_000_000, "tick": tick(0), "kind": "reset_forward"}
    return {**at, "from_offset": 100, "to_offset": 600, "by_request": by_request}


def by_ages(ages: list[float]) -> list[Any]:
    """Samples of a group with these ages, where ten messages a second come."""
    commits = np.maximum.accumulate([max(0, round(150 * n - 10 * a)) for n, a in enumerate(ages)])
    given = enumerate(zip(commits, ages, strict=True))
    return [row(n, 150 * n, int(commit), age=age) for n, (commit, age) in given]


def by_steps(ages: list[float]) -> list[Any]:
    """As `by_ages`, but a commit may go back."""
    given = enumerate(ages)
    return [row(n, 10_000 + 150 * n, round(10_000 + 150 * n - 10 * a), age=a) for n, a in given]


def number(at: Any) -> int:
    """The number of a tick."""
    return int(np.rint((at.timestamp() - START / 1e6) / 15 - 1))


def heard(found: pa.Table) -> dict[int, str]:
    """The status at each sample that was heard of, by its number."""
    rows = found.to_pylist()
    return {number(each["tick"]): each["status"] for each in rows if each["ts"] is not None}


def retained() -> list[Any]:
    """Rows of the log at forty samples: retention keeps 900 s, and has deleted something."""
    kept = {"min_physical_offset": 512}
    return [
        {"ts": tick(n), "tick": tick(n), "t_min": tick(n) - 900_000_000, **kept} for n in range(40)
    ]


def test_rates_use_the_true_times_of_samples() -> None:
    rows = [row(0, 100, 100), {**row(1, 130, 115, age=1), "ts": tick(1) + 5_200_000}]
    rates = judged(window(rows), 2).rates.to_pylist()
    assert len(rates) == 1
    assert rates[0]["dt_seconds"] == 20.0
    assert (rates[0]["produced"], rates[0]["consumed"]) == (30, 15)
    pair = judged(window(rows), 2).pair_lag.to_pylist()[-1]
    assert (pair["produce_per_second"], pair["consume_per_second"]) == (1.5, 0.75)


def test_a_sample_that_is_shown_again_at_the_next_tick_counts_once() -> None:
    rows = [row(0, 100, 100), {**row(1, 100, 100), "ts": tick(0) + 200_000}]
    done = judged(window(rows), 2)
    assert done.rates.num_rows == 0
    assert column(done.lag, "ts") == column(judged(window(rows[:1]), 1).lag, "ts")


def test_a_hole_in_the_ticks_loses_no_count() -> None:
    rows = [row(0, 100, 90, age=1), row(9, 400, 390, age=1)]
    rates = judged(window(rows), 10).rates.to_pylist()
    assert [(each["produced"], each["consumed"]) for each in rates] == [(300, 300)]
    assert rates[0]["dt_seconds"] == 135.0


def test_a_new_epoch_cuts_and_a_lower_end_is_reported_once() -> None:
    rows = [row(0, 100, 60, age=1), row(1, 63, 60, age=1, epoch=2), row(2, 80, 70, age=1, epoch=2)]
    done = judged(window(rows), 3)
    assert column(done.rates, "produced") == [None, 17]
    assert column(done.pair_lag, "produce_per_second")[1] is None
    events = [(e["kind"], e["from_offset"], e["to_offset"]) for e in done.offset_events.to_pylist()]
    assert events == [("truncate", 100, 63)]
    assert column(done.rates, "segment")[0] == column(done.rates, "tick")[0]


def test_an_event_takes_its_messages_out_of_what_was_consumed() -> None:
    rows = [row(0, 1_000, 100, age=1), row(1, 1_010, 610, age=1)]
    done = judged(window(rows, events=[skip(by_request=True)]), 2)
    assert column(done.rates, "consumed") == [10]
    assert column(done.pair_lag, "consume_per_second")[-1] is None
    # What was handed in is not handed back.
    assert done.offset_events.num_rows == 0
    assert "ticket" not in column(done.status_changes, "level")


def test_an_event_after_the_last_sample_is_shown_by_the_next_call() -> None:
    event = skip(by_request=False)
    first = judged(window([row(0, 1_000, 100, age=1)], events=[event]), 1)
    both = window([row(0, 1_000, 100, age=1), row(1, 1_010, 610, age=1)], events=[event])
    second = evaluate(both, Rules(), first.state, moment(tick(0)), moment(tick(1)))
    assert column(second.rates, "consumed") == [10]
    assert column(second.status_changes, "level").count("ticket") == 1


def test_a_commit_that_goes_back_a_little_is_a_rebalance_and_no_ticket() -> None:
    rows = [row(n, 100 * n + 100, 100 * n + 100) for n in range(20)]
    rows.append(row(20, 2_100, 1_800, age=20))
    done = judged(window(rows), 21)
    assert column(done.offset_events, "kind") == ["rewind"]
    assert column(done.rates, "consumed")[-1] is None
    assert done.status_changes.num_rows == 0


def test_messages_that_retention_took_are_skipped_and_not_consumed() -> None:
    rows = [
        row(0, 1_000, 100, age=30),
        row(1, 1_000, 150, age=30, min_offset=400),  # 50 read, 250 deleted
        row(2, 1_000, 150, age=30, min_offset=450),  # 50 more deleted
        row(3, 1_000, 900, age=30, min_offset=500),  # 50 more, then 400 read
    ]
    done = judged(window(rows), 4)
    assert column(done.lag, "lost") == [0, 250, 300, 0]
    assert column(done.lag, "lag") == [900, 600, 550, 100]
    assert column(done.rates, "consumed") == [50, 0, 400]
    events = [(e["kind"], e["from_offset"], e["to_offset"]) for e in done.offset_events.to_pylist()]
    assert events == [("expire", 150, 400), ("expire", 400, 450), ("expire", 450, 500)]
    assert column(done.lag, "status")[1] == "LOST"


def test_an_unknown_head_lies_between_the_samples_that_saw_its_end_come() -> None:
    rows = [row(n, 100 * n, 0 if n < 5 else 250) for n in range(6)]
    found = judged(window(rows), 6).lag.to_pylist()[-1]
    # Message 250 came between sample 2 (end 200) and sample 3 (end 300), which are 45 and 30 s ago.
    assert (found["age_method"], found["age_low_seconds"], found["age_high_seconds"]) == (
        "interpolated",
        30.0,
        45.0,
    )
    assert found["age_seconds"] == pytest.approx(45 - 15 * 0.505)


def test_a_head_older_than_all_samples_is_at_least_so_old() -> None:
    rows = [row(n, 1_000 + n, 5) for n in range(10)]
    found = judged(window(rows), 10).lag.to_pylist()[-1]
    assert (found["age_method"], found["age_seconds"]) == ("bounded", 135.0)
    assert found["age_high_seconds"] is None
    assert found["progress"] is None


def test_a_head_that_was_exported_once_keeps_its_store_time() -> None:
    rows = [row(0, 1_000, 5, age=500), row(1, 1_010, 5), row(2, 1_020, 6)]
    found = judged(window(rows), 3).lag.to_pylist()
    assert [each["age_method"] for each in found] == ["exact", "exact", "bounded"]
    assert found[1]["age_seconds"] == 515.0


def test_a_store_time_after_the_sample_is_no_negative_age() -> None:
    found = judged(window([row(0, 10, 5, age=-3)]), 1).lag.to_pylist()[0]
    assert (found["age_seconds"], found["age_low_seconds"]) == (0.0, None)


def test_one_outlier_does_not_change_progress() -> None:
    rows = [late(n, commit=n, age=2_000 if n != 15 else 9_000) for n in range(20)]
    assert column(judged(window(rows), 20).lag, "progress")[-1] == pytest.approx(1.0)


def test_half_a_window_is_needed_for_progress() -> None:
    rows = [late(n, commit=n) for n in range(20)]
    progress = column(judged(window(rows), 20).lag, "progress")
    assert [each is None for each in progress].count(True) == 9
    # Three samples in the window are enough, two are not.
    few = [late(n, commit=n) for n in range(0, 60, 9)]
    assert set(column(judged(window(few), 60).lag, "progress")) == {None, 0.0}
    few = [late(n, commit=n) for n in range(0, 60, 12)]
    assert set(column(judged(window(few), 60).lag, "progress")) == {None}


def test_statuses_come_and_go_in_their_time() -> None:
    fine = [row(n, 100 * n, 100 * n) for n in range(20)]
    stuck = [row(n, 100 * n, 1_900, age=15.0 * (n - 19)) for n in range(20, 40)]
    again = [row(n, 100 * n, 100 * n) for n in range(40, 50)]
    changes = judged(window([*fine, *stuck, *again]), 50).status_changes.to_pylist()
    series = [each for each in changes if each["series_id"] is not None]
    changes = [(each["status_from"], each["status_to"], each["level"]) for each in series]
    assert changes == [("OK", "STALLED", "page"), ("STALLED", "OK", "none")]
    # More than 60 s old at the fifth sample, on two ticks; fine on four ticks.
    seconds = [number(each["tick"]) for each in series]
    assert seconds == [19 + 6, 40 + 3]
    assert series[1]["previous_seconds"] == (43 - 25) * 15


def test_a_group_without_members_is_stopped_only_after_the_grace_time() -> None:
    rows = [late(n, commit=5 * n if n < 4 else 20, age=max(1.0, 15.0 * (n - 3))) for n in range(20)]
    pairs = [facts(n, members=1 if n < 4 else 0, subscribed=n < 4) for n in range(20)]
    status = column(judged(window(rows, pairs), 20).lag, "status")
    # Alone since tick 4: 120 s later for the first time, 135 s for the second.
    assert status.index("STOPPED") == 4 + 9
    assert "STALLED" not in status
    assert "FALLING_BEHIND" not in status


def test_an_absence_excuses_no_age_that_was_there_before_it() -> None:
    rows = [late(n, commit=5 * n if n < 4 else 20, age=70.0 + 15 * n) for n in range(20)]
    pairs = [facts(n, members=1 if n < 4 else 0, subscribed=n < 4) for n in range(20)]
    status = column(judged(window(rows, pairs), 20).lag, "status")
    # Nothing is committed from tick 4 on: 60 s later for the first time, 75 s for the second.
    assert status.index("STALLED") == 4 + 5


def test_members_that_come_and_go_take_no_evidence_back() -> None:
    rows = [late(n, commit=20, age=15.0 * n) for n in range(40)]
    pairs = [facts(n, members=n % 2, subscribed=n % 2 == 1) for n in range(40)]
    status = column(judged(window(rows, pairs), 40).lag, "status")
    # Too old since tick 5; with members seen and gone, and nothing ever committed, since tick 8.
    assert status.index("STALLED") == 9
    assert set(status[9:]) == {"STALLED"}


def test_a_reader_that_comes_and_goes_beside_members_of_other_topics_is_found() -> None:
    rows = [late(n, commit=20, age=15.0 * n) for n in range(40)]
    pairs = [facts(n, members=1 + n % 2, subscribed=n % 2 == 1) for n in range(40)]
    status = column(judged(window(rows, pairs), 40).lag, "status")
    # As without the other member, once a reader has left late: the one of tick 5.
    assert status.index("STALLED") == 9
    assert set(status[9:]) == {"STALLED"}


@pytest.mark.parametrize(("age", "status"), [(10.0, "ABANDONED"), (75.0, "STOPPED")])
def test_a_topic_is_abandoned_at_once_if_its_readers_left_in_time(age: float, status: str) -> None:
    rows = [late(n, commit=20, age=age + 15.0 * n) for n in range(40)]
    pairs = [facts(n, members=2, subscribed=n < 2) for n in range(40)]
    found = column(judged(window(rows, pairs), 40).lag, "status")
    assert found[-1] == status
    assert ("ABANDONED" in found) == (status == "ABANDONED")


def test_a_group_that_goes_back_at_each_restart_is_falling_behind() -> None:
    # Each run begins at one old offset, gains 15 s in 45 s, and crashes.
    ages = [1.0] * 10 + [15.0 * n - 20 * (n % 4) for n in range(1, 90)]
    commits = [150 * n for n in range(10)] + [1_350 + 200 * (n % 4) for n in range(1, 90)]
    given = enumerate(zip(commits, ages, strict=True))
    rows = [row(n, 1_500 + 150 * n, commit, age=age) for n, (commit, age) in given]
    found = judged(window(rows), 99)
    status = column(found.lag, "status")
    # A restart explains 195 s; the age exceeds its last peak above that twice within two rounds.
    assert "FALLING_BEHIND" in status[10 + 13 : 10 + 13 + 3 * 4]
    assert set(status[10 + 13 + 3 * 4 :]) == {"FALLING_BEHIND"}


def test_a_group_that_goes_back_between_two_samples_is_falling_behind() -> None:
    # It crashes twice in each period. Its age rises at each sample, and every other one finds a
    # commit below that of the one before, by 20 messages. It was CATCHING_UP for an hour.
    ages = [2.0] * 40 + [15.0 * n - 2 * (n % 2) for n in range(1, 60)]
    status = column(judged(window(by_steps(ages)), len(ages)).lag, "status")
    assert set(status[:40]) == {"OK"}
    assert set(status[60:]) == {"FALLING_BEHIND"}


def test_a_rebalance_while_a_group_catches_up_is_no_relapse() -> None:
    ages = [600.0 - 10 * n + (60 if n >= 20 else 0) + (60 if n >= 40 else 0) for n in range(60)]
    found = column(judged(window(by_steps(ages)), 60).lag, "status")
    assert not {"FALLING_BEHIND", "LAGGING", "STALLED"} & set(found)


def test_what_held_before_a_hole_holds_after_it() -> None:
    there = [*range(16), *range(30, 34), *range(40, 43)]
    rows = [late(n, commit=20, age=15.0 * n) for n in there]
    pairs = [facts(n, members=0, subscribed=False) for n in there]
    pairs[0] = facts(0, members=1, subscribed=True)
    found = judged(window(rows, pairs), 43).lag
    assert list(heard(found).values())[-8:] == ["STOPPED"] * 8


@pytest.mark.parametrize(
    ("more", "pair", "status", "reason"),
    [
        ({"commit": None, "reason": "never_committed"}, {}, "UNKNOWN", "never_committed"),
        ({"high": None, "reason": "not_exported"}, {}, "UNKNOWN", "not_exported"),
        ({"high": None}, {}, "UNKNOWN", "offsets_unknown"),
        ({}, {"broadcasting": True}, "UNKNOWN", "broadcasting"),
        ({}, {"paused": True}, "PAUSED", None),
        ({}, {"paused": True, "subscribed": False, "members": 0}, "PAUSED", None),
        ({}, {"subscribed": False, "members": 0}, "ABANDONED", None),
        ({}, {"subscribed": False, "members": 2}, "ABANDONED", None),
        ({"high": 5}, {"subscribed": True}, "OK", None),
        ({"commit": 990, "age": 10.0}, {"members": None}, "OK", None),
        ({"age": 70.0}, {"objective_seconds": 80.0}, "OK", None),
    ],
)
def test_the_status_of_a_first_sample(
    more: dict[str, Any], pair: dict[str, Any], status: str, reason: str | None
) -> None:
    sample = {"high": 1_000, "commit": 5, "age": 100.0, **more}
    rows = [row(0, sample.pop("high"), sample.pop("commit"), **sample)]
    found = judged(window(rows, [facts(0, **pair)]), 1)
    lag = found.lag.to_pylist()[0]
    assert (lag["status"], lag["reason"]) == (status, reason)
    assert column(found.pair_lag, "status") == [status]
    assert not {"ticket", "page"} & set(column(found.status_changes, "level"))
    if status == "UNKNOWN" and reason != "settling":
        assert (lag["lag"], lag["age_seconds"], lag["evidence"]) == (None, None, None)


def test_a_group_that_goes_on_after_a_pause_is_not_stopped_nor_stalled_by_the_pause() -> None:
    # The first sample after a pause once counted all of it as time without members and commits.
    rows = [late(n, commit=20, age=15.0 * n) for n in range(40)]
    pairs = [facts(n, members=0, subscribed=False, paused=n < 20) for n in range(40)]
    pairs[0] = facts(0, paused=True)
    status = column(judged(window(rows, pairs), 40).lag, "status")
    assert set(status[:20]) == {"PAUSED"}
    assert "STOPPED" not in status[:27]
    assert status[-1] == "STOPPED", "it stays away"


def test_a_group_that_reads_on_after_a_pause_is_not_falling_behind() -> None:
    # It was paused for 450 s, commits for the first time at the second sample behind that and reads
    # at 1.25 times the pace. Its age is lower than a minute ago from the fifth sample on.
    def statuses(pace: float) -> list[str]:
        ages = [2.0] * 30 + [15.0 * n for n in range(1, 32)]
        ages += [465.0 + 15 * (1 - pace) * n for n in range(1, 40)]
        rows = [
            row(n, 150 * n + 900, round(150 * n + 900 - 10 * a), age=a) for n, a in enumerate(ages)
        ]
        pairs = [facts(n, paused=30 <= n < 60) for n in range(len(ages))]
        return column(judged(window(rows, pairs), len(ages)).lag, "status")[60:]

    assert "FALLING_BEHIND" not in statuses(1.25)
    assert statuses(1.25)[-1] == "CATCHING_UP"
    # One that reads too little is found.
    assert "FALLING_BEHIND" in statuses(0.3)[:15]


def test_a_commit_beyond_the_end_is_no_ok() -> None:
    rows = [row(n, 100, 105) for n in range(4)]
    found = judged(window(rows), 4).lag
    assert column(found, "status")[1:] == ["AHEAD"] * 3
    assert column(found, "lag") == [0] * 4
    assert column(found, "ahead") == [5] * 4


def test_silence_is_reported_from_the_third_tick_on_with_its_cause() -> None:
    rows = [row(n, 100, 100) for n in (0, 1, 2, 8)]
    gap = {
        "source": "prometheus",
        "subject": "127.0.0.1:1",
        "from_ts": tick(2) + 1_000_000,
        "to_ts": tick(8) - 1,
        "reason": "unreachable",
        "detail": "",
    }
    found = judged(window(rows, gaps=[gap]), 12)
    numbers = [number(t) for t in column(found.lag, "tick")]
    assert numbers == [0, 1, 2, 5, 6, 7, 8, 11]
    assert column(found.lag, "reason")[3:6] == ["no_snapshot: unreachable"] * 3
    assert column(found.lag, "reason")[-1] == "no_snapshot"
    assert column(found.lag, "status") == ["OK"] * 3 + ["UNKNOWN"] * 3 + ["OK", "UNKNOWN"]
    assert "has sent no snapshot since" in column(found.pair_lag, "cause")[3]
    assert set(column(found.status_changes, "level")) == {"none", "unknown"}
    # The collector's own silence is not the broker's.
    unscraped = judged(window(rows, gaps=[{**gap, "reason": "unscraped"}]), 12).pair_lag
    assert column(unscraped, "cause")[3].startswith("broker g0 was not scraped since ")
    assert "has sent no snapshot since" in column(unscraped, "cause")[-1]


def test_a_broker_that_answers_is_not_reported_as_one_without_a_snapshot() -> None:
    """Its snapshot stands still from the third tick on: the tables have it again and again."""
    rows = [row(n, 100, 100) for n in range(3)]
    rows += [{**row(n, 100, 100), "ts": rows[2]["ts"]} for n in range(3, 12)]
    logs = [{"ts": tick(n), "tick": tick(n), "clock_seconds": -0.1} for n in range(12)]
    found = judged(window(rows, logs=logs), 12)
    assert column(found.lag, "status") == ["OK"] * 3 + ["UNKNOWN"] * 7
    assert set(column(found.lag, "reason")[3:]) == {"nothing_new"}
    cause = column(found.pair_lag, "cause")[-1]
    assert cause.startswith("broker g0 answers and has reported nothing new of it since ")


def test_a_clock_that_is_off_is_named_and_changes_no_number() -> None:
    rows = [row(n, 100, 90, age=2.0) for n in range(4)]
    off = [{**each, "ts": each["ts"] - 600_000_000} for each in rows]
    for each in off:
        each["head_store_ts"] -= 600_000_000
    logs = [{"ts": tick(n), "tick": tick(n), "clock_seconds": -600.1} for n in range(4)]
    found, usual = judged(window(off, logs=logs), 4), judged(window(rows), 4)
    for name in ("status", "age_seconds", "lag", "reason"):
        assert column(found.lag, name) == column(usual.lag, name)
    assert column(found.pair_lag, "cause") == ["the clock of broker g0 is 600 s behind"] * 4


def test_retention_that_will_be_there_first_is_racing() -> None:
    rows = [late(n, commit=10 * n, age=800.0 + 3 * n, min_offset=1) for n in range(20)]
    assert column(judged(window(rows, logs=retained()), 20).lag, "status")[-1] == "RACING"
    never = [{**each, "min_physical_offset": 0} for each in retained()]
    assert column(judged(window(rows, logs=never), 20).lag, "status")[-1] == "FALLING_BEHIND"


def test_a_group_that_gains_on_retention_is_not_racing_however_long_it_takes() -> None:
    # 500 s of what retention keeps for 900 s, read at 1.3 times the pace: it lasts for half an hour
    # and loses nothing. It was RACING until the age was below 200 s.
    rows = [row(n, 10_000 + 150 * n, 195 * n, age=500.0 - 4.5 * n, min_offset=1) for n in range(40)]
    status = column(judged(window(rows, logs=retained()), 40).lag, "status")
    assert "RACING" not in status
    assert set(status[20:]) == {"CATCHING_UP"}


def test_drain_times_by_age_and_by_count_agree_at_a_constant_rate() -> None:
    # 10 messages/s come, 20 are read: progress 2, and 1,800 s of backlog last 1,800 s.
    rows = [row(n, 18_000 + 150 * n, 300 * n, age=1_800.0 - 15 * n) for n in range(60)]
    found = judged(window(rows), 60).pair_lag.to_pylist()
    assert found[10]["drain_p50_seconds"] is None
    last = found[-1]
    assert last["drain_method"] == "time"
    for name in ("drain_p10_seconds", "drain_p50_seconds", "drain_p90_seconds"):
        assert last[name] == pytest.approx(last["age_max_seconds"], rel=1e-6)


def test_what_never_drains_lasts_for_ever_and_a_dense_backlog_is_counted() -> None:
    stuck = [late(n) for n in range(40)]
    assert column(judged(window(stuck), 40).pair_lag, "drain_p50_seconds")[-1] == math.inf
    # The backlog holds ten times as many messages per second of stored time as come now.
    dense = [row(n, 100_000 + 15 * n, 300 * n, age=3_000.0 - 15 * n) for n in range(60)]
    last = judged(window(dense), 60).pair_lag.to_pylist()[-1]
    assert last["drain_method"] == "count"
    assert last["drain_p50_seconds"] == pytest.approx(last["lag_sum"] / 19, rel=6e-3)


def test_evidence_lets_a_status_be_judged_again() -> None:
    rows = [late(n, commit=n) for n in range(20)]
    last = judged(window(rows), 20).lag.to_pylist()[-1]
    assert last["status"] == "FALLING_BEHIND"
    assert json.loads(last["evidence"]) == {
        "rule": "10",
        "age_seconds": 375.0,
        "objective_seconds": 60,
        "lag": 3831,
        "progress": 0,
    }


def stairs(samples: int, stops_at: int = 10_000) -> list[Any]:
    """A group that is 2 s behind whenever it commits, which it does every eighth sample."""
    rows, committed, since = [], 0, 0
    for number in range(samples):
        if number % 8 == 0 and number < stops_at:
            committed, since = 150 * number - 20, number
        rows.append(row(number, 150 * number, max(committed, 0), age=2.0 + 15 * (number - since)))
    return rows


def test_a_group_that_commits_every_two_minutes_is_late_only_when_a_commit_is_overdue() -> None:
    fine = judged(window(stairs(120)), 120)
    assert set(column(fine.lag, "status")[40:]) == {"OK"}
    assert max(column(fine.lag, "age_seconds")) > 100
    stuck = judged(window(stairs(120, stops_at=80)), 120)
    changes = [each for each in stuck.status_changes.to_pylist() if each["series_id"] is not None]
    # The first two gaps are needed to learn what is usual.
    changes = [each for each in changes if each["tick"] > moment(tick(40))]
    numbers = [number(each["tick"]) for each in changes]
    assert [each["status_to"] for each in changes] == ["FALLING_BEHIND", "STALLED"]
    # The last commit was at sample 72, the next was due at sample 80.
    assert 80 < numbers[0] <= 80 + 9
    assert numbers[1] * 15 >= 72 * 15 + 4 * 120


def test_a_consumer_that_hangs_in_a_hole_is_late_a_minute_behind_it() -> None:
    # It commits every 45 s, so its stall time is 180 s. It commits for the last time in a hole of
    # five minutes; only the samples after the hole show that it hangs. It was UNKNOWN for
    # the stall time and half a minute, with an age beyond the objective at every sample.
    fine = [row(n, 150 * n, 150 * (n - n % 3), age=2.0 + 15 * (n % 3)) for n in range(60)]
    hung = [row(n, 150 * n, 9_300, age=200.0 + 15 * (n - 80)) for n in range(80, 110)]
    found = judged(window([*fine, *hung]), 110).lag
    status = heard(found)
    assert status[59] == "OK"
    assert [status[n] for n in range(80, 84)] == ["UNKNOWN"] * 4
    assert status[84] == "FALLING_BEHIND"
    assert status[80 + 12 + 1] == "STALLED"
    # One that reads on behind the hole is never called late.
    reads = [row(n, 150 * n, 150 * (n - 13), age=200.0 - 12 * (n - 80)) for n in range(80, 95)]
    found = judged(window([*fine, *reads]), 95).lag
    assert set(column(found, "status")) <= {"OK", "UNKNOWN", "CATCHING_UP"}


@pytest.mark.parametrize(
    ("pace", "recovers"), [(3.0, True), (2.5, True), (1.0, False), (0.5, False)]
)
def test_an_age_recovers_although_not_each_sample_sees_a_commit(
    pace: float, recovers: bool
) -> None:
    # Samples every 5 s, commits every 11 s: at every other sample the age has risen. A group that
    # came back from half an hour's absence stayed STOPPED for two minutes, its members at work.
    rules = Rules(period_s=5.0)
    samples = np.arange(0.0, 300.0, 5.0)
    committed = samples - samples % 11.0
    ages = (1_000.0 + samples - pace * committed)[:, None]
    exact = np.zeros(ages.shape, np.int64)
    nowhere = np.zeros(ages.shape, np.bool_)
    age = Age(ages, ages, ages, exact, nowhere, nowhere.astype(np.int8))
    gap = np.full(ages.shape, 15.0)
    found, _ = recovery_of((samples * 1e6)[:, None], age, np.zeros(ages.shape), gap, 0, rules)
    assert not found[:12].any()
    assert found[20:].all() if recovers else not found.any()


def test_a_status_that_holds_through_a_hole_is_raised_at_the_first_sample_after_it() -> None:
    # There is no member from sample 10 on, so rule 7 holds from sample 18 on, in a hole. It had to
    # hold for half a minute more behind the hole: with a hole every two minutes a dead consumer was
    # found half a minute late.
    numbers = [*range(15), *range(22, 26)]
    rows = [row(n, 150 * n, 150 * min(n, 9), age=15.0 * max(0, n - 9)) for n in numbers]
    pairs = [facts(n, members=int(n < 10)) for n in numbers]
    status = heard(judged(window(rows, pairs), 26).lag)
    assert (status[14], status[22]) == ("OK", "STOPPED")


def test_a_member_that_comes_back_has_its_time_to_commit() -> None:
    # Its queue has stood still for longer than the stall time, which its absence excuses.
    rows = [row(n, 150 * n, 150 * min(n, 29), age=15.0 * max(0, n - 29)) for n in range(36)]
    rows.append(row(36, 5_400, 5_000, age=5.0))
    pairs = [facts(n, members=int(not 30 <= n < 35)) for n in range(37)]
    found = judged(window(rows, pairs), 37).lag
    assert set(column(found, "status")) <= {"OK", "CATCHING_UP"}


def test_a_hole_hides_commits_of_a_group_that_commits_less_often_than_it_is_sampled() -> None:
    # It commits every 30 s, and for the last time as a hole of two minutes begins. Progress was
    # taken between the commits that were seen, as if the hole had hidden none: it was 1 behind the
    # hole, and the age of three minutes and more, which rose at each sample, was no evidence.
    fine = [row(n, 150 * n, 150 * (n - n % 2), age=2.0 + 15 * (n % 2)) for n in range(60)]
    there = [*range(68, 73), *range(78, 82)]
    hung = [row(n, 150 * n, 9_010, age=15.0 * (n - 60)) for n in there]
    found = judged(window([*fine, *hung]), 82).lag
    status = heard(found)
    assert status[59] == "OK"
    assert [status[n] for n in range(68, 72)] == ["UNKNOWN"] * 4
    assert [status[n] for n in (72, 78, 79)] == ["FALLING_BEHIND", "STALLED", "STALLED"]


def test_a_first_gap_between_commits_may_have_been_a_short_one() -> None:
    # Four minutes, then five and a half: a consumer that commits about every five minutes.
    rows, committed, since = [], 0, 0
    for number in range(100):
        if number in (16, 32, 54, 74):
            committed, since = 150 * number - 20, number
        rows.append(row(number, 150 * number, max(committed, 0), age=2.0 + 15 * (number - since)))
    status = column(judged(window(rows), 100).lag, "status")
    assert set(status[32:]) == {"OK"}


def test_a_group_that_reads_and_hangs_by_turns_does_not_catch_up() -> None:
    # It hangs for 195 s and reads for 75 s, three times as fast as messages come in: its age falls
    # by 150 s in each round and rises by 195 s. It was CATCHING_UP for hours.
    ages, age = [], 0.0
    for number in range(200):
        age = age + 15 if number % 18 < 13 else age - 30
        ages.append(max(age, 2.0))
    status = column(judged(window(by_ages(ages)), 200).lag, "status")
    first = next(n for n, each in enumerate(status) if n > 60 and each in LATE)
    assert first < 90
    assert set(status[first:]) <= LATE
    # From sample 120 on it only reads: two falls of the size of those before are not needed.
    for number in range(120, 200):
        ages[number] = max(ages[number - 1] - 30, 2.0)
    status = column(judged(window(by_ages(ages)), 200).lag, "status")
    assert "CATCHING_UP" in status[120:132]
    assert status[-1] == "OK"


def test_a_recovery_behind_a_second_and_longer_outage_catches_up() -> None:
    # Away for ten minutes, back at three times the pace, away again before all was read, for
    # longer, then back for good: the second recovery was LAGGING for as long as it took to fall
    # half as far again as the first one had.
    ages = [2.0] * 40
    for samples, change in ((40, 15), (16, -30), (59, 15), (40, -30)):
        for _ in range(samples):
            ages.append(max(ages[-1] + change, 2.0))
    status = column(judged(window(by_ages(ages)), len(ages)).lag, "status")
    assert (ages[95], ages[154]) == (122.0, 1_007.0)
    assert status[154] == "STALLED"
    # Three samples prove nothing, the fourth ends the minute in which the age fell sample by
    # sample.
    assert set(status[159:]) == {"CATCHING_UP", "OK"}


def test_samples_a_minute_apart_show_a_slow_group_between_two_holes() -> None:
    # It reads 0.4 of what comes in from sample 30 on. Two samples between two holes, then three:
    # its age rose at each, and it was UNKNOWN at all of them.
    heard_of = [*range(31), 35, 36, 40, 41, 42]
    rows = []
    for sample in heard_of:
        age = 3.0 if sample <= 30 else 0.6 * 60 * (sample - 30) - 75
        n = 4 * sample + 3
        rows.append(row(n, 600 * sample + 30, round(600 * sample + 30 - 10 * age), age=age))
    found = judged(window(rows), 4 * 43, Rules(period_s=60.0)).lag
    status = {(at - 3) // 4: each for at, each in heard(found).items()}
    assert {status[sample] for sample in range(31)} == {"OK"}
    assert [status[sample] for sample in (35, 36, 40)] == ["UNKNOWN"] * 3
    assert [status[sample] for sample in (41, 42)] == ["FALLING_BEHIND"] * 2


def test_one_commit_of_many_queues_does_not_show_how_often_a_group_commits() -> None:
    # Five queues with a message a minute each, all committed at samples 14, 30 and 56. Behind
    # sample 30 ten gaps were known and none of them was long: each began when a message came. The
    # group was FALLING_BEHIND a minute before its next commit.
    rows, series = [], []
    for queue in range(5):
        of = {"series_id": SERIES_ID + queue, "pair_id": PAIR}
        series.append({**NAMES, **of, "queue": queue, "kind": "main"})
        committed = 0
        for n in range(60):
            stored = (n + queue) // 4
            if n in (14, 30, 56):
                committed = stored
            # The message that is number m of its queue came at sample 4 × (m + 1) − queue.
            age = 15.0 * (n - 4 * (committed + 1) + queue) + 1 if committed < stored else None
            rows.append(row(n, stored, committed, age=age, series_id=of["series_id"]))
    given = window(rows, [facts(n) for n in range(60)])
    seen = [{**each, "first_seen": START, "last_seen": START} for each in series]
    found = judged(given._replace(series=table(seen, SERIES)), 60).pair_lag
    assert max(column(found, "age_max_seconds")) > 330
    assert set(column(found, "status")[14:]) == {"OK"}


def test_a_failover_to_a_clock_far_behind_does_not_make_a_hung_group_well() -> None:
    # It hangs from sample 40 on. At sample 56 another node leads, whose clock is 500 s behind: by
    # that clock the oldest unread message is not stored yet. The group was OK for eight minutes.
    rows, changes = [], []
    for n in range(90):
        leads = {"replica": "n1" if n < 56 else "n2"}
        behind = 0.0 if n < 56 else 500.0
        age = 2.0 + 15 * max(0, n - 40) - behind
        sample = row(n, 150 * n + 30, 150 * min(n, 40), age=age, epoch=1 + (n >= 56), **leads)
        shift = round(behind * 1e6)
        rows.append(
            {**sample, "ts": sample["ts"] - shift, "head_store_ts": sample["head_store_ts"] - shift}
        )
        changes.append({**facts(n, **leads), "ts": sample["ts"] - shift})
    found = judged(window(rows, changes), 90).lag
    status = column(found, "status")
    assert status[:40] == ["OK"] * 40
    assert set(status[50:]) <= LATE
    # The age is what the two clocks make of it, and its upper bound is not known.
    assert column(found, "age_seconds")[60] == 0
    assert column(found, "age_method")[60] == "exact_clock_unknown"
    assert column(found, "age_high_seconds")[60] is None


LATE = {"STALLED", "FALLING_BEHIND", "LAGGING"}


def test_holes_do_not_alarm_a_group_that_commits_every_two_minutes() -> None:
    # Four samples of twenty are missing. The first commit after a hole was seen up to a minute
    # late, and the difference of two ages counted as falling behind.
    rows = [each for n, each in enumerate(stairs(240)) if n < 40 or (n + n // 20) % 20 > 3]
    status = heard(judged(window(rows), 240).lag)
    assert set(status.values()) <= {"OK", "UNKNOWN"}
    assert [status[n] for n in range(220, 240) if n in status].count("OK") > 8


def test_a_restart_does_not_alarm_a_group_that_commits_every_two_minutes() -> None:
    # It is away for 90 s and commits for the first time two minutes after its return. By then the
    # absence was over, and it counted as falling behind.
    rows = [row(n, 150 * n, 150 * (n - n % 8), age=2.0 + 15 * (n % 8)) for n in range(80)]
    rows += [row(n, 150 * n, 12_000, age=2.0 + 15 * (n - 80)) for n in range(80, 94)]
    rows += [row(n, 150 * n, 150 * (n - 1), age=17.0) for n in range(94, 96)]
    pairs = [facts(n, members=int(not 80 <= n < 86)) for n in range(96)]
    assert set(column(judged(window(rows, pairs), 96).lag, "status")[40:]) == {"OK"}


def test_a_group_whose_progress_holes_leave_open_is_late_when_its_age_is_known() -> None:
    # It reads 0.9 of what comes in and commits every minute; six samples of twelve are missing. Its
    # progress might have been 0.98, so it was UNKNOWN for an hour.
    rows = []
    for n in range(300):
        begun = n - n % 4
        done = begun if begun < 60 else 60 + 0.9 * (begun - 60)
        if n < 80 or n % 12 > 5:
            rows.append(row(n, 150 * n, round(150 * done), age=2.0 + 15 * (n - done)))
    status = heard(judged(window(rows), 300).lag)
    assert {status[n] for n in range(40, 60)} == {"OK"}
    assert {status[n] for n in range(120, 300) if n in status} <= {"FALLING_BEHIND", "LAGGING"}


def test_ages_between_two_commits_are_not_those_of_more_late_queues() -> None:
    # One of twelve queues is new and has no reader. It was not enough to be LAGGING, but with the
    # ages of the others, shortly before each of their commits, it was.
    rows, series = [], []
    for queue in range(12):
        of = {"series_id": SERIES_ID + queue, "pair_id": PAIR}
        series.append({**NAMES, **of, "queue": queue, "kind": "main"})
        for n in range(60 if queue == 11 else 0, 110):
            if queue == 11:
                rows.append(row(n, 150 * n, None, reason="never_committed", **of))
            else:
                rows.append(row(n, 150 * n, 150 * (n - n % 8), age=2.0 + 15 * (n % 8), **of))
    seen = [{**each, "first_seen": START, "last_seen": START} for each in series]
    given = window(rows, [facts(n) for n in range(110)])
    found = judged(given._replace(series=table(seen, SERIES)), 110)
    status = column(found.pair_lag, "status")[60:]
    assert status == sorted(status), "STALLED once, after OK"
    assert status[-1] == "STALLED"
