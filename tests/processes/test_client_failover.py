"""The client on groups of real nodes: sends, subscriptions and reads survive failovers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

import tidemark
from tests.support.cluster import Cluster
from tests.support.node import PROJECT, wait_until
from tidemark.offsets import Queue

TOPIC: Final = "orders"
QUEUES: Final = 4
LEASE_S: Final = 3.0
"""Of the local profile."""
PAUSE_S: Final = 0.005
"""Between two sends of a producer."""
END_S: Final = 120.0
Place = tuple[int, int]
"""Queue and queue offset."""


class Load:
    """Producers of every kind, and the answers that they got. Bodies are
    ``<producer>-<number>``."""

    def __init__(self) -> None:
        self.acked: list[tuple[float, bytes]] = []
        """When a send was answered, and what had been sent."""
        self.is_over = False

    async def sends(self, mq: tidemark.Client, queue: int) -> None:
        number = 0
        while not self.is_over:
            body = b"s%d-%d" % (queue, number)
            await mq.send(TOPIC, body, queue=queue)
            self.acked.append((time.monotonic(), body))
            number += 1
            await asyncio.sleep(PAUSE_S)

    async def sends_many(self, mq: tidemark.Client, queue: int) -> None:
        number = 0
        while not self.is_over:
            bodies = [b"m%d-%d" % (queue, each) for each in range(number, number + 20)]
            await mq.send_many(TOPIC, bodies, queue=queue)
            self.acked += [(time.monotonic(), body) for body in bodies]
            number += 20
            await asyncio.sleep(PAUSE_S)

    def sends_blocking(self, urls: list[str], queue: int) -> None:
        number = 0
        with tidemark.connect_sync(urls) as mq:
            while not self.is_over:
                body = b"b%d-%d" % (queue, number)
                mq.send(TOPIC, body, queue=queue)
                self.acked.append((time.monotonic(), body))
                number += 1
                time.sleep(PAUSE_S)

    @property
    def bodies(self) -> set[bytes]:
        return {body for _, body in self.acked}

    @asynccontextmanager
    async def running(self, mq: tidemark.Client, urls: list[str]) -> AsyncIterator[None]:
        """All producers; on leaving, what any of them raised is raised."""
        tasks = [
            asyncio.create_task(self.sends(mq, 0)),
            asyncio.create_task(self.sends(mq, 1)),
            asyncio.create_task(self.sends_many(mq, 2)),
            asyncio.create_task(asyncio.to_thread(self.sends_blocking, urls, 3)),
        ]
        try:
            yield
        finally:
            self.is_over = True
            await asyncio.gather(*tasks)


class Members:
    """Members of one group, the owners of queues, and all messages that they received."""

    def __init__(self, group: str, *, order: bool = False, broadcast: bool = False) -> None:
        self.group, self.order, self.broadcast = group, order, broadcast
        self.seen: list[tuple[float, str, Place, bytes]] = []
        self.owners: dict[Queue, str] = {}
        self.trouble: list[str] = []
        self.subscriptions: list[tidemark.Subscription] = []

    async def consume(self, mq: tidemark.Client, name: str, way: str) -> None:
        """Consume until stopped. way: how messages are asked for."""

        async def assigned(queues: list[Queue]) -> None:
            for queue in queues:
                if queue in self.owners:
                    self.trouble.append(f"{queue} goes to {name}, is {self.owners[queue]}'s")
                self.owners[queue] = name

        async def revoked(queues: list[Queue]) -> None:
            for queue in queues:
                if self.owners.pop(queue, None) != name:
                    self.trouble.append(f"{queue} is revoked from {name}, who did not have it")

        async def handle(message: tidemark.Message) -> None:
            place = int(message.queue), message.queue_offset
            self.seen.append((time.monotonic(), name, place, bytes(message.body)))

        async with mq.subscribe(
            TOPIC,
            group=self.group,
            start="first",
            order=self.order,
            broadcast=self.broadcast,
            on_assigned=None if self.broadcast else assigned,
            on_revoked=None if self.broadcast else revoked,
        ) as messages:
            self.subscriptions.append(messages)
            match way:
                case "one by one":
                    async for message in messages:
                        await handle(message)
                case "batches":
                    async for batch in messages.batches(max=50):
                        for message in batch:
                            await handle(message)
                case "run":
                    await messages.run(handle, concurrency=4)

    def bodies(self, name: str | None = None) -> set[bytes]:
        return {body for _, who, _, body in self.seen if name in (None, who)}

    def check(self, final: dict[Place, bytes]) -> None:
        """Check that nothing was seen that the log does not have, and that no queue had two
        owners."""
        assert not self.trouble
        for _, _, place, body in self.seen:
            assert final[place] == body, f"{place} was {body!r}, and is {final[place]!r}"

    def check_order(self) -> None:
        """Check that no offset of a queue comes before the one below it was seen."""
        for queue in range(QUEUES):
            expected = 0
            for _, _, (number, offset), _ in self.seen:
                if number == queue:
                    assert offset <= expected, f"queue {queue}: {offset} after {expected - 1}"
                    expected = max(expected, offset + 1)


async def killed_broker(cluster: Cluster, master: str) -> None:
    await asyncio.to_thread(cluster.restart, master, "broker")


async def lost_node(cluster: Cluster, master: str) -> None:
    await asyncio.to_thread(cluster.kill, master)


async def stopped_node(cluster: Cluster, master: str) -> None:
    cluster.pause(master)


async def switched(cluster: Cluster, master: str) -> None:
    await asyncio.to_thread(cluster.wait_fit)
    status, body = await asyncio.to_thread(cluster.command, master, "switchover")
    assert status == 200, body


Fault = Callable[[Cluster, str], Awaitable[None]]


def opened(cluster: Cluster, *nodes: str) -> tuple[float, str]:
    """Wait until one of the nodes is open for sends: when that was seen, and which one."""
    found: list[str] = []

    def is_open() -> bool:
        found[:] = [
            name
            for name in nodes
            if cluster.nodes[name].request_json(
                "GET", cluster.admin_url(name, "broker") + "/primary"
            )[0]
            == 200
        ]
        return bool(found)

    wait_until(is_open, "another master", END_S)
    return time.monotonic(), found[0]


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that other tasks of this loop bring about."""
    await asyncio.to_thread(wait_until, condition, what, END_S)


