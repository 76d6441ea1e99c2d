"""Ages after a failover: bounds as wide as the clocks differ, a mark above a second, never a 0."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analytics.kernel.evaluate import evaluate
from analytics.kernel.rules import Rules
from analytics.kernel.window import Window
from analytics.schema import REPLICAS
from tests.truth.steps import moment
from tests.unit.analytics.kernel.positions_by_hand import (
    NAMES_OF_LOG,
    PERIOD,
    START,
    Row,
    facts,
    judged,
    row,
    table,
    tick,
    window,
)

ERROR = 0.002
HEAD = tick(2)
"""Stored under the first master, and not read since."""


def skew(number: int, seconds: float, *, by: str = "n1", of: str = "n2") -> Row:
    """A row in which a node has measured by how much another's clock is ahead."""
    return {
        "ts": tick(number),
        "tick": tick(number),
        **NAMES_OF_LOG,
        "replica": by,
        "peer": of,
        "skew_seconds": seconds,
    }


def sampled(
    masters: Sequence[str | None],
    skews: Sequence[Row] = (),
    *,
    epochs: Sequence[int] | None = None,
    head: int | None = HEAD,
    logs: Sequence[Row] = (),
    **more: Any,
) -> Window:
    """A sample at each tick by that node; None: none. The head is known by default."""
    rows, pairs = [], []
    for number, master in enumerate(masters):
        if master is None:
            continue
        epoch = epochs[number] if epochs else int(master[1:])
        rows.append(
            {
                **row(number, 1_000 + number, 100, epoch=epoch, **more),
                "replica": master,
                "head_store_ts": head,
                "head_method": "none" if head is None else "exact",
            }
        )
        pairs.append(facts(number, replica=master))
    return window(rows, pairs, logs)._replace(
        replicas=table(skews, REPLICAS) if skews else REPLICAS.empty_table()
    )


def kept_since(replica: str, oldest: int) -> list[Row]:
    """Rows of a log whose oldest record is of that time."""
    of = {"replica": replica, "role": "master", "t_min": oldest}
    return [{"ts": tick(n) + 200_000, "tick": tick(n), **of} for n in range(8)]


def last(given: Window, ticks: int) -> tuple[Any, ...]:
    """The last row: its method, and by how much its bounds are off its age. An exact age without
    bounds is its own."""
    found = judged(given, ticks).lag.to_pylist()[-1]
    age, low, high = (found[f"age{end}_seconds"] for end in ("", "_low", "_high"))
    if found["age_method"] == "exact" and (low, high) == (None, None):
        low = high = age
    return (
        found["age_method"],
        None if low is None else pytest.approx(age - low),
        age,
        None if high is None else pytest.approx(high - age),
    )


AGE = (tick(7) + 200_000 - HEAD) / 1e6
ONE_FAILOVER = ["n1"] * 5 + ["n2"] * 3


@pytest.mark.parametrize(
    ("seconds", "method"),
    [(0.4, "exact"), (-0.4, "exact"), (0.0, "exact"), (1.5, "exact_clock_off")],
)
def test_bounds_grow_by_the_skew_and_its_error_and_above_a_second_it_is_marked(
    seconds: float, method: str
) -> None:
    given = sampled(ONE_FAILOVER, [skew(3, seconds)])
    grown = abs(seconds) + ERROR
    assert last(given, 8) == (method, grown, AGE, grown)


def test_the_second_is_of_skew_and_error_together() -> None:
    assert last(sampled(ONE_FAILOVER, [skew(3, 0.997)]), 8)[0] == "exact"
    assert last(sampled(ONE_FAILOVER, [skew(3, 0.999)]), 8)[0] == "exact_clock_off"


def test_the_error_is_by_how_much_what_was_measured_differs_from_both_sides() -> None:
    skews = [skew(1, 0.2), skew(2, 0.5), skew(3, -0.3, by="n2", of="n1")]
    # n2 is ahead by 0.2, 0.5 and 0.3: by 0.5 at most, and 0.3 apart.
    assert last(sampled(ONE_FAILOVER, skews), 8) == ("exact", 0.8, AGE, 0.8)


def test_an_unmeasured_skew_leaves_the_bounds_unknown_and_not_zero() -> None:
    for skews in ([], [skew(3, 0.1, of="n3")], [skew(3, 0.1, by="n3", of="n1")]):
        assert last(sampled(ONE_FAILOVER, skews), 8) == ("exact_clock_unknown", None, AGE, None)


def test_until_the_failover_and_without_one_nothing_is_marked() -> None:
    lag = judged(sampled(ONE_FAILOVER, [skew(3, 9.0)]), 8).lag.to_pylist()
    assert [each["age_method"] for each in lag] == ["exact"] * 5 + ["exact_clock_off"] * 3
    assert lag[4]["age_low_seconds"] == lag[4]["age_high_seconds"]
    assert last(sampled(["n1"] * 8, [skew(3, 9.0)]), 8) == ("exact", 0.0, AGE, 0.0)


def test_a_new_epoch_of_the_same_node_changes_nothing() -> None:
    given = sampled(["n1"] * 8, [skew(3, 9.0)], epochs=[1, 1, 1, 1, 2, 2, 3, 3])
    assert last(given, 8) == ("exact", 0.0, AGE, 0.0)


def test_what_the_new_master_stored_has_its_own_clock() -> None:
    stored = tick(5) + 3_200_000  # its first sample is a fifth of a second after tick 5
    found = last(sampled(ONE_FAILOVER, [skew(3, 2.0)], head=stored), 8)
    assert found == ("exact", 0.0, 27.0, 0.0)
    # A clock that is ahead by two seconds may have stamped this before the failover.
    near = tick(5) + 1_200_000
    assert last(sampled(ONE_FAILOVER, [skew(3, 2.0)], head=near), 8)[0] == "exact_clock_off"


