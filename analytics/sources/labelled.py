"""From label sets to columns of the table ``samples``, and from samples to batches. Pure.

A batch is made from a list of series and the index of each sample's series. The columns of a series
are made once in Python and repeated by Arrow. Step before: answers were parsed. Step after: batches
of ``schema.SAMPLES``, to Spark or to ``kernel.shape``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analytics.schema import SAMPLES

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BATCH_ROWS: Final = 65_536
"""Rows of a batch: enough for fast array operations, few enough for a worker's memory."""
JOB_PREFIX: Final = "tidemark-"
_OWN: Final = frozenset(
    {
        "__name__",
        "instance",
        "job",
        "cluster",
        "broker",
        "replica",
        "service",
        "group",
        "topic",
        "queue",
    }
)
_QUEUE_DIGITS_MAX: Final = 9
PLAIN: Final = frozenset({"group", "topic", "queue"})
"""Labels that have their own columns."""


class Series(NamedTuple):
    """Columns that all samples of one series share; None if the label is missing."""

    target: str
    metric: str
    cluster: str | None
    broker: str | None
    replica: str | None
    service: str | None
    group: str | None
    topic: str | None
    queue: int | None
    labels: str


def series(labels: Mapping[str, str]) -> Series:
    """Return the series of these labels, which include ``__name__`` and those of the target. An
    empty label counts as missing. A non-numeric ``queue`` label is one of the other labels."""
    of = {name: value for name, value in labels.items() if value}
    job = of.get("job", "")
    service = of.get("service") or (
        job.removeprefix(JOB_PREFIX) if job.startswith(JOB_PREFIX) else None
    )
    text = of.get("queue", "")
    is_number = is_queue(text)
    return Series(
        of.get("instance", ""),
        of.get("__name__", ""),
        of.get("cluster"),
        of.get("broker"),
        of.get("replica"),
        service,
        of.get("group"),
        of.get("topic"),
        int(text) if is_number else None,
        ",".join(
            f'{name}="{escaped(value)}"'
            for name, value in sorted(of.items())
            if name not in _OWN or (name == "queue" and not is_number)
        ),
    )


def is_queue(text: str) -> bool:
    """Whether a label's value is a queue number."""
    return text.isascii() and text.isdigit() and len(text) <= _QUEUE_DIGITS_MAX


def escaped(value: str) -> str:
    """A label's value, escaped for use between quotes."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def batches(
    of: Sequence[Series],
    at: Ints,
    ts_us: Ints,
    values: Floats,
    source: str,
    schema: pa.Schema = SAMPLES,
) -> Iterator[pa.RecordBatch]:
    """Samples as record batches of ``schema.SAMPLES``, or of ``schema.CODED_SAMPLES``.
    at: index of the series of each sample. ts_us: microseconds since 1970."""
    columns = {
        name: pa.array([each[place] for each in of], SAMPLES.field(name).type).cast(
            schema.field(name).type
        )
        for place, name in enumerate(Series._fields)
    }
    origin = pa.array([source], pa.string()).cast(schema.field("source").type)
    for begin in range(0, len(at), BATCH_ROWS):
        part = slice(begin, begin + BATCH_ROWS)
        taken = pa.array(at[part])
        rows = len(taken)
        made: dict[str, pa.Array] = {name: column.take(taken) for name, column in columns.items()}
        made["ts"] = pa.array(ts_us[part]).cast(SAMPLES.field("ts").type)
        made["source"] = origin.take(pa.array(np.zeros(rows, np.int8)))
        made["value"] = pa.array(values[part])
        yield pa.RecordBatch.from_arrays([made[name] for name in schema.names], schema=schema)
