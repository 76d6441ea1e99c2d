"""The drills on pods: what is done to them, and what must be seen meanwhile.

Each leaves pods that become whole by themselves; ``drilling`` waits for that and judges. Times are
those of the manifest, of the lease's default profile, and of a kubelet.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import re
import secrets
import shutil
import signal
import time
from typing import Any, Final

from shared.cluster.time_rules import PROFILES
from tidemark.testing.pods.drilling import NEXT_IMAGE, NEXT_VERSION, PodDrill, PodStage
from tidemark.testing.pods.group import PROFILE
from tidemark.testing.pods.objects import BadManifest
from tidemark.testing.pods.plans import content_of

TIMES: Final = PROFILES[PROFILE]
ELECTED_S: Final = TIMES.lease_ms / 1000 + 5.0
"""A lease runs out, and somebody is elected."""
PLANNED_S: Final = 2.0
"""A switch that somebody wants."""
STOPPED_SLAVE_S: Final = TIMES.link_dead_ms / 1000 + PLANNED_S
"""A slave that was stopped leaves the set only when it has been silent for so long."""
READY_S: Final = 180.0
HANDED_OVER_S: Final = 20.0
STOPPED_S: Final = 0.35
RUNNING_S: Final = 0.05
"""A node that gets a tenth of a processor."""
VERSION: Final = re.compile(r'tidemark_node_info\{[^}]*version="([^"]+)"')
DERIVED: Final = ("consumequeue", "index", "checkpoint")


async def pod_kill(stage: PodStage) -> None:
    """Everything of the master's pod is killed; it is made again elsewhere with the same claim."""
    group, master = stage.group, await stage.master()
    address = group.pod(master).placed.address
    stage.mark()
    group.cluster.lose(master)
    await group.until(
        lambda: (
            master in group.cluster.pods and group.cluster.pods[master].placed.address != address
        ),
        "the pod to be made again",
        READY_S,
    )
    await stage.acked_again(READY_S)
    took = await group.ready(READY_S)
    stage.note(f"acked again while the pod came back; ready {took:.1f} s later")


async def container_kill(stage: PodStage) -> None:
    """Each container is killed alone, of a slave and of the master; it comes back in its pod."""
    group, master = stage.group, await stage.master()
    gaps = []
    for name in (*stage.slaves(master), master):
        for container in ("reput", "broker", "ha"):
            await stage.load.acked(30)
            pod, running = group.pod(name), group.pod(name).containers[container]
            assert running.process is not None
            restarts, at = running.restarts, stage.mark()
            running.process.send(signal.SIGKILL)
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
    stage.restored_s = max(gaps)[0]
    stage.note("without an ack: " + ", ".join(f"{what} {gap:.1f} s" for gap, what in gaps))


async def cut_off(stage: PodStage) -> None:
    """The master's node is cut off from everything; the other one takes over."""
    group, master = stage.group, await stage.master()
    began = stage.mark()
    group.cut_off(master)
    successor = await stage.successor(master, ELECTED_S + 10)
    await stage.acked_again(ELECTED_S)
    gap = stage.gap_since(began)
    stage.restored_s = gap
    group.heal()
    await stage.in_sync(timeout_s=READY_S)
    stage.check(
        not group.events(began, reason="Killing"), "a probe killed the node that was cut off"
    )
    await group.until(lambda: group.cluster.role(master) == "slave", "its label to follow", 30)
    stage.check(group.cluster.role(successor) == "master", "the successor's pod is not labelled")
    stage.note("no probe killed anything; the labels followed")


async def hand_over(stage: PodStage) -> None:
    """The master's pod is deleted: preStop hands over before SIGTERM, and little time is lost."""
    group, master = stage.group, await stage.master()
    began = stage.mark()
    group.cluster.delete(master)
    await stage.successor(master, HANDED_OVER_S)
    switched = time.monotonic()
    await stage.acked_again(HANDED_OVER_S)
    stage.restored_s = stage.gap_since(began)
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
        f"without an ack for {stage.restored_s:.2f} s; the pod was gone after "
        f"{group.events(began, reason='Gone', pod=master)[0].at - began:.1f} s"
    )
    await group.ready(READY_S)


async def rolling_update(stage: PodStage) -> None:
    """Every pod is replaced under load, from the highest ordinal down."""
    stamp = secrets.token_hex(4)

    def annotated(found: dict[str, Any]) -> None:
        metadata = found["spec"]["template"]["metadata"]
        metadata["annotations"] = {**(metadata.get("annotations") or {}), "drill": stamp}

    await _roll(stage, annotated, "annotation")


async def upgrade_rollback(stage: PodStage) -> None:
    """Another image, and back: each pod says which version it is."""
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

    there = await _roll(stage, upgraded, "upgrade")
    versions = await _versions(stage)
    stage.check(set(versions.values()) == {NEXT_VERSION}, f"after the upgrade: {versions}")
    back = await _roll(stage, rolled_back, "rollback")
    versions = await _versions(stage)
    stage.check(versions == before, f"after the rollback: {versions}, before: {before}")
    stage.restored_s = max(there, back)


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


