"""Drills in which processes of the master or a slave are killed, or a node is cut off."""

from __future__ import annotations

import signal

from drills.pods.drilling import PodStage
from drills.pods.group import ELECTED_S, READY_S


async def pod_kill(stage: PodStage) -> None:
    """Kill everything in the master's pod; it must be recreated elsewhere with the same claim."""
    group, master = stage.group, await stage.master()
    lost = group.pod(master)
    stage.mark()
    group.cluster.lose(master)
    await group.replaced(master, lost, READY_S)
    stage.check(
        group.pod(master).placed.address != lost.placed.address, "the pod has the same address"
    )
    await stage.acked_again(READY_S)
    took = await group.ready(READY_S)
    stage.note(f"acked again while the pod came back; ready {took:.1f} s later")


async def container_kill(stage: PodStage) -> None:
    """Kill each container alone, of a slave and of the master; it must be restarted in its pod."""
    group, master = stage.group, await stage.master()
    gaps = []
    for name in (*stage.slaves(master), master):
        for container in ("reput", "broker", "ha"):
            await stage.load.acked(30)
            pod, running = group.pod(name), group.pod(name).containers[container]
            restarts, at = running.restarts, stage.mark()
            running.started.send(signal.SIGKILL)
            await group.until(
                lambda running=running, restarts=restarts: running.restarts > restarts,  # type: ignore[misc]
                f"{container} of {name} to be started again",
                60,
            )
            await group.ready(READY_S)
            await stage.acked_again(READY_S)
            gaps.append((stage.gap_since(at), f"{container} of {name}"))
            stage.check(group.pod(name) is pod, f"{name} is another pod now")
            stage.check(not group.events(at, reason="Killing"), "probes killed more")
    stage.note("without an ack: " + ", ".join(f"{what} {gap:.1f} s" for gap, what in gaps))


async def cut_off(stage: PodStage) -> None:
    """Cut the master's node off from everything; the other node must take over."""
    group, master = stage.group, await stage.master()
    began = stage.mark()
    group.cut_off(master)
    successor = await stage.successor(master, ELECTED_S + 10)
    await stage.acked_again(ELECTED_S)
    stage.gap_since(began)
    group.heal()
    await stage.in_sync(timeout_s=READY_S)
    stage.check(
        not group.events(began, reason="Killing"), "a probe killed the node that was cut off"
    )
    await group.until(lambda: group.cluster.role(master) == "slave", "its label to follow", 30)
    stage.check(group.cluster.role(successor) == "master", "the successor's pod is not labelled")
    stage.note("no probe killed anything; the labels followed")
