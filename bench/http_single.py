"""Figure 4: one message per HTTP request, 32 connections, acknowledged in memory and on disk.

Redis Streams, NATS JetStream, Kafka and RocketMQ get one message per request over raw connections,
too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgpack

from bench import redis_streams
from bench.compared import RAW, cpu_figures, left_out, start_all, versions
from bench.harness import Figure, Options, Result, Series, benchmark, interleave
from bench.load import Place, Shape, produce, send
from bench.servers import Node, peer, pin_to_load_core, settle

CONNECTIONS: Final = 32
BODY_SIZE: Final = 256
SIZES: Final = (16, 256, 1024, 4096, 16384)
BASELINE: Final = "bare aiohttp handler on uvloop, same sizes"
CPU_GOAL_US: Final = 28.0
"""CPU time of broker and reput per message at ``memory``, at most."""
TOPIC: Final = "single"
PLACES: Final[list[Place]] = [(TOPIC, None)]


def answer_size() -> int:
    """Size of the broker's answer to one message in bytes."""
    result = {
        "message_id": "0" * 32,
        "unique_id": "0" * 32,
        "queue": 0,
        "queue_offset": 1 << 20,
        "physical_offset": 1 << 40,
        "store_timestamp_ms": 1 << 41,
    }
    answer = {"status": "PUT_OK", "ack": {"level": "memory", "copies": 1}, "results": [result]}
    return len(msgpack.packb(answer))


def main(given: Options) -> Result:
    seconds = given.pick(3.0, quick=1.0)
    pin_to_load_core()
    shares: dict[str, str] = {}
    cpu_us: defaultdict[str, list[float]] = defaultdict(list)
    theirs = redis_streams.Shape(1, BODY_SIZE, CONNECTIONS)

    with ExitStack() as running:
        node = running.enter_context(Node())
        bare = running.enter_context(peer("bare_http", str(answer_size())))
        others = start_all(running, theirs, quick=given.quick)
        node.make_topic(TOPIC, 4)

        def to_broker(ack: str, body_size: int = BODY_SIZE) -> float:
            settle()
            shape = Shape(messages=1, body_size=body_size, ack=ack)
            produced = produce(node, TOPIC, shape, connections=CONNECTIONS, seconds=seconds)
            shares[ack] = produced.shares
            cpu_us[ack].append(produced.cpu_us)
            return produced.outcome.rate

        def to_bare(body_size: int = BODY_SIZE) -> float:
            shape = Shape(messages=1, body_size=body_size)
            load = partial(send, connections=CONNECTIONS, seconds=seconds, check=False)
            outcome = bare.measured(lambda: load(bare.address, PLACES, shape))
            cpu_us["bare handler"].append(outcome.server_cpu_us)
            return outcome.rate

        def to_other(name: str) -> float:
            settle()
            with others[name].running():
                outcome = RAW[name](others[name], theirs, seconds)
            shares[name] = outcome.shares
            cpu_us[name].append(outcome.server_cpu_us)
            return outcome.rate

        jobs: dict[str, Callable[[], float]] = {
            "memory": lambda: to_broker("memory"),
            "disk": lambda: to_broker("disk"),
            "bare handler": to_bare,
            **{name: partial(to_other, name) for name in others},
        }
        rates = interleave(jobs, given.runs)
        cpu = cpu_figures(rates, cpu_us, given.runs, {"memory": CPU_GOAL_US})
        notes = [f"{name}, CPU in the last run: {seen}" for name, seen in shares.items()]
        series = []
        if not given.quick:
            lines = {
                "memory": [(size, to_broker("memory", size)) for size in SIZES],
                "disk": [(size, to_broker("disk", size)) for size in SIZES],
                "bare aiohttp handler": [(size, to_bare(size)) for size in SIZES],
            }
            title = f"HTTP, one message per request, {CONNECTIONS} connections"
            series = [Series("http_single", title, "body [bytes]", "messages/s", lines)]

    what = f"HTTP, one message per request, {CONNECTIONS} connections, {BODY_SIZE} B"
    figures = [
        Figure(f"{what}, {ack}", "msg/s", rates[ack], goal, BASELINE, rates["bare handler"])
        for ack, goal in (("memory", 32_000), ("disk", 9_000))
    ]
    figures += [Figure(f"{name}, raw connections", "msg/s", rates[name]) for name in others]
    method = f"""Broker and reput with the default profile on core 0, load on core 1; each of
        {CONNECTIONS} connections sends its next request when it has its answer; unique ids made by
        the broker; {seconds:.0f} s per run, {given.runs} runs of each in turn with the bare handler
        and the other servers (on core 0 too) after a warm-up; after each run the queues' max
        offsets are checked against the acknowledged messages. The other servers are those of
        http_batch, with one message per request. CPU time is that of all processes of a server
        (ours: broker and reput until all was dispatched), in user and kernel."""
    return Result(
        figures + cpu, method, series=series, notes=left_out() + notes, versions=versions()
    )


if __name__ == "__main__":
    benchmark(main)