def test_a_group_that_has_read_all_has_an_age_of_no_clock() -> None:
    rows = [row(n, 100, 100, replica="n1" if n < 5 else "n2") for n in range(8)]
    pairs = [facts(n, replica="n1" if n < 5 else "n2") for n in range(8)]
    assert last(window(rows, pairs), 8) == ("exact", 0.0, 0.0, 0.0)


def test_a_head_of_no_known_time_is_at_least_as_old_as_its_samples() -> None:
    logs = kept_since("n2", START)
    (method, below, age, above) = last(
        sampled(ONE_FAILOVER, [skew(3, 1.5)], head=None, logs=logs), 8
    )
    # Samples of the new master saw it wait for 30 s; the log's oldest stamp is uncertain.
    oldest = (tick(7) + 200_000 - START) / 1e6
    assert (method, below, age) == ("bounded_clock_off", 0.0, 30.0)
    assert above == pytest.approx(oldest + 1.502 - 30.0)
    unknown = last(sampled(ONE_FAILOVER, head=None, logs=logs), 8)
    assert unknown == ("bounded_clock_unknown", 0.0, 30.0, None)


def test_of_three_masters_the_first_is_as_far_off_as_both_steps() -> None:
    masters = ["n1"] * 4 + ["n2"] * 2 + ["n3"] * 2
    skews = [skew(2, 0.3), skew(5, 0.4, by="n2", of="n3")]
    assert last(sampled(masters, skews, epochs=[1] * 4 + [2] * 2 + [3] * 2), 8) == (
        "exact",
        0.3 + 0.4 + 2 * ERROR,
        AGE,
        0.3 + 0.4 + 2 * ERROR,
    )


def test_two_that_take_turns_are_never_further_off_than_they_are() -> None:
    masters = ["n1", "n1", "n1", "n2", "n1", "n2", "n1", "n2"]
    given = sampled(masters, [skew(2, 0.3)], epochs=range(1, 9))
    assert last(given, 8) == ("exact", 0.3 + ERROR, AGE, 0.3 + ERROR)


def test_a_master_without_records_left_in_the_log_does_not_count() -> None:
    masters = ["n1"] * 2 + ["n2"] * 4 + ["n3"] * 2
    skews = [skew(5, 0.4, by="n2", of="n3")]  # n1's clock is not known
    kept = kept_since("n3", tick(3))
    epochs = [1] * 2 + [2] * 4 + [3] * 2
    head = tick(4)
    assert last(sampled(masters, skews, epochs=epochs, head=head, logs=kept), 8)[0] == "exact"
    found = last(sampled(masters, skews, epochs=epochs, head=head), 8)
    assert found[0] == "exact_clock_unknown"


def test_a_node_that_comes_back_is_measured_then() -> None:
    given = sampled(ONE_FAILOVER, [skew(6, -0.25, by="n2", of="n1")])
    lag = judged(given, 8).lag.to_pylist()
    assert [each["age_method"] for each in lag][5:] == ["exact_clock_unknown", "exact", "exact"]
    assert last(given, 8)[3] == 0.25 + ERROR


def test_only_what_was_measured_within_the_history_counts() -> None:
    masters = ["n1"] * 70 + ["n2"] * 2
    epochs = [1] * 70 + [2] * 2
    assert last(sampled(masters, [skew(3, 0.1)], epochs=epochs), 72)[0] == "exact_clock_unknown"
    assert last(sampled(masters, [skew(30, 0.1)], epochs=epochs), 72)[0] == "exact"


def test_ticks_without_a_sample_do_not_hide_a_failover() -> None:
    masters: list[str | None] = ["n1", "n1", "n1", None, None, None, "n2", "n2"]
    assert last(sampled(masters, [skew(1, 1.5)]), 8)[0] == "exact_clock_off"


@pytest.mark.parametrize("borders", [(4,), (5,), (3, 6), tuple(range(1, 8))])
def test_it_is_the_same_however_time_is_cut(borders: tuple[int, ...]) -> None:
    masters = ["n1"] * 4 + ["n2"] * 2 + ["n1"] + ["n3"] * 2
    epochs = [1] * 4 + [2] * 2 + [3] + [4] * 2
    skews = [skew(2, 0.3), skew(7, 1.1, by="n3", of="n1"), skew(8, 0.9, by="n3", of="n1")]
    given = sampled(masters, skews, epochs=epochs)
    whole = judged(given, 9).lag
    state: pa.Table | None = None
    parts = []
    for after, until in itertools.pairwise([START, *(tick(each) for each in borders), tick(8)]):
        done = evaluate(given, Rules(), state, moment(after), moment(until))
        state = done.state
        parts.append(done.lag)
    assert pa.concat_tables(parts).to_pylist() == whole.to_pylist()
    assert "exact_clock_off" in whole.column("age_method").to_pylist()


def test_a_status_never_hangs_on_a_clock() -> None:
    calm = judged(sampled(["n1"] * 40, epochs=[1] * 20 + [2] * 20), 40).lag
    moved = judged(sampled(["n1"] * 20 + ["n2"] * 20, epochs=[1] * 20 + [2] * 20), 40).lag
    assert calm.column("status").equals(moved.column("status"))
    assert calm.column("age_seconds").equals(moved.column("age_seconds"))
    assert np.unique(moved.column("age_method").to_pylist()).tolist() == [
        "exact",
        "exact_clock_unknown",
    ]
    assert (tick(1) - tick(0)) == PERIOD
