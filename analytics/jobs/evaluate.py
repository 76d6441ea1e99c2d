"""evaluate: computes rates, lag, statuses and stages from positions, tick by tick.

An executor reads the last minutes of a bucket, calls the kernel once per batch and writes the
result; the driver commits. Spark moves no rows between tasks and keeps no state: a small file per
bucket, named by tick, carries the state to the next batch. As a stream the job follows `collect`,
and evaluates ticks again whose samples came late; over a range it evaluates again what `backfill`
filled. Step before: `collect`. Step after:
`rollup`, `report`, `export`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import click
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from analytics import runs
from analytics.errors import BadOption, HourOpen, TablesMissing
from analytics.jobs.options import (
    LocalPath,
    period_option,
    range_options,
    spark_options,
    started,
    stream_options,
    tables_option,
    whole_hours,
)
from analytics.jobs.streaming import Pace, run_stream
from analytics.kernel.evaluate import evaluate
from analytics.kernel.rules import Rules
from analytics.kernel.state import fits
from analytics.moments import EPOCH, HOUR, from_us, steps, to_us
from analytics.schema import COMPUTED as COMPUTED
from analytics.schema import REVISED_AT, TIME
from analytics.tables import Batch, Span, TableRoot, spans_of
from analytics.tables.parts import Writer, Written, commit_all, run_parts, write_frame
from analytics.ticks.late import late, versions
from analytics.ticks.spark import MAX_TICKS, NAME, Task
from analytics.ticks.window import (
    forget_states,
    read_state,
    read_window,
    state_ticks,
    write_state,
)
from shared.runtime.clock import SystemClock

_DAY: Final = timedelta(days=1)
_TRIES: Final = 3  # to evaluate a range while samples of it come
_WAIT_S: Final = 1.0  # between two checks for tables
log = logging.getLogger("tidemark.analytics")


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """Settings of an evaluation."""

    tables: str | Path
    rules: Rules
    pace: Pace | None = None
    """Pace of a stream; null: evaluate since … before once."""
    since: datetime | None = None
    before: datetime | None = None
    closing: str = "clock"
    """What closes a tick when no node sends samples: the clock, or data only."""
    max_ticks: int = MAX_TICKS
    """Maximum number of ticks in one batch of the stream. More catch up faster and take more
    memory."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluation of one bucket's ticks, on an executor. Picklable."""

    root: TableRoot
    rules: Rules
    done: Mapping[str, datetime] = field(default_factory=dict)
    """Table → tick up to which it is evaluated: a stream adds no rows of these ticks, which an
    evaluation over a range may have passed."""

    def __call__(self, batches: Iterator[pa.RecordBatch], writer: Writer) -> None:
        """Do the tasks that `tidemark_ticks` hands out."""
        for batch in batches:
            for row in batch.to_pylist():
                self.bucket(Task(**row), writer)

    def ticks(self, _: TableRoot, task: tuple[int, datetime, datetime], writer: Writer) -> None:
        """Evaluate one bucket of a range, as `run_parts` calls it."""
        bucket, after, until = task
        begun = Task(bucket, to_us(after), to_us(until), to_us(after), 0)
        self._evaluate(begun, after, state_ticks(self.root, bucket), writer)

    def bucket(self, task: Task, writer: Writer) -> None:
        """Evaluate ticks of a bucket; those that were evaluated before from the newest state before
        them on."""
        after = from_us(task.after_us)
        states = state_ticks(self.root, task.bucket) if task.is_revision else []
        begin = max((tick for tick in states if tick <= after), default=after)
        self._evaluate(task, begin, states, writer)

    def _evaluate(
        self, task: Task, begin: datetime, states: list[datetime], writer: Writer
    ) -> None:
        """Evaluate an hour at a time, from the state at `begin` on if there is one.

        states: ticks of states that exist. Those in the range are written again, since later
        evaluations continue from them.
        """
        bucket, after, until = task.bucket, from_us(task.after_us), from_us(task.until_us)
        state = read_state(self.root, begin, bucket)
        if state is None or not state.num_rows or not fits(state, self.rules):
            begin, state = after, self._warmed(bucket, after)
        for step in ends(begin, until, states):
            window = read_window(self.root, bucket, self.rules, begin, step)
            done = evaluate(window, self.rules, state, begin, step)
            for table in COMPUTED:
                self._write(table, getattr(done, table), task, writer)
            state, begin = done.state, step
            if step == until or step in states:
                write_state(self.root, step, bucket, state)
        writer.facts |= task._asdict()

    def _write(self, table: str, rows: pa.Table, task: Task, writer: Writer) -> None:
        """Write the new rows of a table, and those to replace, which get the time of it."""
        known = max(task.judged_us, to_us(self.done.get(table, EPOCH)))
        ticks = np.asarray(rows["tick"].cast(pa.int64()))
        is_new = ticks > (task.after_us if task.is_revision else known)
        again = (ticks <= known)[is_new]
        revised = pa.array(np.full(again.size, task.at_us), TIME, mask=~again)
        writer.write(table, rows.filter(pa.array(is_new)).append_column(REVISED_AT, revised))
        if again.any():
            writer.add(f"revised {table}", int(again.sum()))

    def _warmed(self, bucket: int, after: datetime) -> pa.Table | None:
        """Compute the state at a tick without a state file by evaluating the hour before it."""
        window = read_window(self.root, bucket, self.rules, after - HOUR, after)
        if not window.positions.num_rows:
            return None
        return evaluate(window, self.rules, None, after - HOUR, after).state


