"""Batch topics in both directions: RocketMQ's own classes read ours, and ours read theirs.

``Writer`` and ``Referee`` are the programs in tests/referee, which `make referee` builds.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tidemark
from analytics.sources.store.options import StoreOptions
from analytics.sources.store.reader import StoreReader
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader
from tests.support.command import dump
from tests.support.command import tidemark as command
from tests.support.node import Node, wait_until
from tests.support.referee import PROBES, classpath, judge, write_store
from tests.support.small_store import CONFIG, SmallStore
from tidemark import NewMessage
from tidemark.formats import metadata_json
from tidemark.formats.hashing import tags_code
from tidemark.formats.metadata_json import DataVersion, TopicEntry, TopicsTable

SHAPE = {
    "commit_log_file_size": 1 << 17,
    "consume_queue_file_size": 400,
    "index_slots": 40,
    "index_entries": 300,
}
"""So small that the log, every queue and the index lie in several files."""
COUNT = 1000
QUEUES = 2


class Expected(NamedTuple):
    """What a message of a batch has, besides its place."""

    body: bytes
    keys: str
    tags: str
    flag: int


def written_batches() -> dict[tuple[int, int], Expected]:
    """By queue and queue offset, the messages of the batches that ``Writer`` puts."""
    expected: dict[tuple[int, int], Expected] = {}
    ends = [0] * QUEUES
    for number, i in enumerate(range(0, COUNT, 10)):
        queue = number % QUEUES
        for part in range(1 + number % 7):
            message = Expected(b"part-%d" % part, f"p{i}.{part}", f"t{part}", part)
            expected[queue, ends[queue]] = message
            ends[queue] += 1
    return expected


def queue_files(store: Path) -> dict[str, bytes]:
    """The batch queue files that hold units."""
    files = (path for path in store.rglob("batchconsumequeue/*/*/*") if path.is_file())
    contents = {str(path.relative_to(store)): path.read_bytes() for path in files}
    return {name: content for name, content in contents.items() if any(content)}


def verified(store: Path) -> Mapping[str, Any]:
    """The report of `store verify`, which finds no damage."""
    report: dict[str, Any] = json.loads(command("store", "verify", "--store", store, "-o", "json"))
    assert report["damages"] == []
    return report


@pytest.fixture(params=["closed", "killed"])
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store that RocketMQ wrote; it shut down, or was killed."""
    classpath()
    flags = ("batches", "kill") if request.param == "killed" else ("batches",)
    write_store(tmp_path / "node" / "store", tmp_path, *flags, count=COUNT, shape=SHAPE)
    return tmp_path / "node" / "store"


def test_batches_that_rocketmq_wrote_are_rows_and_sound(theirs: Path) -> None:
    report = verified(theirs)
    assert report["records"] == report["units"] == COUNT + COUNT // 10
    assert report["not_dispatched"] == 0
    options = StoreOptions(theirs, topics=frozenset({"batches"}), verify=True)
    rows = StoreReader(options).table().to_pylist()
    assert {
        (row["queue"], row["queue_offset"]): (row["body_size"], row["keys"], row["tag_hash"])
        for row in rows
    } == {
        place: (len(each.body), each.keys, tags_code(each.tags))
        for place, each in written_batches().items()
    }
    assert {(row["gap"], row["crc_ok"], row["sys_flag"]) for row in rows} == {(None, True, 0)}


def test_queues_of_rocketmqs_batches_are_rebuilt_byte_for_byte(theirs: Path) -> None:
    before = queue_files(theirs)
    assert len(before) > QUEUES
    shutil.rmtree(theirs / "batchconsumequeue")
    command("store", "rebuild", "--store", theirs)
    assert queue_files(theirs) == before
    verified(theirs)


