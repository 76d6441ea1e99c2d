"""A group of nodes in one terminal: services killed, all of it killed, Ctrl-C, started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import tidemark as sdk
from tests.support.command import tidemark
from tests.support.dev import Dev, is_gone
from tests.support.etcd import require_etcd
from tests.support.node import wait_until
from tidemark.testing.ports import free_ports

SERVICES: Final = ("broker", "reput", "ha")


@contextlib.contextmanager
def running(store: Path, port: int, *arguments: str) -> Iterator[Dev]:
    dev = Dev(store, port, *arguments, nodes=2)
    try:
        dev.wait_for("Stop with Ctrl-C")
        yield dev
    except AssertionError:
        print(dev.said)
        raise
    finally:
        dev.close()


def test_a_group_in_a_terminal_survives_kills_and_is_found_again(tmp_path: Path) -> None:
    store, port = tmp_path / "group", free_ports(15)[0]
    url = f"http://127.0.0.1:{port},http://127.0.0.1:{port + 10}"
    with running(store, port) as dev, sdk.connect_sync(url.split(",")) as mq:
        wait_until(lambda: mq.send("first", b"").level == "replicated", "the set of two")
        mq.send("orders", b"1")
        assert len(dev.children) == 6
        for service in SERVICES:
            killed = dev.child(service, "n0")
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            assert mq.send("orders", service.encode()).queue_offset >= 0
            dev.wait_for(f"n0 {service} ended with status -9; restarting it")
        wait_until(lambda: len(dev.children) == 6, "all services to run again")

        # However the parent ends, nothing of it is left, and the next one finds the group.
        pids = list(dev.children)
        dev.stop(signal.SIGKILL)
        wait_until(lambda: all(map(is_gone, pids)), "the services to end")
    with running(store, port) as dev:
        lines = tidemark("consume", "orders", "--url", url).splitlines()
        assert sorted(lines) == sorted([b"1", *(service.encode() for service in SERVICES)])
        shown = tidemark("cluster", "status", "--url", url).decode()
        assert "with all messages acknowledged as replicated" in shown
        # The epochs had neither node nor time.
        epochs = json.loads(tidemark("cluster", "history", "-o", "json", "--url", url))
        assert {epoch["node"] for epoch in epochs} <= {"n0", "n1"}
        began_ms = [epoch["at_ms"] for epoch in epochs]
        assert began_ms == sorted(began_ms)
        assert epochs[-1]["node"] in shown
        assert dev.stop() == 0
        assert "Traceback" not in dev.said


def test_a_group_with_its_lease_in_etcd_finds_it_again(tmp_path: Path) -> None:
    require_etcd()
    store, port = tmp_path / "group", free_ports(15)[0]
    for epoch in (1, 2):
        with running(store, port, "--lease", "etcd") as dev:
            url = f"http://127.0.0.1:{port},http://127.0.0.1:{port + 10}"
            shown = json.loads(tidemark("cluster", "status", "-o", "json", "--url", url))
            assert shown["epoch"] >= epoch
            with sdk.connect_sync(url.split(",")) as mq:
                assert mq.send("orders", b"1").queue_offset >= 0
            assert dev.stop() == 0
        assert (store / "etcd" / "member").is_dir()
        assert not (store / "lease").exists()
