"""Bounds of an age whose head was stamped by the clock of an earlier master. Pure.

The master stamps messages, and the present master's clock measures their age. After a failover,
messages of the former master have its stamps. Their age is uncertain by the difference of the two
clocks: its bounds grow by that difference, and the age is marked if that is above a second. If the
difference was not measured, the bound is unknown, not 0. The age itself does not change.

No table has the node that stamped a record. The master of a pair is the node that reports it, so a
change of that node is a failover. Messages that may have been stored before the new master's first
sample count as stamped by another node. A new epoch of the same node changes nothing. Masters
before the first sample of a pair are not known, and nothing is marked for them. Step before:
``age``. Step after: ``status`` and the rows of lag.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.age import BOUNDED, CLOCK_OFF, CLOCK_UNKNOWN, INTERPOLATED, Age
from analytics.kernel.columns import SECOND, Bools, Floats, Ints
from analytics.kernel.facts import Logs
from analytics.kernel.grid import Known, Ticks, place, rows_of_pairs, sets_of, taken
from analytics.kernel.rules import Rules

MARKED_ABOVE_S: Final = 1.0
ERROR_LEAST_S: Final = 0.002
"""Smallest error of a measured difference: clocks are read in whole milliseconds
(services/ha/wire/peer_clock.py)."""


class Clocks(NamedTuple):
    """Matrices [tick, pair], from tick number `begin` on."""

    led_since: Floats
    """First sample of the present master [microseconds]; NaN: no other master is known."""
    bound: Floats
    """Largest possible difference [s] to the clocks of earlier masters; NaN: not known."""


def clocks_of(
    pairs: pa.Table,
    replicas: pa.Table,
    logs: Logs,
    ticks: Ticks,
    begin: int,
    known: Known,
    carried: dict[str, Floats],
    rules: Rules,
) -> Clocks:
    """Process the rows of pairs from tick number `begin` on; updates `carried`.
    replicas: clock differences measured between nodes, from `history_s` before the first tick."""
    rows, tick, pair = rows_of_pairs(pairs, ticks, begin, known, rules.period_us)
    shape = (ticks.at.size - begin, known.pair_id.size)
    where = place(tick, pair, shape, (columns.instants(rows, "ts"),))
    who = taken(_numbers(rows.column("replica")), where)
    sampled = taken(columns.instants(rows, "ts"), where)
    skews = _Skews(replicas, known, logs, rules)
    out = Clocks(np.full(shape, np.nan), np.full(shape, np.nan))
    for row in range(shape[0]):
        now, leader, at = who[row], carried["leader"], begin + row
        changed = ~np.isnan(now) & ~np.isnan(leader) & (now != leader)
        if changed.any():
            oldest = logs.t_min[at, logs.of_pair]
            _change(
                carried, np.flatnonzero(changed), now, sampled[row], oldest, skews, ticks.at[at]
            )
        # A node that returns may be measured later.
        open_ = np.isnan(carried["clock_all"]) & ~np.isnan(carried["clock_others"])
        if (open_ & ~np.isnan(now)).any():
            again = np.flatnonzero(open_ & ~np.isnan(now))
            measured = skews.between(again, now, carried["led_before"], int(ticks.at[at]))
            carried["clock_all"][again] = np.maximum(measured, carried["clock_others"][again])
        np.copyto(leader, now, where=~np.isnan(now))
        out.led_since[row] = carried["led_since"]
        out.bound[row] = carried["clock_all"]
    return out


def _change(
    carried: dict[str, Floats],
    at: Ints,
    now: Floats,
    sampled: Floats,
    oldest: Floats,
    skews: _Skews,
    tick: int,
) -> None:
    """Update the clocks of pairs whose master has changed.

    clock_all covers every earlier master. clock_others covers those that are neither the last one
    nor the present one: their difference is the sum of two, over the last master.
    """
    before, earlier = carried["leader"][at], carried["led_before"][at]
    every, others = carried["clock_all"][at], carried["clock_others"][at]
    # If the whole log is newer than the last change, no earlier master stamped any of it.
    began = carried["led_since"][at] + np.nan_to_num(every) * SECOND
    no_other = np.isnan(began) | (oldest[at] > began)
    measured = skews.between(at, now, carried["leader"], tick)
    returns = now[at] == earlier
    older = np.where(returns, np.where(others == 0, 0.0, others + measured), every + measured)
    older = np.where(no_other, 0.0, older)
    carried["clock_others"][at] = older
    carried["clock_all"][at] = np.maximum(measured, older)
    carried["led_before"][at] = before
    carried["led_since"][at] = sampled[at]


class _Skews:
    """Clock differences that the nodes of a broker set measured."""

    def __init__(self, replicas: pa.Table, known: Known, logs: Logs, rules: Rules) -> None:
        self._replicas, self._known, self._of_pair = replicas, known, logs.of_pair
        self._reach = round(rules.history_s * SECOND)
        self._rows: tuple[Ints, Ints, Floats, Floats, Floats] | None = None

    def between(self, pairs: Ints, one: Floats, other: Floats, tick: int) -> Floats:
        """Return the bound of the difference of two nodes' clocks in the last `history_s` [s].
        pairs: indices of pairs. one, other: the numbers of the two nodes of each pair."""
        keys = np.stack([self._of_pair[pairs].astype(np.float64), one[pairs], other[pairs]], axis=1)
        each, place_ = np.unique(keys, axis=0, return_inverse=True)
        found = np.array([self._between(int(key[0]), key[1], key[2], tick) for key in each])
        return np.asarray(found[place_.reshape(-1)], np.float64)

    def _between(self, of: int, one: float, other: float, tick: int) -> float:
        set_, at, by, peer, ahead = self._measured()
        near = (set_ == of) & (at <= tick) & (at > tick - self._reach) & ~np.isnan(ahead)
        by_one = near & (by == one) & (peer == other)
        by_other = near & (by == other) & (peer == one)
        differences = np.concatenate([ahead[by_one], -ahead[by_other]])
        if not differences.size:
            return np.nan
        # A node does not report the error of its measurement: the spread of the values is used.
        return float(np.abs(differences).max() + max(float(np.ptp(differences)), ERROR_LEAST_S))

    def _measured(self) -> tuple[Ints, Ints, Floats, Floats, Floats]:
        """Columns of the rows: broker set, tick, node, peer, lead of the peer's clock [s]."""
        if self._rows is None:
            rows = self._replicas
            self._rows = (
                sets_of(rows, self._known)[1],
                columns.micros(rows, "tick"),
                _numbers(rows.column("replica")),
                _numbers(rows.column("peer")),
                columns.floats(rows, "skew_seconds"),
            )
        return self._rows