async def log_of(mq: tidemark.Client) -> dict[Place, bytes]:
    """Every message of the topic by its place."""
    return {
        (queue, message.queue_offset): bytes(message.body)
        for queue in range(QUEUES)
        async for message in mq.read(TOPIC, queue)
    }


def check_log(final: dict[Place, bytes], load: Load) -> None:
    """Each acked message is there once, and each producer's messages are in their order."""
    counts = Counter(final.values())
    assert not [body for body in load.bodies if counts[body] != 1]
    assert max(counts.values()) == 1
    for queue in range(QUEUES):
        numbers = [
            int(body.split(b"-")[1]) for place, body in sorted(final.items()) if place[0] == queue
        ]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("fault", "given", "way", "order"),
    [
        (killed_broker, "master", "run", False),
        (lost_node, "slave", "one by one", True),
        (stopped_node, "master", "batches", True),
        (switched, "both", "one by one", False),
    ],
    ids=["killed broker", "lost node", "stopped node", "planned switch"],
)
async def test_clients_ride_through_a_failover(
    tmp_path: Path, fault: Fault, given: str, way: str, order: bool
) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        (slave,) = set(cluster.names) - {master}
        names = {"master": [master], "slave": [slave], "both": [slave, master]}[given]
        urls = [cluster.api_url(name) for name in names]
        load = Load()
        shared, everywhere = Members("billing", order=order), Members("audit", broadcast=True)
        async with tidemark.connect(urls) as mq, tidemark.connect(urls) as other:
            await mq.create_topic(TOPIC, queues=QUEUES)
            members = [
                asyncio.create_task(shared.consume(mq, "a", way)),
                asyncio.create_task(shared.consume(other, "b", way)),
                asyncio.create_task(everywhere.consume(other, "c", "batches")),
            ]
            async with load.running(mq, urls):
                await until(
                    lambda: (
                        len(load.acked) > 300
                        and all(shared.bodies(name) for name in "ab")
                        and bool(everywhere.bodies())
                    ),
                    "everybody is at work",
                )
                broken_at = time.monotonic()
                await fault(cluster, master)
                candidates = [master] if fault is killed_broker else [slave]
                if fault is killed_broker:
                    candidates.append(slave)
                opened_at, new = await asyncio.to_thread(opened, cluster, *candidates)
                await until(lambda: load.acked[-1][0] > opened_at, "a send that succeeds")
                first_at = min(at for at, _ in load.acked if at > opened_at)
                took_s, late_s = opened_at - broken_at, first_at - opened_at
                print(f"open at {new} after {took_s:.2f} s, first send {late_s:.3f} s later")
                at_work = len(load.acked)
                await until(lambda: len(load.acked) > at_work + 200, "sends go on")
                if fault is stopped_node:
                    await asyncio.sleep(max(0.0, broken_at + 2 * LEASE_S - time.monotonic()))
                    cluster.resume(master)
                    at_work = len(load.acked)
                    await until(lambda: len(load.acked) > at_work + 200, "sends go on")
            await until(
                lambda: load.bodies <= shared.bodies() and load.bodies <= everywhere.bodies(),
                "members see everything",
            )
            for subscription in shared.subscriptions + everywhere.subscriptions:
                subscription.stop()
            await asyncio.gather(*members)
            final = await log_of(mq)
        check_log(final, load)
        for each in (shared, everywhere):
            each.check(final)
        everywhere.check_order()
        if order:
            shared.check_order()