def run(
    spark: SparkSession, options: EvaluateOptions, *, stop: threading.Event | None = None
) -> None:
    """Evaluate: as a stream until it is stopped, if the options have a pace; else once over
    hours."""
    root = TableRoot(options.tables)
    evaluation = Evaluation(root, options.rules)
    if options.pace is None:
        since, before = whole_hours(options.since, options.before)
        over_range(spark, evaluation, since, before)
        return
    asked: dict[str, Any] = {
        "tables": root.uri,
        "period_us": options.rules.period_us,
        "closing": options.closing,
        "max_ticks": options.max_ticks,
    }
    ticks = spark.readStream.format(NAME).options(**asked).load()
    writer = run_stream(
        "evaluate",
        ticks,
        options.pace,
        lambda rows, batch: judge(rows, batch, evaluation),
        stop=stop,
    )
    runs.note_stopped(root, "evaluate", writer)


def judge(ticks: DataFrame, batch: Batch, evaluation: Evaluation) -> None:
    """Write and commit one batch of ticks."""
    root = evaluation.root
    if root.has_batch("runs", batch):
        return
    done = [table for table in COMPUTED if root.has_batch(table, batch)]
    marks = {table: root.watermark(table) for table in COMPUTED}
    evaluation = replace(
        evaluation, done={table: mark for table, mark in marks.items() if mark is not None}
    )
    with runs.run(root, "evaluate", batch) as noted:
        written = write_frame(ticks, root, batch, evaluation, skip=done)
        if not written.facts:
            return  # the first batch of a stream that was started before there were positions
        until = from_us(written.facts[0]["until_us"])
        spans = replaced(written, evaluation.rules.period_us)
        commit_all(
            root,
            batch,
            written,
            clears=dict.fromkeys(COMPUTED, spans),
            watermarks=dict.fromkeys(COMPUTED, until),
        )
        _note(noted, written, until)
        _note_late(noted, written, spans)
        noted.read_to(until)
    forget_states(root, until)


def ends(begin: datetime, until: datetime, states: Iterable[datetime]) -> list[datetime]:
    """Return the ends of the steps from begin to until, of an hour at most, which end at each
    state between them. Pure."""
    found = [begin]
    for tick in [*(tick for tick in states if begin < tick < until), until]:
        found += [*steps(found[-1] + HOUR, tick), tick]
    return found[1:]


def replaced(written: Written, period_us: int) -> list[Span]:
    """Return the rows that a batch replaces: of each bucket the ticks that it evaluated again, and
    later ones, which an evaluation over a range may have passed."""
    tasks = [Task(**{name: fact[name] for name in Task._fields}) for fact in written.facts]
    return [
        Span(task.after_us + period_us, task.until_us + period_us, task.bucket)
        for task in tasks
        if task.is_revision
    ]


def over_range(
    spark: SparkSession, evaluation: Evaluation, since: datetime, before: datetime
) -> None:
    """Evaluate whole hours again, a day at a time, and replace their results. Raises HourOpen if a
    stream of evaluation has not passed the range, or samples of it come all the time."""
    root, period = evaluation.root, timedelta(microseconds=evaluation.rules.period_us)
    mark, now = root.watermark("lag"), datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)
    if mark is not None and mark < before - period and runs.is_running(root, "evaluate", now):
        raise HourOpen(f"{before - HOUR:%Y-%m-%dT%H}", closed_until=f"{mark:%Y-%m-%dT%H:%M:%S}")
    begin = since
    while begin < before:
        end = min(before, begin + _DAY)
        after, until = begin - period, end - period
        # The last tasks are the short ones, so that all cores end at about the same time.
        buckets = root.buckets_by_rows("positions", since=begin, before=end)
        tasks = [(bucket, after, until) for bucket in buckets]
        with runs.run(root, "evaluate") as noted:
            written = _settled(spark, evaluation, tasks)
            commit_all(
                root,
                "evaluate",
                written,
                clears=dict.fromkeys(COMPUTED, spans_of(steps(begin, end))),
                watermarks=dict.fromkeys(COMPUTED, until),
            )
            _note(noted, written, until)
        begin = end


