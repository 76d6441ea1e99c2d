from __future__ import annotations

import pytest

from tidemark.cli.times import (
    parse_duration_ms,
    parse_time_ms,
    shown_about,
    shown_duration,
    shown_time,
)

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1795169926827", 1_795_169_926_827),
        ("10m", NOW - 600_000),
        ("250ms", NOW - 250),
        ("2d", NOW - 2 * 86_400_000),
        ("2026-11-20T10:00:00+00:00", 1_795_168_800_000),
        ("2026-11-20T11:00:00.5+01:00", 1_795_168_800_500),
        ("2026-11-20T10:00:00Z", 1_795_168_800_000),
    ],
)
def test_times_are_understood_in_every_form(text: str, time_ms: int) -> None:
    assert parse_time_ms(text, now_ms=NOW) == time_ms


@pytest.mark.parametrize("text", ["", "-5", "yesterday", "10 m", "5w", "٣", "2026-13-01"])
def test_an_invalid_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="2026-11-20T10:00:00"):
        parse_time_ms(text, now_ms=NOW)


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [("0ms", 0), ("250ms", 250), ("90s", 90_000), ("12h", 43_200_000), ("7d", 604_800_000)],
)
def test_a_duration_is_parsed_and_shown_alike(text: str, length_ms: int) -> None:
    assert parse_duration_ms(text) == length_ms
    assert shown_duration(length_ms) == text
    assert parse_duration_ms(shown_duration(length_ms + 1) or "") == length_ms + 1


@pytest.mark.parametrize("text", ["", "7", "-1d", "d", "1.5h", "1w", "٣d"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ms, s, m, h or d"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (95.4, "95 s"), (2280, "38 min"), (46_800, "13 h"), (432_000, "5 d")],
)
def test_a_forecast_is_shown_with_its_accuracy(seconds: float, text: str) -> None:
    assert shown_about(seconds) == text


def test_a_shown_time_is_understood_again() -> None:
    shown = shown_time(NOW + 7)
    assert shown is not None
    assert parse_time_ms(shown, now_ms=0) == NOW + 7
    assert shown_time(None) is None
    assert shown_time(1 << 62) == str(1 << 62)
