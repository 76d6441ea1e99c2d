"""What a source could not read, as rows that travel among samples. Pure.

A source yields one table. Its gaps are rows of it with the metric ``_gap``: ``ts`` is the end of
the time that is missing, ``target`` what is, ``value`` how many rows were lost (NaN: nobody knows),
and the labels say the rest. ``split`` takes them out again as the table ``gaps``.
Before: a source met trouble. After: the table tells a silent time from one that nobody saw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.sampled import GAP_METRIC, label_value
from analytics.schema import GAPS, SAMPLES, Gap
from analytics.sources.labelled import escaped

DETAIL_MAX = 300
"""Characters of what is said of a gap."""


class Missing(NamedTuple):
    """A time of which a source has nothing to say. Microseconds since 1970."""

    subject: str
    """Target, selector or file."""
    from_us: int
    to_us: int
    reason: Gap
    detail: str
    rows_lost: int | None = None


def batch(missing: Sequence[Missing], source: str) -> pa.RecordBatch:
    """Gaps as rows of ``schema.SAMPLES``."""
    rows = [
        {
            "ts": datetime.fromtimestamp(each.to_us / 1e6, UTC),
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
    """The samples without the gaps among them, and these as the table ``gaps``."""
    is_gap = pc.equal(samples.column("metric"), GAP_METRIC)
    if not pc.any(is_gap).as_py():
        return samples, GAPS.empty_table()
    found = samples.filter(is_gap).select(["source", "target", "labels", "value"]).to_pylist()
    gaps = []
    for row in found:
        labels, lost = row["labels"], row["value"]
        gaps.append(
            {
                "source": row["source"],
                "subject": row["target"],
                "from_ts": _time(label_value(labels, "from")),
                "to_ts": _time(label_value(labels, "to")),
                "reason": label_value(labels, "reason"),
                "detail": label_value(labels, "detail"),
                "rows_lost": None if math.isnan(lost) else int(lost),
            }
        )
    return samples.filter(pc.invert(is_gap)), pa.Table.from_pylist(gaps, schema=GAPS)


def _time(us: str) -> pa.Scalar:
    return pa.scalar(int(us), pa.int64()).cast(pa.timestamp("us", tz="UTC")).as_py()
