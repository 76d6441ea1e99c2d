"""Unique ids: all different, and shaped as section 2.9 has them."""

from __future__ import annotations

import datetime

from services.broker.send.unique_ids import UniqueIds
from tests.support.still_clock import StillClock
from tidemark.formats.hosts import Host


def ms(*parts: int) -> int:
    """Local time as ms since 1970."""
    return int(datetime.datetime(*parts).astimezone().timestamp() * 1000)  # type: ignore[arg-type]


def since_month(unique_id: str) -> int:
    return int(unique_id[20:28], 16)


def test_ids_differ_within_a_millisecond_and_between_two_makers() -> None:
    host = Host(b"\x0a\x00\x00\x01", 1)
    one, other = UniqueIds(StillClock(), host), UniqueIds(StillClock(), host)
    made = [maker.make() for maker in (one, other) for _ in range(1000)]
    assert len(set(made)) == 2000
    assert all(len(each) == 32 and each.startswith("0A000001") for each in made)


def test_the_time_counts_from_the_months_first_midnight_and_starts_anew_with_the_next() -> None:
    clock = StillClock()
    ids = UniqueIds(clock, Host(bytes(4), 1))
    clock.now_ms = ms(2026, 11, 30, 23, 59, 59)
    assert since_month(ids.make()) == clock.now_ms - ms(2026, 11, 1)
    clock.now_ms = ms(2026, 12, 1, 0, 0, 1)
    assert since_month(ids.make()) == 1000
    clock.now_ms = ms(2027, 1, 31, 12)
    assert since_month(ids.make()) == clock.now_ms - ms(2027, 1, 1)


def test_an_ipv6_host_makes_longer_ids() -> None:
    assert len(UniqueIds(StillClock(), Host(bytes(16), 1)).make()) == 56
