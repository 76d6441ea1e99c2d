"""A store that Tidemark wrote opens with Apache RocketMQ's own classes, and answers the same.

The program in tests/referee opens the directory with RocketMQ's message store, reads every message
through its queues, searches unique ids, puts a few messages of its own and closes. Afterwards
Tidemark opens what RocketMQ left. `make referee` builds the program.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from pathlib import Path

import pytest

import tidemark
from tests.support.command import dump
from tests.support.command import tidemark as command
from tests.support.node import Node, wait_until
from tests.support.referee import PROBES, classpath, judge, refused
from tests.support.samples import fill
from tidemark.formats.filenames import RUNNING_SIGN

ROLLED_STORE = {
    "commit_log_file_size": 1 << 17,
    "consume_queue_file_size": 2_000,
    "index_slots": 40,
    "index_entries": 300,
}
"""So small that the log, every queue and the index lie in several files."""


async def test_rocketmq_reads_all_that_tidemark_wrote_and_tidemark_goes_on_after_it(
    tmp_path: Path,
) -> None:
    classpath()
    with Node(tmp_path / "node", store={"record_crc": False}) as node:
        node.start()
        node.wait_ready()
        sent = await fill(node.api_url, seed=77, requests=400, topics=("alpha", "beta"))
        async with tidemark.connect(node.api_url) as mq:
            await mq.create_topic("deleted", queues=2)
            await mq.send_many("deleted", [b"%d" % number for number in range(20)])
            await mq.delete_topic("deleted")
        assert node.stop("broker") == {"broker": 0}
        assert node.stop("reput") == {"reput": 0}
        ours = {record["physical_offset"]: record for record in dump(node.store_dir)}
        ends = [record["physical_offset"] + record["size"] for record in ours.values()]

        lines = judge(node.store_dir, tmp_path)

        log = next(line for line in lines if line[0] == "log")
        assert [int(field) for field in log[1:]] == [0, max(ends)]
        assert {line[1]: line[2:] for line in lines if line[0] == "topic"}.items() >= {
            "alpha": ["4", "4", "6"],
            "beta": ["4", "4", "6"],
        }.items()
        read = {int(line[4]): line for line in lines if line[0] == "message"}
        # A deleted topic's records are in the log until that expires, and in no queue.
        ours = {at: record for at, record in ours.items() if record["topic"] != "deleted"}
        assert set(read) == set(ours)
        for at, (_, topic, queue, queue_offset, _, size, body, unique, message_id, _) in (
            (at, line[:10]) for at, line in read.items()
        ):
            record = ours[at]
            assert (topic, int(queue), int(queue_offset), int(size), body, message_id) == (
                record["topic"],
                record["queue"],
                record["queue_offset"],
                record["size"],
                record["body_sha256"],
                record["message_id"],
            )
            assert unique == str(record["unique_id"] or "null")
        found = [int(line[3]) for line in lines if line[0] == "found"]
        assert found, "no unique id was looked up"
        assert set(found) == {1}
        by_place = {
            (one.topic, one.queue, one.queue_offset): hashlib.sha256(one.body).hexdigest()
            for one in sent
        }
        assert (
            by_place.items()
            <= {(line[1], int(line[2]), int(line[3])): line[6] for line in read.values()}.items()
        )

        # Its queue offsets go on where ours ended, and ours where it ended.
        put = [line for line in lines if line[0] == "put"]
        assert {line[3] for line in put} == {"PUT_OK"}
        next_offset = {
            (line[1], int(line[2])): int(line[4]) for line in lines if line[0] == "queue"
        }
        for topic in ("alpha", "beta"):
            mine = [line for line in put if line[1] == topic]
            first = next_offset[topic, int(mine[0][2])]
            assert [int(line[4]) for line in mine] == list(range(first, first + PROBES))

        node.start()
        node.wait_ready()
        async with tidemark.connect(node.api_url) as mq:
            for topic in ("alpha", "beta"):
                mine = [line for line in put if line[1] == topic]
                probed, first = int(mine[0][2]), int(mine[0][4])
                pulled = await mq.pull(topic, probed, first)
                assert [message.body for message in pulled.messages] == [
                    b"probe-%d" % number for number in range(PROBES)
                ]
                again = await mq.send(topic, b"ours again", queue=probed)
                assert again.queue_offset == first + PROBES
        assert node.stop("broker") == {"broker": 0}
        assert node.stop("reput") == {"reput": 0}
        command("store", "verify", "--store", node.store_dir)


def _index_end_offsets(store_dir: Path) -> set[int]:
    """Physical offset of the last record in each index file."""
    files = (store_dir / "index").iterdir()
    return {struct.unpack_from(">q", path.read_bytes(), 24)[0] for path in files}


def _unique_ids_at(store_dir: Path, offsets: set[int]) -> set[str]:
    records = dump(store_dir)
    return {record["unique_id"] for record in records if record["physical_offset"] in offsets}


def _count(directory: Path) -> int:
    return len(list(directory.iterdir()))


@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_rocketmq_reads_a_store_of_many_files_however_tidemark_ended(
    tmp_path: Path, end: str
) -> None:
    """Every border of a file is one at which two implementations can differ.

    killed: RocketMQ finds ``abort``, believes of the checkpoint only its timestamps (8.3), walks
    the log from there and cuts what it takes for a torn tail; of what was acked nothing may go.
    """
    classpath()
    with Node(tmp_path / "node", store={"record_crc": False, **ROLLED_STORE}) as node:
        node.start()
        node.wait_ready()
        sent = await fill(node.api_url, seed=5, requests=300, topics=("alpha", "beta"))
        wait_until(
            lambda: node.metric("reput", "tidemark_dispatch_lag_bytes") == 0, "all to be dispatched"
        )
        if end == "killed":
            node.kill()
            assert (node.store_dir / "abort").exists()
        else:
            assert node.stop("broker") == {"broker": 0}
            assert node.stop("reput") == {"reput": 0}
            assert not (node.store_dir / "abort").exists()
        for directory in ("commitlog", "consumequeue/alpha/0", "index"):
            assert _count(node.store_dir / directory) > 2, directory
        last_of_index_files = _unique_ids_at(node.store_dir, _index_end_offsets(node.store_dir))

        lines = judge(node.store_dir, tmp_path, ROLLED_STORE)

        read = {
            (line[1], int(line[2]), int(line[3])): line for line in lines if line[0] == "message"
        }
        for one in sent:
            line = read[one.topic, one.queue, one.queue_offset]
            assert (int(line[4]), line[6]) == (
                one.physical_offset,
                hashlib.sha256(one.body).hexdigest(),
            )
        found = {line[2]: int(line[3]) for line in lines if line[0] == "found"}
        assert set(found.values()) <= {1, 2}
        # RocketMQ walks the log behind an abort, and indexes the last record of the index file that
        # it goes on with once more (its check lets an equal offset pass).
        twice = {unique_id for unique_id, copies in found.items() if copies == 2}
        assert len(twice) <= (end == "killed")
        assert twice <= last_of_index_files
        put = [line for line in lines if line[0] == "put"]
        assert {line[3] for line in put} == {"PUT_OK"}
        ends = {(line[1], int(line[2])): int(line[4]) for line in lines if line[0] == "queue"}
        assert [int(line[4]) for line in put if line[1] == "alpha"] == list(
            range(ends["alpha", 0], ends["alpha", 0] + PROBES)
        )

        node.start()
        node.wait_ready()
        async with tidemark.connect(node.api_url) as mq:
            for topic in ("alpha", "beta"):
                again = await mq.send(topic, b"ours again", queue=0)
                assert again.queue_offset == ends[topic, 0] + PROBES
        assert node.stop("broker") == {"broker": 0}
        assert node.stop("reput") == {"reput": 0}
        command("store", "verify", "--store", node.store_dir)


async def test_a_broker_started_on_a_store_in_use_is_refused_before_it_changes_a_file(
    tmp_path: Path,
) -> None:
    """RocketMQ recovers before it takes the lock: it removed the preallocated log files, even the
    one that was in use by then, and the index files. The node ended with log-file-replaced, and its
    next start was refused.
    """
    classpath()
    with Node(tmp_path / "node", store={"record_crc": False, **ROLLED_STORE}) as node:
        node.start()
        node.wait_ready()
        sent = await fill(node.api_url, seed=9, requests=50, topics=("alpha",))
        assert (node.store_dir / "commitlog" / RUNNING_SIGN).exists()
        before = {
            path: path.stat().st_ino
            for folder in ("commitlog", "index")
            for path in (node.store_dir / folder).iterdir()
        }
        says = asyncio.create_task(
            asyncio.to_thread(refused, node.store_dir, tmp_path, ROLLED_STORE)
        )
        while not says.done():
            sent += await fill(node.api_url, seed=len(sent), requests=20, topics=("alpha",))
        assert "the store did not load" in await says
        assert {path: path.stat().st_ino for path in before} == before
        sent += await fill(node.api_url, seed=8, requests=50, topics=("alpha",))
        assert node.stop() == {"broker": 0, "reput": 0}
        stored = {record["physical_offset"]: record for record in dump(node.store_dir)}
        for one in sent:
            digest = stored[one.physical_offset]["body_sha256"]
            assert digest == hashlib.sha256(one.body).hexdigest()
        command("store", "verify", "--store", node.store_dir)
