"""Servers that sends are compared with over raw connections: Redis Streams, NATS JetStream, Kafka.

Kafka is optional, because it comes from no package of the system: without it, a note says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from bench import kafka, nats_jetstream, redis_streams
from bench.harness import Figure, at_most
from bench.redis_streams import Shape
from bench.servers import (
    Compared,
    kafka_server,
    kafka_version,
    nats_server,
    redis_server,
    version_of,
)

RAW: Final = {
    "Redis always": redis_streams.raw_connections,
    "Redis everysec": redis_streams.raw_connections,
    "NATS": nats_jetstream.raw_connections,
    "Kafka": kafka.raw_connections,
}
"""Load over raw connections by the name of the server."""


def start_all(running: ExitStack, warm_up: Shape, *, quick: bool) -> dict[str, Compared]:
    """Start all servers for the rest of the block; Kafka only if ``make kafka`` has fetched it.

    warm_up: what Kafka gets first. Raises MissingServer if Redis or NATS is not installed.
    """
    servers = {
        "Redis always": redis_server("always"),
        "Redis everysec": redis_server("everysec"),
        "NATS": nats_server(),
    }
    if kafka_version() is not None:
        servers["Kafka"] = kafka_server()
    for server in servers.values():
        running.enter_context(server)
    if "Kafka" in servers:
        kafka.prepare(servers["Kafka"], warm_up, kafka.WARM_UP_S / (10 if quick else 1))
    return servers


def versions() -> dict[str, str]:
    """Versions of the servers that ``start_all`` starts."""
    found = {name: version_of(name) for name in ("redis-server", "nats-server")}
    fetched = kafka_version()
    return found if fetched is None else {**found, "Kafka": fetched}


def left_out() -> list[str]:
    """Return a note about Kafka if it is left out."""
    return [] if kafka_version() else ["without Kafka, which `make kafka` fetches"]


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
