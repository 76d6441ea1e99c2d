"""Gaps of a source, as rows among samples. Pure.

A source yields one table. Its gaps are rows with the metric ``_gap``: ``ts`` is the end of the
missing time, ``target`` its subject, ``value`` the number of lost rows (NaN: unknown), and the
labels have the rest. ``split`` moves them to the table ``gaps`` and adds targets that Prometheus
could not scrape (``up``). Step before: a source could not read something. Step after: the table
``gaps``, which separates a time without messages from a time without observation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.columns import equals
from analytics.kernel.sampled import CONTEXT, GAP_METRIC, label_value
from analytics.moments import from_us
from analytics.schema import GAPS, SAMPLES, Gap
from analytics.sources.labelled import escaped

DETAIL_MAX: Final = 300
"""Length of the detail of a gap, in characters."""
UP: Final = "up"
"""Prometheus' own metric: 0 where a scrape failed."""
SERVICES: Final = ("broker", "ha", "reput")
"""Services whose samples are in the tables; failed scrapes of other services are not gaps."""


class Missing(NamedTuple):
    """A time without rows of a source. Microseconds since 1970."""

    subject: str
    """Target, selector or file."""
    from_us: int
    to_us: int
    reason: Gap
    detail: str
    rows_lost: int | None = None


class Unanswered(Exception):
    """A server gave no usable answer."""

    def __init__(self, reason: Gap, detail: str) -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}")


def batch(missing: Sequence[Missing], source: str) -> pa.RecordBatch:
    """Gaps as rows of ``schema.SAMPLES``."""
    rows = [
        {
            "ts": from_us(each.to_us),
            "source": source,
            "target": each.subject,
            "metric": GAP_METRIC,
            "labels": f'detail="{escaped(each.detail[:DETAIL_MAX])}",from="{each.from_us}",'
            f'reason="{each.reason}",to="{each.to_us}"',
            "value": math.nan if each.rows_lost is None else float(each.rows_lost),
        }
        for each in missing
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SAMPLES)


def split(samples: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Separate the samples from the gaps among them; the latter become the table ``gaps``."""
    gaps, kept = _down(samples), []
    for batch in samples.to_batches():  # gaps are in few batches; a filter copies all texts
        is_gap = equals(pa.chunked_array([batch.column("metric")]), GAP_METRIC).combine_chunks()
        if pc.any(is_gap).as_py():
            gaps += [_gap_row(row) for row in batch.filter(is_gap).to_pylist()]
            batch = batch.filter(pc.invert(is_gap))
        kept.append(batch)
    samples = pa.Table.from_batches(kept, schema=samples.schema)
    return samples, pa.Table.from_pylist(gaps, schema=GAPS)


def _gap_row(row: dict[str, Any]) -> dict[str, Any]:
    labels, lost = row["labels"], row["value"]
    return {
        "source": row["source"],
        "subject": row["target"],
        "from_ts": from_us(int(label_value(labels, "from"))),
        "to_ts": from_us(int(label_value(labels, "to"))),
        "reason": label_value(labels, "reason"),
        "detail": label_value(labels, "detail"),
        "rows_lost": None if math.isnan(lost) else int(lost),
    }


def _down(samples: pa.Table) -> list[dict[str, Any]]:
    """Failed scrapes of Prometheus; each begins at the previous scrape if that is known."""
    is_up = pc.and_not(
        equals(samples.column("metric"), UP), equals(samples.column("source"), CONTEXT)
    )
    if not pc.any(pc.and_(is_up, pc.equal(samples.column("value"), 0))).as_py():
        return []
    found = samples.filter(is_up).select(["target", "service", "ts", "value"]).to_pylist()
    rows = [row for row in found if row["service"] in SERVICES]
    rows.sort(key=lambda row: (row["target"], row["ts"]))
    return [
        {
            "source": "prometheus",
            "subject": row["target"],
            "from_ts": before["ts"] if before["target"] == row["target"] else row["ts"],
            "to_ts": row["ts"],
            "reason": str(Gap.DOWN),
            "detail": f"Prometheus could not scrape {row['service']}",
        }
        for before, row in pairwise([{"target": None}, *rows])
        if row["value"] == 0
    ]
