"""The rules for the deletion of log files, as the operator configures them. Pure.

``config`` reads them before this step; ``retention.retention`` applies them after it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

HOURS: Final = 24
"""Hours of a day."""


class Policy(NamedTuple):
    """Settings of retention."""

    age_ms: int
    """A file has expired this long after it was last written."""
    delete_hours: frozenset[int]
    """Hours of the day, local time, in which expired files are deleted."""
    size_max: int
    """Maximum size of the log in bytes, above which files are deleted. 0: no limit."""
    used_percent_max: int
    """Above this, expired files are deleted at any hour."""
    forcible_percent: int
    """Above this, files of any age are deleted, if ``forcibly``."""
    warning_percent: int
    """Above this, sends are refused as well."""
    forcibly: bool


def parse_hours(text: str) -> frozenset[int]:
    """Parse the hours in "04" or "01;13". Raises ValueError naming the part."""
    hours = set()
    for part in text.split(";"):
        if not (part.isascii() and part.isdigit() and int(part) < HOURS):
            raise ValueError(f"{part!r} is not an hour from 00 to 23; several are joined by ;")
        hours.add(int(part))
    return frozenset(hours)
