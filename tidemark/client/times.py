"""Points in time as programs give them, to milliseconds since 1970-01-01 UTC. Pure."""

from __future__ import annotations

from datetime import datetime


def as_ms(time: datetime | int, name: str) -> int:
    """Milliseconds of a time; whole numbers are milliseconds already.

    name: of the argument, for the error. Raises ValueError for a datetime without time zone: it
    would mean another time on another machine.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError(f"{name} has no time zone; datetime.now(timezone.utc) has one")
        return round(time.timestamp() * 1000)
    if isinstance(time, bool) or not isinstance(time, int):
        raise TypeError(f"{name} must be a datetime or whole milliseconds, not {time!r}")
    return time
