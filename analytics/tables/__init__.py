"""Tables on disk: Parquet files by hour and bucket, and a manifest of the valid files."""

from analytics.tables.files import DataFile
from analytics.tables.layout import TIME_COLUMN
from analytics.tables.manifest import Batch
from analytics.tables.root import BUCKETS, TableRoot

__all__ = ["BUCKETS", "TIME_COLUMN", "Batch", "DataFile", "TableRoot"]
