"""A node that is about to be stopped hands its master role over, as the preStop hook of a pod
does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import tidemark as sdk
from tests.support.dev import Dev
from tests.support.node import wait_until
from tidemark.testing.ports import free_ports

CONTAINERS: Final = 3
"""Each container of a pod has the hook, and all are run at the same time."""


def begin(run_dir: Path, timeout_s: int = 60) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tidemark.cli.main", "cluster", "hand-over"),
            *("--run-dir", str(run_dir), "--timeout-s", str(timeout_s), "-o", "json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def end(process: subprocess.Popen[bytes]) -> tuple[int, dict[str, Any]]:
    out, err = process.communicate(timeout=120)
    found: dict[str, Any] = json.loads(out or err)
    return process.returncode, found


def test_all_containers_of_a_master_hand_it_over_once_and_nothing_is_lost() -> None:
    # Not pytest's directory: sockets have short paths.
    with tempfile.TemporaryDirectory(prefix="tm-") as directory:
        store, port = Path(directory), free_ports(15)[0]
        urls = [f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port + 10}"]
        dev = Dev(store, port, nodes=2)
        try:
            dev.wait_for("Stop with Ctrl-C")
            with sdk.connect_sync(urls) as mq:
                wait_until(lambda: mq.send("first", b"").level == "replicated", "the set of two")
                mq.send("orders", b"before")
                mq.send("orders", b"later", delay_ms=3_600_000)
                asked = [begin(store / "n0" / "run") for _ in range(CONTAINERS)]
                during = mq.send("orders", b"during")
                answers = [end(process) for process in asked]
                assert [status for status, _ in answers] == [0] * CONTAINERS, answers
                assert [said["handed_over"] for _, said in answers].count(True) == 1, answers
                assert {said["master"] for _, said in answers} == {"n1"}
                # Again, and on the slave that it is now: nothing to do.
                status, said = end(begin(store / "n0" / "run"))
                assert (status, said["handed_over"], said["master"]) == (0, False, "n1")
                after = mq.send("orders", b"after")
                assert during.queue_offset >= 0
                assert after.queue_offset >= 0

                # Without a candidate it reports that in time, and the node goes on.
                wait_until(lambda: mq.send("orders", b"x").level == "replicated", "the set of two")
                other = dev.child("ha", "n0")
                assert other is not None
                os.kill(other, signal.SIGSTOP)
                wait_until(lambda: mq.send("orders", b"y").level == "disk", "the set of one")
                status, said = end(begin(store / "n1" / "run", timeout_s=5))
                assert (status, said["code"]) == (1, "not-handed-over"), said
                assert mq.send("orders", b"z").level == "disk"
                os.kill(other, signal.SIGCONT)

                # A RocketMQ broker can go on with the store of a master that ended in order, even
                # if another node replaces it meanwhile. One that only stepped down writes nothing.
                wait_until(lambda: mq.send("orders", b"x").level == "replicated", "the set of two")
                assert not (store / "n0" / "timerlog").exists()
                broker = dev.child("broker", "n1")
                assert broker is not None
                os.kill(broker, signal.SIGTERM)
                wait_until((store / "n1" / "timerlog").exists, "the timer's log")
        finally:
            dev.close()
