from __future__ import annotations

from typing import Any

import pytest

from drills.pods.environment import (
    IMAGE,
    Placed,
    ServiceAddress,
    expand,
    service_links,
    variables,
)
from drills.pods.objects import BadManifest, Objects
from drills.pods.plans import plan_pod
from tests.unit.drills.pods import manifests

PLACED = Placed("uid-1", "10.0.0.7", "node-1", "10.9.9.9", {"cpu": "4", "memory": "8Gi"})


def made(
    found: dict[str, Any], *services: ServiceAddress, objects: Objects | None = None
) -> tuple[dict[str, str], list[str]]:
    plan = plan_pod(found, 1, "r1")
    (container,) = plan.containers
    values = variables(container, plan, PLACED, objects or manifests.objects(), services)
    return values, [expand(part, values) for part in container.command]


def with_env(*entries: dict[str, Any]) -> dict[str, Any]:
    found = manifests.stateful_set()
    manifests.container(found)["env"] = list(entries)
    return found


def reference(name: str, **source: Any) -> dict[str, Any]:
    return {"name": name, "valueFrom": source}


def test_a_pod_knows_its_name_and_expands_what_is_defined_before() -> None:
    values, command = made(manifests.stateful_set())
    assert values["NODE"] == values["HOSTNAME"] == "mark-g0-1"
    assert values["GREETING"] == "mark-g0-1 at $(PLACE), $(NODE)"
    assert command == ["mark-broker", "--node", "mark-g0-1"]
    assert values["PATH"] == IMAGE["PATH"]


@pytest.mark.parametrize(
    ("text", "expanded"),
    [("$(A)", "1"), ("$$(A)", "$(A)"), ("$(B)", "$(B)"), ("$A", "$A"), ("x$(A)y$(A)", "x1y1")],
)
def test_expansion(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1"}) == expanded


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.namespace", "shop"),
        ("metadata.labels['app']", "mark"),
        ("metadata.labels['apps.kubernetes.io/pod-index']", "1"),
        ("metadata.annotations['colour']", "blue"),
        ("metadata.labels['none']", ""),
        ("status.podIP", "10.0.0.7"),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "mark"),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    values, _ = made(with_env(reference("F", fieldRef={"fieldPath": path})))
    assert values["F"] == value


def test_a_field_that_there_is_not_is_an_error() -> None:
    with pytest.raises(BadManifest, match=r"no field spec\.colour"):
        made(with_env(reference("F", fieldRef={"fieldPath": "spec.colour"})))


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.memory", "1Mi", "1024"),
        ("limits.cpu", "1", "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.memory", "1", str(8 << 30)),
    ],
)
def test_resources_are_whole_divisors_and_the_nodes_where_nothing_is_said(
    resource: str, divisor: str, value: str
) -> None:
    entry = reference("R", resourceFieldRef={"resource": resource, "divisor": divisor})
    assert made(with_env(entry))[0]["R"] == value


def test_keys_of_maps_and_secrets_and_whole_maps() -> None:
    found = with_env(
        reference("S", secretKeyRef={"name": "key", "key": "secret"}),
        reference("C", configMapKeyRef={"name": "conf", "key": "a"}),
        reference("O", configMapKeyRef={"name": "conf", "key": "z", "optional": True}),
    )
    manifests.container(found)["envFrom"] = [{"configMapRef": {"name": "conf"}, "prefix": "X_"}]
    values, _ = made(found, objects=manifests.objects(manifests.config(a="1", b="2")))
    assert (values["S"], values["C"], values["X_b"]) == ("open sesame", "1", "2")
    assert "O" not in values


def test_a_key_that_is_not_there_is_an_error() -> None:
    with pytest.raises(BadManifest, match="no key nothing in Secret key"):
        made(with_env(reference("S", secretKeyRef={"name": "key", "key": "nothing"})))


def test_services_are_given_as_links_unless_they_are_switched_off() -> None:
    api = ServiceAddress("kubernetes", "10.1.0.1", (("https", 443),))
    own = ServiceAddress("mark-g0-master", "10.1.0.2", (("api", 8080),))
    found = manifests.stateful_set()
    values, _ = made(found, api, own)
    assert values["MARK_G0_MASTER_SERVICE_HOST"] == "10.1.0.2"
    assert values["KUBERNETES_SERVICE_PORT"] == "443"
    manifests.pod_spec(found)["enableServiceLinks"] = False
    values, _ = made(found, api, own)
    assert "MARK_G0_MASTER_SERVICE_HOST" not in values
    assert values["KUBERNETES_SERVICE_HOST"] == "10.1.0.1"


def test_links_are_dockers() -> None:
    found = service_links(ServiceAddress("mark-broker", "10.1.0.2", (("api", 8080),)))
    assert found["MARK_BROKER_PORT"] == found["MARK_BROKER_PORT_8080_TCP"] == "tcp://10.1.0.2:8080"
    assert found["MARK_BROKER_SERVICE_PORT_API"] == "8080"
