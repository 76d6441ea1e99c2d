"""A sender states a delay with one field of several, and within the limits of that field."""

from __future__ import annotations

import pytest

from services.broker.send.wanted_delay import Delay, wanted_delay
from tidemark.errors import BadRequest, DelayOutOfRange
from tidemark.formats.delay import DELAY_MS_MAX


@pytest.mark.parametrize(
    ("fields", "delay"),
    [
        ({}, None),
        ({"delay_level": None, "delay_ms": None, "deliver_at_ms": None}, None),
        ({"delay_level": 1}, Delay(level=1)),
        ({"delay_level": 18}, Delay(level=18)),
        ({"delay_ms": 0}, Delay(after_ms=0)),
        ({"delay_ms": DELAY_MS_MAX}, Delay(after_ms=DELAY_MS_MAX)),
        ({"deliver_at_ms": 0}, Delay(at_ms=0)),
        ({"deliver_at_ms": 1 << 60, "delay_ms": None}, Delay(at_ms=1 << 60)),
    ],
)
def test_one_field_says_how_long_it_waits(fields: dict[str, object], delay: Delay | None) -> None:
    assert wanted_delay(fields, "messages[0]", level_count=18) == delay


@pytest.mark.parametrize(
    "fields",
    [
        {"delay_level": 0},
        {"delay_level": -1},
        {"delay_level": 19},
        {"delay_ms": -1},
        {"delay_ms": DELAY_MS_MAX + 1},
        {"deliver_at_ms": -1},
    ],
)
def test_a_delay_out_of_range_has_its_own_code_and_names_the_limit(
    fields: dict[str, object],
) -> None:
    with pytest.raises(DelayOutOfRange) as caught:
        wanted_delay(fields, "messages[3]", level_count=18)
    (name,) = fields
    assert caught.value.field == f"messages[3].{name}"
    assert caught.value.limit == (18 if name == "delay_level" else DELAY_MS_MAX)
    assert "Nothing was stored" in caught.value.detail


def test_two_ways_at_once_are_refused() -> None:
    with pytest.raises(BadRequest, match="delay_level and delay_ms"):
        wanted_delay({"delay_level": 1, "delay_ms": 5}, "messages[0]", level_count=18)
