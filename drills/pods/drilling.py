"""Run drills on the pods of an overlay: put load on them, execute the drill, recover, and judge.

Load, ledger, checker and report are those of ``drills``, with the same requirements for acks.
"""

from __future__ import annotations

import asyncio
import copy
import shutil
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from drills.checker import Verdict
from drills.comparing import compare, compare_queues
from drills.finding import Finder
from drills.ledger import Ledger
from drills.namespaces import Namespaces
from drills.pace import Pace
from drills.pods.cluster import Cluster
from drills.pods.containers import PROJECT, TREES, Image
from drills.pods.event_log import EventLog
from drills.pods.group import PROFILE, PodGroup
from drills.pods.objects import Objects
from drills.report import page
from drills.running import Result, count, judge_drill, result_line
from drills.stage import DrillFailed, GroupStage
from drills.workload import Plan, Workload

READY_S: Final = 120.0
DRILL_S: Final = 600.0
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
"""The interface of a drill on pods."""


class PodDrill(NamedTuple):
    """A drill on pods and its time limit."""

    number: str
    name: str
    title: str
    run: Callable[[PodStage], Awaitable[None]]
    restored_within_s: float | None = None
    """Limit of the time without an ack after the fault; None if service may be interrupted."""
    short: bool = False
    """Whether the drill runs with the tests, with shorter liveness probes."""


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
        """directory: of claims, logs and the report. patience: as in ``drills.running``."""
        self._objects, self._directory, self._network = objects, directory, network
        self._report, self._pace, self._seed = report, Pace(patience), seed
        self.results: list[Result] = []

    async def run(self, drills: Sequence[PodDrill]) -> list[Result]:
        """Start the pods, run the drills, stop the pods."""
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
            group = PodGroup(cluster, cluster.stateful_sets[0], None)
            pace = await parts.enter_async_context(self._pace)
            took = await group.ready(READY_S * pace.now)
            self._report(f"{len(group.names)} pods are ready after {took:.1f} s")
            finder = await parts.enter_async_context(
                Finder({name: group.url(name, "api") for name in group.names}, pace)
            )
            group = PodGroup(cluster, cluster.stateful_sets[0], finder)
            updating = asyncio.create_task(_update_addresses(group))
            parts.callback(updating.cancel)
            load = await parts.enter_async_context(Workload(finder, LOAD, ledger))
            stage = GroupStage(group, finder, load, ledger, Random(self._seed), None)
            await stage.in_sync(timeout_s=READY_S)
            for drill in drills:
                if not await self._one(drill, stage):
                    break
        return self.results

    async def _one(self, drill: PodDrill, shared: PodStage) -> bool:
        stage = GroupStage(
            shared.group, shared.finder, shared.load, shared.ledger, shared.random, None
        )
        result = Result(drill, self._seed)
        self.results.append(result)
        acked_before, began = len(stage.ledger.acked), time.monotonic()
        self._report(f"{drill.number:>3} {drill.name} ...")
        verdict = Verdict()
        try:
            async with asyncio.timeout(DRILL_S * self._pace.now):
                await stage.load.acked(30)
                await drill.run(stage)
                served_until = time.monotonic()
                verdict = await self._settle(stage)
            judge_drill(result, stage, verdict, served_until, self._pace, began)
        except (DrillFailed, TimeoutError) as error:
            result.failure = str(error) or "it does not end"
        except Exception:  # noqa: BLE001 (an error in the drill itself is a failure too)
            result.failure = traceback.format_exc()
        count(result, stage, verdict, began, acked_before)
        self._report(result_line(result))
        for note in result.notes:
            self._report(f"      {note}")
        return result.passed

    async def _settle(self, stage: PodStage) -> Verdict:
        """Remove all faults, wait until all pods are ready, pause the load and compare."""
        stage.group.heal()
        await stage.group.ready(READY_S * self._pace.now)
        await stage.in_sync(timeout_s=READY_S)
        refused = stage.group.cluster.api.refusals
        stage.check(not refused, f"the Roles do not give what is asked for: {refused[:2]}")
        stage.load.pause()
        try:
            await stage.load.quiet()
            verdict = await compare(stage, whole=True)
            verdict.violations += await compare_queues(stage)
            return verdict
        finally:
            stage.load.resume()


def with_short_liveness(objects: Objects) -> Objects:
    """Return the same manifests with liveness probes that kill a hung process within seconds."""
    changed = []
    for found in objects:
        one = copy.deepcopy(dict(found))
        if one["kind"] == "StatefulSet":
            for container in one["spec"]["template"]["spec"]["containers"]:
                container["livenessProbe"] |= SHORT_LIVENESS
        changed.append(one)
    return Objects(changed)


async def _update_addresses(group: PodGroup) -> None:
    while True:
        group.update_addresses()
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


def write_report(results: Sequence[Result], path: Path, *, began: str, seconds: float) -> None:
    """Write the report, in the format of the other fault drills."""
    text = page(
        results,
        seed=results[0].seed,
        began=began,
        seconds=seconds,
        pictures=(),
        title="Drills on pods",
        profile=PROFILE,
    )
    path.write_text(text, encoding="utf-8")
