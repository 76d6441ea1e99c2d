"""A drained node refuses producers and no one else, also after a restart."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tidemark
from tests.support.node import wait_until
from tidemark.cli.main import cli
from tidemark.errors import Drained, UnknownBrokerGroup
from tidemark.testing import LocalStore

LEVELS = {"store.delay_levels": "1s 2s"}


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cluster", *arguments, "--output", "json"])


def called(store: LocalStore, method: str) -> dict[str, Any]:
    request = urllib.request.Request(f"{store.url}/v1/drain", method=method)
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_a_drained_node_refuses_sends_until_that_is_ended(tmp_path: Path) -> None:
    with (
        LocalStore(tmp_path, settings=LEVELS) as store,
        tidemark.connect_sync(store.url) as mq,
    ):
        mq.create_topic("orders", queues=1)
        mq.send("orders", b"before")
        mq.send("orders", b"later", delay_ms=1500)
        assert called(store, "GET") == {"draining": False, "since_ms": None}
        began = called(store, "PUT")
        assert began["since_ms"] > 0
        assert began == {"draining": True, "since_ms": began["since_ms"], "changed": True}
        assert called(store, "PUT") == {**began, "changed": False}
        with pytest.raises(Drained, match="takes no messages") as refused:
            mq.send("orders", b"refused")
        assert refused.value.drained_since_ms == began["since_ms"]
        with pytest.raises(Drained):
            mq.send_many("orders", [b"refused"] * 2)
        left = mq.left()
        assert (left.groups, left.delayed, left.is_empty) == ({}, 1, False)
        # Consumers go on: a nack and a delayed delivery are appended.
        got = []
        with mq.subscribe("orders", group="billing") as messages:
            for message in messages:
                got.append(message.body)
                if got == [b"before"]:
                    messages.nack(message)
                if len(got) == 3:
                    break
        assert sorted(got) == [b"before", b"before", b"later"]
        wait_until(lambda: mq.left().is_empty, "an empty broker group")
    with (
        LocalStore(tmp_path, settings=LEVELS) as store,
        tidemark.connect_sync(store.url) as mq,
    ):
        with pytest.raises(Drained):
            mq.send("orders", b"refused")
        assert called(store, "GET") == {"draining": True, "since_ms": began["since_ms"]}
        ended = {"draining": False, "since_ms": None}
        shown = ran("drain", "--dry-run", "--url", store.url)
        assert shown.exit_code == 0
        assert '"drained_since": "' in shown.stdout
        assert '"empty": true' in shown.stdout
        assert "nothing was changed" in ran("drain", "--url", store.url).stderr
        with pytest.raises(UnknownBrokerGroup):
            mq.drain("g7")
        assert ran("undrain", "--url", store.url).exit_code == 0
        assert called(store, "DELETE") == {**ended, "changed": False}
        mq.send("orders", b"after")
        bodies = [each.body for each in mq.pull("orders", 0, 0, wait_ms=5000).messages]
        assert b"refused" not in bodies


def test_routes_of_a_drained_node_are_not_writable(tmp_path: Path) -> None:
    def route(query: str = "") -> dict[str, Any]:
        with urllib.request.urlopen(f"{store.url}/v1/route/orders{query}") as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    with LocalStore(tmp_path) as store, ThreadPoolExecutor() as pool:
        with tidemark.connect_sync(store.url) as mq:
            mq.create_topic("orders", queues=3)
        before = route()
        held = pool.submit(route, f"?after={before['version']}&wait_ms=20000")
        called(store, "PUT")
        (group,) = held.result()["groups"]
        assert (group["queues"], group["readable"], group["writable"]) == (3, True, False)
        called(store, "DELETE")
        assert route() == before
