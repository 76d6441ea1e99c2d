"""``tidemark_store`` for Spark: the reader's parts are its partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from analytics.sources.store.options import StoreOptions
from analytics.sources.store.reader import StoreReader
from analytics.worker import exempt_modules_from_gc


class TidemarkStore(DataSource):
    """Batch source over a store directory; options: ``StoreOptions``."""

    @classmethod
    def name(cls) -> str:
        """Name for ``spark.read.format``."""
        return "tidemark_store"

    def schema(self) -> StructType:
        """Schema of the requested table and columns."""
        return from_arrow_schema(StoreOptions.of(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader of one query."""
        return TidemarkStoreReader(StoreOptions.of(self.options))


class TidemarkStoreReader(DataSourceReader):
    """Plans on the driver, reads on executors, which see the same directory."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One or more partitions per file of the log."""
        exempt_modules_from_gc()
        return [InputPartition(part) for part in StoreReader(self._options).plan()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition, on an executor."""
        exempt_modules_from_gc()
        return StoreReader(self._options).read(partition.value)


SOURCES: Final[tuple[type[DataSource], ...]] = (TidemarkStore,)
