"""From real processes through a real Prometheus and Spark to a report: exactly what was planted.

Short for every day: everything is watched every two seconds, and all windows of the rules shrink
with that. TIDEMARK_LAG_MINUTES=10 (`make lag-drill`) watches as a deployment does, with the rules
as they are and every job a process of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from pyspark.sql import SparkSession

from analytics.jobs import collect, evaluate, forecast, report, rollup
from analytics.jobs.collect import CollectOptions
from analytics.jobs.evaluate import EvaluateOptions
from analytics.jobs.streaming import Pace
from analytics.kernel.rules import Rules
from analytics.statuses import Status
from analytics.tables import TableRoot
from deploy.prometheus.rules import ROOT
from drills.lag import plan
from drills.lag.judging import judge, newest, others
from drills.lag.load import Load
from drills.lag.pipeline import Pipeline, Source
from drills.lag.plan import PLANTED, Planted, Times
from drills.lag.processes import StageCluster, Target
from tests.support.lag_observer import Observer, Range
from tests.support.node import wait_until
from tests.support.prometheus import Prometheus
from tests.support.spark import spark

__all__ = ["spark"]
MINUTES: Final = float(os.environ.get("TIDEMARK_LAG_MINUTES", "0"))
TIMES: Final = Times(15.0, MINUTES * 60) if MINUTES else Times(2.0, 80.0)
SETTLE_S: Final = 3.0
"""Until a scrape that has begun is in Prometheus."""
BETWEEN_S: Final = 0.4
"""Between two samples over the API: the bounds are as wide as what happens in that time."""
CLOCK_S: Final = 0.002
"""Metrics have milliseconds."""
HIDDEN_SHARE: Final = 0.15
"""Hidden lag is bytes over a mean size: an estimate, with this for an error here."""
RATE_TICKS: Final = 10
"""Number of ticks at which rates are judged."""
PACE_TICKS: Final = 22
"""Faults are judged once this many ticks in a row had their input. A machine that stands still for
seconds changes the master, and progress is unknown for half a window (10 ticks) after that."""
PACE_SHARE: Final = 0.5
"""The part of the planned input that each of them must have."""
LONGEST_WATCHES: Final = 3
"""How long this is waited for, in planned times of watching."""
pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600 + LONGEST_WATCHES * TIMES.watch_s),
]
LOOSE_SHARE: Final = 0.15 if MINUTES else 0.25
"""Progress is judged against the plan where at each tick no more than this of the input was
missing: when a busy machine stands still for five of twenty seconds, it is not as planted."""
IDS: Final = [planted.group for planted in PLANTED]


class Ran(NamedTuple):
    """One run: what the tables and the report hold, and what the brokers answered meanwhile."""

    tables: Path
    facts: dict[str, Any]
    """report.json."""
    page: str
    observer: Observer
    sent: list[tuple[float, int]]
    """(time, messages of `payments` acknowledged up to then)."""
    took_s: dict[tuple[str, str, int], float]
    """How long each sample took, by broker, replica and when it began [ms since 1970]."""

    def pair(self, planted: Planted) -> dict[str, Any]:
        """Values of a group in the report."""
        [found] = [
            pair
            for pair in self.facts["pairs"]
            if (pair["group"], pair["topic"], pair["broker"])
            == (planted.group, planted.topic, planted.broker)
        ]
        assert isinstance(found, dict)
        return found

    def lately(self, planted: Planted) -> list[dict[str, Any]]:
        """Return a group's last rows of pair_lag, oldest first, up to the one that the report
        shows."""
        pair = self.pair(planted)
        seen = datetime.fromisoformat(pair["seen"])
        rows = [
            row
            for row in TableRoot(self.tables).read("pair_lag").to_pylist()
            if row["pair_id"] == pair["pair_id"] and row["tick"] <= seen
        ]
        rows.sort(key=lambda row: row["tick"])
        assert rows[-1]["tick"] == seen
        return rows[-RATE_TICKS:]

    def samples(self, planted: Planted) -> dict[datetime, Range]:
        """Return for each tick from when to when the broker read a group's state [s since 1970]."""
        number = self.pair(planted)["pair_id"]
        found = {}
        for row in TableRoot(self.tables).read("pairs").to_pylist():
            if row["pair_id"] == number and row["members"] is not None:
                began_s = row["ts"].timestamp()
                key = (planted.broker, row["replica"], round(began_s * 1000))
                found[row["tick"]] = Range(began_s, began_s + CLOCK_S + self.took_s[key])
        return found

    def age(self, planted: Planted) -> Range:
        """Bounds of a group's age by the analytics: one value where it is exact.

        A message that comes to a queue after the group was read, and before the sample ends, is lag
        whose store time the sample does not have: its age is interpolated and marked as such.
        """
        pair, low, high = self.pair(planted), 0.0, 0.0
        for row in TableRoot(self.tables).read("lag").to_pylist():
            if (row["pair_id"], row["tick"]) == (
                pair["pair_id"],
                datetime.fromisoformat(pair["seen"]),
            ):
                exact = row["age_method"] == "exact"
                low = max(low, row["age_seconds" if exact else "age_low_seconds"])
                high = max(high, row["age_seconds" if exact else "age_high_seconds"])
        # The report has nine digits.
        assert Range(low, high).holds(pair["age_s"], 1e-6)
        return Range(low, high)

    def sample(self, planted: Planted) -> Range:
        """Return from when to when the sample was taken that the report shows."""
        return self.samples(planted)[datetime.fromisoformat(self.pair(planted)["seen"])]


