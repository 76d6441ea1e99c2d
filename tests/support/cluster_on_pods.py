"""The pods of ``overlays/cluster`` as processes: killed under load, then more nodes and a group.

    python -m tests.support.cluster_on_pods OUT

A process of its own, because it moves into its own network. It prints what it has shown, and ends
with an error if an acked message is missing. Step before: ``tests/processes/test_pods.py``.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from deploy.lint.rendering import copied
from drills.pace import Pace
from drills.pods.cluster import Cluster
from drills.pods.group import PodGroup
from drills.pods.objects import Manifest, Objects, namespace_of
from drills.pods.starting import new_network, render, with_secrets
from tests.support import pod_client
from tests.support.page_commands import commands

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md"
URLS: Final = ",".join(
    f"http://tidemark-names-{n}.tidemark-names.tidemark.svc:9870" for n in range(2)
)
NODE_LINE: Final = ("/spec/replicas, value: 2}", "/spec/replicas, value: 3}")
GROUP_LINE: Final = ("# A further group is one line: - ", "- ")
PATIENCE: Final = 1.0
READY_S: Final = 400.0
ACKS_S: Final = 120.0
ACKS: Final = 150
"""Acks that are awaited after each fault."""


def client_pod(namespace: str) -> list[dict[str, Any]]:
    """Return a pod that runs the program, with the label that policies admit."""
    metadata = {"name": "client", "namespace": namespace}
    labels = {"tidemark/client": "true"}
    container = {
        "name": "client",
        "image": "tidemark",
        # Not /opt/tidemark/bin/python: of the environment, the image of these pods has `bin` alone.
        "command": [sys.executable, "/program/pod_client.py"],
        "env": [{"name": "NAMES", "value": URLS}],
        "volumeMounts": [
            {"name": "program", "mountPath": "/program"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        {"name": "program", "configMap": {"name": "client"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    pod = {"containers": [container], "volumes": volumes, "automountServiceAccountToken": False}
    template = {"metadata": {"labels": labels}, "spec": pod}
    text = Path(pod_client.__file__).read_text(encoding="utf-8")
    return [
        {"kind": "ConfigMap", "metadata": metadata, "data": {"pod_client.py": text}},
        {
            "kind": "StatefulSet",
            "metadata": metadata,
            "spec": {"replicas": 1, "template": template},
        },
    ]


class Play:
    """The cluster with its client."""

    def __init__(self, cluster: Cluster, overlay: Path, extra: list[Manifest], pace: Pace) -> None:
        """extra: objects besides those of the overlay, which are applied again with them. pace:
        waits are longer on a slow machine."""
        self._cluster, self._overlay, self._extra = cluster, overlay, extra
        first = cluster.objects.get("StatefulSet", "tidemark", "tidemark-g0")
        self._first = PodGroup(cluster, first, pace)

    def edit(self, line: tuple[str, str]) -> None:
        """Change one line of the overlay, and apply it."""
        path = self._overlay / "kustomization.yaml"
        text = path.read_text()
        assert text.count(line[0]) >= 1, line
        path.write_text(text.replace(*line, 1))
        self._cluster.apply(Objects([*render(self._overlay), *self._extra]))

    async def ready(self, what: str) -> None:
        """Wait until all wanted pods run with the newest template."""
        took = await self._first.ready(READY_S)
        print(f"{what}: {len(self._cluster.pods)} pods are ready after {took:.0f} s", flush=True)

    async def more_acks(self, what: str) -> Counter[str]:
        """Wait for further acks; return how many each broker group gave."""
        before = len(self._lines("acked"))
        await self._first.until(
            lambda: len(self._lines("acked")) >= before + ACKS, f"acks {what}", ACKS_S
        )
        found = Counter(line.split()[1] for line in self._lines("acked")[before:])
        print(f"{what}: acks {dict(found)}", flush=True)
        return found

    async def end_of_client(self) -> str:
        """Let the client read everything; return what it lost."""
        client = self._cluster.pods["client-0"].containers["client"]
        client.started.send(signal.SIGUSR1)
        await self._first.until(lambda: bool(self._lines("lost")), "the client to read", ACKS_S * 2)
        for line in self._lines("failed") + self._lines("missing"):
            print(line)
        return self._lines("lost")[-1]

    async def kill_master_and_names(self) -> None:
        """Kill the master of g1 and a name service at the same time."""
        gone = [self._master("g1"), "tidemark-names-0"]
        old = {name: self._cluster.pods[name] for name in gone}
        for name in gone:
            self._cluster.delete(name, 0.0)
        for name in gone:
            await self._first.replaced(name, old[name], READY_S)

    async def add_nodes(self, groups: list[str]) -> None:
        """Take the third node into each group, by the command of the page."""
        [line] = [line for line in commands(PAGE, "groups") if " add-node " in line]
        command = shlex.split(line.partition(" -- ")[2])
        for group in groups:
            own = [word.replace("tidemark-g0", f"tidemark-{group}") for word in command]
            pod = self._cluster.pods[self._master(group)]
            print(await pod.run_in("ha", *own, timeout_s=60.0), flush=True)

    async def shown_groups(self) -> str:
        """Return what the name services know, as the command line shows it."""
        pod = self._cluster.pods["tidemark-g0-0"]
        return await pod.run_in("ha", "tidemark", "cluster", "groups", "--url", URLS)

    def _master(self, group: str) -> str:
        """Return the pod of a group that has the label of the master."""
        [name] = [
            name
            for name in self._cluster.pods
            if name.startswith(f"tidemark-{group}-") and self._cluster.role(name) == "master"
        ]
        return name

    def _lines(self, first: str) -> list[str]:
        path = self._cluster.directory / "logs" / "client-0.client.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(f"{first} ")]


async def play(overlay: Path, out: Path) -> None:
    """Run everything. Raises AssertionError or TimeoutError."""
    objects, _ = with_secrets(render(overlay))
    secrets = objects.of_kind("Secret")
    namespace = namespace_of(secrets[0])
    began = time.monotonic()

    def note(event: object) -> None:
        print(f"{time.monotonic() - began:7.1f} {event}", file=log, flush=True)

    with (out / "events.log").open("w", encoding="utf-8") as log:
        async with (
            Cluster(objects, out, new_network(), on_event=note) as cluster,
            Pace(PATIENCE, directory=out) as pace,
        ):
            client = client_pod(namespace)
            shown = Play(cluster, overlay, [*secrets, *client], pace)
            await shown.ready("two groups of two and two name services")
            cluster.apply(Objects([*objects, *client]))
            await shown.more_acks("in the beginning")
            await shown.kill_master_and_names()
            acks = await shown.more_acks("after a master and a name service were killed")
            await shown.ready("both again")
            acks += await shown.more_acks("with all pods")
            assert set(acks) == {"g0", "g1"}

            shown.edit(NODE_LINE)
            await shown.add_nodes(["g0", "g1"])
            await shown.ready("one more node of each group")
            shown.edit(GROUP_LINE)
            await shown.ready("one more group")
            listed = await shown.shown_groups()
            assert all(group in listed for group in ("g0", "g1", "g2")), listed
            acks = await shown.more_acks("at the end")
            assert set(acks) == {"g0", "g1"}, "the topic was not made in the new group"
            lost = await shown.end_of_client()
            print(lost)
            assert lost.startswith("lost 0 of "), lost
            assert cluster.probe_kills() == 0
            assert not cluster.api.refusals, cluster.api.refusals[:2]


def main() -> None:
    """Run it on a copy of the manifests."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with copied() as deploy:
        asyncio.run(play(deploy / "k8s" / "overlays" / "cluster", out))


if __name__ == "__main__":
    main()
