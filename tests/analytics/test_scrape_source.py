"""Scrapes without Prometheus: at even distances, each exactly once, no target delays another."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from analytics.schema import SAMPLES, Gap
from analytics.sources.gaps import split
from analytics.sources.scrape.options import Options, parse
from analytics.sources.scrape.reader import samples
from analytics.sources.scrape.scraper import TARGETS_AGAIN_S, Scraper
from analytics.sources.scrape.spark import ScrapeStream
from analytics.sources.scrape.spool import Spool, SpoolWriter
from analytics.sources.scrape.spool import read as spooled
from tests.support.node import wait_until
from tests.support.spark import spark as spark
from tidemark.testing.ports import free_ports

pytestmark = pytest.mark.xdist_group("spark")

OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0"
Answer = Callable[["Shown", "BaseHTTPRequestHandler"], None]


class Shown(ThreadingHTTPServer):
    """A target that counts how often it was scraped, and shows the count."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.count = 0
        self.answer: Answer = well
        self.lock = threading.Lock()
        self.closing = threading.Event()

    def page(self) -> bytes:
        with self.lock:
            self.count += 1
            return f'shown_total{{topic="t",queue="0"}} {self.count}\n# EOF\n'.encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that has gone is what is tested here."""


class _Handler(BaseHTTPRequestHandler):
    server: Shown

    def do_GET(self) -> None:
        self.server.answer(self.server, self)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def well(shown: Shown, handler: BaseHTTPRequestHandler) -> None:
    _answer(handler, shown.page())


def cut(shown: Shown, handler: BaseHTTPRequestHandler) -> None:
    page = shown.page()
    _answer(handler, page[:-8], length=len(page))


def without_end(shown: Shown, handler: BaseHTTPRequestHandler) -> None:
    _answer(handler, shown.page().removesuffix(b"# EOF\n"))


def never(shown: Shown, handler: BaseHTTPRequestHandler) -> None:
    shown.page()
    shown.closing.wait(60)


def refuse(shown: Shown, handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(503)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def _answer(handler: BaseHTTPRequestHandler, page: bytes, length: int | None = None) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", OPENMETRICS)
    handler.send_header("Content-Length", str(len(page) if length is None else length))
    handler.end_headers()
    handler.wfile.write(page)


@contextmanager
def shown() -> Iterator[Shown]:
    server = Shown()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def listed(*addresses: str, broker: str = "g0") -> str:
    labels = {"cluster": "c", "broker": broker, "replica": "n0", "service": "broker"}
    return json.dumps([{"targets": list(addresses), "labels": labels}])


def options(tmp_path: Path, targets: str, **of: str) -> Options:
    return parse({"targets": targets, "spool": str(tmp_path / "spool"), "interval": "1s", **of})


def read(directory: Path) -> tuple[pa.Table, list[dict[str, Any]]]:
    batches = [batch for file in Spool(directory).files() for batch in samples(file.path)]
    found, gaps = split(pa.Table.from_batches(batches, schema=SAMPLES))
    return found, gaps.to_pylist()


class Clock:
    """A wall clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1_772_366_400.25

    def __call__(self) -> float:
        return self.now_s


@contextmanager
def scraper(of: Options, clock: Callable[[], float] = time.time) -> Iterator[Scraper]:
    with ExitStack() as stack:
        writer = SpoolWriter(of.spool)
        stack.callback(writer.close)
        made = Scraper(of, writer, clock)
        stack.callback(made.close)
        yield made


