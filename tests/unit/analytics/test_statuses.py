"""The table of statuses is whole, and everything that orders or names statuses agrees with it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from analytics.kernel import debounce, pairs, results
from analytics.kernel.grid import Ticks
from analytics.kernel.pairs import Rolled
from analytics.kernel.rules import Rules
from analytics.kernel.status import CODE, RULES, STATUSES
from analytics.kernel.status_time import status_columns
from analytics.report.bins import ranks
from analytics.report.gather import gather
from analytics.report.page import TILES, page
from analytics.statuses import (
    BY_SEVERITY,
    LEVELS,
    REASON_WORDS,
    TABLE,
    URGENT,
    Level,
    Reason,
    Status,
    row_of,
    severity,
)
from deploy.grafana import boards, problems
from deploy.prometheus import rules
from tests.support.lag_world import MemoryTables

DOCS: Final = Path(__file__).resolve().parents[3] / "docs"
RULED: Final = [rule.status for rule in RULES if rule.status is not None]
ALERTS: Final = {
    "TidemarkGroupStopped": Status.STOPPED,
    "TidemarkGroupAbandoned": Status.ABANDONED,
    "TidemarkGroupStalled": Status.STALLED,
    "TidemarkGroupFallingBehind": Status.FALLING_BEHIND,
    "TidemarkGroupRetentionRace": Status.RACING,
    "TidemarkGroupMessagesLost": Status.LOST,
    "TidemarkGroupOffsetAhead": Status.AHEAD,
}
"""Alerts of Prometheus for the same condition as a status."""


def worse(one: Status, other: Status) -> Status:
    return max(one, other, key=severity)


def test_every_status_has_a_row_a_rule_and_a_raise_time_and_every_reason_its_words() -> None:
    assert set(TABLE) == set(Status) == set(RULED) == set(Rules().raise_s)
    assert len(RULED) == len(STATUSES)
    assert set(REASON_WORDS) == set(Reason)


def test_the_numbers_in_stored_state_do_not_change() -> None:
    names = "UNKNOWN AHEAD LOST ABANDONED PAUSED OK STOPPED STALLED RACING CATCHING_UP"
    assert [*STATUSES] == [*names.split(), "FALLING_BEHIND", "LAGGING"]


def test_levels_stand_in_the_order_of_their_worst_status() -> None:
    of_statuses = [TABLE[status].level for status in reversed(BY_SEVERITY)]
    assert tuple(dict.fromkeys(of_statuses)) == LEVELS == tuple(level for level, _ in TILES)


def test_the_worst_of_two_statuses_is_the_same_over_queues_and_over_time() -> None:
    for one, other in permutations(TABLE, 2):
        seconds = np.isin(BY_SEVERITY, [one, other]).astype(np.float64)[None, :]
        assert status_columns(seconds)["worst_status"].to_pylist() == [worse(one, other)]
        first, second = ranks(pa.chunked_array([[one, other]])).to_pylist()
        assert (first > second) is (worse(one, other) is one)
        known = [status for status in (one, other) if TABLE[status].is_known]
        assert over_queues(one, other) is max(known, key=severity), "one queue is out of sight"


def over_queues(*statuses: Status) -> Status:
    """The status of a pair whose queues have these statuses, and which is late as a whole."""
    counts = np.zeros((1, 1, len(STATUSES)))
    for status in statuses:
        counts[0, 0, CODE[status]] += 1
    unknown = dict.fromkeys(Rolled._fields, np.full((1, 1), np.nan))
    queues = counts.sum(axis=2)
    rolled = Rolled(**unknown | {"queues": queues, "late": queues, "counts": counts})
    return STATUSES[int(pairs._worst(rolled, Rules(), stands=False)[0, 0])]


def test_one_late_queue_keeps_an_alarm_of_its_pair_until_it_is_in_time() -> None:
    # Of thirty queues one is late. At one sample a second one is, at the next nothing is known. The
    # alarm ended at the sample after that, though its queue was LAGGING all the time.
    late = [1, 2, 1, 0, 1, 0, 1]
    kinds = [*[Status.LAGGING] * 3, Status.UNKNOWN, Status.LAGGING, Status.OK, Status.LAGGING]
    counts = np.zeros((len(late), 1, len(STATUSES)))
    counts[np.arange(len(late)), 0, [CODE[each] for each in kinds]] = 1
    counts[[each is Status.UNKNOWN for each in kinds], 0, CODE[Status.UNKNOWN]] = 30
    unknown = dict.fromkeys(Rolled._fields, np.full((len(late), 1), np.nan))
    rolled = Rolled(
        **unknown
        | {
            "reported": np.ones((len(late), 1), np.bool_),
            "queues": np.full((len(late), 1), 30.0),
            "late": np.array(late, np.float64)[:, None],
            "counts": counts,
        }
    )
    carried = {name: np.full(1, np.nan) for name in ("status", "since", "alarmed")}
    ticks = Ticks(np.arange(len(late)) * 15_000_000, 0)
    found = pairs.status_of(rolled, ticks, 0, carried, Rules()).status[:, 0]
    expected = "OK LAGGING LAGGING UNKNOWN LAGGING OK OK"
    assert [STATUSES[code] for code in found] == expected.split()


def test_unknown_is_treated_alike_everywhere() -> None:
    assert [status for status, row in TABLE.items() if not row.is_known] == [Status.UNKNOWN]
    assert row_of("SOMETHING_NEW") is TABLE[Status.UNKNOWN]
    assert severity("SOMETHING_NEW") == severity(Status.UNKNOWN)
    assert ranks(pa.chunked_array([["SOMETHING_NEW"]])).to_pylist() == [severity(Status.UNKNOWN)]
    assert over_queues(Status.UNKNOWN, Status.UNKNOWN) is Status.UNKNOWN
    for status, level in zip(STATUSES, results.LEVELS, strict=True):
        assert row_of(status).level is level
        assert debounce.ALARMING[CODE[status]] == (level in URGENT)
    assert results.LEVELS[CODE[Status.UNKNOWN]] is Level.UNKNOWN


def test_the_report_has_a_colour_for_what_is_known_in_light_and_in_dark() -> None:
    start = datetime(2026, 3, 4, tzinfo=UTC)
    end = start + timedelta(hours=1)
    sheet = page(gather(MemoryTables({}), start=start, end=end, made_at=end))
    for status, row in TABLE.items():
        assert sheet.count(f"--s-{status.lower()}:") == 2 * row.is_known
        assert bool(row.light) == bool(row.dark) == row.is_known


def test_dashboards_have_the_order_the_words_and_the_colours_of_the_table() -> None:
    shown = [status for status in BY_SEVERITY if status is not Status.OK]
    words = problems.STATUSES
    assert [word.text.replace(" ", "_").upper() for word in words] == shown
    assert [word.value for word in words] == sorted(word.value for word in words)
    assert set(problems.ALARMS.upper().split("|")) == {
        s for s in Status if TABLE[s].level in URGENT
    }
    assert problems.ALARMS in str(boards.BOARDS)


def test_alerts_of_prometheus_have_the_level_of_their_status() -> None:
    alerts = {alert.name: alert for alert in rules.ALERTS}
    for name, status in ALERTS.items():
        assert alerts[name].severity == TABLE[status].level, name


def cells(page: str) -> list[list[str]]:
    """The rows of a page's table of statuses."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines]
    return [row for row in rows if len(row) > 3 and set(row) & set(Status)]


def test_the_documented_table_is_the_table() -> None:
    assert cells("analytics.md") == [
        [status, row.means, f"{row.after_s:g} s" if row.after_s else "at once", row.level]
        for status, row in ((status, TABLE[status]) for status in RULED)
    ]
    text = " ".join((DOCS / "analytics.md").read_text(encoding="utf-8").split())
    assert f"in this order: {', '.join(f'`{status}`' for status in BY_SEVERITY)}. " in text
    methods = cells("analytics-methods.md")
    assert [(row[1], row[-1]) for row in methods] == [(s, TABLE[s].level) for s in RULED]
    for status, row in ((Status(cell[1]), cell) for cell in methods):
        if seconds := re.match(r"(\d+) s", row[3]):
            assert float(seconds[1]) == TABLE[status].after_s
