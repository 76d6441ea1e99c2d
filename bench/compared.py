"""Servers that sends are compared with over raw connections.

These are Redis Streams, NATS JetStream, Kafka and RocketMQ. The last two are optional, because they
come from no package of the system: without one, a note says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from bench import kafka, nats_jetstream, redis_streams, rocketmq
from bench.harness import Figure, at_most
from bench.redis_streams import Shape
from bench.servers import (
    Compared,
    kafka_server,
    kafka_version,
    nats_server,
    redis_server,
    rocketmq_server,
    rocketmq_version,
    version_of,
)

WARM_UP_S: Final = 40.0
"""Until then a JVM used a fifth of the core to compile."""

RAW: Final = {
    "Redis always": redis_streams.raw_connections,
    "Redis everysec": redis_streams.raw_connections,
    "NATS": nats_jetstream.raw_connections,
    "Kafka": kafka.raw_connections,
    "RocketMQ async": rocketmq.raw_connections,
    "RocketMQ sync": rocketmq.raw_connections,
}
"""Load over raw connections by the name of the server."""
FETCHED: Final = {
    "Kafka": (kafka_version, "make kafka"),
    "RocketMQ": (rocketmq_version, "make referee"),
}
"""Servers that no package of the system has: their version, and the command that fetches them."""


def start_all(running: ExitStack, warm_up: Shape, *, quick: bool) -> dict[str, Compared]:
    """Start all servers for the rest of the block; those of a JVM only if they were fetched.

    They are stopped until ``Compared.running`` lets one run.

    warm_up: what these get first. Raises MissingServer if Redis or NATS is not installed.
    """
    servers = {
        "Redis always": redis_server("always"),
        "Redis everysec": redis_server("everysec"),
        "NATS": nats_server(),
    }
    if kafka_version() is not None:
        servers["Kafka"] = kafka_server()
    if rocketmq_version() is not None:
        servers["RocketMQ async"] = rocketmq_server("ASYNC_FLUSH")
        servers["RocketMQ sync"] = rocketmq_server("SYNC_FLUSH")
    for server in servers.values():
        running.enter_context(server)
    seconds = WARM_UP_S / (10 if quick else 1)
    for name, server in servers.items():
        with server.running():
            if name == "Kafka":
                kafka.prepare(server, warm_up, seconds)
            elif name.startswith("RocketMQ"):
                rocketmq.prepare(server, warm_up, seconds)
    return servers


def versions() -> dict[str, str]:
    """Versions of the servers that ``start_all`` starts."""
    found = {name: version_of(name) for name in ("redis-server", "nats-server")}
    fetched = {name: version() for name, (version, _) in FETCHED.items()}
    return found | {name: version for name, version in fetched.items() if version is not None}


def left_out(*names: str) -> list[str]:
    """Return a note about each of these servers (default: all) that was not fetched."""
    return [
        f"without {name}, which `{command}` fetches"
        for name, (version, command) in FETCHED.items()
        if name in (names or FETCHED) and version() is None
    ]


def cpu_figures(
    names: Iterable[str],
    cpu_us: Mapping[str, Sequence[float]],
    runs: int,
    goals: Mapping[str, float],
) -> list[Figure]:
    """Build figures of the server's CPU time per message from the last runs of each name [µs].

    Those with a goal are ours; they are compared with Kafka's if it runs.
    """
    kafka = cpu_us.get("Kafka", ())[-runs:]
    found = []
    for name in names:
        what, values = f"CPU time of the server per message, {name}", cpu_us[name][-runs:]
        if kafka and name in goals:
            found.append(at_most(what, "µs", values, goals[name], "Kafka", kafka))
        else:
            found.append(at_most(what, "µs", values, goals.get(name)))
    return found