def test_a_round_scrapes_all_targets_of_a_set_into_one_file(tmp_path: Path) -> None:
    with shown() as one, shown() as two, shown() as other:
        targets = json.loads(listed(one.address, two.address)) + json.loads(
            listed(other.address, broker="g1")
        )
        of = options(tmp_path, json.dumps(targets))
        with scraper(of) as each:
            each.round()
        assert len(Spool(of.spool).files()) == 2
        found, gaps = read(of.spool)
        assert gaps == []
        assert Counter(found.column("broker").to_pylist()) == {"g0": 2, "g1": 1}
        row = found.to_pylist()[0]
        assert {**row, "ts": None, "target": None} == {
            "ts": None, "source": "scrape", "target": None, "metric": "shown_total",
            "cluster": "c", "broker": "g0", "replica": "n0", "service": "broker", "group": None,
            "topic": "t", "queue": 0, "labels": "", "value": 1.0,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "reason"), [(cut, "torn"), (without_end, "torn"), (never, "timeout")]
)
def test_an_answer_that_is_not_whole_in_time_is_a_gap_and_delays_no_other(
    tmp_path: Path, answer: Answer, reason: str
) -> None:
    (closed,) = free_ports(1)
    with shown() as good, shown() as bad:
        bad.answer = answer
        targets = listed(good.address, bad.address, f"127.0.0.1:{closed}")
        of = options(tmp_path, targets, interval="4s")
        clock = Clock()
        with scraper(of, clock) as each:
            each.round()
        found, gaps = read(of.spool)
        assert found.column("target").to_pylist() == [good.address]
        assert {gap["subject"]: gap["reason"] for gap in gaps} == {
            bad.address: reason, f"127.0.0.1:{closed}": "unreachable",
        }  # fmt: skip
        for gap in gaps:
            assert (gap["from_ts"].timestamp(), gap["to_ts"].timestamp()) == (
                clock.now_s - 4, clock.now_s,
            )  # fmt: skip


def test_more_slow_targets_than_threads_cost_one_time_out(tmp_path: Path) -> None:
    with shown() as bad, shown() as other, shown() as third:
        for each in (bad, other, third):
            each.answer = never
        targets = listed(bad.address, other.address, third.address)
        of = options(tmp_path, targets, concurrency="1", interval="8s")
        with scraper(of) as made:
            made.round()
        _, gaps = read(of.spool)
        assert sorted(gap["reason"] for gap in gaps) == ["late", "late", "timeout"]


def test_rounds_that_were_not_scraped_are_gaps(tmp_path: Path) -> None:
    with shown() as target:
        of, clock = options(tmp_path, listed(target.address)), Clock()
        with scraper(of, clock) as each:
            each.round()
            clock.now_s += 1
            each.round()
            began_s = clock.now_s
        clock.now_s += 30
        with scraper(of, clock) as each:  # after a restart
            each.round()
        found, (gap,) = read(of.spool)
        assert found.num_rows == 3
        assert (gap["subject"], gap["reason"]) == (target.address, "unscraped")
        assert gap["from_ts"].timestamp() == began_s
        assert gap["to_ts"].timestamp() == clock.now_s


def test_the_list_of_targets_is_read_again_and_half_a_one_is_not_believed(tmp_path: Path) -> None:
    with shown() as one, shown() as two:
        path = tmp_path / "targets.json"
        path.write_text(listed(one.address))
        of, clock = options(tmp_path, str(path)), Clock()
        with scraper(of, clock) as each:
            path.write_text(listed(one.address, two.address))
            each.round()
            assert (one.count, two.count) == (1, 0)
            clock.now_s += TARGETS_AGAIN_S
            each.round()
            assert (one.count, two.count) == (2, 1)
            path.write_text(listed(one.address)[:-5])
            clock.now_s += TARGETS_AGAIN_S
            each.round()
            assert (one.count, two.count) == (3, 2)


def test_rounds_begin_at_multiples_of_the_interval(tmp_path: Path) -> None:
    with shown() as target:
        of = options(tmp_path, listed(target.address))
        with scraper(of) as each:
            each.start()
            wait_until(lambda: target.count >= 4, "four scrapes", 30)
        found, gaps = read(of.spool)
        assert gaps == []
        times = [ts.timestamp() for ts in found.column("ts").to_pylist()][1:]
        # Each in a tick of its own, and soon after it began: a wait does not end before its time.
        assert len({int(ts) for ts in times}) == len(times)
        assert sorted(ts % 1 for ts in times)[0] < 0.3


