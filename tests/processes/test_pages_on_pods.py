"""The commands of the pages on Kubernetes, in their order, on pods of the rendered manifests.

Requests of `kubectl` to a cluster go to the pods here; a command in a container runs in that
container, with its user, root and environment.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from deploy.lint.rendering import copied
from drills.pods.cluster import Cluster
from drills.pods.group import PodGroup
from drills.pods.starting import new_network, render, what_is_missing
from tests.support.page_commands import commands

pytestmark = [pytest.mark.xdist_group("pods"), pytest.mark.timeout(600)]

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
READY_S: Final = 180.0
CONTAINER: Final = "ha"
ELSEWHERE: Final = {
    # First words after kubectl, without -n tidemark: why it is not run here.
    "apply -f": "the namespace of overlays/prod",
    "create secret": "the secret of overlays/prod",
    "label namespace": "for clients outside of the namespace",
    "get podmonitors": "needs the Prometheus operator",
    "diff -k": "asks an API server for differences",
    "patch statefulset": "drills.pods drills the partition",
    "rollout undo": "drills.pods drills the way back",
    "delete pod tidemark-g0-1": "with rollout undo",
    "delete statefulset": "throws the nodes away",
    "delete -k": "throws everything away",
    "delete pvc": "throws everything away",
    "edit pvc": "needs a StorageClass",
}


@pytest.fixture
def overlay() -> Iterator[Path]:
    missing = what_is_missing()
    if missing:
        if os.environ.get("TIDEMARK_REQUIRE_ALL") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    with copied() as deploy:
        yield deploy / "k8s" / "overlays" / "ha"


class Pages:
    """Runs the lines that need a cluster, on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.group = PodGroup(cluster, cluster.stateful_sets[0])

    @property
    def master(self) -> str | None:
        """The one pod with this label; None while there is none, or more than one."""
        present = [name for name in self.group.names if name in self._cluster.pods]
        names = [name for name in present if self._cluster.role(name) == "master"]
        return names[0] if len(names) == 1 else None

    async def line(self, line: str) -> str:
        """Run the command; return its output if it runs in a container."""
        sent, _, after = line.rpartition(" | ")
        words = shlex.split(after.removeprefix("kubectl ").replace("-n tidemark ", ""))
        match words:
            case ["exec", *_]:
                await self.group.ready(READY_S)
                place = words.index("--")
                pod = next(word for word in words[1:place] if not word.startswith("-"))
                assert words[words.index("-c") + 1] == CONTAINER
                command = words[place + 1 :]
                if sent:
                    command = ["sh", "-c", f"{sent} | {shlex.join(command)}"]
                return await self.group.pod(pod).run_in(CONTAINER, *command, timeout_s=60.0)
            case ["rollout", "status", *_] | ["apply", "-k", *_]:
                await self.group.ready(READY_S)
            case ["get", "pods", *_]:
                await self.group.until(lambda: self.master is not None, "a master", READY_S)
            case ["delete", "pod", "-l", "role=master", *how]:
                await self.group.ready(READY_S)
                before, forced = self.master, "--force" in how
                assert before is not None
                self._cluster.delete(before, 0.0 if forced else None)
                if not forced:  # killed, it may be back before its lease has run out
                    await self.group.until(
                        lambda: self.master not in (None, before), "another master", READY_S
                    )
            case _:
                assert any(" ".join(words).startswith(known) for known in ELSEWHERE), line
        return ""


async def test_the_commands_of_the_pages_have_their_described_effects(
    overlay: Path, tmp_path: Path
) -> None:
    objects = render(overlay)
    async with Cluster(objects, tmp_path / "out", new_network(), on_event=print) as cluster:
        pages = Pages(cluster)
        said = [
            (line, await pages.line(line)) for line in commands(DOCS / "kubernetes.md", "cluster")
        ]
        shown = {line: text for line, text in said if text}
        [status] = [text for line, text in shown.items() if line.endswith("cluster status")]
        assert "takes over, with all messages acknowledged" in status
        read = [text for line, text in said if " consume " in line]
        assert [text.split() for text in read] == [["hello"], ["hello"]], "before and after drills"
        [history] = [text for line, text in shown.items() if line.endswith("cluster history")]
        assert len(history.splitlines()) >= 1 + 3, "a heading, and an epoch for each master"

        # The other page begins where the second pod is the master.
        await pages.group.ready(READY_S)
        if pages.master != "tidemark-g0-1":
            await pages.line("kubectl exec tidemark-g0-0 -c ha -- tidemark cluster switchover")
            await pages.group.until(lambda: pages.master == "tidemark-g0-1", "the second", READY_S)
        for line in commands(DOCS / "upgrading.md", "cluster"):
            await pages.line(line)
            if "switchover" in line:
                await pages.group.until(
                    lambda: pages.master == "tidemark-g0-0", "the first one", READY_S
                )
        assert cluster.probe_kills() == 0
        await cluster.stop()
