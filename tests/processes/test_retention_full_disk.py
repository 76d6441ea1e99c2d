"""Retention on a small file system under constant load: never full, oldest first, losses exact.

Delayed messages outlive the files that they were stored in: they are delivered once.

A group's member reads more slowly than the producers write, so that deletion overtakes it again and
again, and another client pulls at the very beginning of a queue. A message is lost if the member
was never handed it; the counter of lost messages must be exactly the number of these messages.

TIDEMARK_RETENTION_SECONDS: how long the load lasts at least. On a busy machine it goes on until
more was sent than the disk holds, so that the result does not depend on the machine's speed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.support.node import Node, wait_until
from tests.support.small_disk import MIB, mounted

SECONDS: Final = float(os.environ.get("TIDEMARK_RETENTION_SECONDS", "8"))
DISK_SIZE: Final = 64 * MIB
QUEUES: Final = 4
BODY: Final = "x" * 2000
PER_SEND: Final = 100
SENDS_PER_S: Final = 60
"""12 MB/s: the disk would be full after five seconds."""
MESSAGES_MIN: Final = 40_000
"""80 MB: more than the disk holds, so that some of it has to go however slowly it comes."""
LATE_S: Final = 1.0
"""If the load lasts so much longer than planned, or begins so late, it may still have run when
delayed messages came: then they have been deleted with the rest."""
FETCHES_PER_S: Final = 20
PER_FETCH: Final = 40
"""The member reads 1.6 MB/s at most,"""
MEMBER_SHARE: Final = 1 / 7
"""and no more than this of what was sent: a slow load overtakes it as well."""
GROUP: Final = "/v1/groups/slow"
SKIPPED: Final = 'tidemark_group_skipped_messages_total{group="slow",topic="load",reason="expired"}'


@pytest.fixture(params=["ext4", "tmpfs"])
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    with mounted(request.param, tmp_path, DISK_SIZE) as disk:
        yield disk


class DiskWatch:
    """Measures the disk and lists the log's files all the time, in a thread."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk
        self._log = disk / "store" / "commitlog"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.fullest = 0.0
        self.samples = 0
        self.first = 0
        self.wrong: list[str] = []

    def __enter__(self) -> DiskWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            facts = os.statvfs(self._disk)
            used = facts.f_blocks - facts.f_bfree
            self.fullest = max(self.fullest, used / (used + facts.f_bavail))
            self.samples += 1
            self._look_at_names()

    def _look_at_names(self) -> None:
        starts = sorted(int(path.name) for path in self._log.glob("[0-9]*"))
        gaps = [b for a, b in itertools.pairwise(starts) if b != a + MIB]
        if gaps:
            self.wrong.append(f"files {starts} are no gapless run")
        if starts[0] < self.first:
            self.wrong.append(f"the log began at {self.first}, then at {starts[0]}")
        self.first = starts[0]


@dataclass
class Ledger:
    """Messages sent and handled, and the answers."""

    acked: int = 0
    refused: list[str] = field(default_factory=list)
    handled: dict[int, set[int]] = field(default_factory=lambda: {q: set() for q in range(QUEUES)})
    jumps: int = 0
    too_small: int = 0
    wrong: list[str] = field(default_factory=list)


async def call(
    http: aiohttp.ClientSession, method: str, path: str, body: object = None
) -> tuple[int, dict[str, Any]]:
    async with http.request(method, path, json=body) as answer:
        return answer.status, await answer.json() if answer.status != 204 else {}


async def load(http: aiohttp.ClientSession, ledger: Ledger, until: float) -> None:
    """Send at a steady pace, whatever the answers, until that time and until enough was sent."""
    next_at, number = time.monotonic(), 0
    while (now := time.monotonic()) < until or number * PER_SEND < MESSAGES_MIN:
        await asyncio.sleep(max(0.0, next_at - now))
        next_at += 1 / SENDS_PER_S
        messages = [{"body_text": BODY, "queue": number % QUEUES} for _ in range(PER_SEND)]
        number += 1
        status, answer = await call(
            http, "POST", "/v1/topics/load/messages", {"messages": messages}
        )
        if status == 200:
            ledger.acked += len(answer["results"])
        else:
            ledger.refused.append(answer["code"])


