"""The state of the group as this node's ha knows it: for ``GET /v1/cluster`` and for redirects.

It is requested over ``ha-control.sock`` in the node's run directory. A response is valid for a
tenth of a second, and callers share it meanwhile. If ha does not respond, only what the page says
of this node is known, and the answer says so. Step before: ha. Step after: ``cluster_calls`` and
``role_policy``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from shared.cluster.config import ClusterConfig
from shared.cluster.grant import Slots
from shared.runtime.doorbell import socket_path
from tidemark.clock import Clock
from tidemark.formats.checkpoint import NodeRole, Slot

log = logging.getLogger(__name__)

SOCKET_NAME: Final = "ha-control"
FRESH_S: Final = 0.1
TIMEOUT_S: Final = 0.5
WATCH_S: Final = 0.2
"""Interval at which a slave asks for the master, so that it can redirect callers."""
ANSWER_SIZE_MAX: Final = 4 << 20


class MasterAddress(NamedTuple):
    """The master, and where clients reach it."""

    name: str
    api: str


class ClusterView:
    """The group as ha sees it. Belongs to one event loop."""

    def __init__(self, config: ClusterConfig, run_dir: Path, slots: Slots, clock: Clock) -> None:
        self._config = config
        self._socket = str(socket_path(run_dir, SOCKET_NAME))
        self._slots = slots
        self._clock = clock
        self._known: Mapping[str, Any] | None = None
        self._known_at = float("-inf")
        self._asking: asyncio.Task[Mapping[str, Any]] | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def master(self) -> MasterAddress | None:
        """The master as last known; None: there is none, or it is unknown."""
        known = {} if self._known is None else self._known
        for node in known.get("nodes", ()):
            if node["node"] == known.get("master"):
                return MasterAddress(node["node"], node["api"])
        return None

    @property
    def master_from(self) -> int | None:
        """Start of the master's log as last known; None: unknown."""
        known = {} if self._known is None else self._known
        for node in known.get("nodes", ()):
            if node.get("node") == known.get("master"):
                start = node.get("first_offset")
                return start if isinstance(start, int) else None
        return None

    async def now(self) -> Mapping[str, Any]:
        """Return the group's state, at most a tenth of a second old; unknown values are None with a
        reason."""
        if self._known is None or self._clock.monotonic() - self._known_at > FRESH_S:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            return await asyncio.shield(self._asking)
        return self._known

    async def run(self, stop: asyncio.Event) -> None:
        """Keep ``master`` up to date until stop."""
        try:
            while not stop.is_set():
                if self._slots.get(Slot.ROLE) != NodeRole.MASTER:  # a master redirects no caller
                    await self.now()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WATCH_S):
                        await stop.wait()
        finally:
            if self._session is not None:
                await self._session.close()

    async def _ask(self) -> Mapping[str, Any]:
        try:
            self._known = await self._of_ha()
        except (OSError, ValueError, TimeoutError, aiohttp.ClientError) as error:
            self._known = self._by_the_page(error)
        finally:
            self._asking = None
        self._known_at = self._clock.monotonic()
        return self._known

    async def _of_ha(self) -> Mapping[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(path=self._socket, limit=1),
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                read_bufsize=ANSWER_SIZE_MAX,
            )
        async with self._session.get("http://ha/v1/cluster") as response:
            value = await response.json(content_type=None)
        if not isinstance(value, dict) or response.status != 200:
            raise ValueError(f"status {response.status}, {str(value)[:100]}")
        return value

    def _by_the_page(self, error: Exception) -> Mapping[str, Any]:
        get, own = self._slots.get, self._config.own
        role = get(Slot.ROLE)
        is_role = role in NodeRole.__members__.values()
        said = NodeRole(role).name.lower() if is_role else str(role)
        return {
            "cluster": self._config.name,
            "group": self._config.group,
            "epoch": get(Slot.EPOCH) or None,
            "master": None,
            "reason": f"ha of node {own.name} does not answer ({error or type(error).__name__}); "
            f"its page, from before, shows this node as {said}",
            "nodes": [{"node": own.name, "role": said, "api": own.api, "admin": own.admin}],
        }
