"""Configuration of reput: one frozen dataclass, from TOML, environment and command line.

The table ``[store]`` and the paths must be the same as in the broker of the node. Settings that
shape files are recorded in the store and compared at start.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from shared.files.store_config import LocalStoreConfig, StoreConfig
from shared.runtime.config import Ruled, setting
from shared.runtime.run_dir import usable_run_dir

ENV_PREFIX: Final = "TIDEMARK_REPUT_"


@dataclasses.dataclass(frozen=True)
class ReputConfig(Ruled):
    """Configuration of one reput process."""

    store_dir: Path = Path("data")
    """Store directory. It must be on a local disk, never on a network file system."""
    run_dir: Path | None = None
    """Sockets, and the positions page of a store that cannot be written. Default: STORE/run."""
    store: StoreConfig = dataclasses.field(default_factory=StoreConfig)

    admin_host: str = setting("127.0.0.1", says="probes, metrics")
    admin_port: int = setting(8082, minimum=0, maximum=65_535, says="0 takes a free one")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    step_size: int = setting(
        4 << 20,
        unit="bytes",
        minimum=4096,
        maximum=64 << 20,
        says="log dispatched at a time; large: consumers wait for the end of it",
    )
    sync_interval_ms: int = setting(
        1000,
        unit="ms",
        minimum=1,
        maximum=10_000,
        says="how often queues and index are synced; large: a restart dispatches more again",
    )
    sync_bytes: int = setting(
        128 << 20,
        unit="bytes",
        minimum=1 << 20,
        maximum=256 << 20,
        says="dispatched bytes after which a sync comes earlier",
    )
    busy_poll_ms: float = setting(
        4.0,
        unit="ms",
        minimum=0.1,
        maximum=100,
        says="poll interval for a while after data came; if small, many polls find nothing",
    )
    idle_poll_ms: int = setting(
        100, unit="ms", minimum=1, maximum=10_000, says="poll interval, in case a doorbell was lost"
    )
    retry_interval_ms: int = setting(
        500, unit="ms", minimum=10, maximum=60_000, says="pause between tries on a full disk"
    )
    stop_timeout_s: float = setting(
        10.0,
        unit="s",
        minimum=0.0,
        maximum=3600,
        says="longest time for which the rest of the log is dispatched after SIGTERM",
    )

    def broken_rules(self) -> Iterator[str]:
        """Return violations of rules between fields."""
        yield from self.store.broken_rules()

    @functools.cached_property
    def sockets_dir(self) -> Path:
        """Directory of the doorbells of this node."""
        return usable_run_dir(self.run_dir or self.store_dir / "run")

    @property
    def is_grouped(self) -> bool:
        """Whether this node belongs to a group, where ha creates the store and recovers its log."""
        return self.store.visible_after == "confirmed"

    @property
    def recovered_by(self) -> str:
        """The service that creates the store and recovers its log, in words."""
        return "ha" if self.is_grouped else "the broker"


@dataclasses.dataclass(frozen=True)
class LocalReputConfig(ReputConfig):
    """Defaults of the profile ``local``; every field can still be set."""

    store: LocalStoreConfig = dataclasses.field(default_factory=LocalStoreConfig)
