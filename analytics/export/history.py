"""The results of a time range as OpenMetrics with timestamps.

``promtool tsdb create-blocks-from openmetrics FILE DIR`` makes Prometheus blocks of the file.
Metric families follow one another, each sorted by time. One hour of one table is in memory at a
time. Step before: ``analytics.tables``. Step after: promtool.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TextIO

import pyarrow as pa

from analytics.kernel.columns import micros
from analytics.statuses import Status
from analytics.tables import TableRoot
from shared.metrics.catalogue import analytics as of_analytics
from shared.metrics.exposition import OPENMETRICS, Only
from shared.metrics.family import Family
from shared.metrics.samples import LabelSet, metric_of, number

HOUR: Final = timedelta(hours=1)
NAMES: Final = ("cluster", "broker", "group", "topic")
JOB: Final = ("job", "tidemark-analytics")


class Written(NamedTuple):
    """Number of samples and metric families written."""

    samples: int
    families: int


class _Kind(NamedTuple):
    """A metric family and the column of its values.

    A column of texts gives the value of a label; the value of the series is then 1.
    """

    family: Family
    table: str
    column: str


KINDS: Final[Sequence[_Kind]] = (
    _Kind(of_analytics.GROUP_STATUS, "pair_lag", "status"),
    _Kind(of_analytics.GROUP_AGE_SECONDS, "pair_lag", "age_max_seconds"),
    _Kind(of_analytics.GROUP_DRAIN_SECONDS, "pair_lag", "drain_p50_seconds"),
    _Kind(of_analytics.GROUP_PROGRESS_RATIO, "pair_lag", "progress"),
    _Kind(of_analytics.GROUP_HIDDEN_LAG_MESSAGES, "pair_lag", "hidden_lag"),
    _Kind(of_analytics.GROUP_BOTTLENECK, "stages", "blamed"),
    _Kind(of_analytics.QUEUE_SKEW_RATIO, "pair_lag", "skew"),
)


def write(tables: TableRoot, out: TextIO, since: datetime, before: datetime) -> Written:
    """Write the results with since ≤ tick < before, for all pairs."""
    samples = families = 0
    end = OPENMETRICS.encode(Only()).decode()
    for kind in KINDS:
        count = 0
        for lines in _lines(tables, kind, since, before):
            if not count:
                out.write(
                    OPENMETRICS.encode(Only([metric_of(kind.family)])).decode().removesuffix(end)
                )
                families += 1
            count += len(lines)
            out.write("".join(lines))
        samples += count
    out.write(end)
    return Written(samples, families)


def _lines(
    tables: TableRoot, kind: _Kind, since: datetime, before: datetime
) -> Iterator[list[str]]:
    texts: dict[tuple[str, ...], str] = {}
    is_label = len(kind.family.labels) > len(NAMES)
    names = (*kind.family.labels, JOB[0])
    start = since
    while start < before:
        stop = min(before, start + HOUR)
        rows = tables.read(
            kind.table, since=start, before=stop, columns=["tick", *NAMES, kind.column]
        )
        start = stop
        if not rows.num_rows:
            continue
        rows = rows.sort_by("tick")
        found = _written(rows, kind, texts, names, is_label)
        if found:
            yield found


def _written(
    rows: pa.Table,
    kind: _Kind,
    texts: dict[tuple[str, ...], str],
    names: Sequence[str],
    is_label: bool,
) -> list[str]:
    lines: list[str] = []
    columns = [rows[name].to_pylist() for name in NAMES]
    for tick, value, *labels in zip(
        micros(rows, "tick").tolist(), rows[kind.column].to_pylist(), *columns, strict=True
    ):
        if value is None or value == Status.OK:
            continue
        key = (*labels, value.lower()) if is_label else tuple(labels)
        text = texts.get(key)
        if text is None:
            text = texts[key] = kind.family.name + LabelSet(names, (*key, JOB[1])).text
        if not is_label and math.isnan(value):
            continue
        lines.append(f"{text} {1 if is_label else number(value)} {tick / 1e6:.3f}\n")
    return lines