def widened(age: Age, lag: Floats, sampled: Floats, clocks: Clocks, pair: Ints, begin: int) -> Age:
    """Return the ages with bounds that allow for differences between clocks.
    lag, sampled [microseconds]: matrices [tick, series] of all ticks, like those of age. pair: the
    pair of each series."""
    if np.isnan(clocks.led_since).all():
        return age
    since, bound = clocks.led_since[:, pair], clocks.bound[:, pair]
    late = slice(begin, None)
    method, high = age.method[late], age.high[late]
    # The stamp, or the earliest possible one, is compared; the other clock may be ahead.
    earliest = np.nan_to_num(sampled[late] - high * SECOND, nan=-np.inf)
    others = earliest <= since + np.nan_to_num(bound) * SECOND
    others &= (lag[late] > 0) & ~np.isnan(age.age[late])
    if not others.any():
        return age
    # Lower bounds from samples use the present master's clock; only those from a stamp grow.
    stamped: Bools = others & (method != INTERPOLATED) & (method != BOUNDED)
    low, high, clock = age.low.copy(), age.high.copy(), np.zeros(age.high.shape, np.int8)
    np.copyto(low[late], np.maximum(low[late] - bound, 0), where=stamped)
    np.copyto(high[late], high[late] + bound, where=others)
    np.copyto(clock[late], CLOCK_OFF, where=others & (bound > MARKED_ABOVE_S))
    np.copyto(clock[late], CLOCK_UNKNOWN, where=others & np.isnan(bound))
    return age._replace(low=low, high=high, clock=clock)


def _numbers(names: pa.ChunkedArray) -> Floats:
    """A number for each name that is the same in every evaluation; a state holds only numbers. It
    has 48 bits of a hash, which a double holds exactly."""
    encoded = names.cast(pa.string()).combine_chunks().dictionary_encode()
    if not len(encoded):
        return np.empty(0)
    each = [
        float(int.from_bytes(blake2b(name.encode(), digest_size=6).digest()))
        for name in encoded.dictionary.to_pylist()
    ]
    codes = np.asarray(pc.fill_null(encoded.indices, -1).to_numpy(False), np.int64)
    return np.append(np.array(each, np.float64), np.nan)[codes]
