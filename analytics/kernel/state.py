"""State between evaluations: a row of numbers per series and per pair. Pure.

With it, results do not depend on how time is cut into calls, and a repeated batch gives the same
bytes. NaN is unknown or never. Times are microseconds since 1970.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.columns import Floats, Ints
from analytics.kernel.rules import Rules
from analytics.kernel.stall import bin_ends
from analytics.kernel.window import STATUS_STATE

SERIES_FIELDS: Final = (
    "tick",  # of the last row
    "ts",
    "epoch",
    "low",
    "high",
    "high_ts",  # when the max offset was last known
    "commit",
    "commit_ts",
    "lag",
    "segment",  # the tick at which it began
    "cut_at",  # the tick of the last cut, if there was one
    "still",  # when the commit was first seen unchanged with unread messages
    "still_first",  # the earliest time at which that may have begun, holes included
    "waiting",  # when the head was first seen unread
    "unread_tick",  # the tick of that sample; kept when the epoch changes
    "status",
    "since",
    "candidate",  # the status whose rule held at the last row
    "held",  # number of consecutive ticks at which that rule has held
    "judged",  # the tick of the last row
    "recent_commit",  # the largest commit as of recommit_s ago; detects a rebalance
    "recent_tick",
    "older_commit",
    "older_tick",
    "lost_tick",  # when messages were last lost
    "lost_sum",  # number of messages lost since the status became LOST
    "pending",  # events that no row has shown yet: bits of `events`
    "pending_delta",  # number of messages by which these events moved the commit
    "excused_tick",  # last sample of an absence that excused the age, in a window without others
    "excused_age",  # age at that sample [s]
    "excused_last",  # the last sample of any such absence
    "left_late",  # 1 if the age exceeded the objective when members last subscribed to the topic
    "peak_age",  # the highest age since the group was in time [s]
    "low_age",  # the lowest since then [s]
    "longest_fall_age",  # the largest fall before it rose beyond its peak again [s]
    "fall_age",  # the second longest of such falls [s]
    "relapse_age",  # the age at the end of the last such fall, until it has recovered [s]
)
PAIR_FIELDS: Final = (
    "status",
    "since",
    "alarmed",  # 1 if it has had an alarm since it was last seen in time
    "objective",
    "stall_after",
    "paused",
    "paused_tick",  # when it was last paused
    "broadcasting",
    "members",
    "subscribed",
    "facts_tick",  # tick of the last row of the table pairs
    "alone",  # when the absence of members was first seen
    "alone_first",  # the earliest time at which that absence may have begun
    "left_tick",  # last tick without a member
    "subscribed_tick",  # when it was last seen subscribed
    "expired",
    "reset_forward",
    "reset_backward",
    "redelivered",
    "redelivered_tick",  # when it last rose
    "minute",  # the minute that is being filled
    "minute_age",  # age at its beginning
    "minute_age_at",
    "last_age",
    "last_age_at",
    "minute_produced",
    "minute_consumed",
    "minute_rates",  # number of rates that were added
    "gaps",  # weight of samples at which gaps between commits ended
    "gaps_tick",
    "leader",  # number of the node that reports the pair, in `clocks`
    "led_before",  # number of the node that reported it before
    "led_since",  # first sample of the present node, if another was master before
    "clock_all",  # bound of the difference between its clock and those of earlier nodes [s]
    "clock_others",  # the same without the node that reported before [s]
)
"""The minutes of `drain` and the bins of `stall` follow these fields."""


ZERO_FIELDS: Final = ("pending", "pending_delta", "held", "gaps", "lost_sum")
"""Fields whose first value is 0; the others begin as unknown."""
STATUS_FIELDS: Final = (
    "status",
    "since",
    "candidate",
    "held",
    "judged",
    "excused_tick",
    "excused_age",
    "excused_last",
    "left_late",
    "peak_age",
    "low_age",
    "longest_fall_age",
    "fall_age",
    "relapse_age",
)
"""Fields of a series that `absence`, `relapse` and `debounce` update; `segments` updates the
rest."""


class Carried(NamedTuple):
    """A state, in the order of the series and pairs of an evaluation."""

    series: dict[str, Floats]
    pairs: dict[str, Floats]
    minutes: Floats
    """[pair, 3 × drain_minutes]: progress, produce and consume rates, newest last."""
    gap_bins: Floats
    """[pair, bins]: weight of the gaps between commits, by length."""

    def part(self, series: slice, pairs: slice) -> Carried:
        """Return views of the state of some series and pairs; changes apply to this state."""
        return Carried(
            {name: values[series] for name, values in self.series.items()},
            {name: values[pairs] for name, values in self.pairs.items()},
            self.minutes[pairs],
            self.gap_bins[pairs],
        )


def nothing(series: int, pairs: int, minutes: int, bins: int) -> Carried:
    """Initial state."""
    carried = Carried(
        {name: np.full(series, np.nan) for name in SERIES_FIELDS},
        {name: np.full(pairs, np.nan) for name in PAIR_FIELDS},
        np.full((pairs, 3 * minutes), np.nan),
        np.zeros((pairs, bins)),
    )
    for name in ZERO_FIELDS:
        for part in (carried.series, carried.pairs):
            if name in part:
                part[name][:] = 0.0
    return carried


class Ids(NamedTuple):
    """Series and pairs of a state table."""

    series_id: Ints
    pair_of: Ints
    names: dict[int, tuple[str, ...]]


def ids_of(state: pa.Table | None) -> Ids:
    """The series of a state, the pair of each, and the names of the pairs."""
    if state is None or not state.num_rows:
        return Ids(np.zeros(0, np.int64), np.zeros(0, np.int64), {})
    series = state.filter(state.column("series_id").is_valid())
    pairs = state.filter(state.column("series_id").is_null())
    names = zip(pairs.column("pair_id").to_pylist(), pairs.column("names").to_pylist(), strict=True)
    return Ids(
        columns.ints(series, "series_id"),
        columns.ints(series, "pair_id"),
        {pair: tuple(each) for pair, each in names},
    )


def fits(state: pa.Table, rules: Rules) -> bool:
    """Whether the rules can continue from the state. A state of an older version or of other
    windows has a different number of fields."""
    pair = len(PAIR_FIELDS) + 3 * rules.drain_minutes + bin_ends(rules).size
    for column, width in (("series", len(SERIES_FIELDS)), ("pair", pair)):
        lengths = pc.list_value_length(state.column(column).drop_null())
        if pc.any(pc.not_equal(lengths, width)).as_py():
            return False
    return True


def read(state: pa.Table, into: Carried, series_id: Ints, pair_id: Ints) -> None:
    """Fill `into` from a state table; missing series and pairs keep their values. Raises ValueError
    if the state was left by other rules than those of `into`."""
    series = state.filter(state.column("series_id").is_valid())
    pairs = state.filter(state.column("series_id").is_null())
    if series.num_rows:
        at, values = _values(series, "series", "series_id", series_id, len(SERIES_FIELDS))
        for number, name in enumerate(SERIES_FIELDS):
            into.series[name][at] = values[:, number]
    if pairs.num_rows:
        own = len(PAIR_FIELDS)
        minutes = into.minutes.shape[1]
        width = own + minutes + into.gap_bins.shape[1]
        at, values = _values(pairs, "pair", "pair_id", pair_id, width)
        for number, name in enumerate(PAIR_FIELDS):
            into.pairs[name][at] = values[:, number]
        into.minutes[at] = values[:, own : own + minutes]
        into.gap_bins[at] = values[:, own + minutes :]


def _values(rows: pa.Table, column: str, key: str, among: Ints, width: int) -> tuple[Ints, Floats]:
    """Return the place of each row, and its numbers; rows of unknown ids are left out."""
    flat = rows.column(column).combine_chunks().flatten()
    if len(flat) != width * rows.num_rows:
        raise ValueError(
            f"the state has {len(flat) / rows.num_rows:g} numbers per row of {column}, these rules "
            f"need {width}: it was left by other rules; begin without a state"
        )
    values = np.asarray(flat.to_numpy(zero_copy_only=False), np.float64).reshape(-1, width)
    order = np.argsort(among, kind="stable")
    ids = columns.ints(rows, key)
    at = np.minimum(np.searchsorted(among[order], ids), max(among.size - 1, 0))
    there = among[order][at] == ids
    return order[at[there]], values[there]


def write(
    carried: Carried,
    series_id: Ints,
    series_pair: Ints,
    pair_id: Ints,
    names: tuple[tuple[str, ...], ...],
    until: int,
) -> pa.Table:
    """The state as a table: series by pair and id, then pairs; those never seen are left out."""
    kept = np.flatnonzero(~np.isnan(carried.series["tick"]))
    series = np.stack([carried.series[name][kept] for name in SERIES_FIELDS], axis=1)
    of_kept = np.isin(np.arange(pair_id.size), series_pair[kept])
    at = np.flatnonzero(of_kept)
    pairs = np.concatenate(
        [
            np.stack([carried.pairs[name][at] for name in PAIR_FIELDS], axis=1),
            carried.minutes[at],
            carried.gap_bins[at],
        ],
        axis=1,
    )
    return pa.concat_tables(
        [
            _rows(pair_id[series_pair[kept]], series_id[kept], "series", series, None, until),
            _rows(pair_id[at], None, "pair", pairs, [list(names[i]) for i in at], until),
        ]
    )


def _rows(
    pair_id: Ints,
    series_id: Ints | None,
    column: str,
    values: Floats,
    names: list[list[str]] | None,
    until: int,
) -> pa.Table:
    size, width = values.shape
    offsets = pa.array(np.arange(size + 1, dtype=np.int32) * width)
    data: dict[str, pa.Array] = {
        "pair_id": pa.array(pair_id),
        column: pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1))),
        "until": columns.times(np.full(size, until, dtype=np.int64)),
    }
    if series_id is not None:
        data["series_id"] = pa.array(series_id)
    if names is not None:
        data["names"] = pa.array(names, pa.list_(pa.string()))
    return pa.table(
        [data.get(field.name, pa.nulls(size, field.type)) for field in STATUS_STATE],
        schema=STATUS_STATE,
    )