def configured(directory: Path, targets: list[Target], times: Times) -> Path:
    """Write the project's own configuration with these targets and intervals; return its path."""
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    del config["alerting"], config["rule_files"]
    period = f"{times.period_s:g}s"
    config["global"] = {
        "scrape_interval": period,
        "scrape_timeout": period if times.period_s < 10 else "10s",
        "evaluation_interval": period,
    }
    (directory / "targets").mkdir(parents=True)
    for service in ("broker", "reput", "ha"):
        entries = []
        for target in targets:
            if target.service == service:
                labels = {name: text for name, text in target.labels.items() if name != "service"}
                entries.append({"targets": [f"127.0.0.1:{target.port}"], "labels": labels})
        (directory / "targets" / f"{service}.yml").write_text(yaml.safe_dump(entries))
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def has_settled(prometheus: Prometheus, moment_s: float) -> bool:
    """Whether each target has been scraped since that moment, and the source can read that far."""
    ((_, scraped_s),) = (each["value"] for each in prometheus.query("min(timestamp(up))"))
    return float(scraped_s) >= moment_s and time.time() >= moment_s + SETTLE_S


def keeps_pace(sent: Sequence[tuple[float, int]], period_s: float) -> bool:
    """Whether each of the last periods has its share of the planned orders.

    sent: (time, orders acknowledged up to then), in order of time.
    """
    ends = [
        max((number for when, number in sent if when <= sent[-1][0] - ago * period_s), default=0)
        for ago in range(PACE_TICKS, -1, -1)
    ]
    least = PACE_SHARE * plan.ORDERS_PER_S * period_s
    return all(after - before >= least for before, after in pairwise(ends))


def samples_of(prometheus: Prometheus) -> dict[tuple[str, str, int], float]:
    """Return how long each scraped sample took. The figures of a sample are read one after another:
    if the machine stalls, a message or two may come in between the first and the last."""
    of: dict[str, dict[tuple[str, str, float], float]] = {}
    for name in ("timestamp", "duration"):
        of[name] = {
            (each["metric"]["broker"], each["metric"]["replica"], scraped_s): float(value)
            for each in prometheus.query(f"tidemark_broker_look_{name}_seconds[1d]")
            for scraped_s, value in each["values"]
        }
    return {
        (broker, replica, round(began_s * 1000)): of["duration"][broker, replica, scraped_s]
        for (broker, replica, scraped_s), began_s in of["timestamp"].items()
    }


