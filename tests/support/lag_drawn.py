"""Groups drawn at random, and whether the rules find the truth about them; misses are counted.

Each seed draws a group of every kind: its period, rates, queues and members. Every other seed goes
through samples as sources read them, the others through tables; each is evaluated in several
pieces. `lag_scenarios` prints the counts.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.evaluate import evaluate
from analytics.kernel.rules import Rules
from analytics.kernel.shape import shape
from analytics.kernel.window import Evaluated, Window
from tests.analytics.truth.judged import ALARMS, Columns, of_pair
from tests.truth import answers, drawn
from tests.truth.behaviour import Random
from tests.truth.drawn import Drawn
from tests.truth.reading import stages, totals
from tests.truth.rendered import samples_table
from tests.truth.steps import DAWN, SECOND, moment
from tests.truth.tables import collected, pair_id
from tests.truth.workload import Truth

SETTLED_S: Final = 600.0
"""How long a group is sampled before its status must be known."""
LAPSE_S: Final = 60.0
"""How long a fault may be taken back for, two periods may be added."""
SEEDS_AT_ONCE: Final = 5
"""Evaluated together: about a hundred groups."""

KINDS: Final[Mapping[str, Callable[[Random], Drawn]]] = {
    "steady": drawn.steady,
    "restarts of up to 100 s": drawn.restarts,
    "crash loop, up 18–22 s, down 10–38 s": lambda random: drawn.crash_loop(
        random, (18.0, 22.0), (10.0, 38.0)
    ),
    "crash loop of any lengths": drawn.drawn_crash_loop,
    "crash loop from the start": drawn.crash_loop_from_the_start,
    "crash loop that commits": drawn.crash_loop_that_commits,
    "crash loop beside other members": drawn.crash_loop_beside_others,
    "crash loop that goes back": drawn.crash_loop_that_goes_back,
    "steady, holes in the samples": drawn.steady_in_holes,
    "dies, holes of 60 s every 120 or 180 s": drawn.dies_in_holes_of_a_minute,
    "dies, holes of any lengths": drawn.dies_in_holes,
    "stuck, holes of any lengths": drawn.stuck_in_holes,
    "stuck within a hole": drawn.stuck_within_a_hole,
    "too slow, holes of any lengths": drawn.slow_in_holes,
    "one slow queue of many, rare commits": drawn.slow_queue_of_many,
    "hangs after a restart": drawn.hangs_after_a_restart,
    "steady, clock off by 15 s to 10 min": drawn.steady_by_another_clock,
    "dies, clock off by 15 s to 10 min": drawn.dies_by_another_clock,
    "catches up at 3 ×, clock off": drawn.catches_up_by_another_clock,
    "alive and loses messages": drawn.loses_messages,
    "abandoned, retention passes it": drawn.abandoned,
    "new queues without a reader": drawn.new_queues,
    "paused by an operator": drawn.paused,
    "commits every 90 to 320 s": drawn.rare_commits,
    "commits every 90 to 320 s, restarts": drawn.rare_commits_and_restarts,
    "commits every 90 to 320 s, holes": drawn.rare_commits_in_holes,
    "hot queue, several members": drawn.hot_queue,
}


class Verdict(NamedTuple):
    """What the rules made of one group."""

    kind: str
    seed: int
    faulty: bool
    found_s: float | None
    """After it had to be seen; None: not found, or nothing was wrong."""
    alarm_minutes: float
    """While nothing was wrong."""
    problems: tuple[str, ...]


def window_of(truth: Truth, *, by_samples: bool) -> Window:
    """Return the input of ``evaluate``: collected tables, or tables shaped from samples."""
    made = collected(truth)
    if not by_samples:
        return Window(
            made.positions, made.series, made.pairs, made.logs, made.offset_events, made.gaps
        )
    typed = shape(samples_table(truth), truth.period / SECOND, counters=())
    return Window(
        typed["positions"],
        typed["series"],
        typed["pairs"],
        typed["logs"],
        made.offset_events,
        made.gaps,
        typed["replicas"],
    )


def evaluated(truth: Truth, window: Window, cuts: Sequence[int]) -> Evaluated:
    """All ticks, in pieces that end at the cuts (times).

    truth: any one of the groups; only its period, its start and its end are used.
    """
    rules = Rules(period_s=truth.period / SECOND)
    made: list[Evaluated] = []
    after = truth.start
    for until in [*sorted(cuts), truth.end]:
        state = made[-1].state if made else None
        made.append(evaluate(window, rules, state, moment(after), moment(until)))
        after = until
    together = Evaluated(*(pa.concat_tables(each) for each in zip(*made, strict=True)))
    return together._replace(state=made[-1].state)


def judge_all(wanted: Sequence[tuple[str, int]]) -> list[Verdict]:
    """Draw a group for each kind and seed, evaluate them, and compare.

    Groups of one period are evaluated together: most of what an evaluation costs is per tick. Those
    with holes apart from the others: rows that lack a sample give the reason of any gap at its
    time.
    """
    batches: dict[tuple[int, bool], list[tuple[str, int, Drawn]]] = {}
    cuts: dict[tuple[int, bool], list[int]] = {}
    for kind, seed in wanted:
        random = np.random.default_rng([seed, zlib.crc32(kind.encode())])
        found = KINDS[kind](random)
        truth = replace(found.truth, cluster=f"{kind} {seed}")
        key = (truth.period, bool(truth.missing))
        batches.setdefault(key, []).append((kind, seed, found._replace(truth=truth)))
        if key not in cuts:
            cuts[key] = random.integers(truth.start + truth.period, truth.end, 2).tolist()
    verdicts = {}
    for key, batch in batches.items():
        windows = [window_of(found.truth, by_samples=bool(seed % 2)) for _, seed, found in batch]
        window = Window(*(pa.concat_tables(each) for each in zip(*windows, strict=True)))
        result = evaluated(batch[0][2].truth, window, cuts[key])
        for kind, seed, found in batch:
            verdicts[kind, seed] = compared(kind, seed, found, _of(result, found.truth))
    return [verdicts[each] for each in wanted]


def _of(result: Evaluated, truth: Truth) -> Evaluated:
    """Return what an evaluation says of one group."""
    wanted = pair_id(truth, truth.pairs[0])

    def own(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.equal(rows["pair_id"], wanted))

    return result._replace(
        lag=own(result.lag), pair_lag=own(result.pair_lag), offset_events=own(result.offset_events)
    )


def compared(kind: str, seed: int, found: Drawn, result: Evaluated) -> Verdict:
    """Statuses of a group compared with the truth."""
    truth = found.truth
    rows = of_pair(result.pair_lag, truth)
    heard = np.isin(rows["tick"].astype(np.int64), truth.ticks())
    rows = Columns(rows.table.filter(pa.array(heard)))
    sample_times = (rows["tick"].astype(np.int64) + truth.sample_delay - DAWN) / SECOND
    status = rows.words("status")
    alarming = np.isin(status, sorted(ALARMS))
    problems: list[str] = []
    if not len(sample_times):
        problems.append("no row")
    wrong = may_alarm = np.zeros(len(sample_times), np.bool_)
    if found.faulty is not None:
        begin, end = found.faulty
        wrong = (sample_times >= begin) & (sample_times < end)
        may_alarm = (sample_times >= begin) & (sample_times < end + found.stands_s)
    minutes = float((alarming & ~may_alarm).sum()) * truth.period / SECOND / 60.0
    if minutes:
        raised = sorted(set(status[alarming & ~may_alarm].tolist()))
        problems.append(f"{minutes:.2f} alarm minutes while all was well: {', '.join(raised)}")
    if found.must is not None:
        wanted, since = found.must
        at = sample_times[status == wanted]
        soon = since + 60.0 + 3 * truth.period / SECOND
        if not len(at) or at[0] > soon or at[0] < since - 1.0:
            problems.append(f"{wanted} at {at[:1].tolist()} s instead of {since:.0f} s")
    problems += _expiry_problems(truth, result)
    for each in sorted(found.never & set(status.tolist())):
        problems.append(f"called {each}")
    found_s = None
    if abs(found.clock) >= truth.period / SECOND + 1:
        side = "ahead" if found.clock > 0 else "behind"
        named = [f"{abs(found.clock):.0f} s {side}" in each for each in rows.words("cause")]
        if not all(named):
            problems.append(f"clock named at {sum(named)} of {len(named)} samples")
    reasons = result.lag.filter(pc.is_in(result.lag["tick"], rows.table["tick"]))["reason"]
    if "no_snapshot" in " ".join(reasons.fill_null("").to_pylist()) and not truth.missing:
        problems.append("reported as a broker without a snapshot")
    if found.faulty is not None:
        found_s, more = _found(found, sample_times, alarming, status)
        problems += more
        problems += _skew_problems(found, rows, wrong)
    if found.known_outside_holes:
        problems += _unknown_problems(found, sample_times, status)
    return Verdict(kind, seed, found.faulty is not None, found_s, minutes, tuple(problems))


def _found(
    found: Drawn, sample_times: np.ndarray, alarming: np.ndarray, status: np.ndarray
) -> tuple[float | None, list[str]]:
    """Return how long after it showed the fault was found, and what is wrong with that."""
    assert found.faulty is not None
    begin, end = found.faulty
    late = late_seconds(found)
    shows = begin if found.at_once else broken_at(late, begin)
    if shows is None or shows + found.within_s >= end:
        return None, []  # it did no harm within the time
    heard = alarming & (sample_times >= begin) & (sample_times < end)
    if not heard.any():
        return None, ["missed"]
    first = float(sample_times[heard][0])
    problems = []
    if first - shows > found.within_s:
        problems.append(f"found after {first - shows:.0f} s, limit {found.within_s:.0f} s")
    if found.expected and not found.expected & set(status[heard].tolist()):
        problems.append(f"called {', '.join(sorted(set(status[heard].tolist())))}")
    after = (sample_times >= max(first, shows)) & (sample_times < end)
    at = np.minimum(sample_times.astype(np.int64), len(late) - 1)
    quiet = after & ~alarming & late[at]
    lapse = longest_run(quiet) * found.truth.period / SECOND
    if lapse > LAPSE_S + 2 * found.truth.period / SECOND:
        others = sorted(set(status[quiet].tolist()))
        problems.append(f"taken back for {lapse:.0f} s: {', '.join(others)}")
    return first - shows, problems


def late_seconds(found: Drawn) -> np.ndarray:
    """Whether the objective is broken, at each second from the beginning.

    Messages that are stored and not visible yet count, as well as those that are visible and not
    read.
    """
    truth = replace(found.truth, missing=frozenset()).every(1.0)
    pair, sample_times = truth.pairs[0], truth.sample_times()
    log = stages(truth.broker(pair.broker), sample_times)
    hidden = (sample_times - log.t_dispatched) / SECOND
    ages = [answers.series(truth, reading).age_seconds for reading in pair.readings]
    ages.append(np.where(log.dispatched < log.max_offset, hidden, 0.0))
    late: np.ndarray = np.nan_to_num(np.array(ages)).max(axis=0) > pair.objective_seconds
    if found.at_once and found.faulty is not None:
        late[int(found.faulty[0] + found.within_s) :] = True
    return late


def broken_at(late: np.ndarray, begin: float) -> float | None:
    """Return the second from which the objective is broken for at least a minute; None: never."""
    minute = np.convolve(late[int(begin) :], np.ones(60), "valid") == 60
    at = np.flatnonzero(minute)
    return float(at[0]) + int(begin) if len(at) else None


def longest_run(flags: np.ndarray) -> int:
    """Length of the longest run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return int(np.max(edges[1::2] - edges[::2], initial=0))


