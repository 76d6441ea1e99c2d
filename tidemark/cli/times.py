"""Parses and formats times (milliseconds, ISO 8601, ``10m`` ago) and durations (``7d``)."""

from __future__ import annotations

import datetime
import re
import time
from collections.abc import Callable
from typing import Final, TypeVar

import click

T = TypeVar("T")
_AGO: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time_ms(text: str, *, now_ms: int) -> int:
    """Parse a time to milliseconds since 1970; local time if it has no zone.

    Raises ValueError with the accepted forms.
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


def parse_duration_ms(text: str) -> int:
    """Parse a duration to milliseconds: ``250ms``, ``90s``, ``12h``, ``7d``.

    Raises ValueError with the accepted forms; a number without a unit is rejected.
    """
    length = _AGO.fullmatch(text)
    if length is None or not text.isascii():
        raise ValueError(f"{text!r} is not a duration: give a number and ms, s, m, h or d")
    return int(length[1]) * _UNIT_MS[length[2]]


class Parsed(click.ParamType[T]):
    """Option type: a text that a function parses; its ValueError is a usage error."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name, self.parse = name, parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Parse the option's text."""
        try:
            return self.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


TIMESTAMP: Final = Parsed("time", lambda text: parse_time_ms(text, now_ms=int(time.time() * 1000)))
"""Option type: a time, as milliseconds since 1970."""
DURATION: Final = Parsed("duration", parse_duration_ms)
"""Option type: a duration in milliseconds."""


def shown_time(time_ms: int | None) -> str | None:
    """Format a time in local time to the millisecond; None if it is unknown."""
    if time_ms is None:
        return None
    try:
        time_local = datetime.datetime.fromtimestamp(time_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(time_ms)  # outside the calendar's range
    return time_local.isoformat(timespec="milliseconds")


def shown_duration(time_ms: int | None) -> str | None:
    """Format a duration in the largest exact unit, which ``parse_duration_ms`` can parse.

    Returns None if the duration is None.
    """
    if time_ms is None:
        return None
    if time_ms == 0:
        return "0ms"
    unit = next(unit for unit in reversed(_UNIT_MS) if time_ms % _UNIT_MS[unit] == 0)
    return f"{time_ms // _UNIT_MS[unit]}{unit}"


def shown_about(seconds: float) -> str:
    """Format a duration to about two digits: ``95 s``, ``38 min``, ``5 d``."""
    for unit, length_s, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < most * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"
