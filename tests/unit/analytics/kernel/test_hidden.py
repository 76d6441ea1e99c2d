from __future__ import annotations

from typing import Any

import pytest

from analytics.kernel.hidden import HIDDEN, hidden_lag
from tests.unit.analytics.kernel.made_rows import at, logs, pairs

RATE, SIZE = 50, 400  # messages per second, bytes of a record
OTHERS = 2  # as many bytes again, twice, belong to other topics


def rows(second: int, *, dispatched_until: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pair and its log where the topic sends RATE × SIZE bytes a second."""
    bytes_per_second = RATE * SIZE * (1 + OTHERS)
    log = {
        "tick": at(second),
        "max_physical_offset": 10**9 + second * bytes_per_second,
        "dispatched_physical_offset": 10**9 + round(dispatched_until * bytes_per_second),
    }
    return {"tick": at(second), "topic_messages_in_total": 7 + second * RATE}, log


def test_a_dispatch_that_stops_hides_what_was_sent_since() -> None:
    made = [rows(second, dispatched_until=min(second, 60)) for second in range(0, 101, 5)]
    found = hidden_lag(pairs(*(p for p, _ in made)), logs(*(g for _, g in made)), after=at(-1))
    assert found.schema == HIDDEN
    expected = [max(0, second - 60) * RATE for second in range(0, 101, 5)]
    assert found.column("hidden_lag").to_pylist() == expected
    assert expected[-1] == 40 * RATE


def test_the_window_forgets_what_was_sent_long_ago() -> None:
    """The topic was quiet until a minute ago: its share of the last minute is what counts."""
    made = []
    for second in range(0, 600, 10):
        pair, log = rows(second, dispatched_until=min(second, 580))
        pair["topic_messages_in_total"] = max(0, second - 530) * RATE
        made.append((pair, log))
    table, log_table = pairs(*(p for p, _ in made)), logs(*(g for _, g in made))
    found = hidden_lag(table, log_table, after=at(589), window_s=60.0)
    assert found.column("hidden_lag").to_pylist() == [10 * RATE]


def test_nothing_behind_dispatch_is_zero_even_without_counters() -> None:
    pair, log = rows(0, dispatched_until=0)
    found = hidden_lag(pairs(pair | {"topic_messages_in_total": None}), logs(log), after=at(-1))
    assert found.column("hidden_lag").to_pylist() == [0]


@pytest.mark.parametrize("missing", ["topic_messages_in_total", "max_physical_offset", "log"])
def test_what_is_not_known_is_null(missing: str) -> None:
    made = [rows(second, dispatched_until=0) for second in (0, 15)]
    (_, first_log), (_, log) = made
    table = pairs(*(p | {missing: None} if missing in p else p for p, _ in made))
    last = {} if missing == "log" else {missing: None} if missing in log else {}
    log_table = logs(first_log, *([log | last] if missing != "log" else []))
    assert hidden_lag(table, log_table, after=at(1)).column("hidden_lag").to_pylist() == [None]


def test_counts_of_two_runs_of_a_process_are_not_subtracted() -> None:
    made = [rows(second, dispatched_until=0) for second in (0, 15, 30)]
    table = pairs(*(p for p, _ in made))
    logs_ = [g if at_ < 2 else g | {"up_since": at(20)} for at_, (_, g) in enumerate(made)]
    found = hidden_lag(table, logs(*logs_), after=at(-1)).column("hidden_lag").to_pylist()
    assert found == [0, 15 * RATE, None]


def test_pairs_are_apart_and_in_order() -> None:
    made = [rows(second, dispatched_until=0) for second in (0, 15)]
    twice = [p | {"pair_id": pair} for pair in (5, -3) for p, _ in made]
    quiet = [p | {"topic_messages_in_total": 0} if p["pair_id"] == 5 else p for p in twice]
    found = hidden_lag(pairs(*quiet), logs(*(g for _, g in made)), after=at(1))
    assert found.column("pair_id").to_pylist() == [-3, 5]
    assert found.column("hidden_lag").to_pylist() == [15 * RATE, 0]