def test_a_reader_travels_without_its_thread_and_lock(tmp_path: Path) -> None:
    with shown() as target:
        stream = ScrapeStream(options(tmp_path, listed(target.address)))
        try:
            start = stream.initialOffset()
            wait_until(
                lambda: stream.latestOffset(start, ReadAllAvailable())["seq"] >= 2, "scrapes", 30
            )
            end = stream.latestOffset(start, ReadMaxFiles(1))
            assert end == {"seq": 1}
            (part,) = stream.partitions(start, end)
            copied: ScrapeStream = pickle.loads(pickle.dumps(stream))
            (batch,) = list(copied.read(part))
            assert batch.num_rows == 1
            # A batch run again gets the same files; one whose file is gone has a gap.
            assert [each.value for each in stream.partitions(start, end)] == [part.value]
            Path(part.value).unlink()
            (again,) = stream.partitions(start, end)
            (batch,) = list(copied.read(again))
            assert batch.column("metric").to_pylist() == ["_gap"]
        finally:
            stream.stop()


# -- through Spark -------------------------------------------------------------------------------


def stream(spark: SparkSession, tmp_path: Path, of: Mapping[str, str]) -> Any:
    frame = spark.readStream.format("tidemark_scrape").options(**of).load()
    return (
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )


def all_refused(directory: Path) -> bool:
    """Whether by the newest file no target answered."""
    newest = Spool(directory).files()[-1].path
    return {each.reason for each in spooled(newest)} == {Gap.UNREACHABLE}


def test_every_scrape_is_in_the_table_exactly_once_over_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    with shown() as one, shown() as two:
        of = {
            "targets": listed(one.address, two.address), "spool": str(tmp_path / "spool"),
            "interval": "2s", "keep": "1s",
        }  # fmt: skip
        for _ in range(2):
            one.answer = two.answer = well
            before = one.count
            query = stream(spark, tmp_path, of).trigger(processingTime="200 milliseconds").start()
            wait_until(lambda before=before: one.count >= before + 2, "two scrapes", 60)  # type: ignore[misc]
            # A scrape under way is lost when a process is killed: none is under way here.
            one.answer = two.answer = refuse
            wait_until(lambda: all_refused(tmp_path / "spool"), "a round that all refused", 60)
            query.stop()
        one.answer = two.answer = well
        stream(spark, tmp_path, of).trigger(availableNow=True).start().awaitTermination()
        found, gaps = split(spark.read.parquet(str(tmp_path / "out")).toArrow().cast(SAMPLES))
        late = Counter(gaps.filter(pa.compute.equal(gaps.column("reason"), "timeout"))
                       .column("subject").to_pylist())  # fmt: skip
        for target in (one, two):
            own = found.filter(pa.compute.equal(found.column("target"), target.address))
            values = own.column("value").to_pylist()
            assert len(values) == len(set(values))
            # On a machine that is busy a scrape may take too long: then a gap stands for it.
            lost = set(range(1, target.count + 1)) - {int(value) for value in values}
            assert len(lost) <= late[target.address]
            assert values
        assert one.count >= 5
        # Old files that were read have gone; the last one keeps the count.
        assert 1 <= len(Spool(tmp_path / "spool").files()) < one.count


def test_a_batch_that_fails_is_run_again_with_the_same_scrapes(
    spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[list[float]] = []

    def write(batch: Any, number: int) -> None:
        values = sorted(batch.toArrow().column("value").to_pylist())
        seen.append(values)
        if len(seen) == 1:
            raise RuntimeError("the sink failed")

    with shown() as target:
        of = {"targets": listed(target.address), "spool": str(tmp_path / "spool")}

        def run() -> None:
            frame = spark.readStream.format("tidemark_scrape").options(**of).load()
            query = (
                frame.writeStream.foreachBatch(write)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        with pytest.raises(StreamingQueryException):
            run()
        run()
        assert seen[0] == seen[1] == [1.0]
        assert sorted(value for values in seen[1:] for value in values) == [
            float(number) for number in range(1, target.count + 1)
        ]
