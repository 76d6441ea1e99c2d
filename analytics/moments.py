"""Moments as microseconds since 1970, and whole hours. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

HOUR: Final = timedelta(hours=1)
HOUR_US: Final = 3_600_000_000  # [microseconds]
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def hour_of(moment: datetime) -> datetime:
    """The whole hour that holds the moment."""
    return EPOCH + (moment - EPOCH) // HOUR * HOUR


def steps(first: datetime, before: datetime, step: timedelta = HOUR) -> list[datetime]:
    """The times from first on, a step apart, that lie before `before`."""
    return [first + step * number for number in range(-((first - before) // step))]


def to_us(moment: datetime) -> int:
    """Microseconds since 1970, exactly. moment: with a zone."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def from_us(microseconds: int) -> datetime:
    """The moment, in UTC."""
    return EPOCH + timedelta(microseconds=microseconds)
