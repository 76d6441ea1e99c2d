"""Settings of ha: one frozen dataclass, from TOML, environment and command line.

The tables ``[store]`` and ``[cluster]`` and the paths must be the same for broker and reput on the
same node. ha runs only on a node of a group: a single node has nothing to replicate or to decide.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from yarl import URL

from shared.cluster.config import ClusterConfig
from shared.files.store_config import LocalStoreConfig, StoreConfig
from shared.runtime.config import Ruled, setting
from shared.runtime.run_dir import usable_run_dir

ENV_PREFIX: Final = "TIDEMARK_HA_"


@dataclasses.dataclass(frozen=True)
class HaConfig(Ruled):
    """Settings of one ha process."""

    store_dir: Path = Path("data")
    """Store directory; on a local disk, never on a network file system."""
    run_dir: Path | None = None
    """Sockets. Default: STORE/run."""
    store: StoreConfig = dataclasses.field(default_factory=StoreConfig)
    cluster: ClusterConfig = dataclasses.field(default_factory=ClusterConfig)

    host: str = setting("", says="address that replication listens on; empty: that of own entry")
    admin_host: str = setting("127.0.0.1", says="probes, metrics, commands of the cluster")
    admin_port: int = setting(8083, minimum=0, maximum=65_535, says="0 takes a free one")
    commands: Literal["port", "socket"] = setting(
        "socket",
        says="where commands to the cluster are accepted: socket: only on this node itself; port: "
        "from every client of the admin port, which has no authentication",
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    sense_interval_ms: int = setting(
        50,
        unit="ms",
        minimum=1,
        maximum=250,
        says="interval of reading page and clock when a doorbell was lost",
    )
    link_buffer_max: int = setting(
        16 << 20,
        unit="bytes",
        minimum=9 << 20,
        maximum=1 << 30,
        says="unsent bytes of one link; beyond, it is closed. More than the 8 MiB in flight",
    )
    connections_max: int = setting(
        64,
        unit="connections",
        minimum=4,
        maximum=4096,
        says="on the replication port at a time; beyond, new ones are closed",
    )
    proof_timeout_ms: int = setting(
        2000,
        unit="ms",
        minimum=100,
        maximum=60_000,
        says="a connection that has not proved who it is within this is closed",
    )
    command_timeout_s: float = setting(
        30.0, unit="s", minimum=1.0, maximum=600.0, says="longest wait of an operator's command"
    )

    def broken_rules(self) -> Iterator[str]:
        """Return the broken rules between fields."""
        yield from self.store.broken_rules()
        if not self.cluster.grouped:
            yield ("cluster.nodes is empty: ha runs only on a node of a group, not on one alone")
        if self.store.visible_after != "confirmed":
            yield (
                f'store.visible_after is "{self.store.visible_after}"; in a group it is "confirmed"'
            )
        broken = self.cluster.time_rules.broken()
        if broken:
            yield f"cluster.profile {self.cluster.profile}: {'; '.join(broken)}"

    @functools.cached_property
    def sockets_dir(self) -> Path:
        """Directory of this node's doorbells and of the socket for commands."""
        return usable_run_dir(self.run_dir or self.store_dir / "run")

    @property
    def order_hosts(self) -> frozenset[str] | None:
        """Host names under which the admin port accepts commands; None: it accepts none."""
        if self.commands == "socket":
            return None
        urls = [URL(replica.admin) for replica in self.cluster.replicas if replica.admin]
        return frozenset(url.host for url in urls if url.host is not None)


@dataclasses.dataclass(frozen=True)
class LocalHaConfig(HaConfig):
    """The profile ``local``: other defaults; every setting can still be changed."""

    store: LocalStoreConfig = dataclasses.field(default_factory=LocalStoreConfig)
