"""Drills in which a process is killed between two steps of a promotion, a cut or a set change."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from drills.faults import Fault
from drills.namespaces import cut_apart
from drills.sends import TAIL_SIZE_MIN, grow_tail, make_topic
from drills.stage import THREE, THREE_APART, WITH_API, Stage, drill

PROMOTION_STEPS: Final = (2, 4, 5, 6, 7, 8, 9, 10)
ORDER_S: Final = 30.0
RESYNC_STEPS: Final = (1, 2, 3, 4, 5, 6, 7, 8)
GROUP: Final = "g0"
CUT_STEPS: Final = (6, 7, 8, 9, 10)
ARMED_S: Final = 15.0
CHANGES: Final = 4


@drill(
    "24", "a new master's process dies before each numbered step of becoming master", THREE, 12.0
)
async def crash_at_promotion(stage: Stage) -> None:
    """Expect a clean next election after a crash at each step."""
    gaps = []
    for step in PROMOTION_STEPS:
        master, *slaves = await stage.roles(30)
        for slave in slaves:
            stage.group.nodes[slave].faults.arm(f"promote-{step}", "kill")
        at = stage.mark()
        stage.group.kill(master)
        await _disarmed_one(stage, slaves, f"promote-{step}")
        for slave in slaves:
            stage.group.nodes[slave].faults.disarm()
        stage.group.start(master)
        await stage.acked_again(30)
        gaps.append((stage.gap_since(at), step))
        await stage.in_sync()
    stage.note(
        "without an ack, by step: " + ", ".join(f"{step}: {gap:.1f} s" for gap, step in gaps)
    )


@drill(
    "25",
    "a former master's process dies before each numbered step of cutting its tail",
    THREE_APART,
)
async def crash_at_cut(stage: Stage) -> None:
    """Expect the next start to complete the cut; nothing of the tail may be accepted."""
    await make_topic(stage)
    sizes = []
    for step in CUT_STEPS:
        master, *slaves = await stage.roles(30)
        cut_apart(stage.group.network, master, slaves)
        sizes.append(await grow_tail(stage, master, TAIL_SIZE_MIN))
        stage.group.kill(master)
        stage.group.network.heal()
        await stage.successor(master, 20)
        await stage.load.acked(30)
        node = stage.group.nodes[master]
        starts = node.processes["ha"].starts
        node.faults.arm(f"cut-{step}", "kill")
        stage.group.start(master)
        await _disarmed_one(stage, [master], f"cut-{step}")
        await stage.in_sync(timeout_s=60)
        stage.check(node.processes["ha"].starts >= starts + 2, "ha did not die at its step")
    stage.note(
        f"killed before steps {', '.join(map(str, CUT_STEPS))} of a cut of "
        f"{min(sizes) >> 20} MiB or more: each was completed"
    )


@drill("25a", "a slave's process dies before each numbered step of emptying its store", THREE)
async def crash_at_resync(stage: Stage) -> None:
    """Expect the next start to continue to empty the store, or to copy; never a mixed store."""
    master = await stage.master()
    slave = stage.slaves(master)[0]
    node = stage.group.nodes[slave]
    ha = node.processes["ha"]
    for step in RESYNC_STEPS:
        await stage.load.acked(30)
        node.faults.arm(f"resync-{step}", "kill")
        starts = ha.starts
        deadline = time.monotonic() + ORDER_S * stage.finder.pace.now
        # The command gets no response, because the process dies. It may also be starting.
        while node.faults.armed is not None:
            late = time.monotonic() > deadline
            stage.check(not late, f"{slave} did not come to step {step} of a resync")
            await stage.group.command(slave, "resync", group=GROUP)
            await asyncio.sleep(0.2)
        await stage.finder.until(
            lambda _, starts=starts: ha.starts > starts,  # type: ignore[misc]
            f"ha of {slave} to be started again",
            10,
        )
        await stage.state(slave, "catchup", "in-sync", timeout_s=60)
        await stage.in_sync(timeout_s=60)
    stage.note(f"killed before steps {', '.join(map(str, RESYNC_STEPS))}: each was completed")


@drill(
    "27",
    "the master dies while a member is being added, before and after the set was written",
    WITH_API,
    12.0,
)
async def failover_in_set_change(stage: Stage) -> None:
    """Expect no lost ack, and a member in the set only if its log is complete."""
    for number in range(CHANGES):
        applied = number % 2 == 1
        master = await stage.master()
        gone, _ = stage.slaves(master)
        stage.group.kill(gone)
        await stage.load.acked(50)
        await stage.finder.until(
            lambda known, master=master, gone=gone: gone not in known.newest[master].in_sync,  # type: ignore[misc]
            f"{gone} to leave the set",
            20,
        )
        await stage.load.acked(100)
        address = stage.group.nodes[master].host
        wrong = "drop_answers" if applied else "drop_requests"
        # A slow disk keeps it out of the set until the master's writes are lost.
        stage.group.nodes[gone].faults.set(Fault.SYNC_DELAY_MS, 400)
        stage.group.start(gone)
        await stage.state(gone, "catchup", timeout_s=40)
        faults = {wrong: 1, "only_from": [address], "only_methods": ["PUT"]}
        await stage.lease_server.faults(**faults)
        stage.group.nodes[gone].faults.set(Fault.SYNC_DELAY_MS, 0)
        # Renewals are lost too, so the master has half its lease to attempt the addition.
        await asyncio.sleep(stage.fenced_s / 2)
        stage.mark()
        stage.group.kill(master)
        await stage.lease_server.faults()
        await stage.successor(master, 30)
        await stage.acked_again(30)
        stage.group.start(master)
        await stage.in_sync()
        stage.note(
            f"{gone} was being added, its write {'applied' if applied else 'lost'}: "
            f"{await stage.master()} leads epoch {stage.epoch}"
        )


async def _disarmed_one(stage: Stage, names: list[str], step: str) -> None:
    """Wait until one of the nodes has reached its step and died."""
    pages = [stage.group.nodes[name].faults for name in names]
    await stage.finder.until(
        lambda _: any(page.armed is None for page in pages), f"a process to reach {step}", ARMED_S
    )
