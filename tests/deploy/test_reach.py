"""Who reaches what by the rendered NetworkPolicies, and who may do what by the rendered Roles."""

from __future__ import annotations

import shutil
from typing import Final

import pytest

from drills.pods.objects import Objects, revision_of
from drills.pods.plans import PodPlan, plan_pod
from drills.pods.policies import EGRESS, INGRESS, End, is_allowed, is_isolated
from drills.pods.rbac import Account, Attempt
from drills.pods.rbac import is_allowed as may
from tests.support.manifests import group_sets, overlays

pytestmark = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed (1.27 or newer)"
)
API, ADMIN, REPLICATION = 8080, (8081, 8082, 8083), 8084
COORDINATION: Final = "coordination.k8s.io"
GROUPED: Final = ("ha", "prod", "cluster")


def objects(overlay: str) -> Objects:
    return Objects(overlays()[overlay])


def plans(overlay: str) -> list[PodPlan]:
    return [
        plan_pod(found, ordinal, revision_of(found["spec"]["template"]))
        for found in group_sets(overlays()[overlay])
        for ordinal in range(found["spec"]["replicas"])
    ]


def node(plan: PodPlan, number: int) -> End:
    own = {"kubernetes.io/metadata.name": plan.namespace}
    return End(f"10.0.0.{number}", plan.namespace, plan.labels, own, plan.named_ports)


def stranger(namespace: str, **labels: str) -> End:
    return End("10.0.9.9", namespace, labels, {"kubernetes.io/metadata.name": namespace})


def test_every_overlay_can_be_run_as_it_is_written() -> None:
    for overlay in overlays():
        assert bool(plans(overlay)) != overlay.startswith("analytics"), overlay


@pytest.mark.parametrize("overlay", GROUPED)
def test_nodes_reach_each_other_and_the_api_server_and_nothing_else(overlay: str) -> None:
    policies = objects(overlay).of_kind("NetworkPolicy")
    first, second = (node(plan, n) for n, plan in enumerate(plans(overlay)[:2]))
    for port in (API, REPLICATION, *ADMIN):
        assert is_allowed(policies, first, second, port), port
    assert not is_allowed(policies, first, second, 22)
    server = End("10.96.0.1")
    assert is_allowed(policies, first, server, 443)
    assert is_allowed(policies, first, server, 6443)
    assert not is_allowed(policies, first, End("192.0.2.7"), 80)
    dns = stranger("kube-system", **{"k8s-app": "kube-dns"})
    assert is_allowed(policies, first, dns, 53, "UDP")
    assert not is_allowed(policies, first, dns, 80)


@pytest.mark.parametrize("overlay", ["dev", *GROUPED])
def test_strangers_are_kept_out_clients_and_monitoring_let_in(overlay: str) -> None:
    policies = objects(overlay).of_kind("NetworkPolicy")
    target = node(plans(overlay)[0], 1)
    namespace = plans(overlay)[0].namespace
    assert is_isolated(policies, INGRESS, target)
    assert is_isolated(policies, EGRESS, target)
    for port in (API, REPLICATION, *ADMIN):
        assert not is_allowed(policies, stranger("other"), target, port), port
        assert not is_allowed(policies, stranger(namespace), target, port), port
    client = stranger(namespace, **{"tidemark/client": "true"})
    assert is_allowed(policies, client, target, API)
    for port in (REPLICATION, *ADMIN):
        assert not is_allowed(policies, client, target, port), port
    monitoring = stranger("monitoring")
    for port in set(ADMIN) & set(target.ports.values()):  # a standalone node has no ha
        assert is_allowed(policies, monitoring, target, port), port
    for port in (API, REPLICATION):
        assert not is_allowed(policies, monitoring, target, port), port


@pytest.mark.parametrize("overlay", GROUPED)
def test_a_node_may_keep_its_lease_and_label_its_groups_pods_and_nothing_more(overlay: str) -> None:
    found = objects(overlay)
    for stateful_set in group_sets(overlays()[overlay]):
        name = stateful_set["metadata"]["name"]
        plan = plan_pod(stateful_set, 0, "r")
        account = Account(plan.namespace, plan.account)

        def allowed(verb: str, resource: str, of: str, account: Account = account) -> bool:
            group = COORDINATION if resource == "leases" else ""
            return may(found, account, Attempt(verb, group, resource, account.namespace, of))

        assert allowed("create", "leases", "")
        assert allowed("get", "leases", name)
        assert allowed("update", "leases", name)
        for ordinal in range(stateful_set["spec"]["replicas"]):
            assert allowed("patch", "pods", f"{name}-{ordinal}")
        for verb, resource, of in (
            ("delete", "leases", name),
            ("list", "leases", ""),
            ("get", "leases", "another"),
            ("update", "leases", "another"),
            ("patch", "pods", "another-0"),
            ("get", "pods", f"{name}-0"),
            ("delete", "pods", f"{name}-0"),
            ("get", "secrets", "tidemark-secret"),
            ("list", "secrets", ""),
        ):
            assert not allowed(verb, resource, of), (verb, resource, of)
