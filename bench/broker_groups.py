"""Figure 28: what sixteen broker groups cost against one, and how soon a client sees a new master.

A name service leads one client to sixteen standalone brokers. Of three topics one is in all of
them, one is in the first; the third is at a broker without a name service. Tasks, messages per
request and requests in flight are the same in each case: with one broker group, all requests in
flight are at its broker.

Then a group of two nodes switches its master again and again while a client sends. The delay counts
from the grant of the epoch on the new master's checkpoint page.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, NamedTuple

import uvloop

import tidemark
from bench.client import BATCH, BODY_SIZE, QUEUES, handle, until_now
from bench.exchange import LoadFailed, Outcome, repeated
from bench.group import Group
from bench.harness import Figure, Options, Result, at_most, benchmark, interleave
from bench.names import name_service
from bench.servers import HOST, Node, pin_to_load_core, wait_until
from drills.node_group import ask
from drills.node_group import slot as read_slot
from tidemark.client.batching import Limits
from tidemark.client.client import IN_FLIGHT_MAX
from tidemark.formats.checkpoint import Slot

GROUPS: Final = 16
COST_GOAL: Final = 1.05
SEEN_GOAL_MS: Final = 100.0
CALLS_GOAL: Final = 1.0
SWITCHES: Final = 20
TICK_S: Final = 0.001
TASKS: Final = {"send": 32 * GROUPS, "send_many": GROUPS}
IN_REQUEST: Final = 32
"""Single messages that share a request at most."""
READ_COUNT: Final = 300_000
"""Messages of a topic that a consumer group reads."""
STORE: Final = {"commit_log_file_size": 64 << 20}
SWITCH_S: Final = 30.0
_numbers: Final = itertools.count()


class Place(NamedTuple):
    """Broker groups that have a topic, and the address that a client is given."""

    name: str
    nodes: Sequence[Node]
    url: str

    @property
    def topic(self) -> str:
        return f"orders-{len(self.nodes)}"

    def message_count(self) -> int:
        return sum(node.message_count(self.topic) for node in self.nodes)

    def cpu_s(self) -> float:
        return sum(node.cpu_s() for node in self.nodes)


class Cost(NamedTuple):
    """CPU time per message [µs], and messages per request."""

    client: float
    brokers: float
    batch: float
    """0 for a reader."""


async def sent(place: Place, call: str, seconds: float) -> Outcome:
    """Send with ack ``memory``."""
    body = os.urandom(BODY_SIZE)
    bodies = [body] * BATCH
    limits = Limits(
        count_max=IN_REQUEST if call == "send" else BATCH,
        in_flight_max=GROUPS // len(place.nodes),
    )
    async with tidemark.connect(place.url, limits=limits) as mq:
        clients = [mq] * TASKS[call]
        # The first calls connect and ask for the route; they are counted in the store only.
        await asyncio.gather(*(mq.send(place.topic, body, ack="memory") for _ in clients))
        if call == "send":
            return await repeated(
                clients, lambda mq: mq.send(place.topic, body, ack="memory"), 1, seconds
            )
        return await repeated(
            clients, lambda mq: mq.send_many(place.topic, bodies, ack="memory"), BATCH, seconds
        )


async def read(place: Place, count: int) -> Outcome:
    """Read the topic in a new consumer group, with the same bound of messages in hand for each
    queue."""
    in_flight_max = IN_FLIGHT_MAX * len(place.nodes)
    group = f"group-{next(_numbers)}"
    async with (
        tidemark.connect(place.url) as mq,
        mq.subscribe(
            place.topic, group=group, start="first", max_in_flight=in_flight_max
        ) as messages,
    ):
        began = await handle(aiter(messages), count)
    return until_now(*began, count)


def requests(place: Place) -> float:
    """Number of sends that the brokers have answered."""
    name = 'tidemark_broker_put_results_total{result="ok"}'
    return sum(node.metric("broker", name) for node in place.nodes)


def measured(place: Place, seconds: float | None, call: str) -> Cost:
    """Run a call. seconds: None to read. Raises LoadFailed if the store does not have what was
    acknowledged."""
    before, requests_before = place.message_count(), requests(place)
    cpu_s = place.cpu_s()
    if seconds is None:
        outcome = uvloop.run(read(place, READ_COUNT))
    else:
        outcome = uvloop.run(sent(place, call, seconds))
    for node in place.nodes:
        node.wait_dispatched()
    cpu_s = place.cpu_s() - cpu_s
    stored = place.message_count() - before
    if seconds is not None and stored != outcome.messages + TASKS[call]:
        raise LoadFailed(f"{outcome.messages} messages acknowledged, {stored} stored")
    return Cost(
        outcome.cpu_s / outcome.messages * 1e6,
        cpu_s / outcome.messages * 1e6,
        stored / max(1.0, requests(place) - requests_before),
    )


@contextmanager
def places(groups: int) -> Iterator[list[Place]]:
    """Start brokers in a cluster, and one that is alone."""
    with ExitStack() as running:
        port, _ = running.enter_context(name_service())
        url = f"http://{HOST}:{port}"
        nodes = [
            running.enter_context(
                Node(
                    store=STORE,
                    broker={"cluster": {"group": f"g{number:02}"}, "names": {"urls": [url]}},
                )
            )
            for number in range(groups)
        ]
        alone = running.enter_context(Node(store=STORE))
        made = [
            Place(f"{groups} broker groups", nodes, url),
            Place("one broker group", nodes[:1], url),
            Place("a broker alone", [alone], alone.url),
        ]
        for place in made:
            for node in place.nodes:
                node.make_topic(place.topic, QUEUES)
            if place.url == url:
                wait_until(partial(_is_known, url, place), "the topic to be registered")
        yield made


def _is_known(url: str, place: Place) -> bool:
    groups = ask(f"{url}/v1/route/{place.topic}")[1].get("groups", ())
    return len(groups) == len(place.nodes)


def costs(given: Options) -> tuple[list[Figure], list[str]]:
    """Measure cost per message with many broker groups, with one, and with a broker alone."""
    seconds = given.pick(2.0, quick=0.5)
    found = defaultdict[str, list[Cost]](list)
    with places(GROUPS) as made:
        for place in made:
            while place.message_count() < READ_COUNT:
                uvloop.run(sent(place, "send_many", 0.5))

        def run(name: str, place: Place, call: str, seconds: float | None) -> float:
            found[name].append(measured(place, seconds, call))
            return found[name][-1].client

        sends = {
            f"{call}, {place.name}": partial(run, f"{call}, {place.name}", place, call, seconds)
            for call in TASKS
            for place in made
        }
        reads: dict[str, Callable[[], float]] = {
            f"consumer group, {place.name}": partial(
                run, f"consumer group, {place.name}", place, "send", None
            )
            for place in made
        }
        interleave(reads, given.runs)
        interleave(sends, given.runs)
    many, one, alone = (place.name for place in made)
    figures: list[Figure] = []
    notes: list[str] = []
    for call in (*TASKS, "consumer group"):
        of_many, of_one, of_alone = (
            found[f"{call}, {name}"][-given.runs :] for name in (many, one, alone)
        )
        for side in ("client", "brokers"):
            values, base = ([getattr(cost, side) for cost in costs] for costs in (of_many, of_one))
            figures += [
                at_most(f"{call}, {many}: CPU time of {side} per message", "µs", values),
                ratios(f"{call}: {side}, {many}", values, base, COST_GOAL, "one broker group"),
            ]
        figures.append(
            ratios(
                f"{call}: client, {many}",
                [cost.client for cost in of_many],
                [cost.client for cost in of_alone],
                None,
                "a broker alone",
            )
        )
        if call in TASKS:
            sizes = [
                sorted(cost.batch for cost in each)[len(each) // 2] for each in (of_many, of_one)
            ]
            notes.append(
                f"{call}: {sizes[0]:.0f} messages per request with {many}, {sizes[1]:.0f} with one."
            )
    return figures, notes


def ratios(
    what: str, values: Sequence[float], base: Sequence[float], goal: float | None, baseline: str
) -> Figure:
    """Build a figure of multiples of the baseline, of which less is better."""
    found = [value / of for value, of in zip(values, base, strict=True)]
    return at_most(what, f"× {baseline}", found, goal)


class Switch(NamedTuple):
    """One planned switch while a client sends."""

    seen_ms: float
    """From the grant until the client knows the new master."""
    acked_ms: float
    """From the grant until the new master has acknowledged a message."""


def granted(node: Node, epoch: int) -> bool:
    """Whether this node has the grant of a later epoch."""
    return read_slot(node.store_dir, Slot.EPOCH) > epoch and not read_slot(
        node.store_dir, Slot.FENCED
    )


async def switched(group: Group, mq: tidemark.Client, url: str) -> Switch:
    """Switch the master while a client sends, and watch grant and route."""
    loop = asyncio.get_running_loop()
    new = group.slave
    before = (await mq.routes()).groups[0].epoch
    acked_at: list[float] = []
    has_sent, ending = asyncio.Event(), asyncio.Event()

    async def send() -> None:
        while not ending.is_set():
            await mq.send("orders", b"x")
            acked_at.append(loop.time())
            has_sent.set()
            await asyncio.sleep(TICK_S)

    sending = asyncio.create_task(send())
    await has_sent.wait()
    switching = asyncio.create_task(asyncio.to_thread(order_switch, group))
    granted_at = seen_at = 0.0
    async with asyncio.timeout(SWITCH_S):
        while not (granted_at and seen_at and acked_at[-1] > granted_at):
            if not granted_at and granted(new, before):
                granted_at = loop.time()
            route = (await mq.routes()).groups[0]
            if not seen_at and route.epoch > before and route.master is not None:
                seen_at = loop.time()
            await asyncio.sleep(TICK_S)
        await switching
    ending.set()
    await sending
    acked = next(at for at in acked_at if at > granted_at)
    return Switch((seen_at - granted_at) * 1000, (acked - granted_at) * 1000)


def order_switch(group: Group) -> None:
    url = f"http://{HOST}:{group.master.ports['ha']}/v1/cluster/switchover"
    order = urllib.request.Request(url, b"{}", {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(order, timeout=SWITCH_S) as answer:
        answer.read()


def refusals(group: Group) -> float:
    """Number of sends that the brokers have refused because another node is the master."""
    found = 0.0
    for node in group.nodes.values():
        with urllib.request.urlopen(f"{node.admin_url('broker')}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                name, _, value = line.rpartition(" ")
                if name.startswith("tidemark_broker_put_results_total") and '"ok"' not in name:
                    found += float(value)
    return found


async def refused_calls(group: Group, mq: tidemark.Client) -> float:
    """Switch the master while a client without name service is idle; count its refused calls."""
    await mq.send("orders", b"x")
    await asyncio.to_thread(order_switch, group)
    before = group.master
    wait_until(lambda: group.serving() is not None and group.master is not before, "a new master")
    await asyncio.to_thread(group.wait_in_sync)
    refused = await asyncio.to_thread(refusals, group)
    await mq.send("orders", b"x")
    return await asyncio.to_thread(refusals, group) - refused


async def seen(group: Group, url: str, switches: int) -> list[Switch]:
    async with tidemark.connect(url) as mq:
        await asyncio.to_thread(group.master.make_topic, "orders", QUEUES)
        found = []
        for _ in range(switches):
            found.append(await switched(group, mq, url))
            before = group.master
            wait_until(
                lambda before=before: group.serving() is not None and group.master is not before,  # type: ignore[misc]
                "a new master",
            )
            await asyncio.to_thread(group.wait_in_sync)
        return found


async def refused(group: Group, switches: int) -> list[float]:
    await asyncio.to_thread(group.master.make_topic, "orders", QUEUES)
    async with tidemark.connect([node.url for node in group.nodes.values()]) as mq:
        return [await refused_calls(group, mq) for _ in range(switches)]


def role_changes(given: Options) -> list[Figure]:
    """Measure how soon a client sees a new master, by long poll and without a name service."""
    switches = given.pick(SWITCHES, quick=3)
    with name_service() as (port, _):
        url = f"http://{HOST}:{port}"
        with Group(names=[url]) as group:
            found = uvloop.run(seen(group, url, switches))
    with Group() as group:
        calls = uvloop.run(refused(group, given.pick(5, quick=2)))
    return [
        at_most("a new master is seen by long poll, from the grant", "ms",
                [each.seen_ms for each in found], SEEN_GOAL_MS),
        at_most("first message acknowledged by it, from the grant", "ms",
                [each.acked_ms for each in found]),
        at_most("refused calls of a client without name service", "calls", calls, CALLS_GOAL),
    ]  # fmt: skip


def main(given: Options) -> Result:
    pin_to_load_core()
    figures, notes = costs(given)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the nodes of the group have all cores
    figures += role_changes(given)
    return Result(
        figures,
        f"""A name service and {GROUPS} standalone brokers with reput on core 0, the client on core
        1; 17 brokers run all the time. Each topic has {QUEUES} queues per broker group, {BODY_SIZE}
        B, ack memory, uvloop. With all broker groups, with one of them and with a broker without
        name service in turn, {given.runs} runs of each after a warm-up. send: {TASKS["send"]} tasks
        send single messages over one client, at most {IN_REQUEST} in a request; send_many:
        {TASKS["send_many"]} tasks send lists of {BATCH}; {GROUPS} requests in flight, with one
        broker all of them there. consumer group: one member reads {READ_COUNT:,} messages, with
        commits and max_in_flight {IN_FLIGHT_MAX} per broker group. CPU time of the client's
        process, and of the brokers that have the topic, with reput, until all is dispatched; each
        of {GROUPS} brokers gets a sixteenth of the load of one, so that what a broker does anyway
        counts sixteen times. Checked: the stores have what was acknowledged. Role changes: planned
        switches of a group of two nodes while one client sends; every ms the page of the next
        master is searched for the grant. Without name service the client is idle meanwhile.""",
        notes=notes,
    )


if __name__ == "__main__":
    benchmark(main)
