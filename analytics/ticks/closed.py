"""When a tick is closed, so that it is evaluated. Pure.

A tick is closed when every node that sends positions has sent a later one. A node that is more than
two periods behind the newest is ignored. When no node sends anything, the clock closes ticks, later
and for a limited time, so that a time without samples has UNKNOWN rows. The clock closes only ticks
that `collect` has read past. Example: 1. `collect` is down for five minutes; 2. the clock closes
the ticks of these minutes, as if the brokers were silent; 3. `collect` returns and reads them, too
late. While `collect` is behind, ticks stay open, and the alert TidemarkAnalyticsBehind fires.

Several collectors may write the same tables, each the positions of its own nodes, or only rows of
replicas, logs or gaps. A tick closes only after each of them has read past it, except those that
are an hour behind or whose nodes were silent.

Ticks with samples that arrive after they were closed are evaluated again (`late`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from analytics.runs import Collectors

_WAITED_FOR: Final = 2  # periods
GRACE_PERIODS: Final = 8  # by the clock: `collect` may be this late; two minutes at 15 s
BLIND_US: Final = 3_600_000_000
"""How long the clock alone closes ticks; after that nothing is evaluated."""


class ByClock(NamedTuple):
    """Closes ticks by the clock when no later sample does."""

    now_us: int
    grace_us: int  # minimum time from a tick's start until it closes
    written_us: int  # time when positions were last written
    collected_us: int | None  # every `collect` has read up to here; None: no collector counts


def last_closed(
    seen: Mapping[str, int],
    period_us: int,
    by_clock: ByClock | None,
    read_to: Mapping[str, int] | None = None,
) -> int | None:
    """The newest closed tick [microseconds], or None if there is none.
    seen: the newest tick of each node. by_clock: null: only data close ticks. read_to: the time up
    to which each collector has read, of those that are waited for."""
    if not seen:
        return None
    newest = max(seen.values())
    live = (tick for tick in seen.values() if tick >= newest - _WAITED_FOR * period_us)
    closed = min(live) - period_us
    if by_clock is not None:
        late = min(_passed(by_clock, period_us), newest + BLIND_US)
        closed = max(closed, late // period_us * period_us)
    if read_to:
        closed = min(closed, tick_of(min(read_to.values()), period_us) - period_us)
    return closed


def waited_for(known: Collectors, period_us: int) -> dict[str, int]:
    """Return the time up to which each collector has read, of those that ticks wait for.

    A collector that is an hour behind the newest positions is left out: it was removed, or
    `evaluate` over a range judges these hours later. So is a collector whose nodes have all been
    silent at the end: it may have a new checkpoint, and so another name. Of one that brings no
    positions that is not known.
    """
    oldest = max(known.seen.values(), default=0) - BLIND_US
    found = {name: mark for name, mark in known.others.items() if mark >= oldest}
    for name, mark in known.read_to.items():
        nodes = (node for node, sender in known.sent_by.items() if sender == name)
        last = max((known.seen[node] for node in nodes), default=0)
        if mark >= oldest and last >= mark - (_WAITED_FOR + 1) * period_us:
            found[name] = mark
    return found


def _passed(by_clock: ByClock, period_us: int) -> int:
    """Return the time up to which no more samples can arrive."""
    passed = by_clock.now_us - by_clock.grace_us
    if by_clock.collected_us is not None:
        return min(passed, by_clock.collected_us - period_us)
    # While old samples still arrive, `collect` is catching up and the nodes are not silent. Closing
    # by the clock would evaluate the next hour before its samples arrive.
    return passed if by_clock.now_us - by_clock.written_us >= by_clock.grace_us else 0


def tick_of(at_us: int, period_us: int) -> int:
    """The tick that contains the time."""
    return at_us // period_us * period_us
