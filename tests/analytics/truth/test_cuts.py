"""Offsets that go back, jump or end: failover, resets, retention, a commit beyond the end."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.compute as pc
import pytest

from analytics.kernel.facts import COUNTED
from analytics.kernel.rules import Rules
from analytics.kernel.window import Evaluated
from tests.analytics.truth.judged import (
    ALARMS,
    after,
    judge,
    judge_window,
    judged_case,
    of_pair,
    of_series,
    statuses,
    truth_of,
    window_of,
)
from tests.truth import answers, cases, tables
from tests.truth.reading import totals
from tests.truth.steps import SECOND
from tests.truth.workload import Truth


def events(judged: Evaluated, kind: str) -> list[dict[str, object]]:
    return [row for row in judged.offset_events.to_pylist() if row["kind"] == kind]


def raised(judged: Evaluated) -> list[dict[str, object]]:
    return [row for row in judged.status_changes.to_pylist() if row["level"] in ("ticket", "page")]


def balanced(judged: Evaluated, truth: Truth, skipped: int) -> None:
    """The books of 7.13 over the whole run: what came in is read, skipped, or still unread."""
    reading = truth.pairs[0].readings[0]
    rates = of_series(judged.rates, truth)
    answer = answers.series(truth, reading)
    produced = np.nansum(rates["produced"])
    consumed = np.nansum(rates["consumed"])
    assert produced - consumed - skipped == answer.lag[-1] - answer.lag[0]


def test_a_failover_that_cuts_messages_off_is_one_event_and_gives_no_rate_across_it() -> None:
    truth = cases.failover(cut=37)
    judged = judge(truth)
    (event,) = judged.offset_events.to_pylist()
    assert event["kind"] == "truncate"
    assert event["from_offset"] - event["to_offset"] == 37
    rates = of_series(judged.rates, truth)
    at = after(truth, rates["tick"])
    across = (at > 600.0) & (at < 631.0)
    assert np.isnan(rates["produced"][across]).any()
    for column in ("produced", "consumed"):
        known = rates[column][~np.isnan(rates[column])]
        assert (known >= 0).all(), column
    lag = of_series(judged.lag, truth)
    for known in (lag["lag"], lag["age_seconds"], lag.bound("low")):
        assert (known[~np.isnan(known)] >= 0).all()
    assert not set(lag.words("status")) & ALARMS


def test_a_reset_backward_by_request_is_an_event_and_catches_up_without_an_alarm() -> None:
    truth = cases.reset_backward(by_request=True)
    judged = judge(truth)
    (event,) = judged.offset_events.to_pylist()
    assert (event["kind"], event["by_request"]) == ("reset_backward", True)
    # The commit moves between two samples: the event shows how far it went, and what was read
    # since.
    assert 4200 <= event["from_offset"] - event["to_offset"] <= 5000
    assert statuses(of_pair(judged.pair_lag, truth)) == ["OK", "CATCHING_UP", "OK"]
    assert raised(judged) == []
    rates = of_series(judged.rates, truth)
    assert np.nanmin(rates.rate("consumed")) >= 0


def test_a_rewind_without_a_request_is_an_event_and_one_ticket() -> None:
    truth = cases.reset_backward(by_request=False)
    judged = judge(truth)
    (event,) = judged.offset_events.to_pylist()
    assert event["kind"] == "rewind"
    assert not event["by_request"]
    assert len(raised(judged)) == 1
    assert statuses(of_pair(judged.pair_lag, truth)) == ["OK", "CATCHING_UP", "OK"]


def test_a_reset_forward_skips_and_never_counts_as_consumed() -> None:
    truth = cases.reset_forward(messages=3000)
    judged = judge(truth)
    (event,) = judged.offset_events.to_pylist()
    assert (event["kind"], event["by_request"]) == ("reset_forward", True)
    assert event["to_offset"] - event["from_offset"] == 3000
    rates = of_series(judged.rates, truth)
    sample_times = truth.sample_times()
    true_total = np.diff(totals(truth.pairs[0].readings[0], sample_times[[0, -1]]).consumed)
    assert np.nansum(rates["consumed"]) == true_total[0]
    assert np.nanmax(rates.rate("consumed")) < 13.0
    balanced(judged, truth, skipped=3000)


def test_messages_lost_to_retention_are_counted_and_reported_once() -> None:
    truth = cases.expiry()
    judged = judge(truth)
    rows = of_series(judged.lag, truth)
    gone = 1000
    at = after(truth, rows["tick"])
    between = (at > 900.0) & (at < 1200.0)
    assert set(rows["lost"][between]) == {gone}
    assert set(rows["lost"][~between]) == {0.0}
    assert statuses(rows).count("LOST") == 1
    losses = [
        row
        for row in judged.status_changes.to_pylist()
        if row["status_to"] == "LOST" and row["series_id"] is not None
    ]
    assert len(losses) == 1
    expired = events(judged, "expire")
    assert sum(row["to_offset"] - row["from_offset"] for row in expired) == gone  # type: ignore[operator]
    balanced(judged, truth, skipped=gone)


def test_a_commit_beyond_the_end_is_ahead_after_two_ticks_and_not_ok() -> None:
    truth = cases.ahead(beyond=100)
    judged = judge(truth)
    rows = of_series(judged.lag, truth)
    at = after(truth, rows["tick"])
    status = rows.words("status")
    beyond = at > 620.0
    assert set(rows["ahead"][beyond]) == {100.0}
    assert set(rows["lag"][beyond]) == {0.0}
    first = rows["tick"][beyond][0]
    assert (status[rows["tick"] >= first + truth.period] == "AHEAD").all()
    pair = of_pair(judged.pair_lag, truth)
    assert pair["ahead"][-1] == 1
    assert pair.words("status")[-1] == "AHEAD"


@pytest.mark.parametrize("name", ["slow_consumer", "failover", "expiry", "reset_forward"])
def test_evaluations_of_any_length_give_the_same_rows(name: str) -> None:
    truth = truth_of(name)
    whole = judged_case(name)
    ticks = truth.ticks(with_missing=True).tolist()
    cut = judge(truth, cuts=[*ticks[:50:7], *ticks[50:60]])
    for table in ("rates", "lag", "pair_lag", "stages", "status_changes", "offset_events"):
        one, other = getattr(whole, table), getattr(cut, table)
        keys = [(key, "ascending") for key in ("tick", "pair_id") if key in one.column_names]
        if "series_id" in one.column_names:
            keys.append(("series_id", "ascending"))
        assert one.sort_by(keys).equals(other.sort_by(keys)), table


def test_every_status_of_a_series_stands_with_the_numbers_it_was_made_of() -> None:
    truth = cases.slow_consumer()
    rows = of_series(judge(truth).lag, truth)
    alarming = np.isin(rows.words("status"), sorted(ALARMS))
    assert alarming.any()
    for text, age in zip(
        rows.words("evidence")[alarming], rows["age_seconds"][alarming], strict=True
    ):
        evidence = json.loads(str(text))
        assert abs(evidence["age_seconds"] - age) < 0.1
    since = rows["status_since"][alarming]
    assert len(set(since)) == 1
    assert since[0] <= rows["tick"][alarming][0]
    assert (rows["tick"][1] - rows["tick"][0]) / SECOND == 15.0


@pytest.mark.parametrize(
    "truth",
    [cases.reset_backward(by_request=True), cases.reset_forward(messages=3000), cases.expiry()],
    ids=["backward", "forward", "expiry"],
)
def test_a_counter_that_a_broker_shows_from_its_first_event_on_counts_that_event(
    truth: Truth,
) -> None:
    # A broker shows no counter at 0 of what never happened: the first rewind that an operator asked
    # for raised a ticket, and the first skip was counted as read.
    collected = tables.collected(truth)
    pairs = collected.pairs
    for name in COUNTED.values():
        at = pairs.schema.get_field_index(name)
        shown = pc.if_else(pc.greater(pairs.column(at), 0), pairs.column(at), None)
        pairs = pairs.set_column(at, pairs.field(at), shown.cast(pairs.field(at).type))
    rules = Rules(period_s=truth.period / SECOND)
    window = window_of(collected._replace(pairs=pairs))
    cut = truth.start + (truth.end - truth.start) // 2 // truth.period * truth.period
    for ends in ([truth.end], [cut, truth.end]):
        found = judge_window(window, rules, truth.start, ends)
        wanted = judge(truth)
        for name in ("offset_events", "rates", "lag", "pair_lag", "status_changes"):
            assert getattr(found, name).equals(getattr(wanted, name)), name