def run_jobs(spark: SparkSession, directory: Path, source: Source, times: Times) -> Path:
    """Run all jobs afterwards, in the existing session; return the report's directory."""
    tables, out = directory / "tables", directory / "report"
    pace = {name: Pace(directory / "checkpoints" / name, available_now=True) for name in ("c", "e")}
    collect.run(
        spark,
        CollectOptions(
            tables=tables,
            pace=pace["c"],
            source=f"tidemark_{source.name}",
            source_options=source.options,
            period_s=times.period_s,
            buckets=2,
        ),
    )
    rules = Rules().scaled(times.period_s / plan.DEFAULT_PERIOD_S)
    evaluate.run(spark, EvaluateOptions(tables=tables, rules=rules, pace=pace["e"], closing="data"))
    rollup.run(spark, tables)
    forecast.run(spark, tables)
    report.run(tables, out)
    return out


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    directory = tmp_path_factory.mktemp("lag")
    began = time.time()
    with ExitStack() as parts:
        cluster = parts.enter_context(StageCluster(directory / "cluster"))
        load = parts.enter_context(
            Load(cluster.orders_urls, cluster.solo.api_url, TIMES, directory / "cluster")
        )

        def orders() -> str:
            return cluster.pair.nodes[cluster.pair.serving() or "n0"].api_url

        urls = {plan.ORDERS: orders, plan.PAYMENTS: lambda: cluster.solo.api_url}
        observer = parts.enter_context(
            Observer(
                {(each.group, each.topic): urls[each.topic] for each in PLANTED},
                BETWEEN_S,
                load.sent_at,
            )
        )
        config = configured(directory / "prometheus", cluster.targets(), TIMES)
        prometheus = parts.enter_context(Prometheus(directory / "server", config))
        start = datetime.fromtimestamp(time.time(), UTC)
        options = {"url": prometheus.url, "start": start.isoformat(), "settle": f"{SETTLE_S:g}s"}
        source = Source("prometheus", options)
        jobs = parts.enter_context(Pipeline(directory, source, TIMES))
        if MINUTES:
            jobs.start_collect()
        sent: list[tuple[float, int]] = []
        orders_sent = [(time.monotonic(), load.sent[plan.ORDERS])]
        watched_from, is_planted, is_evaluating = time.monotonic(), False, False
        while (passed := time.monotonic() - watched_from) < TIMES.watch_s or (
            passed < LONGEST_WATCHES * TIMES.watch_s and not keeps_pace(orders_sent, TIMES.period_s)
        ):
            cluster.check()
            load.check()
            jobs.check()
            sent.append((time.time(), load.sent[plan.PAYMENTS]))
            orders_sent.append((time.monotonic(), load.sent[plan.ORDERS]))
            if not is_planted and passed >= TIMES.calm_s:
                load.plant_poison()
                load.kill_member()
                cluster.stop_reput()
                is_planted = True
            if MINUTES and not is_evaluating and jobs.has_samples:
                jobs.start_evaluate()
                is_evaluating = True
            time.sleep(0.2)
        if MINUTES:
            until = datetime.now(UTC)
            wait_until(lambda: jobs.is_through(until), "all to be evaluated", 300)
            jobs.stop_streams()
            jobs.finish(lambda _: None)
            out = jobs.report_dir
        else:
            ended_s = time.time()
            wait_until(lambda: has_settled(prometheus, ended_s), "all to be scraped", 60)
            out = run_jobs(spark, directory, source, TIMES)
        sent.append((time.time(), load.sent[plan.PAYMENTS]))
        facts = json.loads((out / "report.json").read_text())
        page = (out / "report.html").read_text()
        print(f"{time.time() - began:.0f} s in all, {passed:.0f} s watched; report: {out}")
        if passed > TIMES.watch_s + TIMES.period_s:
            # Shown with a failure: why did the group stand still?
            print(cluster.pair.logs())
        took_s = samples_of(prometheus)
        yield Ran(directory / "tables", facts, page, observer, sent, took_s)


def test_every_group_is_found_as_what_it_is_and_nothing_else_is(ran: Ran) -> None:
    verdicts = judge(PLANTED, newest(ran.tables))
    wrong = {each.planted.group: each.wrong for each in verdicts if each.wrong}
    assert wrong == {}, [each.found for each in verdicts if each.wrong]
    assert others(ran.tables, PLANTED) == []


@pytest.mark.parametrize("planted", PLANTED, ids=IDS)
def test_the_report_has_the_values_of_the_tables(ran: Ran, planted: Planted) -> None:
    pair = ran.pair(planted)
    assert pair["status"] == planted.status
    if planted.blamed is not None:
        assert pair["blamed"] == planted.blamed
    asked_for = {
        attention["pair"]["group"]
        for attention in ran.facts["attention"]
        if attention["pair"]["topic"] == planted.topic
    }
    if planted.status is not Status.OK:
        assert planted.group in asked_for
        assert planted.group in ran.page
    if planted.stuck_queues:
        assert f"{planted.stuck_queues} of {plan.ORDERS_QUEUES}" in pair["cause"]
    if planted.hides:
        assert "stored messages cannot be read yet" in pair["cause"]
        assert planted.group in asked_for, "in time, and held back before it: listed all the same"


