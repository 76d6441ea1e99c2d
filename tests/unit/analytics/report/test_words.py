"""Numbers and statuses in words."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from analytics.report.words import (
    GAP_WORDS,
    STAGE_WORDS,
    byte_count,
    drain,
    duration,
    moment,
    number,
    share,
    status_words,
    subject_words,
)
from analytics.schema import Gap, Stage
from tests.support.for_each import for_each


@for_each(
    ("seconds", "text"),
    [
        (None, "not known"),
        (math.nan, "not known"),
        (math.inf, "never"),
        (0.0, "0 s"),
        (0.0042, "4 ms"),
        (2.5, "2.5 s"),
        (9.0, "9 s"),
        (60.0, "60 s"),
        (119.6, "2 min"),
        (135.0, "2 min 15 s"),
        (1800.0, "30 min"),
        (7199.0, "120 min"),
        (7260.0, "2 h 1 min"),
        (7200.0, "2 h"),
        (4 * 86400.0, "4.0 days"),
        (-3.0, "−3 s"),
    ],
)
def test_durations_have_two_parts_at_most(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_never_and_not_known_are_different_drain_times() -> None:
    assert drain(None, None, None) == "not known"
    assert drain(None, math.inf, None) == "never at this pace"
    assert drain(60.0, 120.0, 600.0) == "2 min (60 s to 10 min)"
    assert (
        drain(600.0, 601.0, 602.0) == "10 min (10 min to 10 min)"
        or drain(600.0, 600.0, 600.0) == "10 min"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not known"),
        (0, "0"),
        (0.1234, "0.123"),
        (12.0, "12"),
        (1234.5, "1,234"),
        (-14.23, "−14.2"),
        (1_430_000, "1.43 M"),
        (math.inf, "∞"),
    ],
)
def test_numbers_have_three_digits_that_mean_something(value: float | None, text: str) -> None:
    assert number(value) == text


def test_bytes_are_in_powers_of_1024() -> None:
    assert byte_count(3 * 1024**3) == "3 GiB"
    assert byte_count(None) == "not known"


def test_nearly_all_is_not_all() -> None:
    assert share(0.999) == "99.9 %"
    assert share(1.0) == "100 %"
    assert share(None) == "not known"


def test_a_moment_of_the_same_day_is_a_time() -> None:
    noon = datetime(2026, 3, 4, 12, tzinfo=UTC)
    assert moment(noon) == "4 Mar 12:00"
    assert moment(noon, noon) == "12:00"
    assert moment(None) == "not known"


def test_every_stage_and_gap_has_its_words() -> None:
    assert set(STAGE_WORDS) == set(Stage)
    assert set(GAP_WORDS) == set(Gap)


def test_an_unknown_status_is_shown_by_its_name() -> None:
    assert status_words("SOMETHING_NEW") == "something new"


@pytest.mark.parametrize(
    ("subject", "words"),
    [
        ("cluster=c broker=g0 replica=n0 volume=log", "volume log of n0 of g0 of c"),
        ("cluster=c broker=g0 group=a topic=b", "a reads b on g0 of c"),
        ("broker=g0 topic=b", "topic b on g0"),
        ("cluster=c", "c"),
        ("all of it", "all of it"),
        ("", ""),
    ],
)
def test_subjects_are_put_into_words(subject: str, words: str) -> None:
    assert subject_words(subject) == words
