from __future__ import annotations

from typing import Any

from drills.pods.plans import plan_pod
from drills.pods.services import Member, hosts_file, members_of, target_port
from tests.unit.drills.pods import manifests


def member(ordinal: int, role: str, *, ready: bool = True) -> Member:
    plan = plan_pod(manifests.stateful_set(), ordinal, "r")
    return Member(plan, f"10.0.0.{ordinal}", {**plan.labels, "role": role}, ready)


def service(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "kind": "Service",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"ports": [{"port": 80, "targetPort": "admin"}], **spec},
    }


MASTER = service("mark-g0-master", selector={"app": "mark", "role": "master"})
NODES = service(
    "mark-g0-nodes", selector={"app": "mark"}, clusterIP="None", publishNotReadyAddresses=True
)
PODS = [member(0, "master"), member(1, "slave", ready=False), member(2, "slave")]


def test_a_service_leads_to_ready_pods_that_it_selects() -> None:
    assert [pod.plan.name for pod in members_of(MASTER, PODS)] == ["mark-g0-0"]
    slaves = service("s", selector={"role": "slave"})
    assert [pod.plan.name for pod in members_of(slaves, PODS)] == ["mark-g0-2"]


def test_names_can_be_published_before_pods_are_ready() -> None:
    assert len(members_of(NODES, PODS)) == 3


def test_a_service_without_a_selector_leads_nowhere() -> None:
    assert members_of(service("s"), PODS) == []


def test_ports_go_by_number_and_by_name() -> None:
    plan = PODS[0].plan
    assert target_port(MASTER, 80, plan) == 8081
    assert target_port(service("s", ports=[{"port": 80}]), 80, plan) == 80
    assert target_port(service("s", ports=[{"port": 80, "targetPort": "x"}]), 80, plan) is None


def test_every_pod_finds_every_other_by_its_name_and_services_by_theirs() -> None:
    addresses = {("shop", "mark-g0-master"): "10.1.0.9", ("default", "kubernetes"): "10.1.0.1"}
    text = hosts_file(PODS[0], PODS, [MASTER, NODES], addresses)
    found = {name: line.split()[0] for line in text.splitlines() for name in line.split()[1:]}
    assert found["mark-g0-1.mark-g0-nodes.shop.svc"] == "10.0.0.1"
    assert found["mark-g0-2.mark-g0-nodes"] == "10.0.0.2"
    assert found["mark-g0-0"] == "10.0.0.0"
    assert found["mark-g0-master"] == found["mark-g0-master.shop.svc.cluster.local"] == "10.1.0.9"
    assert found["kubernetes.default.svc"] == "10.1.0.1"
    assert "kubernetes" not in found
