"""Drills about probes: they kill what hangs, and never what is making progress."""

from __future__ import annotations

import asyncio
import shutil
import signal
from typing import Final

from tidemark.testing.pods.drilling import PodStage
from tidemark.testing.pods.families.limits import READY_S

STOPPED_S: Final = 0.35
RUNNING_S: Final = 0.05
"""A node that gets a tenth of a processor."""
DERIVED: Final = ("consumequeue", "index", "checkpoint")


async def slow_start(stage: PodStage) -> None:
    """A slave that must build its queues anew, on a tenth of a processor, is not killed for it."""
    group, master = stage.group, await stage.master()
    (slave, *_) = stage.slaves(master)
    began = stage.mark()
    stage.restored_s = 0.0
    pod = group.pod(slave)
    group.cluster.lose(slave)
    # In the moment in which nobody has the store open: the next pod is made only after this one.
    for name in DERIVED:
        path = group.nodes[slave].store_dir / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    await group.until(
        lambda: group.cluster.pods.get(slave) not in (None, pod), "the pod to be made again", 30
    )
    pod = group.pod(slave)
    slowly = asyncio.create_task(_slowly(stage, slave))
    try:
        took = await group.ready(READY_S * 2)
    finally:
        slowly.cancel()
        await asyncio.gather(slowly, return_exceptions=True)
    stage.restored_s = stage.gap_since(began)
    killed = group.events(began, reason="Killing")
    stage.check(not killed, f"probes killed what was making progress: {killed[:2]}")
    restarts = {name: found.restarts for name, found in pod.containers.items()}
    stage.check(not any(restarts.values()), f"containers were started again: {restarts}")
    misses = len(group.events(began, reason="Unhealthy", pod=slave))
    stage.note(f"ready after {took:.0f} s, {misses} probes failed, none killed anything")


async def hung(stage: PodStage) -> None:
    """A broker whose loop stands still is killed by its liveness probe, and comes back."""
    group, master = stage.group, await stage.master()
    (slave, *_) = stage.slaves(master)
    running = group.pod(slave).containers["broker"]
    assert running.process is not None
    liveness = running.container.liveness
    assert liveness is not None
    began = stage.mark()
    restarts, stopped = running.restarts, running.process
    stopped.send(signal.SIGSTOP)
    allowed = (
        (liveness.failure_threshold + 1) * (liveness.period_s + liveness.timeout_s)
        + (group.pod(slave).plan.grace_s if liveness.grace_s is None else liveness.grace_s)
        + 15
    )
    took = await group.until(
        lambda: running.restarts > restarts and running.ready,
        "liveness to restart it",
        allowed + 30,
    )
    stage.restored_s = stage.gap_since(began)
    killed = group.events(began, reason="Killing", pod=slave, container="broker")
    stage.check(len(killed) == 1, f"the broker was killed {len(killed)} times")
    stage.check(took <= allowed, f"it took {took:.0f} s, the manifest allows {allowed:.0f} s")
    stage.note(
        f"killed {killed[0].at - began:.1f} s after it stood still, ready after {took:.1f} s"
    )


async def _slowly(stage: PodStage, name: str) -> None:
    """Let a pod run only for a moment now and then."""
    pod = stage.group.pod(name)
    try:
        while True:
            for signum, seconds in ((signal.SIGSTOP, STOPPED_S), (signal.SIGCONT, RUNNING_S)):
                for running in pod.containers.values():
                    if running.process is not None:
                        running.process.send_all(signum)
                await asyncio.sleep(seconds)
    finally:
        for running in pod.containers.values():
            if running.process is not None:
                running.process.send_all(signal.SIGCONT)
