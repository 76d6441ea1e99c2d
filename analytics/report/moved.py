"""Series that moved with the blamed stage of a few pairs: times of sends, flushes, the network.

It is not part of ``evaluate``, which reads no counters, and would read the same minutes at every
tick for every pair. A report computes it once for the pairs that it draws, over two hours. The
blamed stage does not change.

The time of a broker set's sends, flushes and acknowledgements in a step is the increase of their
seconds divided by the increase of their counts. It is unknown without both. Without counters of
sends, the wait of the oldest send from the table logs is used. Step before: ``overview`` has the
blamed stages. Step after: ``course`` adds the result to the facts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.columns import SECOND, Floats, Ints
from analytics.kernel.correlation import POINTS_MAX, moved, reach_of, step_of
from analytics.kernel.counters import increases
from analytics.kernel.shape import ACK_SECONDS, FLUSH_SECONDS, PUT_SECONDS, TIMED
from analytics.kernel.stages import TERMS
from analytics.moments import from_us, to_us
from analytics.report.bins import by_pair
from analytics.report.facts import MovedWith, Pair
from analytics.schema import part_of
from analytics.tables import TableRoot

Place = tuple[str, str]
"""Cluster and broker set."""
_TIMES: Final = {"put": PUT_SECONDS, "flush": FLUSH_SECONDS, "network": ACK_SECONDS}
_COUNTED: Final = (
    "ts", "metric", "cluster", "broker", "replica", "labels", "value", "started_at",
)  # fmt: skip
_WAITED: Final = ("tick", "cluster", "broker", "put_wait_seconds")


class Steps(NamedTuple):
    """The compared time in steps: multiples of a step since 1970."""

    width_us: int
    first: int
    size: int

    def of(self, times_us: Ints) -> Ints:
        """Return the step of each time; below 0 or above size − 1 for a time outside."""
        return times_us // self.width_us - self.first


def steps_of(start: datetime, newest: datetime, period_s: float) -> Steps:
    """Return the newest steps until that tick: at most POINTS_MAX, none before the start."""
    width = round(step_of(period_s) * SECOND)
    last = to_us(newest) // width
    first = max(to_us(start) // width, last - POINTS_MAX)
    return Steps(width, first, last - first + 1)


def moved_with(
    tables: TableRoot, pairs: Sequence[Pair], start: datetime, newest: datetime, period_s: float
) -> dict[int, list[MovedWith]]:
    """For each pair whose blamed stage has its own time: the series that moved with it.
    start: nothing earlier is read. newest: the last tick. The strongest is first."""
    blamed = {pair.pair_id: pair for pair in pairs if pair.blamed in [str(each) for each in TERMS]}
    if not blamed:
        return {}
    steps = steps_of(start, newest, period_s)
    since = max(start, from_us(steps.first * steps.width_us))
    until = newest + timedelta(seconds=period_s)  # samples of that tick arrive within its period
    terms = by_pair(
        tables.read(
            "stages",
            since=since,
            before=until,
            columns=("tick", "pair_id", *(f"{stage}_seconds" for stage in TERMS)),
            pair_ids=set(blamed),
        )
    )
    if not terms:
        return {}
    places = {(pair.cluster, pair.broker) for pair in blamed.values()}
    times = _times_of(tables, places, since, until, steps)
    found = {}
    for pair_id, rows in terms.items():
        pair = blamed[pair_id]
        seconds = columns.floats(rows, f"{pair.blamed}_seconds")
        term = _means(steps.of(columns.micros(rows, "tick")), seconds, steps.size)
        moving = _moving(term, times.get((pair.cluster, pair.broker), {}), steps)
        if moving:
            found[pair_id] = moving
    return found


def _moving(term: Floats, times: Mapping[str, Floats], steps: Steps) -> list[MovedWith]:
    width_s = steps.width_us / SECOND
    found = []
    for what, values in times.items():
        best = moved(term, values, reach=reach_of(width_s))
        if best is not None and best.is_significant:
            found.append(MovedWith(what, best.steps * width_s, best.rho, best.points))
    return sorted(found, key=lambda each: (-abs(each.correlation), each.what))


def _times_of(
    tables: TableRoot, places: Collection[Place], since: datetime, until: datetime, steps: Steps
) -> dict[Place, dict[str, Floats]]:
    """Times of sends, flushes and acknowledgements of each broker set [s], by step."""
    pieces = [
        _last_of_steps(piece, steps)
        for piece in _of_places(tables, "counters", places, since, until, _COUNTED, steps)
    ]
    rows = _last_of_steps(
        pa.concat_tables([part_of("counters", _COUNTED).empty_table(), *pieces]), steps
    )
    found: dict[Place, dict[str, Floats]] = {place: {} for place in places}
    for what, family in _TIMES.items():
        # The master waits for every member of the in-sync set, so the slowest one counts. The
        # other counters are the master's, whichever node that was.
        by = ("cluster", "broker", "replica", "labels") if what == "network" else _WAITED[1:3]
        for names, took in _took(rows, family, by, steps).items():
            place = (names[0], names[1])
            so_far = found[place].get(what)
            found[place][what] = took if so_far is None else np.fmax(so_far, took)
    for place, waited in _waits(tables, places, since, until, steps).items():
        if np.isnan(found[place].get("put", np.nan)).all():
            found[place]["put_wait"] = waited
    return found


def _took(
    rows: pa.Table, family: str, by: Sequence[str], steps: Steps
) -> dict[tuple[str, ...], Floats]:
    """Average time of an event of a histogram family in each step, by the columns in ``by``."""
    grown: dict[tuple[str, ...], Floats] = {}
    for number, end in enumerate(("_sum", "_count")):
        here = rows.filter(pc.equal(rows["metric"], f"{family}{end}"))
        if not here.num_rows:
            return {}
        here, counted = increases(here, "cluster", "broker", "replica", "labels")
        code, names = columns.named(here, *by)
        at, known = steps.of(columns.micros(here, "ts")), ~np.isnan(counted)
        for place, each in enumerate(names):
            mine = known & (code == place)
            sums = grown.setdefault(each, np.zeros((2, steps.size)))
            np.add.at(sums[number], at[mine], counted[mine])
    return {
        each: np.divide(sums[0], sums[1], out=np.full(steps.size, np.nan), where=sums[1] > 0)
        for each, sums in grown.items()
    }


def _waits(
    tables: TableRoot, places: Collection[Place], since: datetime, until: datetime, steps: Steps
) -> dict[Place, Floats]:
    """Return the longest wait of the oldest queued send in each step, by broker set."""
    pieces = list(_of_places(tables, "logs", places, since, until, _WAITED, steps))
    rows = pa.concat_tables([part_of("logs", _WAITED).empty_table(), *pieces])
    at, waited = steps.of(columns.micros(rows, "tick")), columns.floats(rows, "put_wait_seconds")
    cluster, broker = (np.asarray(rows[name].to_pylist(), dtype=object) for name in _WAITED[1:3])
    found = {}
    for place in places:
        mine = (cluster == place[0]) & (broker == place[1]) & ~np.isnan(waited)
        most = np.full(steps.size, np.nan)
        np.fmax.at(most, at[mine], waited[mine])
        found[place] = most
    return found


def _of_places(
    tables: TableRoot,
    table: str,
    places: Collection[Place],
    since: datetime,
    until: datetime,
    names: Sequence[str],
    steps: Steps,
) -> Iterator[pa.Table]:
    """Yield the rows of these broker sets; of the counters only those that measure times."""
    time = "ts" if "ts" in names else "tick"
    keys = pa.array(["\x1f".join(place) for place in sorted(places)], pa.string())
    for piece in tables.scan(table, since=since, before=until, columns=names):
        at = steps.of(columns.micros(piece, time))
        mine = pc.is_in(columns.joined(piece, "cluster", "broker"), value_set=keys)
        mine = pc.and_(mine, pa.array((at >= 0) & (at < steps.size)))
        if table == "counters":
            mine = pc.and_(mine, pc.is_in(piece["metric"], value_set=pa.array(sorted(TIMED))))
            mine = pc.and_(mine, pc.is_valid(piece["replica"]))
        yield piece.filter(mine)


def _last_of_steps(rows: pa.Table, steps: Steps) -> pa.Table:
    """The last sample of each counter in each step: enough for its increase by step."""
    names = ("metric", "cluster", "broker", "replica", "labels")
    counter = columns.codes(columns.joined(rows, *names))[0]
    ts = columns.micros(rows, "ts")
    return rows.take(pa.array(columns.last_of(counter, steps.of(ts), ts)))


def _means(at: Ints, values: Floats, count: int) -> Floats:
    """Mean of the known values within each step; NaN without any."""
    known = ~np.isnan(values) & (at >= 0) & (at < count)
    total = np.bincount(at[known], values[known], minlength=count)
    number = np.bincount(at[known], minlength=count)
    mean = np.full(count, np.nan)
    np.divide(total, number, out=mean, where=number > 0)
    return mean
