"""Drills about probes, which must kill hung processes but never one that makes progress."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import signal
from typing import Final

import aiohttp

from drills.pods.drilling import PodStage
from drills.pods.group import READY_S
from drills.pods.kubelet import RunningContainer
from drills.pods.plans import HttpGet, PodPlan

STOPPED_S: Final = 0.6
RUNNING_S: Final = 0.01
"""With STOPPED_S, this leaves a sixtieth of a core."""
POLL_S: Final = 0.01
IMPATIENCE_S: Final = 15
"""Failure threshold of the startup probe, which runs once per second."""
FILLER: Final = "filler"
MESSAGES: Final = 700_000
"""Number of messages whose recovery and dispatch took 23 s on the machine of the time limits; on a
faster machine, the drill adds more.
"""
MESSAGES_MAX: Final = 4_000_000
BATCH: Final = 1000
DERIVED: Final = ("consumequeue", "index", "checkpoint")


async def slow_start(stage: PodStage) -> None:
    """Rebuild a slave's queues on a sixtieth of a core; probes must not kill it.

    Its startup probes would fail long before it is ready if they checked readiness. The required
    number of messages depends on the machine: the drill adds messages until it takes long enough.
    """
    group, master = stage.group, await stage.master()
    (slave, *_) = stage.slaves(master)
    filled, took, gaps = 0, 0.0, []
    while took <= IMPATIENCE_S:
        stage.check(filled <= MESSAGES_MAX, f"{filled} messages take {took:.0f} s: too few still")
        await _fill(stage, master, filled or MESSAGES)
        filled += filled or MESSAGES
        await stage.in_sync(timeout_s=READY_S)
        began = stage.mark()
        took = await _start_slowly(stage, slave)
        await group.ready(READY_S)
        gaps.append(stage.gap_since(began))
        killed = group.events(began, reason="Killing")
        stage.check(not killed, f"probes killed what was making progress: {killed[:2]}")
        restarts = {name: found.restarts for name, found in group.pod(slave).containers.items()}
        stage.check(not any(restarts.values()), f"containers were started again: {restarts}")
    misses = len(group.events(began, reason="Unhealthy", pod=slave))
    stage.note(
        f"reput was ready after {took:.0f} s for {filled} messages, its startup probe gives up "
        f"after {IMPATIENCE_S} s without progress; {misses} probes failed, none killed anything"
    )


async def _start_slowly(stage: PodStage, slave: str) -> float:
    """Recreate a slave's pod without its derived files; return how long reput took [s]."""
    group = stage.group
    pod = group.pod(slave)
    with group.cluster.adjusting(_impatient):
        group.cluster.lose(slave)
        # The store is closed here, because the next pod is created only after this.
        for name in DERIVED:
            path = group.nodes[slave].store_dir / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        await group.replaced(slave, pod, 30)
    pod = group.pod(slave)
    await group.until(
        lambda: all(running.process for running in pod.containers.values()), "processes", 30
    )
    slowly = [
        asyncio.create_task(_slowly(stage, running, pod.placed.address))
        for running in pod.containers.values()
    ]
    try:
        reput = pod.containers["reput"]
        return await group.until(lambda: reput.ready, "reput to have built the queues", READY_S)
    finally:
        for task in slowly:
            task.cancel()
        await asyncio.gather(*slowly, return_exceptions=True)


async def hung(stage: PodStage) -> None:
    """Stop a broker's event loop: the liveness probe must kill it, and it must restart."""
    group, master = stage.group, await stage.master()
    (slave, *_) = stage.slaves(master)
    running = group.pod(slave).containers["broker"]
    liveness = running.container.liveness
    assert liveness is not None
    began = stage.mark()
    restarts = running.restarts
    running.started.send(signal.SIGSTOP)
    allowed = (
        (liveness.failure_threshold + 1) * (liveness.period_s + liveness.timeout_s)
        + (group.pod(slave).plan.grace_s if liveness.grace_s is None else liveness.grace_s)
        + 15 * stage.finder.pace.now
    )
    took = await group.until(
        lambda: running.restarts > restarts and running.ready,
        "liveness to restart it",
        allowed + 30,
    )
    stage.gap_since(began)
    killed = group.events(began, reason="Killing", pod=slave, container="broker")
    stage.check(len(killed) == 1, f"the broker was killed {len(killed)} times")
    stage.check(took <= allowed, f"it took {took:.0f} s, the manifest allows {allowed:.0f} s")
    stage.note(
        f"killed {killed[0].at - began:.1f} s after it stood still, ready after {took:.1f} s"
    )


def _impatient(plan: PodPlan) -> PodPlan:
    """Return the same pod with startup probes that give up soon."""
    containers = []
    for found in plan.containers:
        assert found.startup is not None
        probe = dataclasses.replace(found.startup, period_s=1.0, failure_threshold=IMPATIENCE_S)
        containers.append(dataclasses.replace(found, startup=probe))
    return dataclasses.replace(plan, containers=tuple(containers))


async def _fill(stage: PodStage, master: str, messages: int) -> None:
    """Store many messages that the load does not read."""
    url = f"{stage.group.url(master, 'api')}/v1/topics/{FILLER}"
    body = {"messages": [{"body_text": "x" * 40}] * BATCH, "ack": "memory"}

    async def ask(session: aiohttp.ClientSession, method: str, to: str, what: object) -> None:
        async with session.request(method, to, json=what) as answer:
            text = await answer.text()
            stage.check(answer.status in (200, 201), f"{method} {to}: {answer.status} {text[:200]}")

    async with aiohttp.ClientSession() as session:
        await ask(session, "PUT", url, {"queues": 4})
        for _ in range(messages // BATCH):
            await ask(session, "POST", f"{url}/messages", body)


async def _slowly(stage: PodStage, running: RunningContainer, address: str) -> None:
    """Let a container run only briefly at intervals, as soon as it answers probes."""
    process, probe = running.started, running.container.startup
    assert probe is not None
    assert isinstance(probe.handler, HttpGet)
    while True:
        status, _ = await stage.group.text(f"http://{address}:{probe.handler.port}/live")
        if status:
            break
        # A short pause, because the container starts its work as soon as the port is open.
        await asyncio.sleep(POLL_S)
    try:
        while True:
            for signum, seconds in ((signal.SIGSTOP, STOPPED_S), (signal.SIGCONT, RUNNING_S)):
                process.send_all(signum)
                await asyncio.sleep(seconds)
    finally:
        process.send_all(signal.SIGCONT)
