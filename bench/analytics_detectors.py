"""Compares detectors of lag on random groups with known truth: lag analytics, Burrow, thresholds.

SEED and GROUPS in the environment repeat another run: a group depends on the seed and its number
only. docs/analytics-alarms.md says what each detector is and how it is judged, and has the results.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from analytics.kernel.window import Evaluated, Window
from analytics.report.overview import ABOVE
from bench.detector_judge import (
    Alarms,
    Bools,
    Case,
    Floats,
    Seen,
    Words,
    change,
    holding,
    judged,
    totals,
)
from bench.harness import Figure, Options, Result, Series, Table, at_most, benchmark, shown
from tests.analytics.truth.judged import ALARMS, Columns, of_pair
from tests.support import burrow
from tests.support.lag_drawn import broken_at, evaluated, late_seconds, window_of
from tests.truth import answers, drawn, varied
from tests.truth.behaviour import Random
from tests.truth.drawn import Drawn
from tests.truth.scenario import Commits, Scenario
from tests.truth.steps import DAWN, SECOND, Steps
from tests.truth.workload import Truth

SEED: Final = int(os.environ.get("SEED", "20261128"))
GROUPS: Final = int(os.environ.get("GROUPS", "1000"))
QUICK_GROUPS: Final = 70
AT_ONCE: Final = 20
"""Groups that a process draws and evaluates together: bounds its memory."""
PAGE: Final = "docs/analytics-alarms.md"
FOUND_GOAL: Final = 99.0
FALSE_GOAL: Final = 1.0
FIXED_N: Final = 1000.0
"""Messages, for all groups the same."""
CLEARED_AFTER_S: Final = 120.0
"""Time that an alarm may still stand after everything is in time again."""
POINTS_S: Final = (15, 30, 60, 90, 120, 180, 300, 600, 900, 1800, 3600)
HIDDEN: Final = "HIDDEN"
"""Our report's ticket for messages that are stored and not visible yet."""
OURS: Final = "Tidemark"
BURROW: Final = "Burrow"
DETECTORS: Final = (
    OURS,
    BURROW,
    "Burrow, ends known",
    "lag > 1,000",
    "lag > a minute's messages",
    "lag grows",
)


class Kind(NamedTuple):
    """A kind of group, and what is right to say of its fault."""

    make: Callable[[Random], Drawn]
    ours: frozenset[str] = frozenset()
    """Our statuses; empty: the group is well."""
    burrow: frozenset[str] = frozenset()
    """Burrow's; empty: it cannot know of the fault."""
    stage: str = ""
    """Where messages wait; "": in several stages."""


STOP, HANG = frozenset({"STOP"}), frozenset({"STOP", "STALL"})
STOPPED, STALLED = frozenset({"STOPPED"}), frozenset({"STALLED"})
WARN, SLOW = frozenset({"WARN"}), frozenset({"FALLING_BEHIND", "LAGGING"})
BEHIND: Final = SLOW | {HIDDEN}

WELL: Final = {
    "steady": Kind(drawn.steady),
    "bursts": Kind(varied.bursts),
    "nights without traffic": Kind(varied.nights),
    "a message every 1 to 10 min": Kind(varied.few_messages),
    "commits every 90 to 320 s": Kind(drawn.rare_commits),
    "restarts of up to 100 s": Kind(drawn.restarts),
    "restarts, commits every 90 to 320 s": Kind(drawn.rare_commits_and_restarts),
    "rebalances that commit old offsets": Kind(varied.rebalances),
    "samples missing": Kind(drawn.steady_in_holes),
    "samples missing, commits every 90 to 320 s": Kind(drawn.rare_commits_in_holes),
    "broker away for up to 2 min": Kind(varied.broker_away),
    "dispatch pauses of 5 to 30 s": Kind(varied.dispatch_pauses),
    "clock off by 15 s to 10 min": Kind(drawn.steady_by_another_clock),
    "topic no longer read": Kind(drawn.abandoned),
    "rewound by an operator": Kind(varied.rewound),
    "paused by an operator": Kind(drawn.paused),
}
FAULTY: Final = {
    "stops": Kind(drawn.dies, STOPPED, STOP, "delivery"),
    "stops, samples missing": Kind(drawn.dies_in_holes, STOPPED, STOP, "delivery"),
    "away for 10 to 30 min": Kind(drawn.catches_up_by_another_clock, STOPPED, STOP, "delivery"),
    "crash loop, nothing committed": Kind(drawn.drawn_crash_loop, STALLED, STOP),
    "crash loop, a part committed": Kind(
        drawn.crash_loop_that_commits, SLOW | STALLED, WARN | STOP
    ),
    "crash loop from the same offset": Kind(
        drawn.crash_loop_that_goes_back, SLOW | STALLED, frozenset({"REWIND", "STOP", "STALL"})
    ),
    "hangs": Kind(varied.hangs, STALLED, HANG, "processing"),
    "hangs after a restart": Kind(drawn.hangs_after_a_restart, STALLED, HANG, "processing"),
    "hangs, samples missing": Kind(drawn.stuck_in_holes, STALLED, HANG, "processing"),
    "poison message on one queue": Kind(varied.poison, STALLED, HANG, "processing"),
    "too slow, 0.3 to 0.95": Kind(varied.slows, SLOW, WARN, "processing"),
    "too slow, samples missing": Kind(varied.slows_in_holes, SLOW, WARN, "processing"),
    "slow member": Kind(varied.slow_member, SLOW, WARN, "processing"),
    "slow queue of many, commits every 20 to 45 s": Kind(
        varied.slow_queue_of_many, SLOW, WARN, "processing"
    ),
    "hot queue": Kind(drawn.hot_queue, SLOW, WARN, "processing"),
    "overtaken by retention": Kind(
        drawn.loses_messages, SLOW | {"RACING", "LOST"}, WARN, "processing"
    ),
    "new queues without a reader": Kind(drawn.new_queues, STALLED),
    "dispatch behind": Kind(varied.dispatch_behind, BEHIND, stage="dispatch"),
    "replication behind": Kind(varied.replication_behind, BEHIND, stage="replication"),
}
ORDERED: Final = ("topic no longer read", "rewound by an operator", "paused by an operator")
"""Kinds that lag as people want it: offsets alone do not show that."""
KINDS: Final[Mapping[str, Kind]] = WELL | FAULTY


