"""Events that moved a commit or cut a queue, placed at the first row after each. Pure.

The row may come ticks after the event. Until then the event is pending, and the state carries it
between evaluations.
"""

from __future__ import annotations

from enum import IntFlag
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from analytics.kernel import columns
from analytics.kernel.columns import Bools, Floats, Ints
from analytics.kernel.grid import Known, Positions, Ticks, indexed, rows_within
from analytics.schema import OFFSET_EVENTS


class Seen(IntFlag):
    """The kinds of events that a series has had since its last row."""

    ANY = 1
    UNREQUESTED = 2
    TRUNCATE = 4
    DISTANCE_UNKNOWN = 8


class SeriesEvents(NamedTuple):
    """Events of a window, at the tick whose row is the first after each."""

    at: Ints
    series: Ints
    flags: Ints
    delta: Floats
    """Distance by which the commit was moved [messages]; 0 for a cut of the queue."""


def series_events(
    events: pa.Table, grid: Positions, ticks: Ticks, begin: int, known: Known, period: int
) -> SeriesEvents:
    """Return the events of ticks from number `begin` on. Events of other series are left out; those
    of earlier ticks are in the state."""
    nothing = np.zeros(0, np.int64)
    if not events.num_rows or not ticks.at.size:
        return SeriesEvents(nothing, nothing, nothing, np.zeros(0))
    events, at = rows_within(events, ticks, period)
    by_id = np.argsort(known.series_id, kind="stable")
    found = indexed(columns.ints(events, "series_id"), known.series_id[by_id])
    there = (found >= 0) & (at >= begin)
    events, at, found = events.filter(pa.array(there)), at[there], found[there]
    series = by_id[found]
    # A tick is sampled at its start, so an event after the sample belongs to the next sample.
    after_sample = columns.instants(events, "ts") > grid.ts[at, series]
    kind = np.array(events.column("kind").to_pylist(), dtype=object)
    cut = kind == "truncate"
    moved = columns.floats(events, "to_offset") - columns.floats(events, "from_offset")
    delta = np.where(cut, 0.0, moved)
    unknown = np.isnan(delta)
    asked = columns.truths(events, "by_request") | np.isin(kind, ("expire", "clear"))
    flags = np.full(at.size, int(Seen.ANY), np.int64)
    flags[~asked] |= int(Seen.UNREQUESTED)
    flags[cut] |= int(Seen.TRUNCATE)
    flags[unknown] |= int(Seen.DISTANCE_UNKNOWN)
    return SeriesEvents(at + after_sample, series, flags, np.nan_to_num(delta))


class Found:
    """Events found in the offsets themselves, collected tick by tick."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._parts: list[pa.Table] = []

    def add(
        self,
        kind: str,
        where: Bools,
        ts: Floats,
        tick: int,
        begin: Floats,
        end: Floats,
        by_request: Bools,
    ) -> None:
        """Add one event for each series that is set in `where`, with its offsets before and
        after."""
        at = np.flatnonzero(where)
        if not at.size:
            return
        known = self._known
        self._parts.append(
            pa.table(
                [
                    columns.times(ts[at].astype(np.int64)),
                    columns.times(np.full(at.size, tick, np.int64)),
                    pa.array(known.series_id[at]),
                    pa.array(known.pair_id[known.pair[at]]),
                    pa.array([kind] * at.size, pa.string()),
                    columns.nullable(begin[at], pa.int64()),
                    columns.nullable(end[at], pa.int64()),
                    pa.array(by_request[at]),
                ],
                schema=OFFSET_EVENTS,
            )
        )

    def table(self) -> pa.Table:
        """All events, by pair, series and time."""
        if not self._parts:
            return OFFSET_EVENTS.empty_table()
        found = pa.concat_tables(self._parts)
        keys = [(name, "ascending") for name in ("pair_id", "series_id", "tick", "kind")]
        return found.sort_by(keys).combine_chunks()
