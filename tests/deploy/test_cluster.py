"""A cluster of groups: one more group or node is one line, and name services know and are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from deploy.lint.rendering import copied, render
from drills.pods.objects import Objects, revision_of, selects
from drills.pods.plans import plan_pod
from drills.pods.policies import EGRESS, End, is_allowed, is_isolated
from services.broker.config import BrokerConfig
from services.ha.config import HaConfig
from services.names.config import NamesConfig
from shared.runtime.config import load
from tests.deploy.test_rendering import NODES, SETTINGS
from tests.support.manifests import (
    Object,
    config_file,
    containers,
    group_sets,
    named,
    of_kind,
    overlays,
    pod_spec,
)

NAMES: Final = "tidemark-names"
SECRET: Final = "/etc/tidemark-names-secret/secret"
URLS: Final = tuple(f"http://{NAMES}-{n}.{NAMES}.tidemark.svc:9870" for n in range(2))
NODES_LINE: Final = "    patch: '- {op: replace, path: /spec/replicas, value: 2}'\n"
NAMES_PORT: Final = 9870
ADMIN_PORT: Final = 9871


def with_edited(old: str, new: str, overlay: str = "cluster") -> list[Object]:
    """Return the objects of an overlay after an edit of one line of its kustomization."""
    with copied() as deploy:
        path = deploy / "k8s" / "overlays" / overlay / "kustomization.yaml"
        text = path.read_text()
        assert text.count(old) == 1
        assert old.count("\n") == new.count("\n") == 1
        path.write_text(text.replace(old, new))
        return list(yaml.safe_load_all(render(deploy, overlay)))


def settings(objects: list[Object], scratch: Path) -> dict[str, dict[str, Any]]:
    """Return the settings of each container, by pod and container."""
    found: dict[str, dict[str, Any]] = {}
    for container in containers(objects):
        kind, prefix = SETTINGS[container.name]
        path = scratch / config_file(container)
        path.write_text(container.files[path.name])
        groups = [
            each.removeprefix("--group=")
            for each in container.spec["args"]
            if each.startswith("--group=")
        ]
        given = {"groups": groups} if groups else None
        loaded = load(kind, path, prefix, given, environment=container.environment)
        found.setdefault(container.pod, {})[container.name] = loaded
    return found


def keyed(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def ends(objects: list[Object]) -> dict[str, End]:
    """Return every pod as network policies see it, by name."""
    plans = [
        plan_pod(found, ordinal, revision_of(found["spec"]["template"]))
        for found in of_kind(objects, "StatefulSet")
        for ordinal in range(found["spec"]["replicas"])
    ]
    own = {"kubernetes.io/metadata.name": "tidemark"}
    return {
        plan.name: End(f"10.0.0.{n}", plan.namespace, plan.labels, own, plan.named_ports)
        for n, plan in enumerate(plans, 1)
    }


def test_one_line_is_a_group_with_all_that_it_needs(tmp_path: Path) -> None:
    before = keyed(overlays()["cluster"])
    after = keyed(
        with_edited("  # A further group is one line: - ../../groups/g2\n", "  - ../../groups/g2\n")
    )
    added = after.keys() - before.keys()
    assert sorted(kind for kind, _ in added) == sorted(
        [*("ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding"),
         *("Service", "Service", "Service", "ServiceAccount", "StatefulSet")]
    )  # fmt: skip
    assert all(name.startswith("tidemark-g2") for _, name in added)
    changed = {key for key in before if after[key] != before[key]}
    assert changed == {("StatefulSet", NAMES)}, "brokers of other groups are not restarted"

    found = settings(list(after.values()), tmp_path)
    for n in range(2):
        assert found[f"{NAMES}-{n}"]["names"].groups == ("g0", "g1", "g2")
        broker = found[f"tidemark-g2-{n}"]["broker"]
        assert (broker.cluster.name, broker.cluster.group) == ("tidemark", "g2")
        assert [each.name for each in broker.cluster.replicas] == ["tidemark-g2-0", "tidemark-g2-1"]
        assert broker.names.urls == URLS
    pods, policies = ends(list(after.values())), of_kind(list(after.values()), "NetworkPolicy")
    new, names = pods["tidemark-g2-0"], pods[f"{NAMES}-0"]
    assert is_allowed(policies, new, names, NAMES_PORT)
    assert is_allowed(policies, new, pods["tidemark-g2-1"], 8084)
    assert not is_allowed(policies, new, pods["tidemark-g1-0"], 8084)
    [monitor] = of_kind(overlays()["cluster-monitoring"], "PodMonitor")
    assert all(selects(monitor["spec"]["selector"], pod.labels) for pod in pods.values())


@pytest.mark.parametrize("overlay", ["ha", "cluster", "prod"])
def test_one_number_is_a_node_more_in_each_group(overlay: str, tmp_path: Path) -> None:
    count = NODES[overlay] + 1
    line = NODES_LINE.replace("2", str(NODES[overlay]))
    before = keyed(overlays()[overlay])
    after = keyed(with_edited(line, NODES_LINE.replace("2", str(count)), overlay))
    assert after.keys() == before.keys()
    groups = [each["metadata"]["name"] for each in group_sets(list(after.values()))]
    changed = {key for key, each in before.items() if after[key] != each}
    assert changed - {("Secret", "tidemark-secret")} == {("StatefulSet", each) for each in groups}
    found = settings(list(after.values()), tmp_path)
    for group in groups:
        pods = [f"{group}-{n}" for n in range(count)]
        assert after["StatefulSet", group]["spec"]["replicas"] == count
        assert set(pods) <= set(after["Role", group]["rules"][2]["resourceNames"])
        for pod in pods:
            for service in ("broker", "ha"):
                config: BrokerConfig | HaConfig = found[pod][service]
                assert config.cluster.own.host == f"{pod}.{group}-nodes.tidemark.svc"
                assert [each.name for each in config.cluster.replicas] == pods
                assert config.cluster.least_in_sync == 2


def test_brokers_and_name_services_know_one_list_and_have_one_secret(tmp_path: Path) -> None:
    found = settings(overlays()["cluster"], tmp_path)
    for n, own in enumerate(URLS):
        names: NamesConfig = found[f"{NAMES}-{n}"]["names"]
        assert names.own_url == own
        assert names.other_urls == tuple(url for url in URLS if url != own)
        assert names.groups == ("g0", "g1")
        assert str(names.secret_file) == SECRET
    brokers = [each["broker"] for each in found.values() if "broker" in each]
    assert len(brokers) == 4
    for broker in brokers:
        assert broker.names.urls == URLS
        assert str(broker.names.secret_file) == SECRET
        assert broker.cluster.name == names.cluster
    for each in of_kind(overlays()["cluster"], "StatefulSet"):
        volumes = {volume["name"]: volume for volume in pod_spec(each)["volumes"]}
        secret = volumes["names-secret"]["secret"]
        assert secret == {"secretName": "tidemark-names-secret", "defaultMode": 0o440}
        holders = {
            container["name"]
            for container in pod_spec(each)["containers"]
            if "names-secret" in {mount["name"] for mount in container["volumeMounts"]}
        }
        assert holders <= {"broker", "names"}


def test_a_name_service_is_confined_has_its_name_and_no_token() -> None:
    objects = overlays()["cluster"]
    found = named(objects, "StatefulSet", NAMES)
    spec = pod_spec(found)
    assert spec["automountServiceAccountToken"] is False
    group = pod_spec(named(objects, "StatefulSet", "tidemark-g0"))
    [container] = spec["containers"]
    assert container["securityContext"] == group["containers"][0]["securityContext"]
    without_volumes = {**group["securityContext"]}
    del without_volumes["fsGroupChangePolicy"]
    assert spec["securityContext"] == without_volumes
    assert container["image"] == group["containers"][0]["image"]
    budget = named(objects, "PodDisruptionBudget", NAMES)["spec"]
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    assert found["spec"]["minReadySeconds"] > 30, "each node has registered by then"


def test_clients_brokers_and_monitoring_reach_name_services_and_no_one_else_does() -> None:
    objects = overlays()["cluster"]
    policies, pods = Objects(objects).of_kind("NetworkPolicy"), ends(objects)
    names, broker = pods[f"{NAMES}-0"], pods["tidemark-g1-0"]

    def outside(namespace: str, **labels: str) -> End:
        return End("10.0.9.9", namespace, labels, {"kubernetes.io/metadata.name": namespace})

    client, stranger = outside("tidemark", **{"tidemark/client": "true"}), outside("tidemark")
    assert is_allowed(policies, client, names, NAMES_PORT)
    assert is_allowed(policies, broker, names, NAMES_PORT)
    assert is_allowed(policies, names, pods[f"{NAMES}-1"], NAMES_PORT)
    assert is_allowed(policies, outside("monitoring"), names, ADMIN_PORT)
    for other in (stranger, outside("other"), outside("monitoring")):
        assert not is_allowed(policies, other, names, NAMES_PORT), other
    for other in (stranger, client, broker):
        assert not is_allowed(policies, other, names, ADMIN_PORT), other
    assert is_isolated(policies, EGRESS, names)
    for port in (443, 6443):
        assert not is_allowed(policies, names, End("10.96.0.1"), port), "it has no token"
        assert is_allowed(policies, broker, End("10.96.0.1"), port)


def test_name_services_are_scraped() -> None:
    [monitor] = of_kind(overlays()["cluster-monitoring"], "PodMonitor")
    ports = [each["port"] for each in monitor["spec"]["podMetricsEndpoints"]]
    assert ports == ["broker-admin", "reput-admin", "ha-admin", "names-admin"]
