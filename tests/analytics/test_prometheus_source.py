"""Raw samples of a Prometheus server: Debian's, loaded with blocks, and one that misbehaves.

Timestamps are those of the samples to the millisecond; slices have neither duplicates nor holes at
their borders, whether the server's range selectors hold their left end (2.x) or not (3.x); and
whatever the server does, what is missing is a row about it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from analytics.schema import SAMPLES
from analytics.sources.gaps import Unanswered, split
from analytics.sources.option_values import BadOption
from analytics.sources.prometheus.options import parse
from analytics.sources.prometheus.plan import Part
from analytics.sources.prometheus.reader import SPLITS_MAX, Reader
from analytics.sources.prometheus.spark import PrometheusStream
from tests.support import range_server
from tests.support.prometheus import Prometheus, make_blocks, over_blocks
from tests.support.range_server import Labels, RangeServer
from tests.support.spark import spark as spark
from tidemark.testing.ports import free_ports
from tidemark.testing.waiting import wait_until

pytestmark = pytest.mark.xdist_group("spark")

BEGIN_MS: Final = 1_772_366_400_000
"""A multiple of every slice below: the first series has samples on all borders."""
PERIOD_MS: Final = 15_000
TICKS: Final = 480
SELECTOR: Final = '{__name__=~"tidemark_.*"}'
Row = tuple[str, str, int | None, int, float]
"""Metric, topic, queue, milliseconds, value."""


def generated() -> dict[Labels, list[tuple[int, float]]]:
    """Series whose samples lie on the borders of slices, a millisecond beside them, and odd."""
    found: dict[Labels, list[tuple[int, float]]] = {}
    for topic, shift_ms in (("on", 0), ("after", 1), ("before", -1), ("odd", 7_123)):
        for queue in range(4):
            labels = (
                ("__name__", "tidemark_queue_max_offset_messages"),
                ("broker", "g0"), ("cluster", "c"), ("instance", "127.0.0.1:8081"),
                ("job", "tidemark-broker"), ("queue", str(queue)), ("replica", "n0"),
                ("topic", topic),
            )  # fmt: skip
            found[labels] = [
                (BEGIN_MS + (tick + 1) * PERIOD_MS + shift_ms, float(tick * 100 + queue))
                for tick in range(TICKS)
            ]
    about = (
        ("__name__", "tidemark_log_max_offset_bytes"), ("broker", "g0"), ("cluster", "c"),
        ("instance", "127.0.0.1:8081"), ("job", "tidemark-broker"), ("replica", "n0"),
    )  # fmt: skip
    found[about] = [
        (BEGIN_MS + (tick + 1) * PERIOD_MS, 4.5e15 + tick + 0.5) for tick in range(TICKS)
    ]
    return found


def rows_of(samples: dict[Labels, list[tuple[int, float]]]) -> list[Row]:
    rows = []
    for labels, values in samples.items():
        of = dict(labels)
        queue = int(of["queue"]) if "queue" in of else None
        rows += [(of["__name__"], of.get("topic", ""), queue, ms, value) for ms, value in values]
    return sorted(rows, key=str)


def read_rows(table: pa.Table) -> list[Row]:
    found = []
    for row in table.select(["metric", "topic", "queue", "ts", "value"]).to_pylist():
        since = row["ts"] - datetime(1970, 1, 1, tzinfo=UTC)
        us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
        assert us % 1000 == 0
        found.append((row["metric"], row["topic"] or "", row["queue"], us // 1000, row["value"]))
    return sorted(found, key=str)


def reader(url: str, **of: str) -> Reader:
    options = {"url": url, "selectors": SELECTOR, "slice": "10m", "timeout": "20s", **of}
    return Reader(parse(options), sleep=lambda _: None)


def read(source: Reader, begin_ms: int = BEGIN_MS - 2, end_ms: int | None = None) -> pa.Table:
    end_ms = BEGIN_MS + (TICKS + 2) * PERIOD_MS if end_ms is None else end_ms
    parts = source.plan(begin_ms * 1000, end_ms * 1000)
    made = [batch for part in parts for batch in source.read(part)]
    for batch in made:
        batch.validate(full=True)
    return pa.Table.from_batches(made, schema=SAMPLES)


def write_openmetrics(file: Path) -> None:
    """The generated samples as a file for promtool."""
    lines = []
    for metric in ("tidemark_queue_max_offset_messages", "tidemark_log_max_offset_bytes"):
        lines.append(f"# TYPE {metric} gauge\n")
        for labels, values in generated().items():
            if dict(labels)["__name__"] == metric:
                own = ",".join(f'{name}="{value}"' for name, value in labels[1:])
                lines += [
                    f"{metric}{{{own}}} {value!r} {ms // 1000}.{ms % 1000:03d}\n"
                    for ms, value in values
                ]
    file.write_text("".join([*lines, "# EOF\n"]))


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("blocks")
    write_openmetrics(directory / "samples.om")
    return make_blocks(directory / "samples.om", directory / "made")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory, blocks: Path) -> Iterator[Prometheus]:
    with over_blocks(tmp_path_factory.mktemp("prometheus"), blocks) as server:
        yield server


# -- a real server -------------------------------------------------------------------------------


@pytest.mark.parametrize("slicing", ["10m", "15s", "47s", "1h", "1ms*"])
def test_a_real_server_s_samples_come_once_and_to_the_millisecond(
    prometheus: Prometheus, slicing: str
) -> None:
    if slicing == "1ms*":  # a slice of each millisecond around one border
        begin = BEGIN_MS + PERIOD_MS - 3
        expected = [row for row in rows_of(generated()) if begin < row[3] <= begin + 8]
        found = read(reader(prometheus.url, slice="1ms"), begin, begin + 8)
        assert len(expected) == 13
    else:
        expected = rows_of(generated())
        found = read(reader(prometheus.url, slice=slicing, max_samples="100000"))
    assert read_rows(found) == expected


def test_any_cutting_of_time_gives_the_same_samples(prometheus: Prometheus) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    expected = rows_of(generated())
    end = BEGIN_MS + (TICKS + 2) * PERIOD_MS
    for _ in range(5):
        near = [BEGIN_MS + chance.randrange(TICKS) * PERIOD_MS + chance.randrange(-2, 3)
                for _ in range(6)]  # fmt: skip
        cuts = sorted({BEGIN_MS - 2, *near, end})
        found: list[Row] = []
        for begin, until in pairwise(cuts):
            found += read_rows(read(reader(prometheus.url, slice="13m"), begin, until))
        assert sorted(found, key=str) == expected


def test_shards_hold_everything_once(prometheus: Prometheus) -> None:
    whole = read_rows(read(reader(prometheus.url)))
    for shards in (2, 3, 10):
        assert read_rows(read(reader(prometheus.url, shards=str(shards)))) == whole


def test_context_is_marked_and_in_every_shard(prometheus: Prometheus) -> None:
    found = read(reader(prometheus.url, shards="4", context="true"))
    written = found.filter(pa.compute.equal(found.column("source"), "prometheus"))
    assert read_rows(written) == rows_of(generated())
    context = found.filter(pa.compute.equal(found.column("source"), "context"))
    assert set(context.column("metric").to_pylist()) == {"tidemark_log_max_offset_bytes"}
    assert context.num_rows == 3 * TICKS


def test_labels_of_the_target_are_columns(prometheus: Prometheus) -> None:
    found = read(reader(prometheus.url), end_ms=BEGIN_MS + PERIOD_MS + 1)
    row = next(row for row in found.to_pylist() if row["topic"] == "on" and row["queue"] == 2)
    assert row == {
        "ts": datetime.fromtimestamp((BEGIN_MS + PERIOD_MS) / 1000, UTC),
        "source": "prometheus",
        "target": "127.0.0.1:8081",
        "metric": "tidemark_queue_max_offset_messages",
        "cluster": "c",
        "broker": "g0",
        "replica": "n0",
        "service": "broker",
        "group": None,
        "topic": "on",
        "queue": 2,
        "labels": "",
        "value": 2.0,
    }


def test_a_server_that_finds_it_too_much_is_asked_for_less(blocks: Path, tmp_path: Path) -> None:
    with over_blocks(tmp_path / "small", blocks, "--query.max-samples=600") as small:
        found, missing = split(read(reader(small.url, slice="30m")))
        assert missing.num_rows == 0
        assert read_rows(found) == rows_of(generated())
    # Five samples at once: half a minute of it is still too much for 17 series.
    with over_blocks(tmp_path / "tiny", blocks, "--query.max-samples=5") as tiny:
        end_ms = BEGIN_MS + 1_800_000
        found, missing = split(read(reader(tiny.url, slice="30m"), BEGIN_MS, end_ms))
        assert found.num_rows == 0
        assert set(missing.column("reason").to_pylist()) == {"overload"}
        assert missing.num_rows == 2**SPLITS_MAX
        assert "too many samples" in missing.column("detail")[0].as_py()


def test_a_selector_that_the_server_cannot_read_is_a_mistake(prometheus: Prometheus) -> None:
    with pytest.raises(BadOption, match="parse error"):
        read(reader(prometheus.url, selectors='{topic=~"("}'))


# -- servers that misbehave ------------------------------------------------------------------------

END_MS: Final = BEGIN_MS + 600_000
ONE: Final = {labels: values for labels, values in generated().items() if ("topic", "on") in labels}


def part_of(source: Reader) -> Part:
    (part,) = source.plan(BEGIN_MS * 1000, END_MS * 1000)
    return part


def read_one(source: Reader) -> tuple[list[Row], list[dict[str, Any]]]:
    batches = list(source.read(part_of(source)))
    found, missing = split(pa.Table.from_batches(batches, schema=SAMPLES))
    return read_rows(found), missing.to_pylist()


def expected_one() -> list[Row]:
    return [row for row in rows_of(ONE) if BEGIN_MS < row[3] <= END_MS]


@pytest.mark.parametrize("left_open", [False, True])
@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("slicing", ["10m", "15s", "47s"])
def test_left_open_and_closed_selectors_give_the_same(
    *, left_open: bool, spaced: bool, slicing: str
) -> None:
    with RangeServer(generated(), left_open=left_open, spaced=spaced) as server:
        assert read_rows(read(reader(server.url, slice=slicing))) == rows_of(generated())


def test_values_that_are_no_plain_numbers_come_through() -> None:
    labels: Labels = (("__name__", "tidemark_x"), ("instance", "h:1"), ("le", '+Inf"]]},{[["'))
    odd = [float("inf"), float("-inf"), 1e-300, -0.0, 2.0**53, 0.1]
    samples = {labels: [(BEGIN_MS + 1 + at, value) for at, value in enumerate(odd)]}
    with RangeServer(samples) as server:
        rows, missing = read_one(reader(server.url))
    assert ([row[4] for row in sorted(rows, key=lambda row: row[3])], missing) == (odd, [])


@pytest.mark.parametrize(
    ("trouble", "reason", "detail"),
    [
        (range_server.cut, "torn", "missing"),
        (range_server.reset, "torn", "RemoteDisconnected"),
        (range_server.warning, "torn", "partial: a store gateway is down"),
        (range_server.text(200, b"{}"), "torn", "query failed"),
        (range_server.text(200, b"not JSON"), "torn", "not a matrix"),
        (range_server.text(200, b""), "torn", "not a matrix"),
        (range_server.text(502, b"<html>bad gateway"), "unreachable", "502: <html>bad gateway"),
        (range_server.status(503, "Service Unavailable"), "unreachable", "503"),
        (range_server.status(500, "internal"), "unreachable", "500"),
        (range_server.status(401, "who are you"), "unreachable", "401: who are you"),
    ],
)  # fmt: skip
def test_trouble_that_stays_is_a_gap_and_no_sample(
    trouble: range_server.Trouble, reason: str, detail: str
) -> None:
    with RangeServer(ONE) as server:
        server.always = trouble
        rows, missing = read_one(reader(server.url, retries="2"))
        assert rows == []
        (gap,) = missing
        assert (gap["source"], gap["reason"]) == ("prometheus", reason)
        assert detail in gap["detail"]
        assert gap["subject"] == SELECTOR
        assert gap["from_ts"].timestamp() * 1000 == BEGIN_MS
        assert gap["to_ts"].timestamp() * 1000 == END_MS
        assert len(server.asked) == 3


@pytest.mark.parametrize(
    "trouble",
    [
        range_server.cut, range_server.reset, range_server.warning,
        range_server.status(503, "Service Unavailable"),
    ],
)  # fmt: skip
def test_trouble_that_passes_leaves_no_trace(trouble: range_server.Trouble) -> None:
    with RangeServer(ONE) as server:
        server.trouble = [trouble, trouble]
        assert read_one(reader(server.url)) == (expected_one(), [])
        assert len(server.asked) == 3


def test_a_server_that_is_down_is_a_gap() -> None:
    (port,) = free_ports(1)
    rows, (gap,) = read_one(reader(f"http://127.0.0.1:{port}"))
    assert (rows, gap["reason"]) == ([], "unreachable")
    with pytest.raises(Unanswered, match="unreachable"):
        reader(f"http://127.0.0.1:{port}").now_us()


@pytest.mark.parametrize("trouble", [range_server.slow(30), range_server.drip])
def test_a_slow_server_costs_its_time_and_no_more(trouble: range_server.Trouble) -> None:
    with RangeServer(ONE) as server:
        server.always = trouble
        rows, missing = read_one(reader(server.url, timeout="200ms"))
        assert rows == []
        assert {gap["reason"] for gap in missing} == {"timeout"}
        # Halved six times at most, not once per half of a half.
        assert len(server.asked) <= 2 * SPLITS_MAX + 1
        ends = sorted((gap["from_ts"], gap["to_ts"]) for gap in missing)
        assert all(one[1] == other[0] for one, other in pairwise(ends))
        assert ends[0][0].timestamp() * 1000 == BEGIN_MS
        assert ends[-1][1].timestamp() * 1000 == END_MS


def test_a_server_that_is_slow_once_is_asked_for_halves() -> None:
    with RangeServer(ONE) as server:
        server.trouble = [range_server.slow(30)]
        assert read_one(reader(server.url, timeout="2s")) == (expected_one(), [])
        assert len(server.asked) == 3


def test_half_of_a_slice_that_fails_leaves_the_other_half() -> None:
    with RangeServer(ONE, samples_max=100) as server:
        # Too much as a whole; then the first half comes, and the second does not.
        server.trouble = [None, None, *[range_server.status(500, "no")] * 9]
        rows, (gap,) = read_one(reader(server.url, retries="1"))
        middle = BEGIN_MS + 300_000
        assert rows == [row for row in expected_one() if row[3] <= middle]
        assert gap["from_ts"].timestamp() * 1000 == middle


def test_an_answer_is_bounded_in_samples() -> None:
    with RangeServer(ONE) as server:
        assert read_one(reader(server.url, max_samples="50")) == (expected_one(), [])
        assert len(server.asked) > 1


def test_headers_are_sent() -> None:
    heard = []

    def note(handler: range_server.Handler, body: bytes) -> None:
        heard.append(handler.headers["X-Scope-OrgID"])
        handler.say(200, body)

    with RangeServer(ONE) as server:
        server.always = note
        read_one(reader(server.url, **{"header.X-Scope-OrgID": "me"}))
    assert heard == ["me"]


# -- through Spark -------------------------------------------------------------------------------


def options(url: str, **of: Any) -> dict[str, str]:
    values = {
        "url": url, "selectors": SELECTOR, "slice": "10m", "timeout": "20s",
        "start": (BEGIN_MS - 2) / 1000, "end": (BEGIN_MS + (TICKS + 2) * PERIOD_MS) / 1000, **of,
    }  # fmt: skip
    return {name: str(value) for name, value in values.items()}


def test_a_stream_s_offsets_are_multiples_and_bounded_and_end_as_configured() -> None:
    with RangeServer({}) as server:
        whole = parse(
            options(server.url, max_slices="2", align="15s", slice="10s", end=1_772_366_467)
        )
        stream = PrometheusStream(whole)
        start = {"until_us": BEGIN_MS * 1000}
        assert stream.getDefaultReadLimit() == ReadMaxFiles(2)
        assert stream.latestOffset(start, ReadMaxFiles(2)) == {
            "until_us": (BEGIN_MS + 15_000) * 1000
        }
        end = stream.latestOffset(start, ReadAllAvailable())
        assert end == {"until_us": 1_772_366_467_000_000}
        assert stream.latestOffset(end, ReadAllAvailable()) == end
        parts = [each.value for each in stream.partitions(start, end)]
        assert [part.end_us - part.start_us for part in parts] == [10_000_000] * 6 + [7_000_000]
        assert stream.partitions(end, end) == []


@pytest.mark.parametrize(
    "result", ['[1772366500.25,"1"]', '[{"metric":{},"value":[1772366500.25,"1"]}]']
)
def test_a_clock_here_that_is_ahead_of_the_server_s_reads_nothing_too_early(result: str) -> None:
    # What is not scraped yet would never be read: a hole of each batch's last samples.
    with RangeServer({}) as server:
        server.always = range_server.text(200, b'{"data":{"result":%s}}' % result.encode())
        given = options(server.url, align="15s", settle="15s", end=1_900_000_000)
        stream = PrometheusStream(parse(given))
        start = {"until_us": 1_772_366_400_000_000}
        # 12:01:40.25 there, less 15 s, is 12:01:25.25.
        end = stream.latestOffset(start, ReadAllAvailable())
        assert end == {"until_us": 1_772_366_475_000_000}
        assert stream.latestOffset(end, ReadAllAvailable()) == end


def test_a_stream_waits_for_a_server_that_is_away_and_then_reports_a_gap() -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    start = {"until_us": BEGIN_MS * 1000}
    patient = PrometheusStream(parse(options(url)))
    assert patient.latestOffset(start, ReadAllAvailable()) == start
    hasty = PrometheusStream(parse(options(url, patience="1ms")))
    wait_until(
        lambda: hasty.latestOffset(start, ReadAllAvailable()) != start, "patience to end", 10
    )
    ending = PrometheusStream(parse(options(url, patience="1ms")))
    ending.prepareForTriggerAvailableNow()
    assert ending.latestOffset(start, ReadAllAvailable()) == start
    with RangeServer({}, port=port):
        assert patient.latestOffset(start, ReadAllAvailable()) != start


def test_spark_reads_the_same_and_a_filter_does_not_reach_the_next_query(
    spark: SparkSession,
) -> None:
    with RangeServer(generated()) as server:
        frame = spark.read.format("tidemark_prometheus").options(**options(server.url)).load()
        odd = [row for row in rows_of(generated()) if row[1] == "odd"]
        assert read_rows(frame.where(sql.col("topic") == "odd").toArrow()) == odd
        assert read_rows(frame.toArrow()) == rows_of(generated())


def test_spark_has_gaps_where_the_server_fails_and_goes_on(spark: SparkSession) -> None:
    with RangeServer(generated()) as server:
        server.always = range_server.status(503, "starting")
        frame = (
            spark.read.format("tidemark_prometheus")
            .options(**options(server.url, retries=0))
            .load()
        )
        found, missing = split(frame.toArrow())
        assert (found.num_rows, missing.num_rows) == (0, len(server.asked))
        assert missing.num_rows > 1


def test_a_stream_reads_everything_once_over_restarts_and_a_server_that_was_away(
    spark: SparkSession, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"

    def run(**of: Any) -> None:
        frame = (
            spark.readStream.format("tidemark_prometheus")
            .options(**options(url, max_slices=3, retries=0, **of))
            .load()
        )
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    middle = (BEGIN_MS + 1_800_001) / 1000
    run(end=middle)  # no server there: nothing is read, and nothing is given up
    with RangeServer(generated(), port=port) as server:
        run(end=middle)
        assert len(server.asked) > 2
    run()
    with RangeServer(generated(), left_open=True, port=port):
        run()
        run()
    found, missing = split(spark.read.parquet(str(tmp_path / "out")).toArrow().cast(SAMPLES))
    rows = read_rows(found)
    assert [row for row, count in Counter(rows).items() if count > 1] == []
    assert rows == rows_of(generated())
    assert missing.num_rows == 0
