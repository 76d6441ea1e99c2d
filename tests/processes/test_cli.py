"""The `tidemark` command with real services behind it, as a newcomer meets it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import tidemark as sdk
from tests.support import golden
from tests.support.command import PROJECT, run, tidemark
from tests.support.dev import Dev, is_gone
from tests.support.node import wait_until
from tidemark.errors import UnknownMessage
from tidemark.testing import LocalNode
from tidemark.testing.ports import free_ports

pytest_plugins = ["tidemark.testing.fixtures"]


PACE_S: Final = 0.05
"""Pause of a sender: on a busy machine a log that grows at full speed is never dumped whole."""
TERMINAL: Final = ("env", "--default-signal=INT")
"""A command with the signals of a terminal. If the tests run in the background of a script, SIGINT
is ignored, and child processes inherit that: two tests then waited for a Ctrl-C without effect."""


@pytest.fixture
def store_dir(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def dev(store_dir: Path) -> Iterator[Dev]:
    running = Dev(store_dir, free_port_of_three())
    try:
        running.wait_for("Stop with Ctrl-C")
        yield running
    except AssertionError:
        print(running.said)
        raise
    finally:
        running.close()


def free_port_of_three() -> int:
    """A port that is free, and the two behind it as well."""
    return free_ports(3)[0]


def objects(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


# -- dev ------------------------------------------------------------------------------------------


def test_dev_serves_what_it_prints_and_stops_clean_on_ctrl_c(dev: Dev, store_dir: Path) -> None:
    assert f"{dev.url}/v1" in dev.said
    if shutil.which("curl"):
        text = dev.said.replace("\\\n", " ")
        commands = re.findall(r"^ *(curl .*)$", text, re.MULTILINE)
        assert len(commands) == 2
        answers = [
            subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout
            for command in commands
        ]
        assert json.loads(answers[0])["ack"] == {"level": "disk", "copies": 1}
    example = dev.said.partition("python -m asyncio):")[2].partition("Stop with")[0]
    code = "import asyncio\nasync def main():\n" + "".join(
        f"  {line}\n" for line in example.splitlines()
    )
    done = subprocess.run(
        [sys.executable, "-c", code + "asyncio.run(main())"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout
    assert dev.stop() == 0
    assert "stopped" in dev.said
    assert "Traceback" not in dev.said
    assert not (store_dir / "abort").exists()


def test_dev_starts_a_killed_service_again_and_nothing_is_lost(dev: Dev) -> None:
    url = ("--url", dev.url)
    tidemark("topic", "create", "lines", "--queues", "1", *url)
    source = Path(__file__)
    tidemark("produce", "lines", "--file", source, *url)
    for service in ("broker", "reput"):
        pid = dev.child(service)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        dev.wait_for(f"{service} ended with status -9")
        wait_until(lambda: dev.child(service) not in (None, pid), f"{service} again")  # noqa: B023
    assert tidemark("consume", "lines", *url) == source.read_bytes()
    tidemark("produce", "lines", "--file", source, *url)
    assert tidemark("consume", "lines", *url) == source.read_bytes() * 2


def test_a_killed_dev_leaves_no_service_behind(dev: Dev) -> None:
    pids = [dev.child("broker"), dev.child("reput")]
    dev.stop(signal.SIGKILL)
    for pid in pids:
        assert pid is not None
        wait_until(lambda: is_gone(pid), "the services to end")  # noqa: B023


def test_dev_opens_a_store_of_other_sizes_that_rocketmq_wrote(tmp_path: Path) -> None:
    # It required the local profile's sizes and refused every store that was made elsewhere.
    store = golden.unpack("cut", tmp_path)
    wanted = golden.manifest("cut")
    # Messages that have waited in it are due by now, and would be delivered behind these ends.
    dev = Dev(store, free_port_of_three(), TIDEMARK_BROKER_DELIVER_DELAYED="false")
    try:
        dev.wait_for("Stop with Ctrl-C")
        with sdk.connect_sync(dev.url) as mq:
            for queue in wanted["queues"]:
                if queue["topic"].startswith(("%RETRY%", "SCHEDULE", "rmq_sys", "RMQ_SYS")):
                    continue
                pulled = mq.pull(queue["topic"], queue["queueId"], queue["maxOffset"])
                assert pulled.max_offset == queue["maxOffset"]
    finally:
        dev.close()


def test_a_second_dev_on_the_same_store_names_the_holder_and_gives_up(
    dev: Dev, store_dir: Path
) -> None:
    second = run("dev", "--store", store_dir, "--port", str(free_port_of_three()), timeout_s=120)
    assert second.returncode == 1
    said = (second.stdout + second.stderr).decode()
    assert "store-locked" in said
    # Whichever of its two services started first.
    assert any(f"process {dev.child(service)}" in said for service in ("broker", "reput"))
    assert "Traceback" not in said


# -- lines, messages, topics ----------------------------------------------------------------------


def test_lines_and_messages_of_a_node(tidemark_node: LocalNode, tmp_path: Path) -> None:
    url = ("--url", tidemark_node.url)
    source = tmp_path / "lines"
    source.write_bytes(b"order=1 \xff\x00\n\nb\r\norder=2 last without end")
    done = run("produce", "lines", "--file", source, "--key-regex", r"order=(\d+)", "--tags", "t",
               "--queue", "1", "-o", "json", *url)  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["lines"], facts["bytes"], facts["level"]) == (4, source.stat().st_size, "disk")
    assert tidemark("consume", "lines", "--from-beginning", *url) == source.read_bytes()
    messages = objects(tidemark("consume", "lines", "--format", "json", *url))
    assert [message["keys"] for message in messages] == [["1"], [], [], ["2"]]

    (found,) = objects(tidemark("message", "find", "lines", "--key", "2", "-o", "json", *url))
    assert found["body_text"] == "order=2 last without end"
    by_id = json.loads(tidemark("message", "get", found["message_id"], "-o", "json", *url))
    by_unique_id = json.loads(tidemark("message", "get", found["unique_id"], "-o", "json", *url))
    assert by_id == by_unique_id == found
    none = run("message", "get", "0" * 32, *url)
    assert none.returncode == 1
    assert b"[unknown-message]" in none.stderr

    queue = ("--queue", "1", *url)
    after = str(messages[-1]["store_timestamp_ms"] + 1)
    assert tidemark("consume", "lines", "--from-time", after, *queue) == b""
    since = str(messages[0]["store_timestamp_ms"])
    assert tidemark("consume", "lines", "--from-time", since, *queue) == source.read_bytes()
    assert tidemark("consume", "lines", "--offset", "2", "--max", "1", *queue) == b"b\r\n"
    # Queue 0 is empty: it was not read, and the mistake remained undetected.
    wrong = run("consume", "lines", "--tags", "a && b", "--queue", "0", *url)
    assert (wrong.returncode, wrong.stdout) == (1, b"")
    assert b"[bad-tags]" in wrong.stderr

    listed = json.loads(tidemark("topic", "list", "-o", "json", *url))
    assert [topic["topic"] for topic in listed] == ["lines"]
    shown = json.loads(tidemark("topic", "show", "lines", "-o", "json", *url))
    assert sum(queue["messages"] for queue in shown) == 4
    tidemark("topic", "delete", "lines", "--yes", *url)
    assert run("topic", "show", "lines", *url).returncode == 1


async def test_a_follower_sees_new_messages_through_a_crash_of_the_node(
    tidemark_node: LocalNode,
) -> None:
    follower = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidemark.cli.main", "consume", "lines", "--follow"),
        *("--from-beginning", "--max", "3", "--url", tidemark_node.url),
        stdout=asyncio.subprocess.PIPE,
    )
    assert follower.stdout is not None
    async with sdk.connect(tidemark_node.url, retry_for_s=60) as mq:
        await mq.send("lines", b"one", queue=0)
        assert await asyncio.wait_for(follower.stdout.readline(), 30) == b"one\n"
        await asyncio.to_thread(tidemark_node.kill)
        await asyncio.to_thread(tidemark_node.start)
        await mq.send("lines", b"two", queue=1)
        assert await asyncio.wait_for(follower.stdout.readline(), 60) == b"two\n"
        await mq.send("lines", b"three", queue=1)
        assert await asyncio.wait_for(follower.stdout.readline(), 30) == b"three\n"
    assert await asyncio.wait_for(follower.wait(), 30) == 0


def test_ctrl_c_ends_a_follower_quietly(tidemark_node: LocalNode) -> None:
    follower = subprocess.Popen(
        [
            *TERMINAL,
            *(sys.executable, "-m", "tidemark.cli.main", "consume", "lines", "--follow"),
            *("--url", tidemark_node.url),
        ],
        cwd=PROJECT,
        stderr=subprocess.PIPE,
    )
    assert follower.stderr is not None
    assert b"does not exist yet" in follower.stderr.readline()
    follower.send_signal(signal.SIGINT)
    assert follower.wait(30) == 0
    assert follower.stderr.read() == b""
    follower.stderr.close()


def test_ctrl_c_ends_a_producer_that_waits_for_input(tidemark_node: LocalNode) -> None:
    producer = subprocess.Popen(
        [
            *TERMINAL,
            *(sys.executable, "-m", "tidemark.cli.main", "produce", "lines"),
            *("--url", tidemark_node.url),
        ],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert producer.stdin is not None
    assert producer.stderr is not None
    producer.stdin.write(b"one\ntwo\n")
    producer.stdin.flush()
    url = ("--url", tidemark_node.url)
    wait_until(lambda: run("consume", "lines", *url).stdout == b"one\ntwo\n", "the lines")
    producer.send_signal(signal.SIGINT)
    assert producer.wait(30) == 130
    said = producer.stderr.read()
    assert b"2 lines were stored" in said
    assert b"Traceback" not in said
    producer.stdin.close()
    producer.stderr.close()


def test_a_reader_that_leaves_early_is_no_error(tidemark_node: LocalNode) -> None:
    url = tidemark_node.url
    with sdk.connect_sync(url) as mq:
        mq.send_many("lines", [b"%d" % number * 100 for number in range(20_000)])
    command = f"{sys.executable} -m tidemark.cli.main consume lines --url {url}"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        cwd=PROJECT,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_facade_works_on_a_node(tidemark_node: LocalNode) -> None:
    with sdk.connect_sync(tidemark_node.url) as mq:
        mq.create_topic("orders", queues=1)
        sent = mq.send("orders", b"hello", tags="new", keys=["order-1"])
        assert (sent.level, sent.copies, sent.queue_offset) == ("disk", 1, 0)
        pulled = mq.pull("orders", 0, 0, wait_ms=10_000)
        (message,) = pulled.messages
        assert message.message_id == sent.message_id
        assert mq.message_by_id(sent.message_id) == message
        assert message.unique_id is not None
        assert mq.message_by_unique_id("orders", message.unique_id) == message
        assert mq.messages_by_key("orders", "order-1") == [message]
        assert mq.messages_by_key("orders", "order-2") == []
        assert mq.pull("orders", 0, 0, tags="other").messages == []
        assert mq.offset_by_time("orders", 0, message.store_timestamp_ms + 1) == 1
        with pytest.raises(UnknownMessage):
            mq.message_by_unique_id("orders", "F" * 32)


# -- store ----------------------------------------------------------------------------------------


def fill(node: LocalNode, count: int = 3000) -> None:
    with sdk.connect_sync(node.url) as mq:
        mq.create_topic("orders", queues=2)
        for start in range(0, count, 500):
            mq.send_many(
                "orders",
                [
                    sdk.NewMessage(b"%d" % n * 20, keys=[f"order-{n}"], queue=n % 2)
                    for n in range(start, start + 500)
                ],
            )


def verified(store: Path) -> dict[str, Any]:
    done = run("store", "verify", "--store", store, "-o", "json")
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if report["damage_count"] else 0), done.stderr
    return report


def test_a_running_node_can_be_dumped_and_verified(tidemark_node: LocalNode) -> None:
    fill(tidemark_node)
    stop = threading.Event()

    def send_on() -> None:
        with sdk.connect_sync(tidemark_node.url) as mq:
            while not stop.wait(PACE_S):
                mq.send_many("orders", [b"more"] * 50)

    sender = threading.Thread(target=send_on)
    sender.start()
    try:
        for _ in range(3):
            report = verified(tidemark_node.store_dir)
            assert report["damages"] == []
            assert report["records"] >= 3000
            dumped = objects(tidemark("store", "dump", "--store", tidemark_node.store_dir))
            assert sum(record["topic"] == "orders" for record in dumped) >= 3000
    finally:
        stop.set()
        sender.join()


def queue_bytes(store: Path) -> dict[str, bytes]:
    root = store / "consumequeue"
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_rebuilding_gives_the_same_queues_and_look_ups(tidemark_node: LocalNode) -> None:
    store = tidemark_node.store_dir
    fill(tidemark_node)
    busy = run("store", "rebuild", "--store", store)
    assert busy.returncode == 1
    assert b"[store-locked]" in busy.stderr
    tidemark_node.stop()
    before = queue_bytes(store)
    assert before
    for options in ((), ("--queues",), ("--index",), ("--topic", "orders")):
        tidemark("store", "rebuild", "--store", store, *options)
        assert queue_bytes(store) == before
        assert verified(store)["damages"] == []
        assert not (store / "abort").exists()
    # Damage in what is derived is found, and mended by a rebuild.
    path = store / "consumequeue" / "orders" / "0" / f"{0:020}"
    with path.open("r+b") as file:
        file.seek(200)
        file.write(b"\x01" * 20)
    assert [damage["byte"] for damage in verified(store)["damages"]] == [200]
    tidemark("store", "rebuild", "--store", store)
    assert queue_bytes(store) == before
    tidemark_node.start()
    with sdk.connect_sync(tidemark_node.url) as mq:
        (found,) = mq.messages_by_key("orders", "order-1234")
        assert found.body == b"1234" * 20
        assert mq.send("orders", b"next", queue=0).queue_offset == 1500


def test_a_damaged_record_stops_the_node_and_a_cut_lets_it_serve_earlier_ones(
    tidemark_node: LocalNode,
) -> None:
    store = tidemark_node.store_dir
    fill(tidemark_node)
    tidemark_node.stop()
    orders = [
        record
        for record in objects(tidemark("store", "dump", "--store", store))
        if record["topic"] == "orders"
    ]
    victim = orders[2000]
    at = victim["physical_offset"]
    size = (store / "commitlog" / f"{0:020}").stat().st_size
    path = store / "commitlog" / f"{at - at % size:020}"
    with path.open("r+b") as file:
        file.seek(at % size + 60)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    explained = tidemark("store", "repair", "--store", store).decode()
    assert f"damage at physical offset {at}" in explained
    assert verified(store)["damage_count"] > 0

    tidemark("store", "repair", "--store", store, "--cut-at", str(at), "--yes")
    report = verified(store)
    assert report["damages"] == []
    assert report["log_end"] == at
    (kept,) = (store / "cut").iterdir()
    assert kept.name.startswith(f"{at:020}-")
    tidemark_node.start()
    with sdk.connect_sync(tidemark_node.url) as mq:
        left = [message.body for queue in (0, 1) for message in mq.read("orders", queue)]
        assert sorted(left) == sorted(b"%d" % n * 20 for n in range(2000))
        assert mq.send("orders", b"next", queue=0).queue_offset == 1000


def test_a_first_message_comes_back_from_a_fresh_node(tmp_path: Path) -> None:
    started = time.monotonic()
    dev = Dev(tmp_path / "store", free_port_of_three())
    try:
        dev.wait_for("Stop with Ctrl-C")
        with sdk.connect_sync(dev.url) as mq:
            mq.send("orders", b"hello", queue=0)
            pulled = mq.pull("orders", 0, 0, wait_ms=10_000)
        assert [message.body for message in pulled.messages] == [b"hello"]
        print(f"first message back after {time.monotonic() - started:.1f} s")
    finally:
        dev.close()