async def wrong_secret(stage: PodStage) -> None:
    """A node with another secret stays out, and both it and its peer say so."""
    group, master = stage.group, await stage.master()
    (slave, *_) = stage.slaves(master)
    name = _secret_name(stage)
    right = copy.deepcopy(dict(group.cluster.objects.get("Secret", group.namespace, name)))
    wrong = base64.b64encode(secrets.token_hex(32).encode()).decode()
    began = stage.mark()

    def changed(found: dict[str, Any]) -> None:
        keys = content_of(right)
        found.pop("stringData", None)
        found["data"] = dict.fromkeys(keys, wrong)

    def restored(found: dict[str, Any]) -> None:
        found.clear()
        found.update(copy.deepcopy(right))

    group.replace("Secret", name, changed)
    first = group.pod(slave)
    group.cluster.delete(slave)
    await group.until(
        lambda: group.cluster.pods.get(slave) not in (None, first), "a pod with it", READY_S
    )
    refused = await _refused(stage, master)
    log = group.pod(slave).log_path("ha")
    size = log.stat().st_size if log.exists() else 0
    await group.until(
        lambda: b"secret" in _tail(stage, slave, size), "the node to say why it stays out", 60
    )
    took = time.monotonic() - began
    stage.check(not group.pod(slave).ready, "a node with a wrong secret is ready")
    await stage.load.acked(30)
    status, _ = await group.text(group.url(slave, "ha-admin") + "/in-sync")
    stage.check(status == 503, f"its ha answers /in-sync with {status}")
    _, told = await group.text(group.url(slave, "ha-admin") + "/v1/cluster")
    stage.check("wrong-secret" in told, f"its ha does not say why it is alone: {told}")
    more = await _refused(stage, master)
    stage.check(more > 0, "the master's metric counts no refused connection")
    stage.restored_s = stage.gap_since(began)
    stage.note(f"said so after {took:.1f} s; refused by {master}: {refused:.0f}, then {more:.0f}")
    group.replace("Secret", name, restored)
    second = group.pod(slave)
    group.cluster.delete(slave)
    await group.until(
        lambda: group.cluster.pods.get(slave) not in (None, second),
        "a pod with the right one",
        READY_S,
    )
    await group.ready(READY_S)


DRILLS: Final = (
    PodDrill(
        number="1",
        name="hand-over",
        title="the master's pod is deleted; preStop hands over",
        run=hand_over,
        restored_within_s=PLANNED_S,
        short=True,
    ),
    PodDrill(
        number="2",
        name="rolling-update",
        title="every pod is replaced under load",
        run=rolling_update,
        restored_within_s=STOPPED_SLAVE_S,
        short=True,
    ),
    PodDrill(
        number="3",
        name="pod-kill",
        title="everything of the master's pod is killed at once",
        run=pod_kill,
        restored_within_s=ELECTED_S,
        short=True,
    ),
    PodDrill(
        number="4",
        name="wrong-secret",
        title="a node with another secret stays out and says so",
        run=wrong_secret,
        restored_within_s=STOPPED_SLAVE_S,
        short=True,
    ),
    PodDrill(
        number="5",
        name="hung",
        title="a broker's loop stands still",
        run=hung,
        restored_within_s=PLANNED_S,
        short=True,
    ),
    PodDrill(
        number="6",
        name="slow-start",
        title="a slave builds its queues on a tenth of a processor",
        run=slow_start,
        restored_within_s=STOPPED_SLAVE_S,
        short=True,
    ),
    PodDrill(
        number="7",
        name="cut-off",
        title="the master's node loses its network",
        run=cut_off,
        restored_within_s=ELECTED_S,
        short=True,
    ),
    PodDrill(
        number="9",
        name="container-kill",
        title="each container of a slave and of the master is killed alone",
        run=container_kill,
        restored_within_s=ELECTED_S,
    ),
    PodDrill(
        number="8",
        name="upgrade-rollback",
        title="another image, and back again",
        run=upgrade_rollback,
        restored_within_s=STOPPED_SLAVE_S,
    ),
)


async def _roll(stage: PodStage, change: Any, what: str) -> float:
    """Change the template, wait for all pods; the longest time without an ack [s]."""
    group = stage.group
    began = stage.mark()
    old = {name: group.pod(name).plan.revision for name in group.names}
    group.apply(change)
    await asyncio.sleep(1.0)
    took = await group.ready(READY_S * len(group.names))
    gap = stage.gap_since(began)
    stage.restored_s = gap
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


async def _refused(stage: PodStage, name: str) -> float:
    """How many connections a node's ha has refused."""
    _, text = await stage.group.text(stage.group.url(name, "ha-admin") + "/metrics")
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("tidemark_ha_refused_connections_total")
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


def _secret_name(stage: PodStage) -> str:
    template = stage.group.cluster.stateful_sets[0]["spec"]["template"]["spec"]
    for volume in template["volumes"]:
        if "secret" in volume:
            return str(volume["secret"]["secretName"])
    raise BadManifest("the pods have no secret")


def _tail(stage: PodStage, name: str, since: int) -> bytes:
    """What a node's ha has logged behind a size."""
    with stage.group.pod(name).log_path("ha").open("rb") as file:
        file.seek(since)
        return file.read()