class Judged(NamedTuple):
    """One group, and what each detector made of it."""

    kind: str
    seen: Mapping[str, Seen]
    blamed: str
    """The stage that we blamed most of the time while we raised an alarm of the fault."""
    skew_right: bool | None
    """Whether the right queue or member was named; None: there is none, or no alarm."""


def drawn_group(index: int) -> tuple[str, Drawn]:
    """Return the kind of a group, and the group."""
    kind = list(KINDS)[index % len(KINDS)]
    found = KINDS[kind].make(np.random.default_rng([SEED, index]))
    truth = replace(varied.handed_out(found.truth), cluster=f"group {index}")
    return kind, found._replace(truth=truth)


def judge_groups(indexes: Sequence[int]) -> list[Judged]:
    """Draw these groups, let every detector watch them, and judge.

    Groups with the same ticks are evaluated together; those with gaps apart from the others, as a
    gap's reason holds for all rows of its time.
    """
    batches: dict[tuple[int, bool], list[tuple[str, Drawn]]] = {}
    for index in indexes:
        kind, found = drawn_group(index)
        key = (found.truth.period, bool(found.truth.missing))
        batches.setdefault(key, []).append((kind, found))
    done = []
    for batch in batches.values():
        windows = [window_of(found.truth, by_samples=False) for _, found in batch]
        window = Window(*(pa.concat_tables(each) for each in zip(*windows, strict=True)))
        result = evaluated(batch[0][1].truth, window, ())
        done += [judge(kind, found, result) for kind, found in batch]
    return done


def judge(kind: str, found: Drawn, result: Evaluated) -> Judged:
    """Judge all detectors by one group. result: our evaluation of this and other groups."""
    truth, case = found.truth, case_of(found)
    pair = at_samples(of_pair(result.pair_lag, truth), truth)
    stage = at_samples(of_pair(result.stages, truth), truth).words("blamed")
    alarms = {OURS: ours(pair.words("status"), stage, pair["hidden_lag"] > 0)}
    alarms |= burrows(truth) | thresholds(truth, case.at)
    seen = {name: judged(case, alarms[name]) for name in DETECTORS}
    if case.fault is None:
        return Judged(kind, seen, "", None)
    during = alarms[OURS].standing & (case.at >= case.fault[0]) & (case.at < case.fault[1])
    skew = most_common(pair.words("skew_kind")[during])
    right = None if found.skew_kind is None or not during.any() else skew == found.skew_kind
    return Judged(kind, seen, most_common(stage[during]), right)


def case_of(found: Drawn) -> Case:
    """What is true of a group, for the judge."""
    truth = found.truth
    at = (truth.sample_times() - DAWN) / SECOND
    period_s = truth.period / SECOND
    if found.faulty is None:
        return Case(at, period_s)
    begin, end = found.faulty
    late = late_seconds(found)
    harm = begin if found.at_once else broken_at(late, begin)
    still = np.flatnonzero(late[int(end) :])
    again = int(end) + (int(still[-1]) if len(still) else 0) + CLEARED_AFTER_S
    return Case(at, period_s, (begin, end), harm, again)


