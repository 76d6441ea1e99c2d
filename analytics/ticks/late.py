"""Finds ticks whose samples came after they were evaluated, from the commits of `collect`.

Example: 1. tick 9:00:15 is evaluated without broker g1, which does not answer; 2. g1 answers again,
and `collect` commits its samples of 9:00:15; 3. the commit's file begins at 9:00:15, which is not
after the last evaluated tick. So the buckets of that file are evaluated again from 9:00:15 on.

Only batches of `collect` count. `compact` adds files with rows that were there before; who runs
`backfill` or `migrate` runs `evaluate` over the range as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from analytics.moments import HOUR_US
from analytics.schema import EVALUATED
from analytics.tables import DataFile, TableRoot
from analytics.tables.log import commits
from analytics.ticks.closed import tick_of
from analytics.ticks.window import KEEP_STATES

_COLLECT: Final = "collect"
_MS_US: Final = 1000
_LOOK_BACK_US: Final = HOUR_US + HOUR_US // 4
"""Positions that are needed before a late tick: the state before it is up to an hour old, and is
evaluated with a quarter of an hour before it. `compact` removes positions by whole days."""


class Late(NamedTuple):
    """Ticks with late rows. Microseconds since 1970."""

    first: Mapping[int, int]
    """Bucket → its first tick with late rows."""
    left: int | None
    """The first tick that has late rows and is too old to be evaluated again by the stream; the
    last one that is too old if the log has forgotten what came."""


def versions(root: TableRoot) -> dict[str, int]:
    """Return the number of commits of each table that evaluation reads."""
    return {table: root.version(table) for table in EVALUATED}


def late(
    root: TableRoot,
    judged_us: int,
    since: Mapping[str, int],
    before: Mapping[str, int],
    period_us: int,
) -> Late:
    """Return the ticks up to judged_us that got rows by commits between two versions."""
    found: dict[int, int] = {}
    is_forgotten = False
    for table, end in before.items():
        for commit in commits(root.location, table, since.get(table, end), end):
            if commit is None:
                is_forgotten = True
            elif any(writer.startswith(_COLLECT) for writer in commit.writers):
                of_commit = first_late(commit.added, judged_us, period_us, root.buckets)
                found |= {
                    bucket: min(tick, found.get(bucket, tick)) for bucket, tick in of_commit.items()
                }
    if not found and not is_forgotten:
        return Late({}, None)
    kept_us = _not_again(root, judged_us, period_us)
    left = [tick for tick in found.values() if tick <= kept_us]
    if is_forgotten:  # what commits of more than a week ago added is not known any more
        left.append(kept_us)
    return Late(
        {bucket: tick for bucket, tick in found.items() if tick > kept_us}, min(left, default=None)
    )


def _not_again(root: TableRoot, judged_us: int, period_us: int) -> int:
    """Return the last tick that the stream does not evaluate again, because states or positions
    that it needs are not kept."""
    kept_us = judged_us - KEEP_STATES // timedelta(microseconds=1)
    if files := root.files("positions"):
        kept_us = max(kept_us, files[0].day_us + _LOOK_BACK_US - 1)
    return tick_of(kept_us, period_us)


def first_late(
    files: Iterable[DataFile], judged_us: int, period_us: int, buckets: int
) -> dict[int, int]:
    """Return the first late tick of each bucket that has one. Pure.

    Files of tables without pairs concern all buckets. The first time of a file is its first tick,
    or the begin of a gap, in whole milliseconds.
    """
    found: dict[int, int] = {}
    for file in files:
        tick = tick_of(file.first_us + _MS_US - 1, period_us)
        if file.nulls or tick > judged_us:
            continue  # a gap without a begin is not read by evaluation
        for bucket in range(buckets) if file.bucket is None else (file.bucket,):
            found[bucket] = min(tick, found.get(bucket, tick))
    return found
