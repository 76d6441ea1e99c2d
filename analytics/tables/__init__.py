"""Delta Lake tables: partitioned by day and, where rows belong to pairs, by bucket."""

from analytics.tables.files import DataFile, Span, spans_of
from analytics.tables.layout import TIME_COLUMN
from analytics.tables.location import Location
from analytics.tables.root import BUCKETS, Batch, TableRoot

__all__ = [
    "BUCKETS",
    "TIME_COLUMN",
    "Batch",
    "DataFile",
    "Location",
    "Span",
    "TableRoot",
    "spans_of",
]