def at_samples(rows: Columns, truth: Truth) -> Columns:
    """One row per sample that was heard of, of nulls where there is none."""
    ticks, wanted = rows["tick"].astype(np.int64), truth.ticks()
    place = np.searchsorted(ticks, wanted)
    there = np.isin(wanted, ticks)
    return Columns(rows.table.take(pa.array(place, mask=~there)))


def most_common(words: Words) -> str:
    """The word that is there most often, "" not counted."""
    counted = Counter(words[words != ""].tolist())
    return str(counted.most_common(1)[0][0]) if counted else ""


def ours(status: Words, blamed: Words, hidden: Bools) -> Alarms:
    """Lag analytics: statuses that page or raise a ticket, and the report's for hidden lag."""
    ticket = (status == "OK") & hidden & np.isin(blamed, [str(stage) for stage in ABOVE])
    kinds = np.where(ticket, HIDDEN, status)
    return Alarms(ticket | np.isin(status, sorted(ALARMS)), kinds)


def burrows(truth: Truth) -> dict[str, Alarms]:
    """Burrow, which reads every commit itself, with the two ways to know the ends of partitions."""
    sent = tuple(with_history(each.commit) for each in truth.pairs[0].readings)
    scenario = Scenario(truth, sent)
    made = {}
    for name, refresh in ((BURROW, burrow.REFRESH), ("Burrow, ends known", 1)):
        verdict = burrow.group(scenario, truth.sample_times(), refresh)
        kinds = np.array([each.name for each in burrow.Verdict])[verdict]
        made[name] = Alarms(verdict > burrow.Verdict.OK, kinds)
    return made


def with_history(commit: Steps) -> Commits:
    """The commits of a queue, and as many as Burrow keeps before them, at the same interval.

    It would know them of a group that did not begin with our samples. Nothing was unread then.
    """
    real = commit.at >= DAWN
    at, offset = commit.at[real], commit.value[real]
    if len(at) < 2:
        return Commits(at, offset)
    every = int(np.median(np.diff(at)))
    before = at[0] - every * np.arange(burrow.WINDOW, 0, -1)
    return Commits(np.append(before, at), np.append(np.zeros(burrow.WINDOW, np.int64), offset))


def thresholds(truth: Truth, at: Floats) -> dict[str, Alarms]:
    """Alert rules on the group's lag in messages, as they are commonly written for Prometheus."""
    readings = truth.pairs[0].readings
    each = [answers.series(truth, reading).lag for reading in readings]
    lag = np.maximum(np.array(each, np.float64), 0.0).sum(axis=0)
    arrived = sum(len(reading.queue.eras[-1].stored) for reading in readings)
    of_a_minute = 60.0 * arrived / ((truth.end - truth.start) / SECOND)
    held = {
        "lag > 1,000": holding(lag > FIXED_N, at, 300.0),
        "lag > a minute's messages": holding(lag > of_a_minute, at, 300.0),
        "lag grows": holding(change(lag, at, 300.0) > 0, at, 900.0),
    }
    nothing = np.full(len(at), "")
    return {name: Alarms(standing, nothing) for name, standing in held.items()}


# -- tables ---------------------------------------------------------------------------------------


def result_of(done: Sequence[Judged]) -> Result:
    """Figures, tables and the plot of all groups."""
    figures = []
    for name in DETECTORS:
        of = totals([each.seen[name] for each in done])
        goals = (FOUND_GOAL, FALSE_GOAL) if name == OURS else (None, None)
        figures.append(Figure(f"faults found, {name}", "%", [100 * of.found], goals[0]))
        false = f"false alarms per 24 h of a group that is well, {name}"
        figures.append(at_most(false, "min", [of.false_per_day], goals[1]))
    every = [each.seen[OURS] for each in done]
    faults, hours = totals(every).faults, sum(each.well_minutes for each in every) / 60
    return Result(
        figures,
        f"""{len(done):,} random groups of two hours of {len(KINDS)} kinds in turn, seed {SEED};
        {faults} faults that broke the objective (60 s), {hours:,.0f} hours in which all was well;
        samples every 5 to 30 s. Delays count from the moment from which the objective was broken
        for a minute.""",
        series=[plot(done)],
        tables=[overview(done), of_well(done), of_faults(done), of_kinds(done)],
        page=PAGE,
    )


def plot(done: Sequence[Judged]) -> Series:
    """Share of all faults that each detector has found until a time after the harm."""
    lines = {}
    for name in DETECTORS:
        all_seen = [each.seen[name] for each in done]
        delays = np.array([each.delay_s for each in all_seen if each.delay_s is not None])
        share = [(float(most), round(100 * float((delays <= most).mean()), 1)) for most in POINTS_S]
        lines[f"{name} ({shown(totals(all_seen).false_per_day)})"] = share
    return Series(
        "analytics_detectors",
        "Faults found (in brackets: minutes of false alarms per 24 h)",
        "after the objective was broken [s]",
        "faults found [%]",
        lines,
    )