def _skew_problems(found: Drawn, rows: Columns, wrong: np.ndarray) -> list[str]:
    if found.skew_kind is None:
        return []
    named = rows.words("skew_kind")[wrong & np.isin(rows.words("status"), sorted(ALARMS))]
    right = int((named == found.skew_kind).sum())
    if right >= 0.8 * len(named):
        return []
    others = sorted(set(named.tolist()) - {found.skew_kind})
    return [f"{found.skew_kind} at {right} of {len(named)} samples, else {', '.join(others)}"]


def _expiry_problems(truth: Truth, result: Evaluated) -> list[str]:
    """Check that events have as many expired messages as expired unread between the first sample
    and the last."""
    sample_times = truth.sample_times()[[0, -1]]
    true = sum(
        int(np.diff(totals(each, sample_times).expired)[0]) for each in truth.pairs[0].readings
    )
    events = result.offset_events.filter(pc.equal(result.offset_events["kind"], "expire"))
    reported = sum(row["to_offset"] - row["from_offset"] for row in events.to_pylist())
    return [] if reported == true else [f"{reported} messages expired by events, {true} in truth"]


def _unknown_problems(found: Drawn, sample_times: np.ndarray, status: np.ndarray) -> list[str]:
    known = sample_times > SETTLED_S
    # Where something else holds than before a hole, its time must pass first.
    changed = known & (status == "UNKNOWN")
    longest = longest_run(changed) * found.truth.period / SECOND
    if longest <= LAPSE_S + 2 * found.truth.period / SECOND:
        return []
    return [f"UNKNOWN for {longest:.0f} s of samples that arrived"]


