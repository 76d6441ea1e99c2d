"""Drills in which pods are replaced as planned, so that preStop must hand over."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from drills.pods.drilling import NEXT_IMAGE, NEXT_VERSION, PodStage
from drills.pods.group import READY_S

HANDED_OVER_S: Final = 20.0
VERSION: Final = re.compile(r'tidemark_node_info\{[^}]*version="([^"]+)"')


async def hand_over(stage: PodStage) -> None:
    """Delete the master's pod: preStop must hand over before SIGTERM, with a short interruption."""
    group, master = stage.group, await stage.master()
    began = stage.mark()
    group.cluster.delete(master)
    await stage.successor(master, HANDED_OVER_S)
    switched = time.monotonic()
    await stage.acked_again(HANDED_OVER_S)
    gap = stage.gap_since(began)
    await group.until(
        lambda: bool(group.events(began, reason="Gone", pod=master)), "the pod to end", 90
    )
    ended = group.events(began, reason="Ended", pod=master, container="ha")
    stage.check(bool(ended) and ended[0].at > switched, "ha ended before another one was master")
    failed = group.events(began, reason="FailedPreStopHook", pod=master)
    stage.check(not failed, f"preStop failed: {failed[:1]}")
    killed = group.events(began, reason="Killed", pod=master)
    stage.check(not killed, f"SIGKILL was needed: {killed[:1]}")
    stage.note(
        f"without an ack for {gap:.2f} s; the pod was gone after "
        f"{group.events(began, reason='Gone', pod=master)[0].at - began:.1f} s"
    )
    await group.ready(READY_S)


async def rolling_update(stage: PodStage) -> None:
    """Replace every pod under load, from the highest ordinal down."""
    stamp = secrets.token_hex(4)

    def annotated(found: dict[str, Any]) -> None:
        metadata = found["spec"]["template"]["metadata"]
        metadata["annotations"] = {**(metadata.get("annotations") or {}), "drill": stamp}

    await _roll(stage, annotated, "annotation")


async def upgrade_rollback(stage: PodStage) -> None:
    """Roll out another image and roll it back; check the version that each pod reports."""
    group = stage.group
    images = {
        found["name"]: found["image"]
        for found in group.cluster.stateful_sets[0]["spec"]["template"]["spec"]["containers"]
    }
    before = await _versions(stage)

    def upgraded(found: dict[str, Any]) -> None:
        for container in found["spec"]["template"]["spec"]["containers"]:
            container["image"] = NEXT_IMAGE

    def rolled_back(found: dict[str, Any]) -> None:
        for container in found["spec"]["template"]["spec"]["containers"]:
            container["image"] = images[container["name"]]

    await _roll(stage, upgraded, "upgrade")
    versions = await _versions(stage)
    stage.check(set(versions.values()) == {NEXT_VERSION}, f"after the upgrade: {versions}")
    await _roll(stage, rolled_back, "rollback")
    versions = await _versions(stage)
    stage.check(versions == before, f"after the rollback: {versions}, before: {before}")


async def _roll(stage: PodStage, change: Callable[[dict[str, Any]], None], what: str) -> float:
    """Change the template and wait for all pods; return the longest time without an ack [s]."""
    group = stage.group
    began = stage.mark()
    old = {name: group.pod(name).plan.revision for name in group.names}
    group.apply(change)
    await asyncio.sleep(1.0)
    took = await group.ready(READY_S * len(group.names))
    gap = stage.gap_since(began)
    for name in group.names:
        stage.check(group.pod(name).plan.revision != old[name], f"{name} is of the old revision")
    gone = [event.pod for event in group.events(began, reason="Gone")]
    stage.check(gone == sorted(gone, reverse=True), f"the order was {gone}")
    failed = group.events(began, reason="FailedPreStopHook")
    stage.check(not failed, f"preStop failed: {failed[:1]}")
    stage.check(not group.events(began, reason="Killing"), "probes killed something")
    stage.note(f"{what}: {', '.join(gone)} in {took:.0f} s; without an ack for {gap:.2f} s at most")
    await stage.in_sync(timeout_s=READY_S)
    return gap


async def _versions(stage: PodStage) -> dict[str, str]:
    found = {}
    for name in stage.group.names:
        _, text = await stage.group.text(stage.group.url(name, "broker-admin") + "/metrics")
        version = VERSION.search(text)
        found[name] = version[1] if version else "unknown"
    return found
