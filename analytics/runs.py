"""The table `runs`: what each run of a job has done, written after everything else of the run.

A run has several rows, each with one fact. Readers of it: ``analytics.ticks`` (which ticks are
complete), ``analytics.export`` (metrics), and jobs that must not write what a stream writes now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from analytics.moments import from_us, to_us
from analytics.schema import EVALUATED, RUNS
from analytics.tables import Batch, TableRoot

DAY: Final = timedelta(days=1)
RUNNING_FOR: Final = timedelta(minutes=10)
"""A stream whose last batch is older than this was killed."""


class Fact(StrEnum):
    """Kinds of rows."""

    RUN = "run"
    """The run itself."""
    ROWS = "rows"
    """Number of rows written to the table `subject`."""
    SOURCE = "source"
    """`until` is the newest sample time of the source `subject`."""
    NODE = "node"
    """`until` is the newest tick that the node `subject` has sent."""
    SORTED = "sorted"
    """`subject` is a table and a day that was sorted, like `lag/2026-01-31`."""
    READ = "read"
    """The job has finished everything up to `until`."""
    REVISED = "revised"
    """Ticks from `until` on were evaluated again, because samples of them came late; `rows` of the
    table `subject` were written for it."""
    LEFT = "left"
    """Samples of the tick `until` or later came too late for the stream to evaluate it again."""
    STOPPED = "stopped"
    """The stream has ended in order."""


class Run:
    """One run in progress."""

    def __init__(self) -> None:
        self._facts: list[dict[str, Any]] = [{"fact": Fact.RUN}]

    def wrote(self, counts: Mapping[str, int]) -> None:
        """Note rows written, by table."""
        for table, count in counts.items():
            self._facts.append({"fact": Fact.ROWS, "subject": table, "rows": count})

    def watermark(self, source: str, newest: datetime) -> None:
        """Note the newest sample time of a source."""
        self._facts.append({"fact": Fact.SOURCE, "subject": source, "until": newest})

    def saw(self, nodes: Mapping[str, int]) -> None:
        """Note the newest tick of each node [microseconds since 1970]."""
        for node, tick in nodes.items():
            self._facts.append({"fact": Fact.NODE, "subject": node, "until": from_us(tick)})

    def sorted(self, table: str, days: Iterable[str]) -> None:
        """Note the days of a table that were sorted."""
        for day in days:
            self._facts.append({"fact": Fact.SORTED, "subject": f"{table}/{day}"})

    def read_to(self, until: datetime) -> None:
        """Note that the job has finished everything up to a time."""
        self._facts.append({"fact": Fact.READ, "until": until})

    def revised(self, first: datetime, counts: Mapping[str, int]) -> None:
        """Note the first tick that was evaluated again, and the rows written for it, by table."""
        for table, count in counts.items():
            row = {"fact": Fact.REVISED, "subject": table, "rows": count, "until": first}
            self._facts.append(row)

    def left(self, first: datetime) -> None:
        """Note the first tick that has late samples and was not evaluated again."""
        self._facts.append({"fact": Fact.LEFT, "until": first})

    def rows(self, job: str, writer: str, finished_at: datetime, seconds: float) -> pa.Table:
        """Return the rows of the run."""
        same = {"finished_at": finished_at, "job": job, "writer": writer, "seconds": seconds}
        return pa.Table.from_pylist([same | fact for fact in self._facts], schema=RUNS)


@contextmanager
def run(
    root: TableRoot,
    job: str,
    batch: Batch | None = None,
    *,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Run]:
    """Note a run of a job if it ends without an exception. batch: of a stream; a repeated one is
    noted once."""
    began, under_way = monotonic(), Run()
    yield under_way
    name = batch or Batch(job)
    finished_at = datetime.fromtimestamp(clock(), UTC)
    rows = under_way.rows(job, name.writer, finished_at, monotonic() - began)
    root.commit("runs", batch=name, files=root.write("runs", rows))


class Ended(NamedTuple):
    """A run that ended well."""

    job: str
    writer: str
    finished_at: datetime
    seconds: float
    rows: dict[str, int]
    """Rows written, by table."""
    sources: dict[str, datetime]
    """Newest sample time, by source."""


def ended(root: TableRoot, since: datetime) -> list[Ended]:
    """Return the runs that ended since a time, by time."""
    found: dict[tuple[datetime, str, str], Ended] = {}
    for row in root.read("runs", since=since).sort_by("finished_at").to_pylist():
        if row["fact"] == Fact.STOPPED:
            continue  # the end of a stream is no run
        key = (row["finished_at"], row["job"], row["writer"])
        run = found.setdefault(key, Ended(key[1], key[2], key[0], row["seconds"], {}, {}))
        if row["fact"] == Fact.ROWS:
            run.rows[row["subject"]] = row["rows"]
        elif row["fact"] == Fact.SOURCE:
            run.sources[row["subject"]] = row["until"]
    return list(found.values())


class Collectors(NamedTuple):
    """Progress of `collect`. Times in microseconds since 1970."""

    seen: Mapping[str, int]
    """Node → its newest tick."""
    sent_by: Mapping[str, str]
    """Node → the collector that brought its newest tick."""
    read_to: Mapping[str, int]
    """Collector → time up to which it has read everything; only of those in `sent_by`."""
    others: Mapping[str, int]
    """The same of collectors that have brought no positions, but rows of other tables that
    evaluation reads."""
    written_us: int | None
    """When the last batch was written; None if there was none."""


def collectors(root: TableRoot) -> Collectors:
    """Return the progress of all collectors: over the last day of `runs`, or, if none ran in it, as
    far as `runs` goes back."""
    span = root.span("runs")
    rows = _progress(root, None if span is None else span[1] - DAY)
    if not rows.num_rows:
        rows = _progress(root, None)
    newest = pc.max(rows.column("finished_at")).as_py()
    rows = rows.group_by(["fact", "subject", "writer"], use_threads=False).aggregate(
        [("until", "max"), ("finished_at", "min")]
    )
    # A collector on a new checkpoint has another name, and takes a node over with a newer tick.
    rows = rows.sort_by([("until_max", "ascending"), ("finished_at_min", "descending")])
    seen: dict[str, int] = {}
    sent_by: dict[str, str] = {}
    read_to: dict[str, int] = {}
    wrote: dict[str, set[str]] = {}
    for row in rows.to_pylist():
        if row["fact"] == Fact.NODE:
            seen[row["subject"]] = to_us(row["until_max"])
            sent_by[row["subject"]] = row["writer"]
        elif row["fact"] == Fact.ROWS:
            wrote.setdefault(row["writer"], set()).add(row["subject"])
        else:
            read_to[row["writer"]] = to_us(row["until_max"])
    senders = set(sent_by.values())
    # One that has brought positions, and none of the newest, was replaced by another.
    others = {writer for writer, tables in wrote.items() if "positions" not in tables} - senders
    return Collectors(
        seen,
        sent_by,
        {writer: until for writer, until in read_to.items() if writer in senders},
        {writer: until for writer, until in read_to.items() if writer in others},
        None if newest is None else to_us(newest),
    )


def _progress(root: TableRoot, since: datetime | None) -> pa.Table:
    """Rows of collectors that ended a batch since a time; of the rows that they wrote, those of
    tables that evaluation reads."""
    names = ["finished_at", "job", "writer", "fact", "subject", "until"]
    is_read = (pc.field("fact") == Fact.ROWS) & pc.field("subject").isin(EVALUATED)
    return root.read("runs", since=since, columns=names).filter(
        (pc.field("job") == "collect") & (pc.field("fact").isin([Fact.NODE, Fact.READ]) | is_read)
    )


def sorted_days(root: TableRoot) -> set[str]:
    """Return the tables and days that were sorted, as far as `runs` keeps it."""
    rows = root.read("runs", columns=["fact", "subject"])
    return set(rows.filter(pc.field("fact") == Fact.SORTED)["subject"].to_pylist())


def revised_from(root: TableRoot, since: datetime | None) -> datetime | None:
    """Return the first tick that was evaluated again by runs that ended since a time; None if none
    was."""
    rows = root.read("runs", since=since, columns=["fact", "until"])
    found = pc.min(rows.filter(pc.field("fact") == Fact.REVISED)["until"]).as_py()
    return None if found is None else found.astimezone(UTC)


def read_to(root: TableRoot, job: str) -> datetime | None:
    """Return the time up to which a job has finished everything; None if it has noted none."""
    rows = root.read("runs", columns=["job", "fact", "until"])
    rows = rows.filter((pc.field("job") == job) & (pc.field("fact") == Fact.READ))
    found = pc.max(rows["until"]).as_py()
    return None if found is None else found.astimezone(UTC)


def note_stopped(root: TableRoot, job: str, writer: str) -> None:
    """Note that a stream has ended in order: its hours may be replaced from now on."""
    row = {
        "finished_at": datetime.now(UTC),
        "job": job,
        "writer": writer,
        "seconds": 0.0,
        "fact": Fact.STOPPED,
    }
    rows = pa.Table.from_pylist([row], schema=RUNS)
    root.commit("runs", batch=job, files=root.write("runs", rows))


def is_running(root: TableRoot, job: str, now: datetime) -> bool:
    """Whether a stream of the job has written a batch in the last ten minutes, and has not ended
    since then."""
    since = now - RUNNING_FOR
    rows = root.read("runs", since=since, columns=["finished_at", "job", "writer", "fact"])
    rows = rows.filter(
        (pc.field("job") == job) & pc.field("fact").isin([Fact.READ, Fact.STOPPED])
    ).sort_by("finished_at")
    last = dict(zip(rows["writer"].to_pylist(), rows["fact"].to_pylist(), strict=True))
    return Fact.READ in last.values()