async def read_slowly(
    http: aiohttp.ClientSession, ledger: Ledger, loading: asyncio.Task[None]
) -> None:
    """The group's only member: slow while there is load, then to the end of every queue."""
    path = f"{GROUP}/members/m1"
    status, joined = await call(
        http, "POST", path, {"subscriptions": [{"topic": "load"}], "session_ms": 600_000}
    )
    assert status == 200, joined
    generation, next_at = joined["generation"], time.monotonic()
    places = dict.fromkeys(range(QUEUES), 0)
    while True:
        is_over = loading.done()
        if not is_over and sum(map(len, ledger.handled.values())) > ledger.acked * MEMBER_SHARE:
            await asyncio.sleep(1 / FETCHES_PER_S)
            continue
        ask = {"generation": generation, "max": 4096 if is_over else PER_FETCH, "wait_ms": 0}
        status, got = await call(http, "POST", f"{path}/fetch", ask)
        assert status == 200, got
        commits, messages = [], 0
        for each in got["queues"]:
            if each["topic"] != "load":
                continue
            queue = each["queue"]
            if each["status"] == "OFFSET_TOO_SMALL":
                ledger.jumps += 1
                if each["next_offset"] <= places[queue]:
                    ledger.wrong.append(f"queue {queue} is to go on at {each['next_offset']}")
                places[queue] = each["next_offset"]
                continue
            for message in each["messages"]:
                if message["queue_offset"] != places[queue]:
                    ledger.wrong.append(
                        f"queue {queue}: {message['queue_offset']} follows {places[queue] - 1}"
                    )
                ledger.handled[queue].add(message["queue_offset"])
                places[queue] = message["queue_offset"] + 1
                messages += 1
            commits.append({"topic": "load", "queue": queue, "offset": places[queue]})
        if commits:
            body = {"member": "m1", "generation": generation, "offsets": commits}
            status, answer = await call(http, "POST", f"{GROUP}/offsets", body)
            assert status == 200, answer
        if is_over and not got["queues"]:
            return
        next_at += 0 if is_over else 1 / FETCHES_PER_S
        await asyncio.sleep(max(0.0, next_at - time.monotonic()))


async def pull_at_the_beginning(
    http: aiohttp.ClientSession, ledger: Ledger, loading: asyncio.Task[None]
) -> None:
    """A reader of deleted messages gets the offset at which to go on, and goes on there."""
    path = "/v1/topics/load/queues/0/messages?max=1&offset="
    while not loading.done():
        _, answer = await call(http, "GET", path + "0")
        if answer["status"] not in ("FOUND", "NO_MESSAGE_IN_QUEUE"):
            if (
                answer["status"] != "OFFSET_TOO_SMALL"
                or answer["next_offset"] != answer["min_offset"]
            ):
                ledger.wrong.append(f"offset 0 got {answer}")
            ledger.too_small += 1
            start = answer["next_offset"]
            _, found = await call(http, "GET", f"{path}{start}")
            fine = (
                found["messages"][0]["queue_offset"] == start
                if found["status"] == "FOUND"
                else found["status"] == "OFFSET_TOO_SMALL" and found["next_offset"] > start
            )
            if not fine:
                ledger.wrong.append(f"offset {start} got {found['status']}")
        await asyncio.sleep(0.05)


async def run_load(url: str, ledger: Ledger, until: float) -> float:
    """Run load and both readers; return how much later than planned the load ended [s]."""
    async with aiohttp.ClientSession(url) as http:
        loading = asyncio.create_task(load(http, ledger, until))
        ended_at: list[float] = []
        loading.add_done_callback(lambda _: ended_at.append(time.monotonic()))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read_slowly(http, ledger, loading))
            tasks.create_task(pull_at_the_beginning(http, ledger, loading))
        await loading
    return ended_at[0] - until


async def send_delayed(node: Node) -> None:
    """Messages whose files go while they wait."""
    messages: list[dict[str, object]] = [
        {"body_text": "by time", "delay_ms": int(SECONDS * 1000) + 2000},
        {"body_text": "soon", "delay_ms": int(SECONDS * 1000)},
        {"body_text": "by level", "delay_level": 3},
    ]
    status, answer = await asyncio.to_thread(
        node.request_json, "POST", "/v1/topics/later/messages", {"messages": messages}
    )
    assert status == 200, answer


