"""``tidemark_topic`` for Spark: batch and stream.

A stream's offset is ``{queue: next queue offset}``. A batch depends only on it, so a repeated batch
reads the same messages. With a checkpoint and a sink that accepts a batch once, each message counts
exactly once. Nothing is committed at the broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from analytics.sources.topic import offsets
from analytics.sources.topic.offsets import Ranges
from analytics.sources.topic.options import TopicOptions, offsets_of
from analytics.sources.topic.pull import TopicClient
from analytics.sources.topic.reader import TopicReader


class TidemarkTopic(DataSource):
    """Source over the messages of one topic; options: ``TopicOptions``."""

    @classmethod
    def name(cls) -> str:
        """The name that Spark's ``format`` expects."""
        return "tidemark_topic"

    def schema(self) -> StructType:
        """Schema of the requested columns."""
        return from_arrow_schema(TopicOptions.of(self.options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader of one query."""
        return TidemarkTopicReader(TopicOptions.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Stream reader of one query."""
        return TidemarkTopicStreamReader(TopicOptions.of(self.options))


class TidemarkTopicReader(DataSourceReader):
    """Reads the ends of queues on the driver, and messages on executors."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One or more partitions per queue that has messages in the range."""
        return [InputPartition(part) for part in TopicReader(self._options).plan()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition, on an executor."""
        return TopicReader(self._options).read(partition.value)


class TidemarkTopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver, within the read limit; reads them on executors."""

    def __init__(self, options: TopicOptions) -> None:
        self._options = options
        self._until: dict[int, int] | None = None
        """End of a run over the available messages."""

    def initialOffset(self) -> dict[str, Any]:
        """Offset of a query without a checkpoint."""
        return offsets.to_wire(offsets.begin(self._options, self._ranges()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Read limit of a micro-batch."""
        return ReadMaxRows(self._options.max_messages)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """End of the next micro-batch; start if there is nothing new."""
        ends = self._ends() if self._until is None else self._until
        if isinstance(limit, ReadMaxRows):
            most: int | None = limit.max_rows
        else:
            most = None if isinstance(limit, ReadAllAvailable) else self._options.max_messages
        return offsets.to_wire(offsets.advance(offsets_of(start), ends, most))

    def prepareForTriggerAvailableNow(self) -> None:
        """Leave later messages to the next run."""
        self._until = self._ends()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Newest offsets, for the query's progress."""
        return offsets.to_wire(self._ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Partitions of queue and offset range; a repeated batch has the same ones."""
        parts = offsets.cut(offsets_of(start), offsets_of(end), self._options.split_messages)
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition, on an executor."""
        return TopicReader(self._options).read(partition.value)

    def _ranges(self) -> Ranges:
        with TopicClient(self._options) as client:
            return client.ranges(self._options.queues)

    def _ends(self) -> dict[int, int]:
        return {queue: high for queue, (_, high) in self._ranges().items()}


SOURCES: Final[tuple[type[DataSource], ...]] = (TidemarkTopic,)
