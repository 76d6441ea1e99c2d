"""``tidemark cluster rotate-secret`` on groups under load: no send is refused and none is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from services.ha.wire.handshake import Identity, Refused
from shared.cluster.group_secret import Fingerprints, RotationStep, fingerprint
from tests.processes.test_replication import make_topic, send_acked, wait_readable
from tests.processes.test_replication_strangers import claimed, dialled
from tests.support.cluster import Cluster
from tests.support.node import wait_until

NEW = b"the new secret of the group"
SWITCH_S = 5.0
"""Longest duration of a planned switch on a busy machine."""


class Load:
    """Sends to one node without repetitions, one after the other."""

    def __init__(self, cluster: Cluster, master: str) -> None:
        self._cluster, self._master = cluster, master
        self._stop = threading.Event()
        self.acked: set[str] = set()
        self.longest_s = 0.0
        self.error: AssertionError | None = None

    def run(self) -> None:
        while not self._stop.is_set() and self.error is None:
            body, began = f"m{len(self.acked)}", time.monotonic()
            try:
                send_acked(self._cluster, self._master, body)
            except AssertionError as error:
                self.error = error
                return
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.acked.add(body)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


def begin(cluster: Cluster, new: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tidemark.cli.main", "cluster", "rotate-secret"),
            *("--new-secret-file", str(new), "--url", cluster.api_url("n0"), *options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out + err


def secret_of(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.status(name)["secret"]
    return found


def prove(cluster: Cluster, secret: bytes, identity: Identity) -> None:
    """Connect to n0 as a peer. Raises Refused."""
    with dialled(cluster, "n0") as peer:
        peer.prove(identity, secret=secret, wanted="n0", nodes=cluster.names)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new"
    path.write_bytes(NEW + b"\n")
    return path


def test_one_command_replaces_the_secret_under_load(tmp_path: Path, new: Path) -> None:
    with Cluster(tmp_path / "cluster", nodes=3, own_secrets=True) as cluster:
        cluster.start()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        make_topic(cluster, master)
        old, epoch = cluster.own_secret("n0").read_bytes(), cluster.epoch()
        load = Load(cluster, master)
        with load.running():
            wait_until(lambda: load.acked or load.error, "the first ack")
            began = time.monotonic()
            key = ("--secret-file", str(cluster.own_secret("n0")))
            said = end(begin(cluster, new, *key))
            took_s = time.monotonic() - began
            assert end(begin(cluster, new, *key)).count("of 3") == 3, "a repetition changes nothing"
            for name in cluster.names:
                if name != master:
                    cluster.restart(name, "ha")
            cluster.wait_in_sync()
        assert load.error is None
        print(
            f"\nrotated in {took_s:.1f} s; {len(load.acked)} sends, longest {load.longest_s:.3f} s"
        )
        assert load.longest_s < SWITCH_S
        assert cluster.epoch() == epoch, "no switch"
        mark = fingerprint(NEW, "test", "g0")
        assert said.count(mark) == 2 * len(cluster.names), said
        for name in cluster.names:
            path = cluster.own_secret(name)
            assert [each.name for each in path.parent.iterdir()] == ["secret"]
            assert (path.read_bytes(), path.stat().st_mode & 0o777) == (NEW, 0o600)
            assert secret_of(cluster, name)["accepts"] == [mark]
        with pytest.raises(Refused, match="wrong-secret"):
            prove(cluster, old, claimed("n1"))
        wait_readable(cluster, master, load.acked)
        cluster.compare_logs()


def test_files_are_changed_by_hand_while_the_command_waits_and_nodes_restart(
    tmp_path: Path, new: Path
) -> None:
    # As in a Kubernetes Secret, which ha cannot write: volumes of pods follow at their own pace.
    with Cluster(tmp_path / "cluster", own_secrets=True) as cluster:
        cluster.start()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        make_topic(cluster, master)
        slave = next(name for name in cluster.names if name != master)
        old, mark = cluster.own_secret("n0").read_bytes(), fingerprint(NEW, "test", "g0")
        command = begin(cluster, new, "--by-hand")
        sent = set()
        for step in RotationStep:
            for name in (master, slave):
                path = cluster.own_secret(name)
                also = path.with_name("secret.also")
                match step:
                    case RotationStep.ACCEPT:
                        also.write_bytes(NEW)
                    case RotationStep.PROVE:
                        also.write_bytes(old)
                        path.write_bytes(NEW)
                    case RotationStep.FORGET:
                        also.unlink()
                wait_until(partial(_done, cluster, name, step, mark), f"{name} to {step.value}")
                # Between a node's step and the other's, a new link is made.
                cluster.restart(slave, "ha")
                cluster.wait_in_sync()
                body = f"{step.value}-{name}"
                assert send_acked(cluster, master, body) == {"level": "replicated", "copies": 2}
                sent.add(body)
        said = end(command)
        assert said.count("of 3") == 3
        wait_readable(cluster, master, sent)
        cluster.compare_logs()


def _done(cluster: Cluster, name: str, step: RotationStep, mark: str) -> bool:
    secret = secret_of(cluster, name)
    if secret["proves"] is None:
        return False  # its ha has just started
    return Fingerprints(secret["proves"], tuple(secret["accepts"])).has_done(step, mark)


def test_a_node_that_does_not_answer_is_named_with_what_it_lacks(tmp_path: Path, new: Path) -> None:
    with Cluster(tmp_path / "cluster", own_secrets=True) as cluster:
        cluster.start()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        slave = next(name for name in cluster.names if name != master)
        cluster.kill(slave, "ha")
        key = cluster.own_secret(master)
        process = begin(cluster, new, "--secret-file", str(key), "--timeout-s", "1")
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert f"{slave} does not accept the new secret yet" in err
        assert key.read_bytes() != NEW
        cluster.start(slave)
        cluster.wait_in_sync()
        end(begin(cluster, new, "--secret-file", str(key)))
        assert key.read_bytes() == NEW