def delivered(node: Node) -> tuple[int, list[str]]:
    """How many delayed messages were delivered, and the bodies of those that the log still has."""
    _, topic = node.get_json(node.api_url + "/v1/topics/later")
    bounds = topic["queues"][0]
    path = f"/v1/topics/later/queues/0/messages?offset={bounds['min_offset']}"
    status, answer = node.get_json(node.api_url + path)
    assert status == 200
    return bounds["max_offset"], sorted(message["body_text"] for message in answer["messages"])


def ranges(node: Node) -> dict[int, tuple[int, int]]:
    status, topic = node.get_json(node.api_url + "/v1/topics/load")
    assert status == 200
    return {each["queue"]: (each["min_offset"], each["max_offset"]) for each in topic["queues"]}


async def test_a_small_disk_under_constant_load_never_fills_and_losses_are_exact(
    tmp_path: Path, small_disk: Path
) -> None:
    ledger = Ledger()
    with Node(tmp_path / "node", store_dir=small_disk / "store") as node:
        node.start()
        node.wait_ready()
        assert node.request_json("PUT", "/v1/topics/load", {"queues": QUEUES})[0] == 200
        assert node.request_json("PUT", "/v1/topics/later", {"queues": 1})[0] == 200
        assert node.request_json("PUT", GROUP, {"start": "first"})[0] == 200
        until = time.monotonic() + SECONDS
        await send_delayed(node)
        with DiskWatch(small_disk) as watch:
            late_s = await run_load(node.api_url, ledger, until)
        bounds = ranges(node)
        sent = {queue: end for queue, (_, end) in bounds.items()}
        lost = sum(end - len(ledger.handled[queue]) for queue, end in sent.items())
        handled = sum(map(len, ledger.handled.values()))
        print(
            f"{SECONDS:.0f} s and {late_s:.2f} s more: {sum(sent.values())} sent "
            f"({len(ledger.refused)} sends refused), {handled} handled, "
            f"{lost} lost and {node.metric('broker', SKIPPED)} counted; disk at most "
            f"{watch.fullest:.1%} full in {watch.samples} samples, log from {watch.first}; "
            f"{ledger.jumps} jumps of the member, {ledger.too_small} of the puller"
        )
        assert ledger.wrong == []
        assert watch.wrong == []
        assert set(ledger.refused) <= {"disk-full"}
        assert sum(sent.values()) == ledger.acked
        assert watch.fullest < 0.95
        assert watch.first > 0
        assert lost > 0
        assert ledger.jumps > 0
        assert ledger.too_small > 0
        wait_until(lambda: node.metric("broker", SKIPPED) == lost, f"{lost} counted losses", 60)
        status, retention = node.get_json(node.api_url + "/v1/retention")
        assert status == 200
        deleted = retention["deleted_files"]["disk_pressure"]
        assert deleted == retention["min_offset"] / MIB == watch.first / MIB
        assert retention["log"]["used_percent"] <= 90
        assert "about to lose messages" in node.log_text("broker")

        # After a long run the one that waited for seconds only has gone again.
        everything = ["by level", "by time", "soon"][SECONDS > 20 :]
        wait_until(lambda: delivered(node)[0] == 3, "delayed messages", 60)
        left = delivered(node)
        if late_s > LATE_S:
            assert set(left[1]) <= set(everything)
        else:
            assert left == (3, everything)
            assert "delayed messages were carried on" in node.log_text("broker")
        bounds = ranges(node)

        # Both are killed; files that reput removed meanwhile must not count as missing.
        node.kill()
        node.start()
        node.wait_ready()
        assert ranges(node) == bounds
        assert delivered(node) == left
        resumed = [
            entry
            for entry in map(json.loads, node.log_text("reput").splitlines())
            if entry["event"] == "resumed"
        ]
        assert resumed[-1]["queues"] == "continue"
        assert resumed[-1]["index"] == "continue"