async def test_a_client_begins_with_the_address_of_a_lost_node_in_its_list(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        (slave,) = set(cluster.names) - {master}
        async with tidemark.connect(cluster.api_url(master)) as mq:
            await mq.create_topic(TOPIC, queues=1)
        cluster.kill(master)
        urls = [cluster.api_url(name) for name in (master, slave)]
        async with tidemark.connect(urls) as mq:  # there is no master yet
            assert (await mq.send(TOPIC, b"1")).level == "disk"
        with tidemark.connect_sync(urls) as blocking:
            assert blocking.send(TOPIC, b"2").queue_offset == 1


def handed_out(cluster: Cluster, name: str) -> int:
    """Messages of the topic that a node has given to readers."""
    text = urllib.request.urlopen(cluster.admin_url(name, "broker") + "/metrics").read().decode()
    return sum(
        int(float(line.rsplit(" ", 1)[1]))
        for line in text.splitlines()
        if line.startswith("tidemark_broker_messages_out_total{")
    )


def run_cli(*arguments: str, text: bytes | None = None) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemark.cli.main", *arguments],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    if text is not None:
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        process.stdin = None
    return process


def output_of(process: subprocess.Popen[bytes]) -> bytes:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    return output


async def test_reads_from_slaves_and_commands_that_ride_a_failover(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start()
        master = cluster.wait_master()
        cluster.wait_in_sync()
        (slave,) = set(cluster.names) - {master}
        url = {name: cluster.api_url(name) for name in cluster.names}
        async with tidemark.connect(url[master]) as mq:
            await mq.create_topic(TOPIC, queues=1)
            stored = await mq.send(TOPIC, b"1", keys=["k"])
        wanted = {"level": "replicated", "copies": 2}
        assert {"level": stored.level, "copies": stored.copies} == wanted

        # A switch in the middle of a file, and of a follower that reads it.
        lines = [b"line %d" % number for number in range(600)]
        every_address = f"{url[slave]},{url[master]}"
        follower = run_cli(
            *("consume", TOPIC, "--follow", "--from-beginning", "--max", "601"),
            *("--url", every_address),
        )
        producer = run_cli(
            *("produce", TOPIC, "--rate", "200", "--url", every_address),
            text=b"\n".join(lines) + b"\n",
        )

        def has_begun() -> bool:
            found = cluster.nodes[master].request_json("GET", f"/v1/topics/{TOPIC}")[1]
            return bool(found.get("queues", [{"max_offset": 0}])[0]["max_offset"] > 50)

        wait_until(has_begun, "the producer to be at work")
        cluster.wait_fit()
        status, body = cluster.command(master, "switchover", {"to": slave})
        assert status == 200, body
        output_of(producer)
        assert output_of(follower).splitlines() == [b"1", *lines]
        master, slave = slave, master
        wait_until(lambda: cluster.serving() == master, "the target to serve")
        cluster.wait_in_sync()

        # Plain reads are answered by the slave; everything else still goes to the master.
        async with tidemark.connect(url[slave], read_from="any") as mq:
            caught_up = 0
            while caught_up < 601:
                caught_up = (await mq.pull(TOPIC, 0, 600, wait_ms=500)).max_offset
            given_out = handed_out(cluster, slave)
            assert [bytes(each.body) async for each in mq.read(TOPIC, 0)] == [b"1", *lines]
            assert (await mq.message_by_id(stored.message_id)).body == b"1"
            assert [each.body for each in await mq.messages_by_key(TOPIC, "k")] == [b"1"]
            assert handed_out(cluster, slave) >= given_out + 601
            assert (await mq.send(TOPIC, b"2")).queue_offset == 601
        read = run_cli("consume", TOPIC, "--read-from", "any", "--max", "3", "--url", url[slave])
        assert output_of(read).splitlines() == [b"1", *lines[:2]]
        got = run_cli(
            *("message", "get", stored.message_id, "--read-from", "any", "--url", url[slave])
        )
        assert b"1" in output_of(got)

        # A missing slave costs a reader only a second request to another node.
        async with tidemark.connect([url[slave], url[master]], read_from="any") as mq:
            assert (await mq.topic(TOPIC)).queues == 1
            cluster.kill(slave)
            assert [bytes(each.body) async for each in mq.read(TOPIC, 0, end=2)] == [b"1", lines[0]]

        status_of = run_cli("cluster", "status", "--url", every_address)
        shown = output_of(status_of).decode()
        assert f"{slave}" in shown
        assert "not reachable" in shown
