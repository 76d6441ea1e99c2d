"""``tidemark_store`` on a live node's files: what is confirmed, all of it, and nothing else."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tidemark
from analytics.schema import MESSAGES, Gap
from analytics.sources.store.files import StoreFiles
from analytics.sources.store.options import StoreOptions
from analytics.sources.store.reader import StoreReader
from tests.support.node import Node, wait_until
from tests.support.spark import spark
from tidemark.client.messages import SendResult

pytestmark = pytest.mark.xdist_group("spark")
__all__ = ["spark"]
TOPICS = {"orders": "simple", "bills": "simple", "batches": "batch"}
"""Types of the queues by topic."""
QUEUES = 2


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("store")) as made:
        made.start()
        made.wait_ready()
        with tidemark.connect_sync(made.api_url) as mq:
            for topic, queue_type in TOPICS.items():
                mq.create_topic(topic, queues=QUEUES, queue_type=queue_type)
        yield made


def frame_of(spark: SparkSession, root: Path, **options: str) -> DataFrame:
    return spark.read.format("tidemark_store").options(root=str(root), **options).load()


def send(node: Node, count: int) -> list[tuple[str, int, int, int]]:
    """(topic, queue, queue offset, physical offset) of messages that are on disk."""
    sent: list[tuple[str, int, int, int]] = []
    with tidemark.connect_sync(node.api_url) as mq:
        for topic in TOPICS:
            for queue in range(QUEUES):
                results: list[SendResult] = mq.send_many(
                    topic,
                    [bytes([number % 256]) * (number % 900) for number in range(count)],
                    queue=queue,
                    ack="disk",
                )
                sent += [
                    (topic, each.queue, each.queue_offset, each.physical_offset) for each in results
                ]
    return sent


def test_a_live_store_has_all_that_was_promised_and_nothing_beyond_confirm(
    node: Node, spark: SparkSession
) -> None:
    sent = set(send(node, 800))
    stop = threading.Event()
    later: list[tuple[str, int, int, int]] = []

    def go_on() -> None:
        while not stop.is_set():
            later.extend(send(node, 40))

    sender = threading.Thread(target=go_on)
    sender.start()
    try:
        for _ in range(3):
            promised = {*sent, *later}
            frame = frame_of(
                spark,
                node.store_dir,
                columns="topic,queue,queue_offset,physical_offset,size,crc_ok,gap",
                verify="true",
            )
            rows = frame.collect()
            confirm = StoreFiles(node.store_dir).end
            assert [row for row in rows if row.gap is not None] == []
            assert all(row.crc_ok for row in rows)
            assert max(row.physical_offset + row.size for row in rows) <= confirm
            found = {
                (row.topic, row.queue, row.queue_offset, row.physical_offset)
                for row in rows
                if row.topic in TOPICS
            }
            assert promised <= found
    finally:
        stop.set()
        sender.join()
    assert len(later) > 0


def test_one_task_per_file_or_more(node: Node, spark: SparkSession) -> None:
    send(node, 400)
    files = len(StoreFiles(node.store_dir).log_sizes)
    confirm = StoreFiles(node.store_dir).end
    written = sum(start < confirm for start in StoreFiles(node.store_dir).log_sizes)
    assert written >= 2
    by_file = frame_of(spark, node.store_dir, columns="file,gap")
    assert files >= by_file.select("file").distinct().count() == written
    assert by_file.rdd.getNumPartitions() >= written
    finer = frame_of(spark, node.store_dir, columns="file,gap", split_bytes="300000")
    assert finer.rdd.getNumPartitions() >= 3 * (written - 1)
    assert finer.count() == by_file.count()
    one = frame_of(
        spark, node.store_dir, columns="size,gap", from_offset="0", to_offset=str(1 << 20)
    )
    assert one.rdd.getNumPartitions() == 2, "two cores have work on one file"


def test_spark_and_the_reader_without_it_give_the_same(
    node: Node, spark: SparkSession, tmp_path: Path
) -> None:
    send(node, 100)
    copy = tmp_path / "copy"
    node.pause()  # a copy of a moment
    try:
        shutil.copytree(node.store_dir, copy, symlinks=True)
    finally:
        node.resume()
    frame = frame_of(spark, copy)
    assert frame.toArrow().schema.names == MESSAGES.names
    expected = StoreReader(StoreOptions(root=copy)).table().sort_by("physical_offset")
    assert frame.toArrow().cast(MESSAGES).sort_by("physical_offset") == expected
    orders = frame_of(spark, copy, topics="orders").count()
    assert orders == expected.filter(pa.compute.field("topic") == "orders").num_rows


def test_lag_is_known_from_files_alone(node: Node, spark: SparkSession) -> None:
    send(node, 50)
    with tidemark.connect_sync(node.api_url) as mq:
        mq.groups.create("readers")
        mq.groups.reset("readers", "orders", offset=7)
        mq.groups.reset("readers", "bills", offset=11, queue=1)
        expected = mq.groups.offsets("readers")
        assert len(expected) == QUEUES + 1
        offsets = StoreReader(StoreOptions(root=node.store_dir, table="offsets"))
        # A commit is in the log a tenth of a second later, and then confirmed.
        wait_until(lambda: len(offsets.table()) == len(expected), "offsets to be in the log")
        rows = frame_of(spark, node.store_dir, table="offsets").collect()
        assert {(row.topic, row.queue): row.commit_offset for row in rows} == expected
        assert {row.origin for row in rows} == {"log"}
        ends = {
            (topic, each.queue): each.max_offset
            for topic in TOPICS
            for each in mq.topic(topic).ranges
        }
        assert all(row.max_offset == ends[row.topic, row.queue] for row in rows)
    units = frame_of(spark, node.store_dir, table="queue_units", topics=",".join(TOPICS))
    found = {
        (row.topic, row.queue): row["max(next_offset)"]
        for row in units.where("gap is null").groupBy("topic", "queue").max("next_offset").collect()
    }
    assert found == ends


def test_damage_is_a_row_and_without_its_column_an_error(
    node: Node, spark: SparkSession, tmp_path: Path
) -> None:
    sent = send(node, 60)
    copy = tmp_path / "copy"
    shutil.copytree(node.store_dir, copy, symlinks=True)
    _, _, _, victim = sorted(sent, key=lambda each: each[3])[-30]
    size = StoreFiles(copy).file_size
    with StoreFiles(copy).log_path(victim // size * size).open("r+b") as file:
        file.seek(victim % size)
        file.write(b"\x7f")
    rows = frame_of(spark, copy).where("gap is not null").collect()
    assert [(row.gap, row.physical_offset) for row in rows] == [(Gap.DAMAGED, victim)]
    with pytest.raises(PySparkException, match=f"physical offset {victim}"):
        frame_of(spark, copy, columns="size").count()
    with pytest.raises(PySparkException, match="has no option"):
        frame_of(spark, copy, colums="size").count()
