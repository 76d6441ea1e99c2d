"""Sources of analytics: batches versus tuples in Spark, the parser, raw samples, shaping."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain_text
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from analytics.kernel.shape import shape
from analytics.schema import SAMPLES
from analytics.session import session
from analytics.sources.exposition import Parser
from analytics.sources.labelled import batches, series
from analytics.sources.prometheus.options import parse as parse_options
from analytics.sources.prometheus.reader import Reader
from bench.analytics_positions import CannedServer
from bench.harness import Figure, Options, Result, benchmark, interleave, of_ratios, rate

TUPLES_GOAL: Final = 5.0
PARSER_GOAL: Final = 5.0
JSON_GOAL: Final = 0.4
LINES: Final = 100_000
SERIES: Final = 2_000
SAMPLES_EACH: Final = 480
"""Number of samples in two hours at 15 s."""
PARTS: Final = 4
ROWS: Final = 500_000
"""Rows per part; a task costs some 60 ms before its first row."""
BEGIN_S: Final = 1_772_366_400
PERIOD_S: Final = 15
TARGET: Final = {
    "instance": "127.0.0.1:8081", "cluster": "c", "broker": "g0", "replica": "n0",
    "service": "broker",
}  # fmt: skip
OFFSET: Final = "tidemark_group_queue_offset_messages"


class RowsReader(DataSourceReader):
    """Yields the same samples repeatedly, as batches or as tuples; they are built once per part."""

    def __init__(self, form: str, rows: int) -> None:
        self._form, self._rows = form, rows

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(PARTS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        made = list(made_batches(partition.value))
        count = sum(batch.num_rows for batch in made)
        times = max(1, self._rows // count)
        if self._form == "batches":
            for _ in range(times):
                yield from made
        else:
            tuples = [tuple(row.values()) for batch in made for row in batch.to_pylist()]
            for _ in range(times):
                yield from tuples


class RowsSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bench_rows"

    def schema(self) -> StructType:
        return from_arrow_schema(SAMPLES)

    def reader(self, schema: StructType) -> DataSourceReader:
        return RowsReader(self.options["form"], int(self.options["rows"]))


def labels(number: int) -> dict[str, str]:
    return {
        "group": f"group-{number % 50}",
        "topic": f"topic-{number // 50 % 20}",
        "queue": str(number // 1000),
    }


def made_batches(part: int) -> Iterator[pa.RecordBatch]:
    """Generate 50,000 samples of 1,000 series."""
    of = [series({"__name__": OFFSET, **TARGET, **labels(number)}) for number in range(1000)]
    at = np.repeat(np.arange(1000, dtype=np.int64), 50)
    ticks = np.tile(np.arange(50, dtype=np.int64), 1000) + part * 50
    ts_us = (BEGIN_S + ticks * PERIOD_S) * 1_000_000
    return batches(of, at, ts_us, ticks.astype(np.float64), "prometheus")


def answer() -> bytes:
    """Build a matrix in the format of Prometheus."""
    result: list[dict[str, object]] = [
        {
            "metric": {"__name__": OFFSET, "job": "tidemark-broker", **TARGET, **labels(number)},
            "values": [
                [BEGIN_S + tick * PERIOD_S + 0.123, str(number * 1000 + tick)]
                for tick in range(SAMPLES_EACH)
            ],
        }
        for number in range(SERIES)
    ]
    data = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return json.dumps(data, separators=(",", ":")).encode()


def sent(spark: SparkSession, form: str, rows: int) -> Callable[[], float]:
    """Return a job that measures rows/s through Spark into no sink."""
    frame = spark.read.format("bench_rows").options(form=form, rows=str(rows)).load()
    return lambda: rate(PARTS * rows, lambda: frame.write.format("noop").mode("overwrite").save())


def prometheus_options(url: str) -> Mapping[str, str]:
    """Options for four slices of two hours; the canned answer fills one of them."""
    span = SAMPLES_EACH * PERIOD_S
    return {
        "url": url, "selectors": OFFSET, "slice": f"{span}s",
        "start": str(BEGIN_S), "end": str(BEGIN_S + span),
    }  # fmt: skip


def read_once(url: str) -> int:
    """Return the number of rows of one part, read without Spark."""
    of = parse_options(prometheus_options(url))
    reader = Reader(of)
    assert of.start_us is not None
    assert of.end_us is not None
    (part,) = reader.plan(of.start_us, of.end_us)
    return sum(batch.num_rows for batch in reader.read(part))


def parser_jobs(text: str) -> dict[str, Callable[[], float]]:
    """Lines/s of our parser, with new and known series, and of the Prometheus client's parsers."""
    known = Parser(TARGET)
    whole = f"# TYPE {OFFSET} gauge\n{text}"

    def count(parse: Any, text: str) -> int:
        return sum(len(family.samples) for family in parse(text))

    return {
        "cold": lambda: rate(
            LINES, lambda: Parser(TARGET).parse(whole + "# EOF\n", openmetrics=True)
        ),
        "known": lambda: rate(LINES, lambda: known.parse(whole + "# EOF\n", openmetrics=True)),
        "client, text": lambda: rate(LINES, lambda: count(plain_text, whole)),
        "client, OpenMetrics": lambda: rate(LINES, lambda: count(openmetrics, whole + "# EOF\n")),
    }