@pytest.mark.parametrize("planted", PLANTED, ids=IDS)
def test_numbers_of_a_group_are_those_of_the_broker(ran: Ran, planted: Planted) -> None:
    pair, sample, seen = ran.pair(planted), ran.sample(planted), ran.observer
    lag = seen.lag(planted.group, planted.topic, sample)
    assert lag.holds(pair["lag"]), (pair["lag"], lag, sample)
    age = seen.age(planted.group, planted.topic, sample)
    known = ran.age(planted)
    assert known.low <= age.high + CLOCK_S, (known, age, sample)
    assert known.high >= age.low - CLOCK_S, (known, age, sample)
    before, after = seen.around(planted.group, planted.topic, sample)
    if before.generation == after.generation:
        assert pair["members"] == after.members
    assert pair["objective_s"] == before.objective_s
    assert pair["queues"] == len(before.queues)
    assert pair["lost"] in (0, None)
    assert pair["unknown"] == 0


@pytest.mark.parametrize("planted", [plan.SLOW, plan.STOPPED, plan.POISON], ids=str)
def test_numbers_of_each_queue_are_those_of_the_broker(ran: Ran, planted: Planted) -> None:
    sample = ran.sample(planted)
    [attention] = [
        each
        for each in ran.facts["attention"]
        if (each["pair"]["group"], each["pair"]["topic"]) == (planted.group, planted.topic)
    ]
    assert attention["queues"]
    for queue in attention["queues"]:
        lag = ran.observer.queue_lag(planted.group, planted.topic, queue["queue"], sample)
        assert lag.holds(queue["lag"]), (queue, lag)
    if planted is plan.POISON:
        [stuck] = [each for each in attention["queues"] if each["status"] == Status.STALLED]
        assert stuck["queue"] == plan.POISON_QUEUE


def values(rows: list[dict[str, Any]], name: str) -> list[float]:
    """Return the values of a column; most of the rows must have one."""
    found = [row[name] for row in rows if row[name] is not None]
    assert len(found) >= 0.8 * len(rows), (name, rows)
    print(f"{rows[-1]['group']}: {name} {sum(found) / len(found):.2f}, of {found}")
    return found


@pytest.mark.parametrize("planted", [plan.SLOW, plan.HEALTHY, plan.STOPPED], ids=str)
def test_rates_are_those_of_the_offsets_of_the_broker(ran: Ran, planted: Planted) -> None:
    # Not those that the plan has: a machine that stands still sends and reads less.
    pair, rows, samples = ran.pair(planted), ran.lately(planted), ran.samples(planted)
    for shown, name in (
        (pair["produce_per_s"], "produce_per_second"),
        (pair["consume_per_s"], "consume_per_second"),
        (pair["progress"], "progress"),
    ):
        # The report has nine digits.
        held = rows[-1][name]
        assert shown == (None if held is None else pytest.approx(held, rel=1e-6)), name
    for name, field in (
        ("produce_per_second", "max_offset"),
        ("consume_per_second", "committed"),
    ):
        assert max(values(rows, name)) > 0 or planted is plan.STOPPED
        for row in rows:
            now = samples[row["tick"]]
            before = max(
                (sample for sample in samples.values() if sample.low < now.low), key=lambda x: x.low
            )
            if row[name] is not None:
                moved = ran.observer.moved(planted.group, planted.topic, field, before, now)
                count = row[name] * (now.low - before.low)
                # A rate has four digits.
                assert moved.holds(count, max(1e-3, 1e-3 * count)), (name, row, moved, count)


def test_progress_is_what_was_planted_where_the_machine_kept_the_pace(ran: Ran) -> None:
    rows = ran.lately(plan.SLOW)
    found = values(rows, "progress")
    sent = values(rows, "produce_per_second")
    if min(sent) > plan.ORDERS_PER_S * (1 - LOOSE_SHARE):
        assert sum(found) / len(found) == pytest.approx(plan.SLOW_SHARE, abs=0.08)
    stopped = ran.pair(plan.STOPPED)
    assert stopped["consume_per_s"] == 0
    assert stopped["progress"] == pytest.approx(0, abs=0.01)


def test_messages_that_no_lag_shows_are_counted(ran: Ran) -> None:
    pair, sample = ran.pair(plan.HIDDEN), ran.sample(plan.HIDDEN)
    before, after = ran.observer.around(plan.HIDDEN.group, plan.PAYMENTS, sample)
    visible = [sum(queue.max_offset for queue in each.queues.values()) for each in (before, after)]
    low = max(count for when, count in ran.sent if when <= before.asked_s) - visible[1]
    high = min(count for when, count in ran.sent if when >= after.answered_s) - visible[0]
    bounds = Range(low * (1 - HIDDEN_SHARE), high * (1 + HIDDEN_SHARE) + 8)
    assert pair["lag"] == 0
    assert bounds.holds(pair["hidden_lag"]), (pair["hidden_lag"], bounds)
