"""Gaps as rows: each unreadable part of a source has its own row with the reason."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from analytics.errors import AnalyticsError
from analytics.schema import Gap


class SourceGap(AnalyticsError):
    """Something could not be read, and the requested columns have no place for it."""

    code, title = "source-gap", "A source could not be read whole"


class Hole(NamedTuple):
    """A gap and its reason."""

    reason: Gap
    detail: str
    """Description with numbers, for people."""
    at: dict[str, Any]
    """The required columns of its row, and other known ones."""


def hole_batch(hole: Hole, schema: pa.Schema) -> pa.RecordBatch:
    """Return the gap's row. Raises SourceGap if the schema has no column ``gap``."""
    if "gap" not in schema.names:
        raise SourceGap(
            f"{hole.reason}: {hole.detail}.",
            "The rows read before it are whole. Ask for the column gap as well: the rest is then "
            "read, and a row has what is missing.",
        )
    values = {**hole.at, "gap": str(hole.reason), "gap_detail": hole.detail}
    return pa.RecordBatch.from_arrays(
        [pa.array([values.get(field.name)], field.type) for field in schema], schema=schema
    )
