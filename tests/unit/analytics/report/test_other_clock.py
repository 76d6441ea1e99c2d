"""Ages in a report whose head was stamped by an earlier master's clock."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from analytics.kernel.age import MARKED
from analytics.report.course import other_clock
from analytics.report.facts import OtherClock, to_json
from analytics.report.gather import gather
from analytics.report.page import page
from analytics.report.sentences import clock_words
from tests.support.lag_world import END, START, MemoryTables, pair_row, tables


@pytest.mark.parametrize("method", MARKED)
def test_only_marked_ages_are_reported(method: str) -> None:
    row = {"age_method": method, "age_low_seconds": 8.0, "age_high_seconds": 12.0}
    expected = {
        "off": OtherClock(8.0, 12.0, is_known=True),
        "unknown": OtherClock(8.0, 12.0, is_known=False),
    }
    assert other_clock(row) == expected.get(method.rpartition("_clock_")[2])


def test_the_bounds_of_the_age_are_put_into_words() -> None:
    assert clock_words(OtherClock(188.0, 192.0, is_known=True)) == (
        "An earlier master stored its oldest message, by a clock that may differ by more than a "
        "second: the age lies between 3 min 8 s and 3 min 12 s."
    )
    assert clock_words(OtherClock(30.0, None, is_known=True)).endswith("so may the age.")
    unknown = clock_words(OtherClock(None, None, is_known=False))
    assert unknown.endswith("is not known: nor is how exact the age is.")
    assert clock_words(None) == ""


@pytest.mark.parametrize("mark", ["off", "unknown"])
def test_only_the_card_of_such_a_pair_has_the_note(mark: str) -> None:
    world = dict(tables())
    lag = world["lag"]
    wanted = pair_row("mailer", 0)["pair_id"]
    for name, value in (
        ("age_method", f"exact_clock_{mark}"),
        ("age_low_seconds", 60.0 if mark == "off" else None),
        ("age_high_seconds", 70.0 if mark == "off" else None),
    ):
        place = lag.column_names.index(name)
        values = [
            value if pair == wanted else old
            for pair, old in zip(lag["pair_id"].to_pylist(), lag[name].to_pylist(), strict=True)
        ]
        lag = lag.set_column(place, lag.schema.field(place), pa.array(values, lag[name].type))
    found = gather(MemoryTables(world | {"lag": lag}), start=START, end=END, made_at=END)
    marked = {one.pair.group: one.other_clock for one in found.attention if one.other_clock}
    known = mark == "off"
    low, high = (60.0, 70.0) if known else (None, None)
    assert marked == {"mailer": OtherClock(low, high, is_known=known)}
    assert page(found).count("An earlier master stored its oldest message") == 1
    (one,) = (each for each in json.loads(to_json(found))["attention"] if each["other_clock"])
    assert one["other_clock"] == {"low_s": low, "high_s": high, "is_known": known}