async def test_a_node_serves_and_continues_the_batch_topic_of_rocketmq(theirs: Path) -> None:
    expected = written_batches()
    with Node(theirs.parent, store=SHAPE) as node:
        assert node.store_dir == theirs
        before = queue_files(theirs)
        node.start()
        node.wait_ready()
        async with tidemark.connect(node.api_url) as mq:
            assert (await mq.topic("batches")).queue_type == "batch"
            for queue in range(QUEUES):
                found = [message async for message in mq.read("batches", queue)]
                assert [
                    Expected(each.body, " ".join(each.keys), each.tags or "", each.flag)
                    for each in found
                ] == [message for place, message in expected.items() if place[0] == queue]
                assert [each.queue_offset for each in found] == list(range(len(found)))
                inside = await mq.pull("batches", queue, 5)
                assert inside.messages[0] == found[5]
                sent = await mq.send_many("batches", [b"ours"] * 3, queue=queue)
                assert [each.queue_offset for each in sent] == [
                    len(found) + index for index in range(3)
                ]
            (by_key,) = {
                each.physical_offset for each in await mq.messages_by_key("batches", "b10")
            }
            assert by_key == found[0].physical_offset
        assert node.stop() == {"broker": 0, "reput": 0}
        after = queue_files(theirs)
        for name, content in before.items():
            assert after[name].startswith(content.rstrip(b"\0")), name
        assert verified(theirs)["units"] >= COUNT + COUNT // 10 + QUEUES


@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_rocketmq_reads_our_batches_and_we_go_on_after_its(tmp_path: Path, end: str) -> None:
    classpath()
    rng = random.Random(21)
    with Node(tmp_path / "node", store={"record_crc": False, **SHAPE}) as node:
        node.start()
        node.wait_ready()
        sent: dict[tuple[int, int], NewMessage] = {}
        async with tidemark.connect(node.api_url) as mq:
            await mq.create_topic("batches", queues=QUEUES, queue_type="batch")
            await mq.create_topic("orders", queues=1)
            for number in range(150):
                await mq.send("orders", b"single")
                messages = [
                    NewMessage(
                        rng.randbytes(rng.randrange(300)),
                        tags=rng.choice(("red", "blue", None)),
                        keys=[f"k{number}.{index}"],
                        flag=index,
                        queue=number % QUEUES,
                    )
                    for index in range(rng.randint(1, 12))
                ]
                for each, result in zip(
                    messages, await mq.send_many("batches", messages), strict=True
                ):
                    sent[result.queue, result.queue_offset] = each
        ends = {queue: sum(place[0] == queue for place in sent) for queue in range(QUEUES)}
        wait_until(
            lambda: node.metric("reput", "tidemark_dispatch_lag_bytes") == 0, "all to be dispatched"
        )
        if end == "killed":
            # RocketMQ loads a batch queue only if topics.json says that its topic has such queues.
            topics_json = node.store_dir / "config" / "topics.json"
            wait_until(
                lambda: topics_json.exists() and "BatchCQ" in topics_json.read_text(),
                "the topic to be written for RocketMQ",
            )
            node.kill()
        else:
            assert node.stop() == {"broker": 0, "reput": 0}
        records = [each for each in dump(node.store_dir) if each["topic"] == "batches"]
        places = {
            key: each["physical_offset"]
            for each in records
            for key in (each["unique_id"], *each["keys"])
        }

        lines = judge(node.store_dir, tmp_path, SHAPE)

        check_units(lines, records)
        check_pulls(lines, records)
        assert {
            (int(queue), int(offset)): (body, int(flag), tags, keys)
            for _, topic, queue, offset, body, flag, tags, keys in of(lines, "part")
        } == {
            place: (
                hashlib.sha256(each.body).hexdigest(),
                each.flag,
                each.tags or "null",
                " ".join(each.keys),
            )
            for place, each in sent.items()
        }
        found = {line[2]: line[3] for line in of(lines, "found") if line[1] == "batches"}
        assert found.keys() >= {key for each in sent.values() for key in each.keys}
        # RocketMQ indexes the last record of an index file again when it finds an abort marker.
        twice = {key for key, copies in found.items() if copies == "2"}
        assert set(found.values()) - {"2"} == {"1"}
        assert len({places[key] for key in twice}) <= (end == "killed")
        (put,) = (line for line in of(lines, "put") if line[1] == "batches")
        assert put[2:5] == ["0", "PUT_OK", str(ends[0])]

        node.start()
        node.wait_ready()
        async with tidemark.connect(node.api_url) as mq:
            bodies = [message.body async for message in mq.read("batches", 0)]
            assert bodies == [
                *(each.body for place, each in sent.items() if place[0] == 0),
                *(b"probe-%d" % number for number in range(PROBES)),
            ]
            again = await mq.send("batches", b"ours again", queue=0)
            assert again.queue_offset == ends[0] + PROBES
        assert node.stop() == {"broker": 0, "reput": 0}
        verified(node.store_dir)


