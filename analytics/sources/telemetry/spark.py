"""Spark's format ``tidemark_telemetry``: a stream. A thin shell around ``reader``.

Offsets are the queue offsets of the journals, so a batch that is repeated reads the same records.
A set of nodes without a master keeps its offset, and the batch goes on without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from analytics.schema import SAMPLES
from analytics.sources.telemetry import reader
from analytics.sources.telemetry.options import BrokerSet, Options, parse

Offset = dict[str, int]
"""Set of nodes → next queue offset of its journal."""


class TelemetryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader: plans on the driver, reads on executors."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._until: dict[BrokerSet, tuple[int, int]] | None = None
        """Bounds of a run over the available records."""

    def initialOffset(self) -> Offset:
        """Offset of a new stream; sets that do not answer begin later."""
        return reader.advance(self._options, {}, reader.bounds(self._options))

    def prepareForTriggerAvailableNow(self) -> None:
        """Leave later records to the next run."""
        self._until = reader.bounds(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Read limit: records of each set in a batch."""
        return ReadMaxRows(self._options.records_max)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """End of the next batch; start if there is nothing new."""
        options = self._options
        if isinstance(limit, ReadMaxRows):
            options = options._replace(records_max=limit.max_rows)
        elif isinstance(limit, ReadAllAvailable):
            options = options._replace(records_max=1 << 62)
        known = reader.bounds(options) if self._until is None else self._until
        return reader.advance(options, start, known)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Ranges of records between two offsets."""
        return [InputPartition(each) for each in reader.plan(self._options, start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Samples of one range."""
        return reader.read(self._options, partition.value)


class TelemetrySource(DataSource):
    """Samples of the telemetry journals of brokers, as the table ``samples``."""

    @classmethod
    def name(cls) -> str:
        """Name for ``spark.readStream.format``."""
        return "tidemark_telemetry"

    def schema(self) -> StructType:
        """Schema of the table ``samples``."""
        return from_arrow_schema(SAMPLES)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reader for ``spark.readStream``."""
        return TelemetryStream(parse(self.options))


SOURCES: Final[tuple[type[DataSource], ...]] = (TelemetrySource,)
