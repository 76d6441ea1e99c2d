"""The pods of one StatefulSet as a group that drills act on: what is asked and done.

Step before: ``cluster`` runs the pods. Step after: ``families`` break them.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from drills.finding import Finder
from drills.namespaces import CLIENTS
from drills.pods.cluster import Cluster
from drills.pods.kubelet import Event, RunningPod
from drills.pods.objects import Manifest, Objects
from drills.pods.wiring import API_HOST

STORE: Final = "/var/lib/tidemark/store"
API_PORT: Final = "api"
LOOK_S: Final = 0.05
ASK_S: Final = 3.0
PROFILE: Final = "default"


class PodNode(NamedTuple):
    """A pod's store, over all pods of its name."""

    store_dir: Path


class PodGroup:
    """One StatefulSet."""

    def __init__(self, cluster: Cluster, stateful_set: Manifest, finder: Finder | None) -> None:
        """finder: told the pods' addresses as they change."""
        self.cluster, self._finder = cluster, finder
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
        """The pod of that name that there is now."""
        return self.cluster.pods[name]

    def url(self, name: str, port: str) -> str:
        """A port of a pod, by its name in the manifest."""
        pod = self.pod(name)
        return f"http://{pod.placed.address}:{pod.plan.named_ports[port]}"

    def tell_addresses(self) -> None:
        """Let the finder know where the pods are now."""
        if self._finder is not None:
            for name in self.names:
                if name in self.cluster.pods:
                    self._finder.apis[name] = self.url(name, API_PORT)

    # -- what is done to it -----------------------------------------------------------------------

    def cut_off(self, name: str) -> None:
        """The network of a pod's node fails: nothing goes to it or comes from it. Its kubelet is
        on the same node, and goes on asking.
        """
        own = self.cluster.host(name)
        others = [self.cluster.host(other) for other in self.names if other != name]
        self.cluster.network.cut(own, CLIENTS)
        for other in (*others, API_HOST):
            self.cluster.network.cut(own, other)
            self.cluster.network.cut(other, own)

    def heal(self) -> None:
        """Let everything through again."""
        self.cluster.network.heal()

    def apply(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Apply the manifests with every StatefulSet changed."""
        objects = []
        for found in self.cluster.objects:
            one = copy.deepcopy(dict(found))
            if one["kind"] == "StatefulSet":
                change(one)
            objects.append(one)
        self.cluster.apply(Objects(objects))

    def replace(self, kind: str, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Apply the manifests with one object changed. Raises BadManifest if it is not there."""
        self.cluster.objects.get(kind, self.namespace, name)
        objects = []
        for found in self.cluster.objects:
            one = copy.deepcopy(dict(found))
            if (one["kind"], one["metadata"]["name"]) == (kind, name):
                change(one)
            objects.append(one)
        self.cluster.apply(Objects(objects))

    # -- what is asked of it ----------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> float:
        """Wait until something holds; how long it took [s]. Raises TimeoutError."""
        began = time.monotonic()
        while not condition():
            self.cluster.check()
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(f"waited {timeout_s:g} s for {what}")
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - began

    async def ready(self, timeout_s: float) -> float:
        """Wait until every pod is there, ready and of the newest template."""
        return await self.until(self.cluster.is_rolled_out, "all pods to be ready", timeout_s)

    async def ask(self, url: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a GET; status 0: no answer."""
        status, text = await self.text(url)
        try:
            return status, json.loads(text) if text else {}
        except ValueError:
            return status, {}

    async def text(self, url: str) -> tuple[int, str]:
        """Status and text of a GET; status 0: no answer."""
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
        """What has happened from a moment on."""
        return [
            event
            for event in self.cluster.events
            if event.at >= since
            and event.reason == reason
            and pod in ("", event.pod)
            and container in ("", event.container)
        ]
