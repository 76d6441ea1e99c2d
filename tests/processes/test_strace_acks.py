"""Every ack at ``disk`` follows a completed fdatasync of its bytes: seen from the kernel's side.

SIGKILL never loses page cache, so no amount of killing can show this. Here the broker runs under
strace and ``tests/support/strace_acks`` judges the order of its system calls; and with fdatasync
stubbed out the same judge has to object.
"""

from __future__ import annotations

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import offline
from tests.support.node import Node, wait_until
from tests.support.strace_acks import STRACE_ARGUMENTS, Verdict, judge

SENDERS = 4
SENDS = 25
BODY_SIZE = 6000
"""Large enough that the sends cross into another commit log file of 1 MiB."""


class UnsyncedNode(Node):
    """A node whose broker runs without fdatasync."""

    def command(self, role: str) -> list[str]:
        return [
            "tests.support.no_fdatasync" if part == "services.broker" else part
            for part in super().command(role)
        ]


@pytest.fixture(scope="module", autouse=True)
def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            pytest.fail("strace is not installed: apt-get install strace")
        pytest.skip("strace is not installed: apt-get install strace")
    return found


def run_under_strace(node: Node, trace: Path) -> set[int]:
    """Start the node with its broker traced, send from several threads; return the acked physical
    offsets."""
    node.start("reput")
    # -D: the broker stays our own child, so signals and exit status are its own.
    node.start("broker", prefix=("strace", "-D", *STRACE_ARGUMENTS, "-o", str(trace)))
    node.wait_ready()
    assert node.request_json("PUT", "/v1/topics/traced", {"queues": 2})[0] in (200, 201)

    def send(sender: int) -> list[int]:
        offsets: list[int] = []
        for number in range(SENDS):
            count = 1 + (sender + number) % 3
            texts = [f"{sender}.{number}.{index} ".ljust(BODY_SIZE, ".") for index in range(count)]
            status, answer = node.request_json(
                "POST",
                "/v1/topics/traced/messages",
                {"messages": [{"body_text": text} for text in texts], "ack": "disk"},
            )
            assert status == 200, answer
            assert answer["ack"]["level"] == "disk"
            offsets += [result["physical_offset"] for result in answer["results"]]
        return offsets

    with ThreadPoolExecutor(SENDERS) as threads:
        acked = {offset for offsets in threads.map(send, range(SENDERS)) for offset in offsets}
    node.stop("broker", "reput")
    broker = node.pid("broker")
    ended = re.compile(rf"^{broker} +\+\+\+ (?:exited|killed)", re.MULTILINE)
    wait_until(lambda: ended.search(trace.read_text(errors="replace")), "strace to finish")
    return acked


def verdict_of(node: Node, trace: Path) -> Verdict:
    sizes = {int(found.physical_offset): found.size for found in offline.records(node.store_dir)}
    with trace.open(encoding="utf-8", errors="replace") as lines:
        return judge(lines, sizes)


def test_every_ack_at_disk_follows_a_completed_fdatasync_of_its_bytes(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with Node(tmp_path / "node") as node:
        acked = run_under_strace(node, trace)
        verdict = verdict_of(node, trace)
    assert acked <= verdict.acked, "answers that the trace does not show"
    assert len(acked) > SENDERS * SENDS
    assert verdict.violations == ()
    assert verdict.syncs > 1
    assert len(list((node.store_dir / "commitlog").glob("[0-9]*"))) > 1
    print(f"{len(acked)} messages acked, {verdict.syncs} fdatasyncs of the log, all in order")


def test_the_same_judge_objects_to_a_broker_without_fdatasync(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with UnsyncedNode(tmp_path / "node") as node:
        acked = run_under_strace(node, trace)
        verdict = verdict_of(node, trace)
    assert acked <= verdict.acked
    assert verdict.syncs == 0
    assert len(verdict.violations) >= len(acked)
