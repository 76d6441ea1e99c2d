"""Runs a stream until SIGTERM, a marker file, or the end of the available data.

All three let the current batch finish. SIGKILL does not, and is safe: the batch is repeated from
the checkpoint, and a table that has it is not changed.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from analytics.errors import AnalyticsError, BadOption
from analytics.tables import Batch

STOP_FILE: Final = "stop"
"""File in the checkpoint that ends the job; the next start removes it."""
_POLL_S: Final = 1
_CAUSE: Final = re.compile(r"[\w.]+(Error|Exception|Missing|Damaged|Differ|Interrupt)\b.*: ")
_TRIES: Final = 3  # attempts for one batch
_PAUSE_S: Final = 2.0
_STOP_WAIT_S: Final = (
    120.0  # time for the running batch to end; a longer one is repeated at the next start
)
log = logging.getLogger("tidemark.analytics")


@dataclass(frozen=True, slots=True)
class Pace:
    """Schedule of the batches of a stream."""

    checkpoint: Path
    trigger_s: float = 15.0
    available_now: bool = False
    """Process the available data, in batches as usual, and end."""

    def __post_init__(self) -> None:
        """Reject trigger intervals that are too short or too long."""
        if not 0.5 <= self.trigger_s <= 3600:
            raise BadOption(
                f"--trigger is {self.trigger_s} s, must be from 0.5 to 3600.", "Give 15 to 60."
            )


class StreamFailed(AnalyticsError):
    """A batch of a stream failed; it is repeated when the job is started again."""

    code, title, retriable = "stream-failed", "A stream stopped at a failed batch", True

    def __init__(self, job: str, checkpoint: Path, reason: str) -> None:
        super().__init__(
            f"{job} stopped at a batch that failed: {reason}. Earlier batches are in the "
            f"tables, this one is not. The checkpoint is {checkpoint}.",
            "Mend the cause and start the job again: it repeats this batch.",
            job=job,
            checkpoint=checkpoint,
            reason=reason,
        )


def writer_of(job: str, checkpoint: Path, frame: DataFrame) -> str:
    """Return the name that a stream's batches are committed under: job and checkpoint id."""
    query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query:
        raise RuntimeError(f"a batch of {job} outside its stream ({checkpoint})")
    return _writer(job, query)


def _writer(job: str, query_id: str) -> str:
    return f"{job}-{query_id[:8]}"


def run_stream(
    job: str,
    frame: DataFrame,
    pace: Pace,
    handle: Callable[[DataFrame, Batch], None],
    *,
    stop: threading.Event | None = None,
) -> str:
    """Run a stream to its end, or until it is stopped; return the name of its writer. Raises
    StreamFailed.
    handle: writes and commits one batch. stop: set by the caller, besides signals and the file."""
    pace.checkpoint.mkdir(parents=True, exist_ok=True)
    marker = pace.checkpoint / STOP_FILE
    marker.unlink(missing_ok=True)

    raised: list[Exception] = []  # errors of batches: Spark reports only that one failed

    def one(rows: DataFrame, number: int) -> None:
        raised.clear()
        try:
            handle(rows, Batch(writer_of(job, pace.checkpoint, rows), number))
        except Exception as error:
            raised.append(error)
            raise

    writer = frame.writeStream.foreachBatch(one).option("checkpointLocation", str(pace.checkpoint))
    writer = (
        writer.trigger(availableNow=True)
        if pace.available_now
        else writer.trigger(processingTime=f"{round(pace.trigger_s * 1000)} milliseconds")
    )
    with _signals(stop or threading.Event()) as stopping:
        failures, reached = 0, -1
        while True:
            query = writer.queryName(job).start()
            log.info("stream runs", extra={"event": "stream-runs", "job": job, "id": query.id})
            try:
                _wait(query, lambda: stopping.is_set() or marker.exists())
                break
            except StreamingQueryException as error:
                # A worker may start too late, or an executor may be lost; the next try repeats the
                # batch. A batch that fails three times in a row ends the job with an error.
                batch = _last_batch(pace.checkpoint)
                failures = 1 if batch > reached else failures + 1
                reached = batch
                reason = _first_lines(raised[0] if raised else error)
                if failures >= _TRIES:
                    raise StreamFailed(job, pace.checkpoint, reason) from error
                log.warning(
                    "batch failed, is repeated: %s",
                    reason,
                    extra={"event": "batch-repeated", "job": job, "tries": failures},
                )
                if stopping.wait(_PAUSE_S * failures):
                    break
    log.info("stream ended", extra={"event": "stream-ended", "job": job})
    return _writer(job, query.id)


def _wait(query: StreamingQuery, stopping: Callable[[], bool]) -> None:
    while not query.awaitTermination(_POLL_S):
        if stopping():
            _end(query)
            return


def _last_batch(checkpoint: Path) -> int:
    """Number of the last batch that Spark has committed; -1 if there is none."""
    done = [int(path.name) for path in checkpoint.glob("commits/[0-9]*") if path.name.isdigit()]
    return max(done, default=-1)


def _end(query: StreamingQuery) -> None:
    """Stop after the current batch."""
    deadline = time.monotonic() + _STOP_WAIT_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        query.awaitTermination(_POLL_S)
    query.stop()


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A task's failure comes with the worker's traceback, whose last line is the cause.
    causes = [line for line in lines if _CAUSE.match(line)]
    text = " ".join(dict.fromkeys([*lines[:1], *causes[-1:]])) or type(error).__name__
    return text[:800].rstrip(".")


@contextmanager
def _signals(stopping: threading.Event) -> Iterator[threading.Event]:
    """Set the event at SIGTERM and SIGINT, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def request_stop(signum: int, _: FrameType | None) -> None:
        stopping.set()

    before: dict[int, Any] = {
        signum: signal.signal(signum, request_stop) for signum in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stopping
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
