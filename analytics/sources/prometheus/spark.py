"""Spark's format ``tidemark_prometheus``: batch and stream. A thin shell around ``reader``.

A stream's offset is the time up to which it has read. It is ``settle`` behind the clock, because a
scrape appears after its end with the time of its start. It does not advance for up to
``patience`` while the server does not answer, because the server may have the samples later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Final

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
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from analytics.schema import SAMPLES
from analytics.sources.gaps import Unanswered
from analytics.sources.option_values import BadOption
from analytics.sources.prometheus.options import Options, parse
from analytics.sources.prometheus.reader import Reader
from analytics.sources.prometheus.selectors import MS_US

log = logging.getLogger(__name__)
Offset = dict[str, int]
"""Offset of a stream: ``until_us``, the time up to which samples have been read."""


class PrometheusBatch(DataSourceReader):
    """Batch reader of a range of time."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One partition per slice, selector and shard."""
        options = self._options
        if options.start_us is None:
            raise BadOption("start", "", "the time at which a batch begins")
        end_us = options.end_us if options.end_us is not None else _now_us(options)
        return [InputPartition(part) for part in Reader(options).plan(options.start_us, end_us)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Samples of one part."""
        return Reader(self._options).read(partition.value)


class PrometheusStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._reader = Reader(options)
        self._last_there_s = time.monotonic()
        self._trouble: str | None = None
        """The last logged reason why the server does not answer."""
        self._fixed_us: int | None = None
        """End of a run over the data that are there now; None: the run goes on."""

    def initialOffset(self) -> Offset:
        """Offset of a new stream: its option ``start``, or now."""
        start_us = self._options.start_us
        at_us = _now_us(self._options) if start_us is None else start_us
        return Offset(until_us=at_us // MS_US * MS_US)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to now, then end."""
        self._fixed_us = _now_us(self._options)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Read limit: slices in a batch."""
        return ReadMaxFiles(self._options.slices_max)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """End of the next batch: what has settled, within the limit; the start while the server
        does not answer."""
        options = self._options
        target = self._fixed_us if self._fixed_us is not None else _now_us(options)
        if options.end_us is not None:
            target = min(target, options.end_us)
        if not isinstance(limit, ReadAllAvailable):
            slices = getattr(limit, "max_files", options.slices_max)
            target = min(target, start["until_us"] + slices * round(options.slice_s * 1e6))
        step = max(MS_US, round(options.align_s * 1e6))
        if target <= start["until_us"]:
            return start
        settled_us = self._settled_us()
        if settled_us is None:
            return start
        target = min(target, settled_us)
        if target != options.end_us:
            target = target // step * step
        return start if target <= start["until_us"] else Offset(until_us=target)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the parts between two offsets; repeated calls return the same parts."""
        parts = self._reader.plan(start["until_us"], end["until_us"])
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Samples of one part."""
        return self._reader.read(partition.value)

    def _settled_us(self) -> int | None:
        """Return the time up to which the server has all samples; None if it does not answer.

        It is by the server's clock. If this machine's clock is ahead, its time would skip samples
        that are not there yet. After a silence that is long enough to become a gap, this machine's
        clock is used. A run that ends by itself leaves that time to the next run.
        """
        now_s, own_us = time.monotonic(), _now_us(self._options)
        server_us, trouble = None, None
        try:
            server_us = self._reader.now_us()
        except Unanswered as error:
            trouble = str(error)
        if trouble != self._trouble:
            self._trouble = trouble
            where = self._options.url
            if trouble is None:
                log.warning("%s answers again", where)
            else:
                # Otherwise a wrong path or a missing login would look like a quiet cluster.
                log.warning("%s gives no answer, nothing is collected: %s", where, trouble)
        if trouble is None:
            self._last_there_s = now_s
            return own_us if server_us is None else server_us - round(self._options.settle_s * 1e6)
        waited_s = now_s - self._last_there_s
        return own_us if self._fixed_us is None and waited_s > self._options.patience_s else None


class PrometheusSource(DataSource):
    """Raw samples of a Prometheus server, as the table ``samples``."""

    @classmethod
    def name(cls) -> str:
        """Name for ``spark.read.format``."""
        return "tidemark_prometheus"

    def schema(self) -> StructType:
        """Schema of the table ``samples``."""
        return from_arrow_schema(SAMPLES)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reader for ``spark.read``."""
        return PrometheusBatch(parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reader for ``spark.readStream``."""
        return PrometheusStream(parse(self.options))


def _now_us(options: Options) -> int:
    """Time up to which scrapes have ended."""
    return round((time.time() - options.settle_s) * 1e6) // MS_US * MS_US


SOURCES: Final[tuple[type[DataSource], ...]] = (PrometheusSource,)
