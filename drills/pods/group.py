"""The pods of one StatefulSet as a group for drills: queries and actions.

The step before is ``cluster``, which runs the pods; the step after are the ``families`` of drills.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from drills.namespaces import CLIENTS
from drills.pace import Pace
from drills.pods.cluster import Cluster
from drills.pods.kubelet import Event, RunningPod
from drills.pods.objects import Manifest, changed
from drills.pods.wiring import API_HOST
from shared.cluster.time_rules import PROFILES

STORE: Final = "/var/lib/tidemark/store"
POLL_S: Final = 0.05
ASK_S: Final = 30.0
PROFILE: Final = "default"
TIMES: Final = PROFILES[PROFILE]
ELECTED_S: Final = TIMES.lease_ms / 1000 + 5.0
"""Limit of an election: a lease expires, and another node is elected."""
PLANNED_S: Final = 2.0
"""Limit of a planned switchover."""
LOST_SLAVE_S: Final = TIMES.link_dead_ms / 1000 + PLANNED_S
"""Limit after the loss of a slave, which leaves the in-sync set after this time of silence."""
READY_S: Final = 180.0
"""Timeout of a pod's start."""


class PodNode(NamedTuple):
    """The store of a pod, which survives the pod."""

    store_dir: Path


class PodGroup:
    def __init__(self, cluster: Cluster, stateful_set: Manifest, pace: Pace | None = None) -> None:
        """pace: extends the timeouts on a slow machine; None: they are fixed."""
        self.cluster, self._pace = cluster, pace
        self.name = str(stateful_set["metadata"]["name"])
        self.namespace = str(stateful_set["metadata"]["namespace"])
        self.names = tuple(f"{self.name}-{n}" for n in range(stateful_set["spec"]["replicas"]))
        claim = stateful_set["spec"]["volumeClaimTemplates"][0]["metadata"]["name"]
        claims = cluster.directory / "claims"
        self.nodes = {
            name: PodNode(claims / f"{claim}-{name}" / Path(STORE).name) for name in self.names
        }
        self.table: Mapping[str, object] = {"profile": PROFILE}

    def pod(self, name: str) -> RunningPod:
        return self.cluster.pods[name]

    def url(self, name: str, port: str) -> str:
        """Return the URL of a pod's port, by the name of the port in the manifest."""
        pod = self.pod(name)
        return f"http://{pod.placed.address}:{pod.plan.named_ports[port]}"

    # -- actions ----------------------------------------------------------------------------------

    def cut_off(self, name: str) -> None:
        """Cut off the network of a pod's node, in both directions; its kubelet still runs the
        probes.
        """
        own = self.cluster.host(name)
        others = [self.cluster.host(other) for other in self.names if other != name]
        self.cluster.network.cut(own, CLIENTS)
        for other in (*others, API_HOST):
            self.cluster.network.cut(own, other)
            self.cluster.network.cut(other, own)

    def heal(self) -> None:
        self.cluster.network.heal()

    def apply(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Apply the manifests with every StatefulSet changed."""
        self.cluster.apply(changed(self.cluster.objects, change, "StatefulSet"))

    def replace(self, kind: str, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Apply the manifests with one object changed. Raises BadManifest if it does not exist."""
        self.cluster.objects.get(kind, self.namespace, name)
        self.cluster.apply(changed(self.cluster.objects, change, kind, name))

    # -- queries ----------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> float:
        """Wait until the condition holds; return the duration [s]. Raises TimeoutError.

        A slow machine extends the timeout, as in all waits of a drill.
        """
        began = time.monotonic()
        if self._pace is not None:
            timeout_s *= self._pace.now
        while not condition():
            self.cluster.check()
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(f"waited {timeout_s:g} s for {what}")
            await asyncio.sleep(POLL_S)
        return time.monotonic() - began

    async def replaced(self, name: str, old: RunningPod, timeout_s: float) -> float:
        """Wait until another pod than old has the name."""
        return await self.until(
            lambda: self.cluster.pods.get(name) not in (None, old),
            f"{name} to be made again",
            timeout_s,
        )

    async def ready(self, timeout_s: float) -> float:
        """Wait until every pod exists, is ready and has the newest template."""
        return await self.until(self.cluster.is_rolled_out, "all pods to be ready", timeout_s)

    async def text(self, url: str) -> tuple[int, str]:
        """Return status and text of a GET; status 0 means that there was no response."""
        timeout = aiohttp.ClientTimeout(total=ASK_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url) as answer,
            ):
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0, ""

    def events(
        self, since: float, *, reason: str, pod: str = "", container: str = ""
    ) -> list[Event]:
        return [
            event
            for event in self.cluster.events
            if event.at >= since
            and event.reason == reason
            and pod in ("", event.pod)
            and container in ("", event.container)
        ]
