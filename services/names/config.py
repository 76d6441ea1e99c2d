"""Configuration of a name service: one frozen dataclass, from TOML, environment, command line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from services.names.core.bounds import TableBounds
from shared.cluster.routes import NAME_PATTERN, URL_PATTERN
from shared.runtime.config import Ruled, setting
from shared.runtime.connections import Bounds

ENV_PREFIX: Final = "TIDEMARK_NAMES_"
ANY_HOSTS: Final = ("", "0.0.0.0", "::")
"""Hosts that mean all addresses of the machine."""
HELD_SHARE_MAX: Final = 0.75
"""Share of the connections that long polls may hold. The others are idle or soon answered, and so
give way to those of brokers."""


@dataclasses.dataclass(frozen=True)
class NamesConfig(Ruled):
    """Configuration of one instance."""

    cluster: str = setting("tidemark", says="cluster.name of its brokers; others are refused")
    host: str = setting("127.0.0.1", says="0.0.0.0 opens it to everybody who reaches the port")
    port: int = setting(9870, minimum=0, maximum=65_535, says="0 takes a free one")
    admin_host: str = setting("127.0.0.1", says="probes, metrics")
    admin_port: int = setting(9871, minimum=0, maximum=65_535, says="0 takes a free one")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    url: str = setting(
        "", says="URL of this instance for clients; empty: http://HOST:PORT; needed with 0.0.0.0"
    )
    peers: tuple[str, ...] = ()
    """URLs of the other instances. Answers list them, and they are asked once at the start for
    their broker groups. The own URL may be among them, so that all instances have one list."""
    peers_timeout_s: float = setting(
        2.0, unit="s", minimum=0.1, maximum=60.0, says="for their answers; then it goes on without"
    )
    groups: tuple[str, ...] = ()
    """Broker groups of the cluster: until all of them have registered, answers say that they are
    not complete, and an unknown topic is 503 and not 404."""
    secret_file: Path | None = None
    """File with the secret of the cluster: registrations must be signed with it. Without one
    anybody who reaches the port can register."""

    groups_max: int = setting(5_000, unit="broker groups", minimum=1, maximum=100_000)
    nodes_max: int = setting(16, unit="nodes", minimum=1, maximum=64, says="of one broker group")
    topics_max: int = setting(
        50_000, unit="topics", minimum=1, maximum=1_000_000, says="of one broker group"
    )
    entries_max: int = setting(
        2_000_000,
        unit="topics",
        minimum=1,
        maximum=20_000_000,
        says="of all broker groups together; about 200 bytes of memory each",
    )
    registration_size_max: int = setting(
        8 << 20,
        unit="bytes",
        minimum=4096,
        maximum=64 << 20,
        says="one registration, about 80 bytes for each topic; large ones hold up the others while "
        "they are decoded",
    )
    waiting_bytes_max: int = setting(
        64 << 20,
        unit="bytes",
        minimum=1 << 20,
        says="registrations in memory at a time, and as much of unknown nodes; beyond: overloaded",
    )
    answers_max: int = setting(
        20_000, unit="answers", minimum=1, says="answers kept ready, about 2 KiB each"
    )
    held_polls_max: int = setting(
        10_000, unit="requests", minimum=0, says="long polls; beyond, they are answered at once"
    )
    connections_max: int = setting(16_000, unit="connections", minimum=1)
    read_timeout_s: float = setting(10.0, unit="s", minimum=0.1, says="for a request to arrive")
    idle_timeout_s: float = setting(
        75.0, unit="s", minimum=1.0, says="an unused connection is closed"
    )
    write_timeout_s: float = setting(
        10.0, unit="s", minimum=0.1, says="for a client to take any byte of an answer"
    )

    def broken_rules(self) -> Iterator[str]:
        """Yield the broken rules between fields."""
        for field, name in (("cluster", self.cluster), *(("groups", each) for each in self.groups)):
            if not re.match(NAME_PATTERN, name):
                yield f"{field}: {name!r} is not a name of 1 to 127 of a-z A-Z 0-9 _ . -"
        for url in self.peers:
            if not re.match(URL_PATTERN, url):
                yield f"peers: {url!r} is not a URL like http://names-1:9870"
        if not self.url and self.host in ANY_HOSTS:
            yield (
                f"url: it is needed with host = {self.host!r}, which is no address that clients "
                "reach; set it to one, like http://names-0.example:9870"
            )
        held_max = int(self.connections_max * HELD_SHARE_MAX)
        if self.held_polls_max > held_max:
            yield (
                f"held_polls_max: {self.held_polls_max} long polls leave brokers too few of "
                f"{self.connections_max} connections to register; at most {held_max}, or raise "
                "connections_max"
            )

    @property
    def own_url(self) -> str:
        """URL of this instance for clients."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (self.url or f"http://{host}:{self.port}").rstrip("/")

    @property
    def other_urls(self) -> tuple[str, ...]:
        """URLs of the other instances."""
        peers = (each.rstrip("/") for each in self.peers)
        return tuple(url for url in peers if url != self.own_url)

    @property
    def table_bounds(self) -> TableBounds:
        """Bounds of the table."""
        return TableBounds(self.groups_max, self.nodes_max, self.topics_max, self.entries_max)

    @property
    def connection_bounds(self) -> Bounds:
        """Limits of the port."""
        return Bounds(
            self.connections_max, self.read_timeout_s, self.idle_timeout_s, self.write_timeout_s
        )
