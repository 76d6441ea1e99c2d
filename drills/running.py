"""Run drills: create their groups and load, execute each drill, remove its faults and judge it.

Drills with the same needs share a group one after another, so each starts from the state that the
previous one left. If a drill fails, its group is stopped and the next drill gets a new one.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

from drills.checker import Verdict
from drills.comparing import compare
from drills.etcd_cluster import EtcdCluster
from drills.finding import Finder, StateChange
from drills.group import Group
from drills.lease_server import EtcdServer, KubernetesServer, LeaseServer
from drills.ledger import Ledger, Outcome
from drills.namespaces import Network
from drills.pace import Pace, allowed_s
from drills.small_disks import SmallDisks
from drills.stage import (
    ETCD,
    FAULTY_ETCD,
    KUBERNETES,
    Drill,
    DrillFailed,
    G,
    GroupStage,
    Needs,
    Observed,
    Stage,
)
from drills.workload import Plan, Workload
from tidemark.testing.child import NodeFailed

READY_S: Final = 60.0
DRILL_S: Final = 600.0
LONG_DRILL_S: Final = 1800.0
GROUP_NAME: Final = "drills-g0"
ETCD_MEMBERS: Final = 3
"""A machine without a node has the third one of two nodes."""
ACKED_BEFORE: Final = 30
"""Messages that are acked before each drill, to see that the group serves."""
LINES_SHOWN: Final = 20
"""Log lines of each service in the report of a failed drill."""


@dataclass(slots=True)
class Requests:
    acked: int = 0
    """Messages."""
    errors: Counter[str] = field(default_factory=Counter)
    """Requests without an ack, by error code."""
    unknown: int = 0
    """Requests with an unknown outcome."""


@dataclass(slots=True)
class Result:
    drill: Drill[Any]
    seconds: float = 0.0
    restored_s: float | None = None
    """RTO: longest time without an ack after the fault [s]."""
    verdict: Verdict = field(default_factory=Verdict)
    requests: Requests = field(default_factory=Requests)
    notes: list[str] = field(default_factory=list)
    failure: str = ""

    @property
    def passed(self) -> bool:
        return not self.failure


@dataclass(slots=True)
class Session:
    """The events on one group, for the picture."""

    name: str
    began: float
    ended: float = 0.0
    acks: list[tuple[float, int]] = field(default_factory=list)
    """(time, messages) of each ack."""
    changes: list[StateChange] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)


class Runner:
    """Runs drills, grouped by their needs."""

    def __init__(
        self,
        directory: Path,
        network: Network,
        *,
        seed: int,
        report: Callable[[str], None],
        plan: Plan | None = None,
        patience: float = 1.0,
    ) -> None:
        """directory: holds stores, logs and reports. network: where the nodes run. patience:
        additional factor on the allowed interruptions, besides the measured slowness of the machine
        (``Pace``).
        """
        self._patience = patience
        self._directory, self._network, self._seed = directory, network, seed
        self._report = report
        self._plan = plan or Plan()
        self.results: list[Result] = []
        self.sessions: list[Session] = []

    async def run(self, drills: Sequence[Drill[Group]]) -> list[Result]:
        """Run all drills, including those after a failed one."""
        waiting = list(drills)
        while waiting:
            needs = waiting[0].needs
            batch = [found for found in waiting if found.needs == needs]
            if needs.fresh:
                batch = batch[:1]
            await self._on_one_group(needs, batch)
            done = {result.drill.name for result in self.results}
            waiting = [found for found in waiting if found.name not in done]
        return self.results

    async def _on_one_group(self, needs: Needs, drills: Sequence[Drill[Group]]) -> None:
        """Run at least the first drill on one group, then further ones until one fails."""
        name = f"group{len(self.sessions)}"
        directory = self._directory / name
        shutil.rmtree(directory, ignore_errors=True)
        session = Session(name, time.monotonic())
        self.sessions.append(session)
        ledger, finder, running = Ledger(), None, drills[0]
        try:
            async with AsyncExitStack() as parts:
                network = self._network
                parts.callback(network.heal)  # a failed drill may have left cuts
                lease, etcd = await self._lease_store(needs, directory, parts)
                store = lease or etcd
                disks = parts.enter_context(SmallDisks(needs.disk_size))
                group = Group(
                    directory,
                    network,
                    nodes=needs.nodes,
                    min_in_sync=needs.min_in_sync,
                    profile=needs.profile,
                    lease=None if store is None else store.settings,
                    broker={"retention_size_max": needs.log_size_max},
                )
                disks.mount(node.store_dir for node in group.nodes.values())
                await parts.enter_async_context(group)
                group.start()
                pace = await parts.enter_async_context(Pace(self._patience, group.nodes, directory))
                finder = await parts.enter_async_context(Finder(group.apis, pace))
                load = Workload(finder, self._plan, ledger)
                try:
                    async with asyncio.timeout(READY_S * pace.now):
                        await parts.enter_async_context(load)
                    stage = Stage(group, finder, load, ledger, Random(self._seed), lease, etcd)
                    await stage.in_sync(timeout_s=READY_S)
                except (TimeoutError, DrillFailed) as error:
                    await self._no_group(drills[0], group, error)
                    return
                for running in drills:
                    if not await self._one(running, stage, session, pace):
                        return
        except NodeFailed as error:
            self._service_failed(running, error)
        finally:
            session.ended = time.monotonic()
            session.acks = [(ack.ended_at, ack.messages) for ack in ledger.acks()]
            session.changes = [] if finder is None else finder.known.changes

    async def _lease_store(
        self, needs: Needs, directory: Path, parts: AsyncExitStack
    ) -> tuple[LeaseServer | None, EtcdCluster | None]:
        """Start the store of the lease, which ends with the parts; see ``GroupStage``."""
        if needs.lease == KUBERNETES:
            api = KubernetesServer(directory, self._network, seed=self._seed, lease_name=GROUP_NAME)
            return await parts.enter_async_context(api), None
        if needs.lease not in (ETCD, FAULTY_ETCD):
            return None, None
        hosts = [self._network.add(f"n{number}") for number in range(ETCD_MEMBERS)]
        etcd = parts.enter_context(EtcdCluster(directory / "etcd", hosts))
        await asyncio.to_thread(etcd.wait_serving)
        if needs.lease == ETCD:
            return None, etcd
        proxies = EtcdServer(directory, etcd, hosts, seed=self._seed, lease_name=GROUP_NAME)
        return await parts.enter_async_context(proxies), etcd

    async def _no_group(self, drill: Drill[Group], group: Group, error: Exception) -> None:
        result = Result(drill, failure=f"the group does not come up: {error}")
        await self._keep_logs(result, group)
        self.results.append(result)
        self._report(f"{drill.number:>3} {drill.name}: FAILED, {result.failure}")

    def _service_failed(self, drill: Drill[Group], error: NodeFailed) -> None:
        """Record that a service refused its configuration, before the drill or during it."""
        result = next((found for found in self.results if found.drill is drill), None)
        if result is None:
            result = Result(drill)
            self.results.append(result)
        result.failure = str(error)
        self._report(result_line(result))

    async def _one(self, drill: Drill[Group], stage: Stage, session: Session, pace: Pace) -> bool:
        """Run one drill on a complete group; return whether the group can be used again."""
        result = Result(drill)
        self.results.append(result)
        await run_drill(result, stage, pace, self._settle, self._report)
        if stage.observed.fault_at:
            session.faults.append((stage.observed.fault_at, drill.number))
        if result.failure:
            await self._keep_logs(result, stage.group)
        self._report(result_line(result))
        return result.passed and not drill.needs.fresh

    async def _settle(self, drill: Drill[Group], stage: Stage) -> Verdict:
        """Remove all faults, wait for the group to recover, pause the load and compare the logs."""
        group = stage.group
        group.network.heal()
        if stage.lease is not None:
            await stage.lease.faults()
        if stage.etcd is not None:
            stage.etcd.resume()
            stage.etcd.start_killed()
        for node in group.nodes.values():
            node.faults.clear()
            group.resume(node.name)
        group.start()
        if drill.needs.fresh:
            await stage.acked_again(READY_S)
        else:
            await stage.in_sync()
        return await compare(stage, whole=not drill.needs.fresh)

    async def _keep_logs(self, result: Result, group: Group) -> None:
        """Write everything that helps to explain a failed drill into one file."""
        path = self._directory / f"failed-{result.drill.name}.log"
        known = await asyncio.gather(*(group.status(name) for name in group.names))
        status_text = "\n".join(
            f"--- what {name} knows\n{json.dumps(status, indent=1)}"
            for name, status in zip(group.names, known, strict=True)
        )
        path.write_text(
            f"{result.failure}\n\n{status_text}\n{group.logs(LINES_SHOWN)}\n", encoding="utf-8"
        )


async def run_drill(
    result: Result,
    stage: GroupStage[G],
    pace: Pace,
    settle: Callable[[Drill[G], GroupStage[G]], Awaitable[Verdict]],
    report: Callable[[str], None],
) -> None:
    """Run the drill of a result, remove its faults and judge it.

    settle: removes all faults, waits for the group to recover and compares the logs; the load is
    then paused.
    """
    drill, stage.observed = result.drill, Observed()
    acked_before, began = len(stage.ledger.acked), time.monotonic()
    report(f"{drill.number:>3} {drill.name} ...")
    verdict = Verdict()
    try:
        async with asyncio.timeout((LONG_DRILL_S if drill.long else DRILL_S) * pace.now):
            await stage.load.acked(ACKED_BEFORE)
            await drill.run(stage)
            served_until = time.monotonic()
            try:
                verdict = await settle(drill, stage)
            finally:
                stage.load.resume()
        judge_drill(result, stage, verdict, served_until, pace, began)
    except (DrillFailed, TimeoutError) as error:
        result.failure = str(error) or "it does not end"
    except Exception:  # noqa: BLE001 (an error in the drill itself is a failure too)
        result.failure = traceback.format_exc()
    _count(result, stage, began, acked_before)


def judge_drill(
    result: Result,
    stage: GroupStage[G],
    verdict: Verdict,
    served_until: float,
    pace: Pace,
    began: float,
) -> None:
    """Record violations, and whether the interruption was too long.

    Subtracted from every gap is the longer of two times: 1. that for which the machine did not run
    the drill's processes, as far as the measured slowness explains it; 2. that for which the disk
    of the stores stalled after the wait for the end of a lease, which the limit allows anyway.
    began: start time of the drill.
    """
    drill, result.verdict = result.drill, verdict
    violations = [*verdict.violations, *sorted(stage.finder.known.contradictions)]
    observed = stage.observed
    if observed.fault_at:
        gaps = observed.gaps or [
            stage.ledger.longest_gap_at(observed.fault_at, observed.restored_by or served_until)
        ]
        result.restored_s = max(end - begin for begin, end in gaps)
        if (limit := drill.restored_within_s) is not None:
            # An interruption longer than a lease includes the wait for the end of the lease.
            waits_s = stage.lease_s if limit > stage.lease_s else 0.0
            slowness = pace.since(began)
            allowed = allowed_s(limit, waits_s, slowness.on_processor)
            excused_max = allowed_s(limit, waits_s, slowness.by_clock) - allowed
            has_disk = drill.needs.disk_size is None  # a small disk is in memory
            owed_s, away_s, core_s, disk_s, ended = max(
                (end - begin - max(core_s, disk_s), end - begin, core_s, disk_s, end)
                for begin, end in gaps
                for held_s in [pace.held_back_s(begin, end, stage.ledger.acked_at(end))]
                for core_s in [min(held_s, excused_max)]
                for disk_s in [pace.disk_stalled_s(begin + waits_s, end) if has_disk else 0.0]
            )
            summary = (
                f"of {away_s:.2f} s without an ack, until {_clock(ended)} UTC, the machine held "
                f"the drill back for {away_s - owed_s:.2f} s (wait for a core {core_s:.2f} s, "
                f"stall of the disk {disk_s:.2f} s: the longer counts); allowed beside that are "
                f"{allowed:.2f} s ({limit:g} s on a quiet machine, work took x "
                f"{slowness.on_processor:.1f}, by the clock x {slowness.by_clock:.1f})"
            )
            stage.note(summary)
            if owed_s > allowed:
                violations.append(f"F: {summary}")
    if violations:
        verdict.violations = violations
        result.failure = verdict.shown()


def _clock(at: float) -> str:
    """Return the time of day of a monotonic time, by which the gap is found in the logs."""
    wall = datetime.fromtimestamp(time.time() - time.monotonic() + at, UTC)
    return wall.strftime("%H:%M:%S.%f")[:-3]


def _count(result: Result, stage: GroupStage[G], began: float, acked_before: int) -> None:
    """Record the counts of a finished drill. acked_before: acked messages at its start."""
    ended = time.monotonic()
    result.seconds = ended - began
    result.notes = stage.observed.notes
    result.requests = Requests(
        len(stage.ledger.acked) - acked_before,
        stage.ledger.codes(began, ended),
        stage.ledger.outcomes(began, ended)[Outcome.UNKNOWN],
    )


def result_line(result: Result) -> str:
    restored = "" if result.restored_s is None else f", restored in {result.restored_s:.1f} s"
    return (
        f"{result.drill.number:>3} {result.drill.name}: "
        + (f"passed{restored}" if result.passed else f"FAILED: {result.failure}")
        + f" ({result.seconds:.0f} s)"
    )
