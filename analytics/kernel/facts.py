"""Known facts of pairs and logs at each tick: members, objective, retention. Pure.

Settings (objective, stall time, paused, broadcasting) hold until a row has another value. Members
and subscriptions change without notice. They hold from their row on, for at most the time after
which a series without samples is UNKNOWN.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.grid import (
    Known,
    Ticks,
    place,
    rows_of_pairs,
    rows_within,
    sets_of,
    taken,
)
from analytics.kernel.rules import Rules

SETTINGS: Final = {
    "objective": "objective_seconds",
    "stall_after": "stall_after_seconds",
    "paused": "paused",
    "broadcasting": "broadcasting",
}
COUNTED: Final = {
    "expired": "expired_total",
    "reset_forward": "reset_forward_total",
    "reset_backward": "reset_backward_total",
    "redelivered": "redelivered_total",
}


class Facts(NamedTuple):
    """Matrices [tick, pair], from tick number `begin` on."""

    objective: Floats
    """Seconds; the default of the rules for pairs without an objective."""
    stall_given: Floats
    """Seconds; NaN for pairs without this setting."""
    paused: Bools
    paused_ago: Floats
    """Time since it was last paused [s]; NaN: never."""
    broadcasting: Bools
    members: Floats
    """Number of members of the group, whatever topics they read."""
    readers: Floats
    """The same; 0 while none of them subscribes to the topic."""
    subscribed: Floats
    recently_subscribed: Bools
    alone: Floats
    """For how long there has certainly been no reader [s]; NaN while there is one."""
    alone_most: Floats
    """For how long there may have been no reader, holes included [s]."""
    left: Floats
    """The last tick without a reader [microseconds]; NaN: none."""
    left_before: Floats
    """`left` at the previous sample."""
    expired: Floats
    """Increase since the previous row; NaN: not known."""
    reset_forward: Floats
    reset_backward: Floats
    redeliveries_rise: Bools
    """Redeliveries rose within a window of progress."""


def facts_of(
    pairs: pa.Table,
    ticks: Ticks,
    begin: int,
    known: Known,
    carried: dict[str, Floats],
    worked: Bools,
    rules: Rules,
) -> Facts:
    """Process the rows of pairs from tick number `begin` on; updates `carried`.
    worked: matrix [tick, pair]: a commit of the pair has moved forward."""
    rows, tick, pair = rows_of_pairs(pairs, ticks, begin, known, rules.period_us)
    shape = (ticks.at.size - begin, known.pair_id.size)
    ts = columns.instants(rows, "ts")
    where = place(tick, pair, shape, (ts,))
    names = {**SETTINGS, **COUNTED, "members": "members", "subscribed": "subscribed"}
    given = {name: taken(columns.floats(rows, column), where) for name, column in names.items()}
    out = {
        name: np.full(shape, np.nan)
        for name in (
            *names,
            "alone",
            "alone_most",
            "left",
            "left_before",
            "heard",
            "rose",
            "paused_ago",
        )
    }
    lost_after = rules.unknown_after_s * SECOND
    for row in range(shape[0]):
        now = float(ticks.at[begin + row])
        here = where[row] >= 0
        for name in SETTINGS:
            new = given[name][row]
            np.copyto(carried[name], new, where=~np.isnan(new))
            out[name][row] = carried[name]
        for name in COUNTED:
            out[name][row] = _counted(
                given[name][row], carried[name], here, ~np.isnan(carried["facts_tick"])
            )
        np.copyto(carried["paused_tick"], now, where=carried["paused"] == 1)
        out["paused_ago"][row] = (now - carried["paused_tick"]) / SECOND
        before = carried["facts_tick"].copy()
        for name in ("members", "subscribed"):
            np.copyto(carried[name], given[name][row], where=here)
        np.copyto(carried["facts_tick"], now, where=here)
        stale = ~(now - carried["facts_tick"] < lost_after)
        for name in ("members", "subscribed"):
            out[name][row] = np.where(stale, np.nan, carried[name])
        np.copyto(carried["redelivered_tick"], now, where=out["redelivered"][row] > 0)
        out["rose"][row] = carried["redelivered_tick"]
        np.copyto(carried["subscribed_tick"], now, where=here & (carried["subscribed"] > 0))
        out["heard"][row] = carried["subscribed_tick"]
        out["left_before"][row] = carried["left_tick"]
        _count_alone(carried, here, worked[row], now, before, rules.period_us)
        out["alone"][row] = (now - carried["alone"]) / SECOND
        out["left"][row] = carried["left_tick"]
        out["alone_most"][row] = (now - carried["alone_first"]) / SECOND
    readers = np.where(out["subscribed"] == 0, 0.0, out["members"])
    no_member = readers == 0
    now_all = ticks.at[begin:, None]
    return Facts(
        np.where(np.isnan(out["objective"]), rules.objective_s, out["objective"]),
        out["stall_after"],
        out["paused"] == 1,
        out["paused_ago"],
        out["broadcasting"] == 1,
        out["members"],
        readers,
        out["subscribed"],
        now_all - out["heard"] <= rules.abandoned_after_s * SECOND,
        np.where(no_member, out["alone"], np.nan),
        np.where(no_member, out["alone_most"], np.nan),
        out["left"],
        out["left_before"],
        out["expired"],
        out["reset_forward"],
        out["reset_backward"],
        now_all - out["rose"] < rules.progress_window_s * SECOND,
    )


def _counted(value: Floats, last: Floats, here: Bools, known: Bools) -> Floats:
    """Increase of a counter of the pair since its last row; a restart of the broker resets it.
    here: the pair has a row. known: it had one before. A broker exports a counter after its first
    event, so a counter that was missing in the previous row was 0."""
    step = np.where(value < last, value, value - last)
    np.copyto(step, value, where=here & known & np.isnan(last))
    np.copyto(last, value, where=here)
    return step


def _count_alone(
    carried: dict[str, Floats],
    here: Bools,
    worked: Bools,
    now: float,
    before: Floats,
    period: int,
) -> None:
    """Update the time since when a pair has no reader: no member, or none that subscribes.
    now, before: this tick and that of the pair's previous row [microseconds]. A commit between two
    samples shows that a member came and went; a hole alone shows nothing."""
    no_member = here & ((carried["members"] == 0) | (carried["subscribed"] == 0))
    hole = now - before > period
    begins = no_member & (np.isnan(carried["alone"]) | worked)
    earliest = np.where(hole, before + period, now)
    np.copyto(carried["alone_first"], earliest, where=begins)
    np.copyto(carried["alone"], now, where=begins)
    np.copyto(carried["left_tick"], now, where=no_member)
    for name in ("alone", "alone_first"):
        np.copyto(carried[name], np.nan, where=here & ~no_member)


class Logs(NamedTuple):
    """Matrices [tick, broker set] of all ticks, and the broker set of each pair."""

    of_pair: Ints
    """Index of the pair's broker set."""
    heard: Bools
    """Any of its nodes sent a row about its log."""
    t_min: Floats
    """Store time of the oldest record [microseconds]; NaN: not known."""
    t_dispatched: Floats
    age_of_oldest: Floats
    """Age of the oldest record [s], by the clock that stamped it."""
    clock: Floats
    """Lead of the node's clock over the scraper's [s]; NaN: not known."""
    deletes: Bools
    """Retention has deleted records: the oldest one is not the first ever."""