def report(found: Sequence[Verdict]) -> str:
    """A row for each kind: groups, misses, false alarms."""
    lines = [f"{'drawn at random':44}{'groups':>7}{'missed':>8}{'false':>7}{'found':>12}  problems"]
    for kind in dict.fromkeys(each.kind for each in found):
        mine = [each for each in found if each.kind == kind]
        missed = sum("missed" in each.problems for each in mine)
        false = sum(each.alarm_minutes > 0 for each in mine)
        after = [each.found_s for each in mine if each.found_s is not None]
        times = f"{np.median(after):.0f}/{max(after):.0f} s" if after else ""
        wrong = sum(bool(each.problems) for each in mine)
        lines.append(f"{kind:44}{len(mine):>7}{missed:>8}{false:>7}{times:>12}  {wrong}")
    problems = [
        f"{each.kind}, seed {each.seed}: {problem}" for each in found for problem in each.problems
    ]
    return "\n".join([*lines, "", *problems, f"{len(problems)} problems"])


def judge_seeds(seeds: Sequence[int]) -> list[Verdict]:
    """Judge a group of every kind for each seed."""
    return judge_all([(kind, seed) for seed in seeds for kind in KINDS])


def run(seeds: Sequence[int], processes: int = 1) -> list[Verdict]:
    """Call ``judge_seeds`` in several processes, for some seeds at a time."""
    parts = [seeds[first : first + SEEDS_AT_ONCE] for first in range(0, len(seeds), SEEDS_AT_ONCE)]
    if processes == 1:
        return [each for part in parts for each in judge_seeds(part)]
    with ProcessPoolExecutor(processes) as pool:
        return [each for made in pool.map(judge_seeds, parts) for each in made]