def overview(done: Sequence[Judged]) -> Table:
    """One row per detector."""
    rows = []
    for name in DETECTORS:
        of = totals([each.seen[name] for each in done])
        visible = totals([each.seen[name] for each in done if KINDS[each.kind].burrow])
        unordered = totals([each.seen[name] for each in done if each.kind not in ORDERED])
        disturbed = [each.seen[name].false_minutes > 0 for each in done if each.kind in WELL]
        rows.append(
            (
                name,
                percent(of.found),
                percent(visible.found),
                f"{seconds(of.median_s)} / {seconds(of.p90_s)}",
                f"{of.false_per_day:.2f}",
                f"{unordered.false_per_day:.2f}",
                share_of(disturbed),
                share_of(kinds_right(done, name)),
                share_of(stages_right(done)) if name == OURS else "–",
            )
        )
    head = (
        "Detector",
        "Faults found",
        "of those that offsets show",
        "Delay, median / p90 [s]",
        "False minutes per 24 h",
        "without orders of people",
        "Well groups with a false alarm",
        "Right kind",
        "Right stage",
    )
    return Table("All groups", head, rows)


def of_well(done: Sequence[Judged]) -> Table:
    """Minutes of false alarms of each kind that is well."""
    rows = []
    for kind in WELL:
        mine = [each for each in done if each.kind == kind]
        minutes = [totals([each.seen[name] for each in mine]).false_per_day for name in DETECTORS]
        rows.append((kind, f"{len(mine)}", *(f"{each:,.1f}" for each in minutes)))
    title = "Minutes of false alarms per 24 hours"
    return Table(title, ("All is well", "Groups", *DETECTORS), rows)


def of_faults(done: Sequence[Judged]) -> Table:
    """Share found and delays of each kind of fault."""
    rows = []
    for kind in FAULTY:
        mine = [each for each in done if each.kind == kind]
        each_total = [totals([each.seen[name] for each in mine]) for name in DETECTORS]
        cells = [
            f"{percent(of.found)} {seconds(of.median_s)} / {seconds(of.p90_s)}" for of in each_total
        ]
        rows.append((kind, f"{each_total[0].faults}", *cells))
    title = "Faults found, and seconds until then: median / 90 % of them"
    return Table(title, ("Fault", "Groups", *DETECTORS), rows)


def of_kinds(done: Sequence[Judged]) -> Table:
    """Right kinds and stages of each kind of fault."""
    rows = []
    for kind in FAULTY:
        mine = [each for each in done if each.kind == kind]
        skews = [each.skew_right for each in mine if each.skew_right is not None]
        cells = (kinds_right(mine, OURS), kinds_right(mine, BURROW), stages_right(mine), skews)
        rows.append((kind, *(share_of(cell) for cell in cells)))
    head = ("Fault", f"Kind, {OURS}", f"Kind, {BURROW}", f"Stage, {OURS}", f"Queue, {OURS}")
    return Table("Share of found faults that were named rightly", head, rows)


def kinds_right(done: Sequence[Judged], name: str) -> list[bool]:
    """Whether each fault that was found was given the right name by the alarm that found it."""
    expected = {kind: of.ours if name == OURS else of.burrow for kind, of in KINDS.items()}
    return [
        each.seen[name].kind in expected[each.kind]
        for each in done
        if each.seen[name].kind and expected[each.kind]
    ]


def stages_right(done: Sequence[Judged]) -> list[bool]:
    """Whether the right stage was blamed for each fault that we found."""
    return [
        each.blamed == KINDS[each.kind].stage
        for each in done
        if each.seen[OURS].kind and KINDS[each.kind].stage
    ]


def share_of(right: Sequence[bool]) -> str:
    """Share of true values; "–" of none."""
    return percent(float(np.mean(right))) if right else "–"


def percent(share: float) -> str:
    """A share with one decimal place unless it is whole; "–" for NaN."""
    return "–" if math.isnan(share) else f"{round(100 * share, 1):g} %"


def seconds(delay: float) -> str:
    """A delay; "never" if it is infinite."""
    if math.isnan(delay):
        return "–"
    return "never" if math.isinf(delay) else f"{delay:,.0f}"


def main(given: Options) -> Result:
    count = given.pick(GROUPS, quick=min(GROUPS, QUICK_GROUPS))
    parts = [range(first, min(first + AT_ONCE, count)) for first in range(0, count, AT_ONCE)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return result_of([each for made in pool.map(judge_groups, parts) for each in made])


if __name__ == "__main__":
    benchmark(main)
