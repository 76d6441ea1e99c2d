"""A drill with a node that has a wrong secret: it must stay out, with a reported reason."""

from __future__ import annotations

import base64
import copy
import secrets
import time
from typing import Any

from drills.pods.drilling import PodStage
from drills.pods.group import READY_S
from drills.pods.objects import BadManifest
from drills.pods.plans import content_of


async def wrong_secret(stage: PodStage) -> None:
    """Give a node another secret: it must stay out, and both it and its peer must report why."""
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
    await group.replaced(slave, first, READY_S)
    refused = await _refused(stage, master)
    log = group.pod(slave).log_path("ha")
    size = log.stat().st_size if log.exists() else 0
    await group.until(
        lambda: b"secret" in log.read_bytes()[size:], "the node to say why it stays out", 60
    )
    took = time.monotonic() - began
    stage.check(not group.pod(slave).ready, "a node with a wrong secret is ready")
    await stage.load.acked(30)
    status, _ = await group.text(group.url(slave, "ha-admin") + "/in-sync")
    stage.check(status == 503, f"its ha answers /in-sync with {status}")
    _, status_text = await group.text(group.url(slave, "ha-admin") + "/v1/cluster")
    stage.check(
        "wrong-secret" in status_text, f"its ha does not say why it is alone: {status_text}"
    )
    more = await _refused(stage, master)
    stage.check(more > 0, "the master's metric counts no refused connection")
    stage.gap_since(began)
    stage.note(f"said so after {took:.1f} s; refused by {master}: {refused:.0f}, then {more:.0f}")
    group.replace("Secret", name, restored)
    second = group.pod(slave)
    group.cluster.delete(slave)
    await group.replaced(slave, second, READY_S)
    await group.ready(READY_S)


async def _refused(stage: PodStage, name: str) -> float:
    """Return how many connections a node's ha process has refused."""
    _, text = await stage.group.text(stage.group.url(name, "ha-admin") + "/metrics")
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("tidemark_ha_refused_connections_total")
    )


def _secret_name(stage: PodStage) -> str:
    template = stage.group.cluster.stateful_sets[0]["spec"]["template"]["spec"]
    for volume in template["volumes"]:
        if "secret" in volume:
            return str(volume["secret"]["secretName"])
    raise BadManifest("the pods have no secret")
