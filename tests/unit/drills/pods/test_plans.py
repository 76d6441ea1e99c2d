from __future__ import annotations

from typing import Any

import pytest

from drills.pods.objects import BadManifest
from drills.pods.plans import Claim, EmptyDir, Exec, Files, HttpGet, Probe, plan_pod
from tests.unit.drills.pods import manifests


def test_a_pod_has_what_its_template_says() -> None:
    plan = plan_pod(manifests.stateful_set(), 1, "r1")
    assert (plan.name, plan.namespace, plan.subdomain) == ("mark-g0-1", "shop", "mark-g0-nodes")
    assert (plan.grace_s, plan.account, plan.fs_group) == (45, "mark", 10001)
    assert plan.labels["statefulset.kubernetes.io/pod-name"] == "mark-g0-1"
    assert plan.volumes["data"] == Claim("data-mark-g0-1")
    assert plan.volumes["run"] == EmptyDir(memory=True, size_max="16Mi")
    secret = plan.volumes["secret"]
    assert isinstance(secret, Files)
    assert secret.mode == 0o440
    (container,) = plan.containers
    assert (container.user, container.group) == (10001, 10001)
    assert container.read_only_root
    assert container.no_new_privileges
    assert container.liveness == Probe(HttpGet(8081, "/live", ""), period_s=5)
    assert container.pre_stop == Exec(("mark", "away"))


def test_a_container_of_its_own_user_says_so_over_the_pod() -> None:
    found = manifests.stateful_set()
    manifests.container(found)["securityContext"]["runAsUser"] = 7
    assert plan_pod(found, 0, "r").containers[0].user == 7


def changed(change: dict[str, Any], *, pod: bool = False) -> dict[str, Any]:
    found = manifests.stateful_set()
    (manifests.pod_spec if pod else manifests.container)(found).update(change)
    return found


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (changed({"command": []}), "it has no command"),
        (changed({"stdin": True}), "stdin cannot be done here"),
        (changed({"hostNetwork": True}, pod=True), "hostNetwork cannot be done here"),
        (changed({"initContainers": [{}]}, pod=True), "initContainers cannot be done here"),
        (changed({"livenessProbe": {"httpGet": {"port": "nothing"}}}), "it has no port nothing"),
        (changed({"livenessProbe": {"grpc": {"port": 1}}}), "does nothing that is known"),
        (changed({"securityContext": {"privileged": True}}), "privileged"),
        (
            changed({"securityContext": {"runAsUser": 0, "runAsNonRoot": True}}),
            "it would run as root",
        ),
        (changed({"securityContext": {"capabilities": {"add": ["X"]}}}), "cannot be added"),
        (changed({"volumeMounts": [{"name": "x", "mountPath": "/x"}]}), "no such volume"),
        (changed({"lifecycle": {"postStart": {}}}), "postStart"),
        (
            changed({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, pod=True),
            "hostPath.*cannot be done here",
        ),
    ],
)
def test_what_cannot_be_done_here_is_refused_by_name(found: dict[str, Any], said: str) -> None:
    with pytest.raises(BadManifest, match=said):
        plan_pod(found, 0, "r")