def _settled(
    spark: SparkSession, evaluation: Evaluation, tasks: list[tuple[int, datetime, datetime]]
) -> Written:
    """Evaluate a range until no samples of its ticks or earlier ones came meanwhile: the stream may
    have evaluated them again, and its results would be replaced by older ones. Raises HourOpen if
    they come all the time."""
    root, (_, after, until) = evaluation.root, tasks[0]
    for _ in range(_TRIES):
        before = versions(root)
        written = run_parts(spark, root, "evaluate", tasks, evaluation.ticks)
        period_us = evaluation.rules.period_us
        if not late(root, to_us(until), before, versions(root), period_us).first:
            return written
    raise HourOpen(f"{until:%Y-%m-%dT%H}", closed_until=f"{after:%Y-%m-%dT%H:%M:%S}")


def _note(noted: runs.Run, written: Written, until: datetime) -> None:
    noted.wrote(written.counts())
    noted.watermark("positions", until)


def _note_late(noted: runs.Run, written: Written, spans: list[Span]) -> None:
    """Note what was evaluated again, and what was not although it had late samples."""
    if spans:
        counts = {
            table: sum(fact.get(f"revised {table}", 0) for fact in written.facts)
            for table in COMPUTED
        }
        noted.revised(from_us(min(span.since_us for span in spans)), counts)
    if (left := written.facts[0]["left_us"]) is not None:
        noted.left(from_us(left))


@click.command("evaluate")
@tables_option
@stream_options(required=False)
@click.option(
    "--closing",
    type=click.Choice(["clock", "data"]),
    default="clock",
    show_default=True,
    help="Whether ticks also end when no node sends samples any more.",
)
@range_options(required=False)
@period_option
@click.option("--scaled", is_flag=True, help="For drills: all windows shrink with the period.")
@click.option(
    "--rules",
    "rules_file",
    type=LocalPath(exists=True, dir_okay=False, path_type=Path),
    help="JSON object of rules that differ from the defaults, in seconds.",
)
@spark_options
def command(**given: Any) -> None:
    """Evaluate ticks as they close, or once over whole hours (--since, --before)."""
    stream = given["checkpoint"] is not None
    if stream == (given["since"] is not None or given["before"] is not None):
        raise BadOption(
            "evaluate wants either --checkpoint or --since and --before.",
            "The first follows `collect`, the second evaluates whole hours again.",
        )
    pace = Pace(given["checkpoint"], given["trigger_s"], given["available_now"]) if stream else None
    options = EvaluateOptions(
        tables=given["tables"],
        rules=rules_of(given["period_s"], scaled=given["scaled"], file=given["rules_file"]),
        pace=pace,
        since=given["since"],
        before=given["before"],
        closing=given["closing"],
    )
    root = opened(options.tables, wait=stream and not given["available_now"])
    run(started("tidemark evaluate", given, root.buckets), options)


def opened(
    tables: str | Path, *, wait: bool, pause: Callable[[float], None] = time.sleep
) -> TableRoot:
    """Open the tables. wait: wait until `collect` has made them; otherwise raise TablesMissing."""
    is_logged = False
    while True:
        try:
            return TableRoot(tables)
        except TablesMissing:
            if not wait:
                raise
        if not is_logged:
            log.warning("no tables in %s yet: waiting until `collect` makes them", tables)
            is_logged = True
        pause(_WAIT_S)


def rules_of(period_s: float, *, scaled: bool, file: Path | None) -> Rules:
    """Return the rules for these options. Raises BadOption."""
    try:
        rules = Rules().scaled(period_s / 15.0) if scaled else Rules(period_s=period_s)
        return rules if file is None else changed_rules(rules, json.loads(file.read_bytes()))
    except (ValueError, TypeError) as error:
        raise BadOption(f"The rules cannot be used: {error}.", "Nothing was started.") from error


def changed_rules(rules: Rules, changes: Mapping[str, float]) -> Rules:
    """Return the rules with some numbers replaced. Raises ValueError for an unknown name."""
    known = {field.name for field in fields(rules)} - {"raise_s"}
    unknown = set(changes) - known
    if unknown:
        raise ValueError(f"no rule is called {', '.join(sorted(unknown))}")
    return replace(rules, **cast("dict[str, Any]", dict(changes)))
