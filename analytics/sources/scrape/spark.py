"""Spark's format ``tidemark_scrape``: a stream. A thin shell around ``scraper`` and ``reader``.

A batch must be repeatable, but a scrape is not. Answers are therefore in the spool before an offset
covers them. The offset is the number of the last file. A batch that is repeated after a crash reads
the same files; ``commit`` deletes old files that have been read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from analytics.schema import SAMPLES
from analytics.sources.scrape.options import Options, parse
from analytics.sources.scrape.reader import samples
from analytics.sources.scrape.scraper import Scraper
from analytics.sources.scrape.spool import Spool, SpoolWriter

Offset = dict[str, int]
"""``seq``: number of the last file that is covered."""


class ScrapeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader. The scraper starts at the first offset; executors do not get it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._writer: SpoolWriter | None = None
        self._scraper: Scraper | None = None
        self._ends = False
        """Whether the run scrapes once, reads the result and ends."""
        self._fixed: int | None = None
        """Last file of such a run."""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_writer": None, "_scraper": None}

    def initialOffset(self) -> Offset:
        """Offset of a new stream: before the whole spool."""
        there = Spool(self._options.spool).files()
        return {"seq": there[0].number - 1 if there else 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Scrape once, read the result, then end."""
        self._ends = True

    def getDefaultReadLimit(self) -> ReadLimit:
        """Read limit: files in a batch."""
        return ReadMaxFiles(self._options.files_max)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """End of the next batch: the end of the spool, within the limit. The first call starts the
        scraper."""
        writer = self._opened()
        writer.skip_to(start["seq"])
        if self._ends:
            if self._fixed is None:
                scraper = Scraper(self._options, writer)
                scraper.round()
                scraper.close()
                self._fixed = writer.last
            last = self._fixed
        else:
            if self._scraper is None:
                self._scraper = Scraper(self._options, writer)
                self._scraper.start()
            if self._scraper.failure is not None:
                raise self._scraper.failure
            last = writer.last
        if not isinstance(limit, ReadAllAvailable):
            files_max = getattr(limit, "max_files", self._options.files_max)
            last = min(last, start["seq"] + files_max)
        return {"seq": max(last, start["seq"])}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One partition per file between two offsets, missing ones included: their tasks report
        them."""
        spool = Spool(self._options.spool)
        there = {each.number: each for each in spool.files()}
        at_ms = round(time.time() * 1000)
        found = []
        for number in range(end["seq"], start["seq"], -1):
            each = there.get(number) or spool.named(number, at_ms)
            at_ms = each.at_ms  # a missing file is not younger than the next one
            found.append(InputPartition(str(each.path)))
        return found[::-1]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Samples of one file."""
        return samples(Path(partition.value))

    def commit(self, end: Offset) -> None:
        """Note that everything up to here is in tables; files older than ``keep`` may be
        deleted."""
        if self._writer is not None:
            before_ms = round((time.time() - self._options.keep_s) * 1000)
            self._writer.forget(end["seq"], before_ms)

    def stop(self) -> None:
        """Stop scraping and release the spool."""
        if self._scraper is not None:
            self._scraper.close()
            self._scraper = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _opened(self) -> SpoolWriter:
        if self._writer is None:
            self._writer = SpoolWriter(self._options.spool)
        return self._writer


class ScrapeSource(DataSource):
    """Samples of targets at equal intervals, as the table ``samples``."""

    @classmethod
    def name(cls) -> str:
        """Name for ``spark.readStream.format``."""
        return "tidemark_scrape"

    def schema(self) -> StructType:
        """Schema of the table ``samples``."""
        return from_arrow_schema(SAMPLES)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reader for ``spark.readStream``."""
        return ScrapeStream(parse(self.options))


SOURCES: Final[tuple[type[DataSource], ...]] = (ScrapeSource,)
