"""Run drills on the pods of an overlay: put load on them, execute the drill, recover, and judge.

Load, ledger, checker and report are those of ``drills``, with the same requirements for acks.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

from drills.checker import Verdict
from drills.comparing import compare, compare_queues
from drills.finding import Finder
from drills.ledger import Ledger
from drills.namespaces import Namespaces
from drills.pace import Pace
from drills.pods.cluster import Cluster
from drills.pods.containers import PROJECT, TREES, Image
from drills.pods.event_log import EventLog
from drills.pods.group import PodGroup
from drills.pods.objects import Objects, changed
from drills.running import Result, result_line, run_drill
from drills.stage import Drill, GroupStage
from drills.workload import Plan, Workload

READY_S: Final = 120.0
UPDATE_S: Final = 0.05
SHORT_LIVENESS: Final = {
    "periodSeconds": 2,
    "failureThreshold": 3,
    "terminationGracePeriodSeconds": 3,
}
NEXT_VERSION: Final = "0.1.0+next"
NEXT_IMAGE: Final = "tidemark:next"
LOAD: Final = Plan(producers=3, requests_per_s=10.0)

PodStage = GroupStage[PodGroup]
"""Stage of a group of pods."""


class PodRunner:
    """Runs drills one after another on the same pods; stops at the first failure."""

    def __init__(
        self,
        objects: Objects,
        directory: Path,
        network: Namespaces,
        *,
        report: Callable[[str], None],
        patience: float,
        seed: int,
    ) -> None:
        """directory: holds claims, logs and the report. patience: as in ``drills.running``."""
        self._objects, self._directory, self._network = objects, directory, network
        self._report, self._pace, self._seed = report, Pace(patience, directory=directory), seed
        self.results: list[Result] = []

    async def run(self, drills: Sequence[Drill[PodGroup]]) -> list[Result]:
        path = self._directory / "events.log"
        events = EventLog(path.open("w", encoding="utf-8"), time.monotonic())
        ledger = Ledger()
        async with AsyncExitStack() as parts:
            parts.callback(events.close)
            cluster = await parts.enter_async_context(
                Cluster(
                    self._objects,
                    self._directory,
                    self._network,
                    on_event=events.note,
                    images={NEXT_IMAGE: next_image(self._directory)},
                )
            )
            group = PodGroup(cluster, cluster.stateful_sets[0], self._pace)
            pace = await parts.enter_async_context(self._pace)
            took = await group.ready(READY_S)
            self._report(f"{len(group.names)} pods are ready after {took:.1f} s")
            finder = await parts.enter_async_context(
                Finder({name: group.url(name, "api") for name in group.names}, pace)
            )
            updating = asyncio.create_task(_update_addresses(group, finder))
            parts.callback(updating.cancel)
            load = await parts.enter_async_context(Workload(finder, LOAD, ledger))
            stage = GroupStage(group, finder, load, ledger, Random(self._seed))
            await stage.in_sync(timeout_s=READY_S)
            for drill in drills:
                if not await self._one(drill, stage):
                    break
        return self.results

    async def _one(self, drill: Drill[PodGroup], stage: PodStage) -> bool:
        result = Result(drill)
        self.results.append(result)
        await run_drill(result, stage, self._pace, self._settle, self._report)
        self._report(result_line(result))
        for note in result.notes:
            self._report(f"      {note}")
        return result.passed

    async def _settle(self, drill: Drill[PodGroup], stage: PodStage) -> Verdict:
        """Remove all faults, wait until all pods are ready, and compare logs and queues."""
        stage.group.heal()
        await stage.group.ready(READY_S)
        await stage.in_sync(timeout_s=READY_S)
        refused = stage.group.cluster.api.refusals
        stage.check(not refused, f"the Roles do not give what is asked for: {refused[:2]}")
        verdict = await compare(stage, whole=True)
        verdict.violations += await compare_queues(stage)
        return verdict


def with_short_liveness(objects: Objects) -> Objects:
    """Return the same manifests with liveness probes that kill a hung process within seconds."""

    def shorten(stateful_set: dict[str, Any]) -> None:
        for container in stateful_set["spec"]["template"]["spec"]["containers"]:
            container["livenessProbe"] |= SHORT_LIVENESS

    return changed(objects, shorten, "StatefulSet")


async def _update_addresses(group: PodGroup, finder: Finder) -> None:
    while True:
        for name in group.names:
            if name in group.cluster.pods:
                finder.apis[name] = group.url(name, "api")
        await asyncio.sleep(UPDATE_S)


def next_image(directory: Path) -> Image:
    """Create another image of the same code: a copy with a different version number."""
    trees = {}
    for name in TREES:
        target = directory / "next-image" / name
        shutil.rmtree(target, ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__", "testing")
        shutil.copytree(PROJECT / name, target, ignore=ignored)
        trees[name] = target
    start = trees["tidemark"] / "__init__.py"
    text = start.read_text(encoding="utf-8")
    changed = text.replace('__version__ = "0.1.0"', f'__version__ = "{NEXT_VERSION}"')
    if changed == text:
        raise ValueError(f"{start} does not say its version as expected")
    start.write_text(changed, encoding="utf-8")
    return Image(trees)
