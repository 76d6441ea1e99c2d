"""Whatever rows a broker sends: nothing is negative, unknown stays unknown, cuts do not matter."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.kernel.evaluate import evaluate
from analytics.kernel.rules import Rules
from analytics.kernel.window import Evaluated, Window
from tests.truth.steps import moment
from tests.unit.analytics.kernel.positions_by_hand import (
    START,
    column,
    facts,
    judged,
    row,
    tick,
    window,
)
from tests.unit.analytics.kernel.test_cut_in_time import in_order, only

TICKS = 40
offsets = st.none() | st.integers(0, 60)
NOT_NEGATIVE = {
    "rates": ("produced", "consumed"),
    "lag": ("lag", "lost", "ahead", "age_seconds", "age_low_seconds", "age_high_seconds"),
    "pair_lag": (
        "lag_sum",
        "lag_max",
        "lost",
        "age_max_seconds",
        "drain_p10_seconds",
        "drain_p50_seconds",
        "drain_p90_seconds",
    ),
}


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """A queue whose offsets wander as they like, with holes, nulls, epochs, members and events."""
    rows: list[Any] = []
    pairs: list[Any] = []
    events: list[Any] = []
    seed = draw(st.integers(0, 2**32 - 1))
    chance = np.random.default_rng(seed)
    wild = draw(st.booleans())
    low = high = commit = 0
    epoch = 1
    expired = resets = 0
    for number in range(TICKS):
        high += int(chance.integers(0, 30))
        commit += int(chance.integers(0, 30))
        if wild or commit > high:
            commit = int(chance.integers(0, high + 3)) if chance.random() < 0.2 else commit
        commit = commit if wild else min(commit, high)
        low = max(low, int(chance.integers(0, high + 1))) if chance.random() < 0.1 else low
        if chance.random() < 0.05:
            high, epoch = max(low, high - 10), epoch + 1
        expired += int(chance.random() < 0.1) * 5
        resets += int(chance.random() < 0.05)
        if chance.random() < 0.2:
            continue
        unknown = [None if wild and chance.random() < 0.1 else each for each in (low, high, commit)]
        age = None if chance.random() < 0.3 else float(chance.uniform(-5, 300))
        rows.append(
            row(number, unknown[1], unknown[2], min_offset=unknown[0], epoch=epoch, age=age)
        )
        pairs.append(
            facts(
                number,
                members=None if chance.random() < 0.1 else int(chance.integers(0, 2)),
                expired_total=expired,
                reset_backward_total=resets,
            )
        )
        if chance.random() < 0.05:
            events.append(
                {
                    "ts": tick(number) + int(chance.integers(0, 14_000_000)),
                    "tick": tick(number),
                    "kind": str(chance.choice(["reset_forward", "reset_backward", "truncate"])),
                    "from_offset": commit,
                    "to_offset": None if chance.random() < 0.3 else int(chance.integers(0, 90)),
                    "by_request": bool(chance.integers(0, 2)),
                }
            )
    return window(rows, pairs, events=events)


def not_negative(done: Evaluated) -> None:
    for table, names in NOT_NEGATIVE.items():
        for name in names:
            least = pc.min(getattr(done, table)[name]).as_py()
            assert least is None or least >= 0, (table, name, least)


@settings(max_examples=15)
@given(windows(), st.sets(st.integers(0, TICKS - 2), max_size=4))
def test_nothing_is_negative_and_cuts_do_not_matter_whatever_is_reported(
    given_: Window, cuts: set[int]
) -> None:
    whole = judged(given_, TICKS)
    not_negative(whole)
    rules = Rules()
    state: pa.Table | None = None
    parts: list[Evaluated] = []
    borders = [START, *(tick(number) for number in sorted(cuts)), tick(TICKS - 1)]
    for after, until in itertools.pairwise(borders):
        part = only(given_, after, until, rules.history_s)
        parts.append(evaluate(part, rules, state, moment(after), moment(until)))
        state = parts[-1].state
    for name in ("rates", "lag", "pair_lag", "status_changes", "offset_events"):
        together = pa.concat_tables([getattr(part, name) for part in parts])
        assert in_order(together) == in_order(getattr(whole, name)), name


@settings(max_examples=15)
@given(windows())
def test_unknown_values_have_a_reason_and_each_status_lasts_until_its_end(given_: Window) -> None:
    done = judged(given_, TICKS)
    assert_unknown_is_null_with_a_reason(done)
    assert_one_change_of_status_per_pair_and_tick(done)
    assert_a_status_lasts_until_the_change_that_ends_it(done)


def assert_unknown_is_null_with_a_reason(done: Evaluated) -> None:
    for found in done.lag.to_pylist():
        if found["lag"] is None:
            assert found["age_seconds"] is None
            assert found["status"] == "UNKNOWN"
            assert found["reason"] is not None
        if found["status"] == "UNKNOWN":
            assert found["reason"] is not None
            assert found["evidence"] is None
        elif found["status"] != "OK":
            assert found["evidence"] is not None
        if found["age_method"] == "exact":
            assert (found["age_low_seconds"], found["age_high_seconds"]) == (None, None)
        elif found["age_seconds"] is not None and found["age_method"] != "bounded":
            assert found["age_low_seconds"] <= found["age_seconds"] <= found["age_high_seconds"]


def assert_one_change_of_status_per_pair_and_tick(done: Evaluated) -> None:
    # Notices are identified by pair, status and tick.
    changes = done.status_changes.to_pylist()
    own = [(each["tick"], each["pair_id"]) for each in changes if each["series_id"] is None]
    assert len(set(own)) == len(own)


def assert_a_status_lasts_until_the_change_that_ends_it(done: Evaluated) -> None:
    changes = [each for each in done.status_changes.to_pylist() if each["series_id"] is not None]
    # An event has a row of its own, beside that of the change it brought.
    moves = [each for each in changes if each["evidence"] != '{"event":"unrequested"}']
    for first, second in itertools.pairwise(moves):
        assert second["status_from"] == first["status_to"]
        lasted = (second["tick"] - first["tick"]).total_seconds()
        assert second["previous_seconds"] == lasted
    for found in done.lag.to_pylist():
        since = [each["tick"] for each in moves if each["tick"] <= found["tick"]]
        assert found["status_since"] == (since[-1] if since else column(done.lag, "tick")[0])
