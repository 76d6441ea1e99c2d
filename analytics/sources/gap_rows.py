"""Gaps as rows: a part of a source that could not be read gets its own row with the reason."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from analytics.errors import AnalyticsError
from analytics.schema import Gap


class SourceGap(AnalyticsError):
    """Something could not be read, and the requested columns cannot express it."""

    code, title = "source-gap", "A source could not be read whole"


class Hole(NamedTuple):
    """What is missing, and why."""

    reason: Gap
    detail: str
    """Text for people: where, with numbers."""
    at: dict[str, Any]
    """The required columns of its row, and what else is known of it."""


def hole_batch(hole: Hole, schema: pa.Schema) -> pa.RecordBatch:
    """The gap's row. Raises SourceGap if the schema has no column ``gap`` for it."""
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
