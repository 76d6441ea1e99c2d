"""Queues, index and checkpoint are derived: if they are deleted, the next start rebuilds them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

import tidemark
from shared.state.records import STATE_TOPIC
from tests.support.node import Node, wait_until
from tests.support.samples import Sent, fill


def _queue_files(store: Path) -> dict[str, str]:
    """Name and digest of every consume queue file."""
    root = store / "consumequeue"
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        # The state's queue grows with every start: each is a record.
        if path.is_file() and path.relative_to(root).parts[0] != STATE_TOPIC
    }


async def _found(url: str, sent: list[Sent]) -> dict[tuple[str, str], list[int]]:
    """Physical offsets found for every key that was sent."""
    async with tidemark.connect(url) as mq:
        return {
            (topic, key): [
                message.physical_offset for message in await mq.messages_by_key(topic, key, max=64)
            ]
            for topic, key in sorted({(one.topic, key) for one in sent for key in one.keys})
        }


def _dispatch_lag(node: Node) -> float | None:
    return node.metric("reput", "tidemark_dispatch_lag_bytes")


def _start(node: Node) -> None:
    node.start()
    node.wait_ready()


def _stop(node: Node) -> None:
    assert node.stop("broker") == {"broker": 0}
    assert node.stop("reput") == {"reput": 0}


@pytest.mark.parametrize("lost", [("consumequeue", "index", "checkpoint"), ("consumequeue/alpha",)])
async def test_deleted_derived_files_come_back_byte_for_byte(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    with Node(tmp_path) as node:
        _start(node)
        sent = await fill(node.api_url, seed=4, requests=300, topics=("alpha", "beta"))
        # Keys of the last messages are found once they are dispatched; sends do not wait for that.
        wait_until(lambda: _dispatch_lag(node) == 0, "reput to have dispatched everything")
        before_keys = await _found(node.api_url, sent)
        _stop(node)
        before = _queue_files(node.store_dir)
        assert len(before) >= 8

        for name in lost:
            path = node.store_dir / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        _start(node)
        assert await _found(node.api_url, sent) == before_keys
        _stop(node)
        assert _queue_files(node.store_dir) == before


async def test_one_deleted_queue_comes_back_and_the_others_stay(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        _start(node)
        sent = await fill(node.api_url, seed=5, requests=60, topics=("alpha",))
        _stop(node)
        before = _queue_files(node.store_dir)
        lost = sorted((node.store_dir / "consumequeue" / "alpha").iterdir())[1]
        shutil.rmtree(lost)
        _start(node)
        in_queue = [one for one in sent if one.queue == int(lost.name)]
        async with tidemark.connect(node.api_url) as mq:
            for one in in_queue:
                pulled = await mq.pull("alpha", one.queue, one.queue_offset, max=1)
                assert [message.body for message in pulled.messages] == [one.body]
            again = await mq.send("alpha", b"next", queue=int(lost.name))
        assert again.queue_offset == len(in_queue)
        _stop(node)
        after = _queue_files(node.store_dir)
        untouched = {name for name in before if not name.startswith(f"alpha/{lost.name}/")}
        assert {name: after[name] for name in untouched} == {
            name: before[name] for name in untouched
        }


async def test_reput_killed_and_started_again_makes_the_same_files(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        _start(node)
        for round_ in range(4):
            await fill(node.api_url, seed=round_, requests=40, topics=("alpha",))
            node.kill("reput")
            node.start("reput")
        node.wait_ready()
        _stop(node)
        before = _queue_files(node.store_dir)
        for name in ("consumequeue", "index"):
            shutil.rmtree(node.store_dir / name)
        (node.store_dir / "checkpoint").unlink()
        _start(node)
        _stop(node)
        assert _queue_files(node.store_dir) == before


async def test_sends_go_on_while_reput_is_down_and_are_dispatched_later(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        _start(node)
        async with tidemark.connect(node.api_url) as mq:
            await mq.create_topic("alpha", queues=1)
            node.kill("reput")
            sent = [await mq.send("alpha", b"%d" % number) for number in range(20)]
            assert [one.queue_offset for one in sent] == list(range(20))
            node.start("reput")
            node.wait_ready("reput")

            wait_until(lambda: _dispatch_lag(node) == 0, "reput to have dispatched everything")
            pulled = await mq.pull("alpha", 0, 0)
        assert [message.body for message in pulled.messages] == [b"%d" % n for n in range(20)]