def of(lines: list[list[str]], kind: str) -> list[list[str]]:
    """The lines of one kind."""
    return [line for line in lines if line[0] == kind]


def check_units(lines: list[list[str]], records: list[dict[str, Any]]) -> None:
    """RocketMQ's units of our batches are their records; times lead to them."""
    assert sorted(line[2:10] for line in of(lines, "unit")) == sorted(
        [
            str(record["queue"]),
            str(record["queue_offset"]),
            str(record["batch_size"]),
            str(record["physical_offset"]),
            str(record["size"]),
            str(tags_code(record["tags"])),
            record["message_id"],
            record["unique_id"],
        ]
        for record in records
    )
    times = {(each["queue"], each["queue_offset"]): each["store_timestamp_ms"] for each in records}
    for _, _, queue, base, *_, by_time in of(lines, "unit"):
        assert times[int(queue), int(base)] == times[int(queue), int(by_time)]


def check_pulls(lines: list[list[str]], records: list[dict[str, Any]]) -> None:
    """A pull of RocketMQ from each queue offset of a batch returns the whole batch."""
    expected = {
        (record["queue"], offset): (
            record["queue_offset"] + record["batch_size"],
            record["batch_size"],
        )
        for record in records
        for offset in range(record["queue_offset"], record["queue_offset"] + record["batch_size"])
    }
    assert {
        (int(queue), int(offset)): (int(after), int(count))
        for _, _, queue, offset, status, after, count in of(lines, "pull")
        if status == "FOUND"
    } == expected


def test_rocketmq_begins_at_the_same_batch_when_the_first_log_file_is_gone(tmp_path: Path) -> None:
    classpath()
    # RocketMQ finds the minimum in the first queue file only.
    settings = replace(CONFIG, record_crc=False, consume_queue_file_size=2000)
    small = SmallStore(tmp_path / "store", settings)
    for number in range(60):
        small.put_batch([b"%d" % number] * (1 + number % 5))
    small.dispatch(durable=True)
    log = CommitLogReader(small.store, small.positions)
    least = ConsumeQueueReader(small.store, "batches", 0, log).min_offset(
        CONFIG.commit_log_file_size
    )
    small.close(clean=True)
    small.log_file().unlink()
    topics = {"batches": TopicEntry("batches", 1, 1, attributes={"queue.type": "BatchCQ"})}
    text = metadata_json.topics_text(TopicsTable(DataVersion(0, 0, 0), topics))
    config = small.store.root / "config"
    config.mkdir(exist_ok=True)
    (config / "topics.json").write_text(text, encoding="utf-8")

    lines = judge(small.store.root, tmp_path, settings.sizes)

    assert of(lines, "queue") == [["queue", "batches", "0", str(least), "180"]]
    before, first, *_ = of(lines, "pull")
    assert before[3:6] == [str(least - 1), "OFFSET_TOO_SMALL", str(least)]
    assert first[3:5] == [str(least), "FOUND"]
