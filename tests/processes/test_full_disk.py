"""A full disk, also at start, and a read-only one: clear errors, reads go on, writes come back.

Needs a small file system of its own, so it needs the right to mount one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemark
from shared.runtime.run_dir import usable_run_dir
from tests.support.node import Node, wait_until
from tests.support.small_disk import MIB, mounted
from tidemark.errors import TidemarkError


@pytest.fixture(params=["ext4", "tmpfs"])
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of 32 MiB.

    tmpfs as well as ext4: there, reading a hole through a mapping takes a page, and on a full one
    the reader died of SIGBUS when it looked for the end of a queue in its sparse file.
    """
    with mounted(request.param, tmp_path, 32 * MIB) as disk:
        yield disk


def _fill(disk: Path) -> None:
    """Take all that is left, to the last block."""
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        for size in (MIB, 4096):
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(size))
    assert os.statvfs(disk).f_bavail < 8


def _remount_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def _node(tmp_path: Path, disk: Path, *, run_dir: Path | None = None) -> Node:
    # Queue files of the usual size: mostly holes. A full disk refuses messages here; whether it
    # accepts some is tested in test_retention_full_disk.
    run = {} if run_dir is None else {"run_dir": str(run_dir)}
    return Node(
        tmp_path / "node",
        store_dir=disk / "store",
        store={"consume_queue_file_size": 6_000_000},
        broker={"clean_file_forcibly": False, **run},
        reput=run,
    )


async def _send_until_refused(url: str) -> tuple[int, TidemarkError]:
    """(messages acked, the refusal)."""
    acked = 0
    async with tidemark.connect(url) as mq:
        while acked < 100:
            try:
                await mq.send("alpha", bytes(MIB // 2), queue=0)
            except TidemarkError as refused:
                return acked, refused
            acked += 1
    raise AssertionError("the disk never filled")


async def _bodies(url: str, count: int) -> int:
    """How many of the first count messages of the queue can be read."""
    found = 0
    async with tidemark.connect(url) as mq:
        while found < count:
            # Acked messages are in the log: reput may not have dispatched them yet.
            pulled = await mq.pull("alpha", 0, found, wait_ms=10_000)
            if not pulled.messages:
                break
            found += len(pulled.messages)
    return found


async def test_a_full_disk_refuses_sends_serves_reads_and_recovers_by_itself(
    tmp_path: Path, small_disk: Path
) -> None:
    ballast = small_disk / "ballast"
    with _node(tmp_path, small_disk) as node:
        node.start()
        node.wait_ready()
        async with tidemark.connect(node.api_url) as mq:
            await mq.create_topic("alpha", queues=1)
        ballast.write_bytes(bytes(8 * MIB))
        acked, refused = await _send_until_refused(node.api_url)
        assert (refused.code, refused.status, refused.retriable) == ("disk-full", 507, True)
        assert str(small_disk) in refused.detail
        assert any(digit in refused.detail for digit in "0123456789")
        assert await _bodies(node.api_url, acked) == acked

        ballast.unlink()

        def sends_again() -> bool:
            body = {"messages": [{"body_text": "after", "queue": 0}]}
            status, answer = node.request_json("POST", "/v1/topics/alpha/messages", body)
            if status != 200:
                return False
            assert answer["results"][0]["queue_offset"] == acked
            return True

        wait_until(sends_again, "writes to come back by themselves", 30)


async def test_a_node_starts_on_a_full_disk_and_serves_what_it_has(
    tmp_path: Path, small_disk: Path
) -> None:
    with _node(tmp_path, small_disk) as node:
        node.start()
        node.wait_ready()
        async with tidemark.connect(node.api_url) as mq:
            await mq.create_topic("alpha", queues=1)
            for number in range(10):
                await mq.send("alpha", b"%d" % number, queue=0)
        assert node.stop("broker") == {"broker": 0}
        assert node.stop("reput") == {"reput": 0}
        _fill(small_disk)

        node.start()
        wait_until(
            lambda: (
                node.request_json("GET", "/v1/topics/alpha/queues/0/messages?offset=0")[0] == 200
            ),
            "reads on a full disk",
        )
        assert await _bodies(node.api_url, 10) == 10
        (small_disk / "ballast").unlink()
        node.wait_ready()
        async with tidemark.connect(node.api_url) as mq:
            assert (await mq.send("alpha", b"after", queue=0)).queue_offset == 10


async def test_a_node_starts_on_a_read_only_disk_and_serves_reads(
    tmp_path: Path, small_disk: Path
) -> None:
    # As by default: run_dir is in the store, and refuses sockets and locks like everything there.
    # Both processes ended on run/lock, although everything stored could be read.
    with _node(tmp_path, small_disk, run_dir=small_disk / "store" / "run") as node:
        node.start()
        node.wait_ready()
        async with tidemark.connect(node.api_url) as mq:
            await mq.create_topic("alpha", queues=1)
            for number in range(10):
                await mq.send("alpha", b"%d" % number, queue=0)
        assert node.stop("broker") == {"broker": 0}
        assert node.stop("reput") == {"reput": 0}
        _remount_read_only(small_disk)

        node.start()
        wait_until(
            lambda: (
                node.request_json("GET", "/v1/topics/alpha/queues/0/messages?offset=0")[0] == 200
            ),
            "reads on a read-only disk",
        )
        assert await _bodies(node.api_url, 10) == 10
        status, answer = node.request_json(
            "POST", "/v1/topics/alpha/messages", {"messages": [{"body_text": "x"}]}
        )
        assert (status, answer["code"]) == (507, "read-only-disk")
        assert str(small_disk) in answer["detail"]
        shutil.rmtree(usable_run_dir(small_disk / "store" / "run"))
