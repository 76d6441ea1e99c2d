"""``tidemark_topic`` on real processes: whole, once, and clear about what it cannot have."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tidemark
from analytics.schema import Gap
from analytics.sources.topic.options import TopicOptions
from analytics.sources.topic.pull import TopicUnreadable
from analytics.sources.topic.reader import TopicReader
from tests.support.node import Node, free_port, wait_until
from tests.support.spark import spark
from tidemark.client.messages import NewMessage

pytestmark = pytest.mark.xdist_group("spark")
__all__ = ["spark"]
TOPIC = "orders"
QUEUES = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("topic")) as made:
        made.start()
        made.wait_ready()
        yield made


def send(
    node: Node,
    topic: str,
    bodies: list[bytes],
    queues: int = QUEUES,
    queue_type: str | None = None,
) -> None:
    """Each body into its queue: number modulo queues, in order."""
    with tidemark.connect_sync(node.api_url) as mq:
        mq.create_topic(topic, queues=queues, queue_type=queue_type)
        mq.send_many(
            topic,
            [
                NewMessage(body, queue=number % queues, keys=(f"k{number}",), tags="odd")
                for number, body in enumerate(bodies)
            ],
        )


def options(node: Node, topic: str, **more: str) -> dict[str, str]:
    return {"url": node.api_url, "topic": topic, **more}


def bodies_of(count: int, name: str = "m") -> list[bytes]:
    return [f"{name} {number}".encode() + bytes(number % 700) for number in range(count)]


def wait_dispatched(node: Node, topic: str, count: int) -> None:
    def there() -> bool:
        status, wire = node.get_json(f"{node.api_url}/v1/topics/{topic}")
        return status == 200 and sum(each["max_offset"] for each in wire["queues"]) >= count

    wait_until(there, f"{count} messages of {topic} to be dispatched")


# -- batch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("topic", "queue_type"), [(TOPIC, "simple"), ("batches", "batch")])
def test_a_batch_has_every_message_once_in_several_tasks(
    node: Node, spark: SparkSession, topic: str, queue_type: str
) -> None:
    bodies = bodies_of(900)
    send(node, topic, bodies, queue_type=queue_type)
    wait_dispatched(node, topic, len(bodies))
    frame = (
        spark.read.format("tidemark_topic")
        .options(**options(node, topic, split_messages="100"))
        .load()
    )
    assert frame.rdd.getNumPartitions() == 9
    rows = frame.collect()
    assert sorted(row.body for row in rows) == sorted(bodies)
    assert all(bodies[QUEUES * row.queue_offset + row.queue] == row.body for row in rows)
    assert {row.tag for row in rows} == {"odd"}
    assert all(row.keys == row.properties["KEYS"] and row.keys[0] == "k" for row in rows)
    by_queue = frame.groupBy("queue").count().collect()
    assert {row["queue"]: row["count"] for row in by_queue} == {0: 300, 1: 300, 2: 300}


def test_a_batch_between_offsets_and_with_few_columns(node: Node, spark: SparkSession) -> None:
    bodies = bodies_of(60, "ranged")
    send(node, "ranged", bodies)
    wait_dispatched(node, "ranged", len(bodies))
    given = options(
        node, "ranged", queues="1,2", to='{"1": 9}', columns="queue,queue_offset", **{
            "from": '{"1": 4, "2": 18}'
        },
    )  # fmt: skip
    rows = spark.read.format("tidemark_topic").options(**given).load().collect()
    assert sorted((row.queue, row.queue_offset) for row in rows) == [
        *((1, offset) for offset in range(4, 9)),
        (2, 18),
        (2, 19),
    ]


def test_expired_offsets_are_gap_rows(node: Node) -> None:
    bodies = bodies_of(30, "old")
    send(node, "kept", bodies, queues=1)
    wait_dispatched(node, "kept", 30)
    reader = TopicReader(
        TopicOptions(urls=(node.api_url,), topic="kept", first={0: 0}, end={0: 40})
    )
    with tidemark.connect_sync(node.api_url) as mq:
        mq.create_topic("kept", retention_ms=500)
        wait_until(lambda: mq.pull("kept", 0, 0).min_offset == 30, "old messages to be hidden")
        mq.create_topic("kept", retention_ms=3_600_000)
    send(node, "kept", bodies_of(10, "new"), queues=1)
    wait_dispatched(node, "kept", 40)
    gap, *rows = reader.table().to_pylist()
    assert (gap["gap"], gap["queue_offset"], gap["next_offset"]) == (Gap.EXPIRED, 0, 30)
    assert "topic kept, queue 0, queue offsets 0 to 29" in gap["gap_detail"]
    assert [(row["queue_offset"], row["body"]) for row in rows] == [
        *enumerate(bodies_of(10, "new"), start=30)
    ]


# -- stream ---------------------------------------------------------------------------------------


def start_query(
    spark: SparkSession, given: dict[str, str], place: Path, *, once: bool, fail_at: int = -1
) -> StreamingQuery:
    """Each batch to a directory of its own number: a batch run again replaces itself."""

    def take(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(place / "out" / f"batch={number}"))
        if number == fail_at:
            raise RuntimeError("the job dies behind its output and before its commit")

    writer = (
        spark.readStream.format("tidemark_topic")
        .options(**given)
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(place / "checkpoint"))
    )
    return (writer.trigger(availableNow=True) if once else writer.trigger(
        processingTime="200 milliseconds"
    )).start()  # fmt: skip


def stored_bodies(place: Path) -> list[bytes]:
    """What the sink has, read without Spark: nothing of it is being written then."""
    table = pa.concat_tables(pq.read_table(each) for each in (place / "out").iterdir())
    assert table["gap"].null_count == len(table)
    return sorted(table["body"].to_pylist())


def test_a_stream_that_is_stopped_and_killed_has_each_message_exactly_once(
    node: Node, spark: SparkSession, tmp_path: Path
) -> None:
    given = options(node, "streamed", max_messages="40", split_messages="7")
    sent: list[bytes] = []

    def more(count: int, name: str) -> None:
        sent.extend(bodies_of(count, name))
        send(node, "streamed", bodies_of(count, name))
        wait_dispatched(node, "streamed", len(sent))

    more(100, "first")
    start_query(spark, given, tmp_path, once=True).awaitTermination()
    assert stored_bodies(tmp_path) == sorted(sent)
    assert len(list((tmp_path / "out").iterdir())) >= 3, "the read limit cuts batches"
    more(90, "second")
    dying = start_query(
        spark, given, tmp_path, once=True, fail_at=len(list((tmp_path / "out").iterdir())) + 1
    )
    with pytest.raises(PySparkException):
        dying.awaitTermination()
    more(30, "third")
    running = start_query(spark, given, tmp_path, once=False)
    sender = threading.Thread(target=more, args=(60, "fourth"))
    sender.start()
    sender.join()
    running.processAllAvailable()
    running.stop()
    assert len(sent) == 280
    assert Counter(stored_bodies(tmp_path)) == Counter(sent)


def test_a_stream_from_the_end_sees_what_comes(
    node: Node, spark: SparkSession, tmp_path: Path
) -> None:
    send(node, "later", bodies_of(12, "before"))
    wait_dispatched(node, "later", 12)
    query = start_query(spark, options(node, "later", **{"from": "last"}), tmp_path, once=False)
    wait_until(lambda: query.lastProgress is not None, "a first batch")
    with tidemark.connect_sync(node.api_url) as mq:
        mq.create_topic("later", queues=QUEUES + 1)  # a queue that the query did not know
    send(node, "later", bodies_of(8, "after"), queues=QUEUES + 1)
    wait_dispatched(node, "later", 20)
    query.processAllAvailable()
    query.stop()
    assert stored_bodies(tmp_path) == sorted(bodies_of(8, "after"))


# -- trouble --------------------------------------------------------------------------------------


def reader_of(node: Node, topic: str, **more: Any) -> TopicReader:
    return TopicReader(TopicOptions(urls=(node.api_url,), topic=topic, **more))


def test_a_broker_that_restarts_costs_time_and_no_message(tmp_path: Path) -> None:
    with Node(tmp_path / "node") as own:
        own.start()
        own.wait_ready()
        bodies = bodies_of(3000)
        send(own, TOPIC, bodies, queues=1)
        wait_dispatched(own, TOPIC, len(bodies))
        dead = f"http://127.0.0.1:{free_port()}"
        urls = (dead, own.api_url)  # no node answers at one of the addresses
        reader = TopicReader(TopicOptions(urls=urls, topic=TOPIC, retry_seconds=30.0))
        (part,) = reader.plan()
        batches = reader.read(part)
        rows = next(batches).to_pylist()
        own.kill("broker")
        restart = threading.Thread(target=own.start, args=("broker",))
        restart.start()
        for batch in batches:
            rows += batch.to_pylist()
        restart.join()
        assert [row["body"] for row in rows] == bodies


def test_what_cannot_be_had_fails_in_time_and_names_topic_queue_and_offset(node: Node) -> None:
    with pytest.raises(TopicUnreadable, match=r"topic nowhere: .*unknown-topic"):
        reader_of(node, "nowhere", retry_seconds=0.5).plan()
    send(node, "short", bodies_of(6, "short"), queues=2)
    wait_dispatched(node, "short", 6)
    with pytest.raises(TopicUnreadable, match="no queue 7, of 2"):
        reader_of(node, "short", queues=frozenset({7})).plan()
    beyond = reader_of(node, "short", end={1: 5}, retry_seconds=0.5)
    began = time.monotonic()
    with pytest.raises(
        TopicUnreadable, match="short, queue 1, queue offset 3: the queue ends at 3"
    ):
        beyond.table()
    assert time.monotonic() - began > 0.4
    unreachable = TopicOptions(
        urls=(f"http://127.0.0.1:{free_port()}",), topic="short", retry_seconds=0.3
    )
    with pytest.raises(TopicUnreadable, match=r"topic short: .*unreachable"):
        TopicReader(unreachable).plan()


def test_a_task_that_fails_has_the_cause_in_sparks_error(node: Node, spark: SparkSession) -> None:
    send(node, "failing", bodies_of(4, "failing"), queues=1)
    wait_dispatched(node, "failing", 4)
    given = options(node, "failing", to='{"0": 9}', retry_seconds="0.3")
    frame = spark.read.format("tidemark_topic").options(**given).load()
    with pytest.raises(PySparkException, match="topic failing, queue 0, queue offset 4"):
        frame.count()


def test_a_paused_broker_is_waited_for(node: Node) -> None:
    send(node, "paused", bodies_of(10, "paused"), queues=1)
    wait_dispatched(node, "paused", 10)
    reader = reader_of(node, "paused")
    parts = reader.plan()
    node.processes["reput"].send_signal(signal.SIGSTOP)
    try:
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    finally:
        node.processes["reput"].send_signal(signal.SIGCONT)
    assert [row["body"] for row in rows] == bodies_of(10, "paused")
