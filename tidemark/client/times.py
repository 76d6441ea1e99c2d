"""Converts points in time from programs to milliseconds since 1970-01-01 UTC. Pure."""

from __future__ import annotations

from datetime import datetime
from numbers import Integral


def as_ms(time: datetime | int, name: str) -> int:
    """Return a time in milliseconds; a whole number is one already.

    name: name of the argument, for the error. Raises ValueError for a datetime without time zone,
    because its meaning depends on the machine.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError(f"{name} has no time zone; datetime.now(timezone.utc) has one")
        return round(time.timestamp() * 1000)
    if isinstance(time, bool) or not isinstance(time, Integral):
        raise TypeError(f"{name} must be a datetime or whole milliseconds, not {time!r}")
    return int(time)
