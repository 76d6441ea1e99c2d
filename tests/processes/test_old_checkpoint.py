"""An older copy of the checkpoint is restored: that costs time, and never a message."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.support.damage_judge import Acked, Judge, send
from tests.support.node import Node, wait_until

FLAG_AT = 16
"""Of a record: covered by the record's CRC only."""


def start(node: Node) -> None:
    node.start()
    node.wait_ready()


def stop(node: Node) -> None:
    assert node.stop("broker") == {"broker": 0}
    assert node.stop("reput") == {"reput": 0}


def put_old_page_back(node: Node, tmp_path: Path, *, killed: bool) -> list[Acked]:
    """Send 60, stop, keep the page; send 30 more, stop, put the page back; return all that was
    acked."""
    checkpoint, kept = node.store_dir / "checkpoint", tmp_path / "kept"
    start(node)
    status, answer = node.request_json("PUT", "/v1/topics/orders", {"queues": 1})
    assert status in (200, 201), answer
    acked = send(node, "orders", 0, 60, "first", 200)
    stop(node)
    shutil.copyfile(checkpoint, kept)
    start(node)
    acked += send(node, "orders", 0, 30, "later", 200)
    assert len(acked) == 90
    if killed:
        wait_until(
            lambda: node.metric("reput", "tidemark_dispatch_lag_bytes") == 0,
            "everything dispatched",
        )
        node.kill()
    else:
        stop(node)
    shutil.copyfile(kept, checkpoint)
    return acked


def _answers(node: Node, role: str) -> bool:
    return bool(node.ready(role))


def begin(node: Node, order: tuple[str, ...]) -> None:
    """Start the services one after the other, the second once the first has answered."""
    for role in order:
        node.start(role)
        wait_until(partial(_answers, node, role), f"{role} to answer")


@pytest.mark.parametrize("order", [("reput", "broker"), ("broker", "reput")])
@pytest.mark.parametrize("killed", [False, True])
def test_a_damaged_record_behind_it_is_named_and_no_message_is_cut(
    tmp_path: Path, order: tuple[str, ...], *, killed: bool
) -> None:
    """Reput resumed by the old page and zeroed the units that prove what was flushed; the broker
    cut 20 acknowledged messages as a torn tail, was ready, and used their queue offsets again. In
    the other order the range counted as RocketMQ's, and the flipped byte was served."""
    with Node(tmp_path, store={"commit_log_file_size": 1 << 20}) as node:
        acked = put_old_page_back(node, tmp_path, killed=killed)
        log = node.store_dir / "commitlog" / ("0" * 20)
        sound = log.read_bytes()
        at = acked[69].physical_offset + FLAG_AT + 3
        log.write_bytes(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :])
        judge = Judge(node)
        begin(node, order)
        seen = judge.settle(acked)
        assert not seen.is_complete
        assert judge.check_named(seen.named) == "corrupt-record"
        assert str(acked[69].physical_offset) in seen.named
        assert not (node.store_dir / "cut").exists()
        node.kill()
        log.write_bytes(sound)  # the first remedy in the message: a valid copy of the file
        begin(node, order)
        assert judge.settle(acked).is_complete
        node.wait_ready("broker")  # reads open a moment before sends
        more = send(node, "orders", 0, 3, "more", 200)
        assert [one.place[2] for one in more] == [90, 91, 92]


@pytest.mark.parametrize("order", [("reput", "broker"), ("broker", "reput")])
def test_a_sound_log_is_served_to_its_end(tmp_path: Path, order: tuple[str, ...]) -> None:
    with Node(tmp_path, store={"commit_log_file_size": 1 << 20}) as node:
        acked = put_old_page_back(node, tmp_path, killed=False)
        begin(node, order)
        assert Judge(node).settle(acked).is_complete
        node.wait_ready("broker")  # reads open a moment before sends
        (more,) = send(node, "orders", 0, 1, "more", 200)
        assert more.place[2] == 90
        assert "foreign-range" not in node.log_text("broker")
