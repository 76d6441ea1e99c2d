"""Times as people type them on a command line: milliseconds, ISO 8601, or ``10m`` ago."""

from __future__ import annotations

import datetime
import re
import time
from typing import Final

import click

_AGO: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time_ms(text: str, *, now_ms: int) -> int:
    """Milliseconds since 1970 for a typed time; local time where it names no zone.

    Raises ValueError with what is understood.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    if ago := _AGO.fullmatch(text):
        return now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    try:
        return int(datetime.datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time: give milliseconds since 1970, "
            "2026-11-20T10:00:00, or an age such as 10m"
        ) from None


class _Timestamp(click.ParamType[int]):
    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_time_ms(str(value), now_ms=int(time.time() * 1000))
        except ValueError as error:
            self.fail(str(error), param, ctx)


TIMESTAMP: Final = _Timestamp()
"""Option type: a time, as milliseconds since 1970."""
