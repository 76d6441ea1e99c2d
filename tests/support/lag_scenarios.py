"""Groups that are well and groups that fail, judged by us and by Burrow's rules, side by side.

    python -m tests.support.lag_scenarios --seeds 20

prints the table and ends with 1 if a healthy group had an alarm minute, or if a fault was found
late, under a wrong name, or was taken back while it went on. Every figure is of the worst seed.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.evaluate import evaluate
from analytics.kernel.rules import Rules
from analytics.kernel.window import Evaluated, Window
from tests.analytics.truth.judged import ALARMS
from tests.support import burrow, lag_drawn
from tests.truth import answers, failing, scenarios
from tests.truth.scenario import Scenario
from tests.truth.steps import SECOND, Ints, moment
from tests.truth.tables import collected, pair_id

TOLERANCE_S: Final = 30.0
LAPSE_S: Final = 60.0
"""How long a fault may be taken back for: the raise time of FALLING_BEHIND."""
SLOW_LAPSE_S: Final = 180.0
"""The same of a group that is only a little too slow. Some minutes it truly keeps pace beyond its
objective, and in some its age falls: that is CATCHING_UP. LAGGING is raised 120 s after the minute
in which it fell."""
REWIND: Final = "rewind to the start, drains by itself"


class Seen(NamedTuple):
    """What one judge made of one scenario with one seed."""

    alarm_minutes: float
    """While nothing was wrong: before the fault, or at all."""
    found_s: float | None
    """After the fault began to show; None: not at all, or nothing was wrong."""
    status: str


class Case(NamedTuple):
    """One scenario with one seed."""

    name: str
    seed: int
    ours: Seen
    burrow: Seen
    kind_burrow: Seen
    limit_s: float | None
    """Time after a fault began to show within which we must find it."""
    problems: tuple[str, ...]


def cases_of(seed: int) -> list[tuple[str, Scenario]]:
    """Return every scenario with this seed, each in a cluster with its own name."""
    makers = {name: make for name, make in scenarios.well().items()}
    makers |= {name: fault.make for name, fault in scenarios.faults().items()}
    makers[REWIND] = failing.rewound
    made = []
    for name, make in makers.items():
        scenario = make(np.random.default_rng([seed, zlib.crc32(name.encode())]))
        truth = replace(scenario.truth, cluster=f"{name} {seed}")
        made.append((name, scenario._replace(truth=truth)))
    return made


def judged(made: Sequence[tuple[str, Scenario]]) -> Evaluated:
    """All scenarios in one evaluation of all their ticks."""
    each = [collected(scenario.truth) for _, scenario in made]
    window = Window(
        *(
            pa.concat_tables([getattr(tables, name) for tables in each])
            for name in ("positions", "series", "pairs", "logs", "offset_events", "gaps")
        )
    )
    truth = made[0][1].truth
    rules = Rules(period_s=truth.period / SECOND)
    return evaluate(window, rules, None, moment(truth.start), moment(truth.end))


def run_seed(seed: int) -> list[Case]:
    """Judge every scenario with this seed."""
    made = cases_of(seed)
    result = judged(made)
    return [_case(name, seed, scenario, result) for name, scenario in made]


def _case(name: str, seed: int, scenario: Scenario, result: Evaluated) -> Case:
    truth = scenario.truth
    wanted = pair_id(truth, truth.pairs[0])
    rows = result.pair_lag.filter(pc.equal(result.pair_lag["pair_id"], wanted)).sort_by("tick")
    ticks = rows["tick"].cast(pa.int64()).to_numpy()
    status = np.array(rows["status"].to_pylist(), np.str_)
    sample_times = ticks + truth.sample_delay
    alarming = np.isin(status, sorted(ALARMS))
    ours = _seen(scenario, sample_times, alarming, status)
    verdicts = []
    for refresh in (burrow.REFRESH, 1):
        verdict = burrow.group(scenario, sample_times, refresh)
        names = np.array([burrow.Verdict(int(each)).name for each in verdict])
        verdicts.append(_seen(scenario, sample_times, verdict > burrow.Verdict.OK, names))
    reported = _reported(result, wanted)
    problems: list[str] = []
    limit = None
    if ours.alarm_minutes:
        problems.append(f"{ours.alarm_minutes:.2f} alarm minutes while all was well")
    if reported and (name == REWIND or scenario.since is None):
        problems.append(f"reported {len(reported)} times, first of {reported[0]}")
    if name == REWIND:
        problems += _rewind_problems(scenario, result, wanted, ticks, status)
        limit = TOLERANCE_S
    elif scenario.since is not None:
        limit = _limit(name, scenario)
        problems += _fault_problems(name, scenario, ours, limit, sample_times, status)
    return Case(name, seed, ours, verdicts[0], verdicts[1], limit, tuple(problems))


def _seen(
    scenario: Scenario,
    sample_times: Ints,
    alarming: npt.NDArray[np.bool_],
    statuses: npt.NDArray[np.str_],
) -> Seen:
    period_minutes = scenario.truth.period / SECOND / 60.0
    since, shows = scenario.since, scenario.shows
    if since is None or shows is None:
        return Seen(float(alarming.sum()) * period_minutes, None, "")
    before = alarming & (sample_times < since)
    found = np.flatnonzero(alarming & (sample_times >= since))
    minutes = float(before.sum()) * period_minutes
    if not len(found):
        return Seen(minutes, None, "")
    return Seen(minutes, float(sample_times[found[0]] - shows) / SECOND, str(statuses[found[0]]))


def _limit(name: str, scenario: Scenario) -> float:
    """Seconds after a fault began to show until it must be found."""
    fault = scenarios.faults()[name]
    if fault.breaks_after_s is None:
        return fault.within_s + TOLERANCE_S
    assert scenario.shows is not None
    broken = (_broken(scenario) - scenario.shows) / SECOND
    return broken + fault.within_s - fault.breaks_after_s + TOLERANCE_S


def _broken(scenario: Scenario) -> int:
    """Return the time from which the objective is broken for at least a minute."""
    sample_times, above = _above(scenario)
    assert scenario.since is not None
    minute = np.convolve(above & (sample_times >= scenario.since), np.ones(60), "valid") == 60
    return int(sample_times[np.flatnonzero(minute)[0]])


def _above(scenario: Scenario) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """A time in each second, and whether the true age is above the objective then."""
    truth = replace(scenario.truth, missing=frozenset()).every(1.0)
    ages = [answers.series(truth, reading).age_seconds for reading in truth.pairs[0].readings]
    return truth.sample_times(), np.max(ages, axis=0) > truth.pairs[0].objective_seconds


def _fault_problems(
    name: str,
    scenario: Scenario,
    ours: Seen,
    limit: float,
    sample_times: Ints,
    status: npt.NDArray[np.str_],
) -> list[str]:
    fault = scenarios.faults()[name]
    if ours.found_s is None or scenario.shows is None:
        return ["not found"]
    problems = []
    if ours.found_s > limit:
        problems.append(f"found after {ours.found_s:.0f} s, limit {limit:.0f} s")
    if ours.status not in fault.expected:
        problems.append(f"called {ours.status}")
    if fault.later is not None and fault.later not in status:
        problems.append(f"never {fault.later}")
    # A group at 97 % of its input wavers about its objective for minutes before it is above it
    # for good: an alarm is rightly taken back while it is below.
    seconds, above = _above(scenario)
    after = sample_times >= scenario.shows + ours.found_s * SECOND
    after &= above[np.minimum(np.searchsorted(seconds, sample_times), len(seconds) - 1)]
    lapse = (
        lag_drawn.longest_run(after & ~np.isin(status, sorted(ALARMS)))
        * scenario.truth.period
        / SECOND
    )
    if lapse > (LAPSE_S if fault.breaks_after_s is None else SLOW_LAPSE_S):
        problems.append(f"taken back for {lapse:.0f} s")
    return problems


def _rewind_problems(
    scenario: Scenario,
    result: Evaluated,
    wanted: int,
    ticks: Ints,
    status: npt.NDArray[np.str_],
) -> list[str]:
    """Check for the reset's event at the first sample after it, for CATCHING_UP soon, and for OK in
    the end."""
    assert scenario.since is not None
    problems = []
    events = result.offset_events.filter(pc.equal(result.offset_events["pair_id"], wanted))
    kinds = set(events["kind"].to_pylist())
    first = ticks[ticks + scenario.truth.sample_delay >= scenario.since][0]
    when = set(events["tick"].cast(pa.int64()).to_pylist())
    if (kinds, when) != ({"reset_backward"}, {int(first)}):
        problems.append(f"events {sorted(kinds)} at {sorted(when)} instead of {first}")
    soon = (ticks >= first) & (ticks <= first + TOLERANCE_S * SECOND)
    if "CATCHING_UP" not in status[soon]:
        problems.append(f"called {sorted(set(status[soon].tolist()))}")
    if status[-1] != "OK":
        problems.append(f"ends {status[-1]}")
    return problems


def _reported(result: Evaluated, wanted: int) -> list[str]:
    """Changes of a pair or of its series that page or raise a ticket."""
    changes = result.status_changes.filter(pc.equal(result.status_changes["pair_id"], wanted))
    loud = changes.filter(pc.is_in(changes["level"], pa.array(["ticket", "page"])))
    return [f"{row['status_to']} ({row['evidence']})" for row in loud.to_pylist()]


def report(found: Sequence[Case]) -> str:
    """The table: one row per scenario, the worst over its seeds."""
    names = list(dict.fromkeys(case.name for case in found))
    lines = [
        "Alarm minutes while all was well, of all seeds together; found: median and worst, seconds",
        "after the fault began to show; limit: median over seeds (where a group is only slow it",
        "counts from when the objective is truly broken); spare: the least of limit minus found.",
        "Burrow: ends of partitions known as of every 10 s, and, to be kind, at every commit.",
        "",
        f"{'':38}{'ours':^42}{'Burrow':^32}{'Burrow, ends known':^28}",
        f"{'scenario':38}{'min':>5} {'found':>11} {'limit':>6} {'spare':>5} {'as':12}"
        f"{'min':>6} {'found':>13} {'as':10}{'min':>6} {'found':>13} {'as':8}",
    ]
    for name in names:
        mine = [case for case in found if case.name == name]
        spare = [
            case.limit_s - case.ours.found_s
            for case in mine
            if case.limit_s is not None and case.ours.found_s is not None
        ]
        limits = [case.limit_s for case in mine if case.limit_s is not None]
        limit = f"{np.median(limits):.0f}" if limits and name != REWIND else ""
        left = f"{min(spare):.0f}" if spare else ""
        ours, theirs, kind = (
            [getattr(case, judge) for case in mine] for judge in ("ours", "burrow", "kind_burrow")
        )
        fault = mine[0].limit_s is not None and name != REWIND
        lines.append(
            f"{name:38}{_minutes(ours):>5} {_found(ours, fault):>11} {limit:>6} {left:>5} "
            f"{_statuses(ours):12}"
            f"{_minutes(theirs):>6} {_found(theirs, fault):>13} {_statuses(theirs):10}"
            f"{_minutes(kind):>6} {_found(kind, fault):>13} {_statuses(kind):8}"
        )
    problems = [
        f"{case.name}, seed {case.seed}: {problem}" for case in found for problem in case.problems
    ]
    return "\n".join([*lines, "", *problems, f"{len(problems)} problems"])


def _minutes(seen: Sequence[Seen]) -> str:
    return f"{sum(each.alarm_minutes for each in seen):.1f}"


def _found(seen: Sequence[Seen], fault: bool) -> str:
    times = [each.found_s for each in seen if each.found_s is not None]
    if not fault:
        return ""
    missed = len(seen) - len(times)
    if not times:
        return "never"
    text = f"{np.median(times):.0f}/{max(times):.0f}"
    return f"{text} -{missed}" if missed else text


def _statuses(seen: Sequence[Seen]) -> str:
    short = {"FALLING_BEHIND": "FALLING"}
    statuses = {short.get(each.status, each.status) for each in seen if each.status}
    return " ".join(sorted(statuses))[:12]


def run(seeds: Sequence[int], processes: int = 1) -> list[Case]:
    """Every scenario with every seed."""
    if processes == 1:
        return [case for seed in seeds for case in run_seed(seed)]
    with ProcessPoolExecutor(processes) as pool:
        return [case for made in pool.map(run_seed, seeds) for case in made]


def main() -> int:
    """Run as the Makefile calls it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    begun = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    found = run(seeds, options.processes)
    print(report(found))
    print(f"{len(found)} groups of 3 h in {time.monotonic() - begun:.0f} s\n")
    begun = time.monotonic()
    drawn = lag_drawn.run(seeds, options.processes)
    print(lag_drawn.report(drawn))
    print(f"{len(drawn)} groups of 2 h in {time.monotonic() - begun:.0f} s")
    wrong = [case.problems for case in found] + [each.problems for each in drawn]
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
