from __future__ import annotations

import pytest

from tidemark.cli.times import parse_time_ms

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
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="2026-11-20T10:00:00"):
        parse_time_ms(text, now_ms=NOW)