def logs_of(logs: pa.Table, ticks: Ticks, known: Known, period: int) -> Logs:
    """Return the logs of the brokers of these pairs, from the rows of the masters."""
    rows, tick = rows_within(logs, ticks, period)
    sets, broker = sets_of(rows, known)
    of_pair = np.array([sets.index(names[:2]) for names in known.names], np.int64)
    there = broker >= 0
    rows, tick, broker = rows.filter(pa.array(there)), tick[there], broker[there]
    ts = columns.instants(rows, "ts")
    epoch = np.nan_to_num(columns.floats(rows, "epoch"), nan=-1.0)
    slave = pc.fill_null(pc.equal(rows.column("role"), "slave"), False)
    master = (~np.asarray(slave.to_numpy(), np.bool_)).astype(np.float64)
    where = place(tick, broker, (ticks.at.size, len(sets)), (ts, epoch, master))
    removed = taken(columns.floats(rows, "min_physical_offset"), where) > 0
    return Logs(
        of_pair,
        where >= 0,
        taken(columns.instants(rows, "t_min"), where),
        taken(columns.instants(rows, "t_dispatched"), where),
        taken((ts - columns.instants(rows, "t_min")) / SECOND, where),
        taken(columns.floats(rows, "clock_seconds"), where),
        removed,
    )