def main(given: Options) -> Result:
    rows = given.pick(ROWS, quick=ROWS // 10)
    text = "".join(
        f'{OFFSET}{{group="group-{number % 100}",topic="topic-{number // 100 % 100}",'
        f'queue="{number // 10_000}"}} {number * 3}\n'
        for number in range(LINES)
    )
    parsers = interleave(parser_jobs(text), given.runs)
    body, count = answer(), SERIES * SAMPLES_EACH
    samples = pa.Table.from_batches([batch for part in range(20) for batch in made_batches(part)])
    with CannedServer(lambda _: body) as server:
        assert read_once(server.url) == count, "the canned answer fills its slice"
        reads = interleave(
            {
                "source": lambda: rate(count, lambda: read_once(server.url)),
                "JSON": lambda: rate(count, lambda: json.loads(body)),
                "shape": lambda: rate(samples.num_rows, lambda: shape(samples, PERIOD_S)),
            },
            given.runs,
        )
        spark = session("bench", master="local[2]", driver_memory="1g")
        spark.dataSource.register(RowsSource)
        of = {**prometheus_options(server.url), "selectors": "\n".join([OFFSET] * 4)}
        frame = spark.read.format("tidemark_prometheus").options(**of).load()
        through = interleave(
            {
                "batches": sent(spark, "batches", rows),
                # A quarter of the rows takes about as long; both are dozens of batches.
                "tuples": sent(spark, "tuples", rows // 4),
                "prometheus": lambda: rate(
                    4 * count, lambda: frame.write.format("noop").mode("overwrite").save()
                ),
            },
            given.runs,
        )
        spark.stop()
    figures = [
        of_ratios(
            "Samples as record batches through Spark", through["batches"], through["tuples"],
            TUPLES_GOAL, "the same rows as tuples",
        ),
        Figure("Samples as record batches through Spark", "rows/s", through["batches"]),
        of_ratios(
            "Scrape parser, series known", parsers["known"], parsers["client, text"],
            PARSER_GOAL, "the Prometheus client's, text",
        ),
        of_ratios(
            "Scrape parser, series known, OpenMetrics", parsers["known"],
            parsers["client, OpenMetrics"], PARSER_GOAL, "the Prometheus client's",
        ),
        Figure(
            "Scrape parser, all series new", "lines/s", parsers["cold"], None,
            "the Prometheus client's, OpenMetrics", parsers["client, OpenMetrics"],
        ),
        Figure("Scrape parser, series known", "lines/s", parsers["known"]),
        of_ratios(
            "Samples of Prometheus to record batches, fetch included, one process",
            reads["source"], reads["JSON"], JSON_GOAL, "json.loads of the same answer",
        ),
        Figure("Samples of Prometheus, one process", "samples/s", reads["source"]),
        Figure("Samples of Prometheus through Spark", "samples/s", through["prometheus"]),
        Figure("Shaping samples to tables, one process", "samples/s", reads["shape"]),
    ]  # fmt: skip
    return Result(
        figures,
        f"""{PARTS} parts of {rows:,} rows of the table samples (13 columns), {rows // 4:,} of
        tuples, to Spark's noop sink, local[2]; {LINES:,} lines of one family by group, topic and
        queue; an answer of {count:,} samples of {SERIES:,} series ({len(body) / count:.0f} bytes
        each) from a server of the same process, and four such answers through Spark;
        {samples.num_rows:,} samples shaped.""",
    )


if __name__ == "__main__":
    benchmark(main)
