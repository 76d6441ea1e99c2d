"""When a tick is closed, so that it is evaluated once. Pure.

A tick is closed when every node that sends positions has sent a later one; a node that is more
than two periods behind the newest is not waited for. When no node sends anything any more,
the clock closes ticks, later and for a while: so a time without samples has UNKNOWN rows instead of
none. But it closes only what `collect` has read past. Example: 1. `collect` is down for
five minutes; 2. the clock closes the ticks of these minutes, as if the brokers were silent;
3. `collect` comes back and reads them, too late. While `collect` is behind ticks stay open, and the
alert TidemarkAnalyticsBehind fires.

What comes after a tick was closed stays in the tables, and `evaluate` over a range takes it up; the
stream never judges a tick twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

_WAITED_FOR: Final = 2  # periods
GRACE_PERIODS: Final = 8  # by the clock: what collect may be behind; two minutes at 15 s
BLIND_US: Final = 3_600_000_000
"""How long the clock alone closes ticks; after it there is nothing to evaluate."""


class ByClock(NamedTuple):
    """Closes ticks by the clock when no later sample does."""

    now_us: int
    grace_us: int  # no tick closes before this has passed since its start
    written_us: int  # when positions were written the last time
    collected_us: int | None  # `collect` has read all up to here; None: older tables do not have it
    blind_us: int = BLIND_US


def last_closed(seen: Mapping[str, int], period_us: int, by_clock: ByClock | None) -> int | None:
    """The newest closed tick [microseconds], or None if there is none.

    seen: the newest tick of each node. by_clock: null: only the data close ticks.
    """
    if not seen:
        return None
    newest = max(seen.values())
    live = (tick for tick in seen.values() if tick >= newest - _WAITED_FOR * period_us)
    closed = min(live) - period_us
    if by_clock is not None:
        late = min(_passed(by_clock, period_us), newest + by_clock.blind_us)
        closed = max(closed, late // period_us * period_us)
    return closed


def _passed(by_clock: ByClock, period_us: int) -> int:
    """Return the time up to which no more samples can arrive."""
    passed = by_clock.now_us - by_clock.grace_us
    if by_clock.collected_us is not None:
        return min(passed, by_clock.collected_us - period_us)
    # While samples of long ago still come in, their silence is not the nodes': a collection that
    # catches up would find the next hour judged as blind before it is there.
    return passed if by_clock.now_us - by_clock.written_us >= by_clock.grace_us else 0


def tick_of(at_us: int, period_us: int) -> int:
    """The tick that holds the moment."""
    return at_us // period_us * period_us
