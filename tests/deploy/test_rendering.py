"""What the overlays become: the pods that an API server would be asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from deploy.lint.rendering import DEPLOY, KUBECTL, copied, render, rendered
from services.broker.config import ENV_PREFIX as BROKER_PREFIX
from services.broker.config import BrokerConfig
from services.ha.config import ENV_PREFIX as HA_PREFIX
from services.ha.config import HaConfig
from services.names.config import ENV_PREFIX as NAMES_PREFIX
from services.names.config import NamesConfig
from services.reput.config import ENV_PREFIX as REPUT_PREFIX
from services.reput.config import ReputConfig
from shared.cluster.nodes import NODES_MAX
from shared.runtime.config import load
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

NODES: Final = {"dev": 1, "ha": 2, "prod": 3, "cluster": 2}
GROUPS: Final = {"ha-two-groups": 2, "prod-two-groups": 2, "cluster": 2, "cluster-three-groups": 3}
SECRETS_ELSEWHERE: Final = ("prod", "cluster")
"""Overlays without secrets, which production systems keep elsewhere."""
SETTINGS: Final[dict[str, tuple[type[Any], str]]] = {
    "broker": (BrokerConfig, BROKER_PREFIX),
    "reput": (ReputConfig, REPUT_PREFIX),
    "ha": (HaConfig, HA_PREFIX),
    "names": (NamesConfig, NAMES_PREFIX),
}


def base_name(overlay: str) -> str:
    return overlay.split("-")[0]


@pytest.fixture(params=sorted({*NODES, *GROUPS, "ha-monitoring"}))
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def objects(overlay: str) -> list[Object]:
    return overlays()[overlay]


def test_every_container_starts_with_settings_that_its_service_takes(
    overlay: str, objects: list[Object], tmp_path: Path
) -> None:
    seen = 0
    for container in containers(objects):
        kind, prefix = SETTINGS[container.name]
        path = tmp_path / config_file(container)
        path.write_text(container.files[path.name])
        assert not any("$(" in value for value in container.environment.values()), container
        settings: object = load(kind, path, prefix, environment=container.environment)
        if isinstance(settings, (BrokerConfig, HaConfig)) and NODES[base_name(overlay)] > 1:
            cluster = settings.cluster
            assert cluster.node == container.pod
            assert len(cluster.replicas) == NODES[base_name(overlay)]
            assert cluster.least_in_sync == (2 if len(cluster.replicas) == 3 else 1)
            own, group = cluster.own, container.pod.rpartition("-")[0]
            host = f"{container.pod}.{group}-nodes.tidemark.svc"
            assert (own.host, own.port) == (host, 8084)
            assert own.api == f"http://{host}:8080"
            assert own.admin == f"http://{host}:8083"
            assert f"{cluster.name}-{cluster.group}" == group
        seen += 1
    nodes = NODES[base_name(overlay)]
    names = 2 if base_name(overlay) == "cluster" else 0
    assert seen == GROUPS.get(overlay, 1) * nodes * (3 if nodes > 1 else 2) + names


@pytest.mark.parametrize("overlay_name", ["ha", "prod"])
def test_in_another_namespace_the_rights_are_given_to_the_account_of_that_one(
    overlay_name: str,
) -> None:
    with copied() as deploy:
        path = deploy / "k8s" / "overlays" / overlay_name / "kustomization.yaml"
        text = path.read_text()
        path.write_text(text.replace("\nnamespace: tidemark\n", "\nnamespace: other\n"))
        found = list(yaml.safe_load_all(render(deploy, overlay_name)))
    subjects = [each["subjects"] for each in of_kind(found, "RoleBinding")]
    assert [(one["name"], one["namespace"]) for (one,) in subjects] == [("tidemark-g0", "other")]
    accounts = {each["metadata"]["namespace"] for each in of_kind(found, "ServiceAccount")}
    assert accounts == {"other"}


def test_broker_and_ha_of_a_node_have_the_same_group_settings(
    objects: list[Object],
) -> None:
    settings_of: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for container in containers(objects):
        prefix = SETTINGS[container.name][1] + "CLUSTER_"
        settings = {
            name.removeprefix(prefix): value
            for name, value in container.environment.items()
            if name.startswith(prefix)
        }
        if container.name in ("broker", "ha"):
            settings_of.setdefault(container.pod, set()).add(tuple(sorted(settings.items())))
    assert all(len(different) == 1 for different in settings_of.values()), settings_of


def test_names_of_nodes_are_those_of_the_headless_service(objects: list[Object]) -> None:
    for stateful_set in of_kind(objects, "StatefulSet"):
        service = named(objects, "Service", stateful_set["spec"]["serviceName"])
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        labels = stateful_set["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"].items() <= labels.items()


def test_whatever_is_referred_to_is_there(overlay: str, objects: list[Object]) -> None:
    present = {(each["kind"], each["metadata"]["name"]) for each in objects}
    for stateful_set in of_kind(objects, "StatefulSet"):
        spec = pod_spec(stateful_set)
        if "serviceAccountName" in spec:
            assert ("ServiceAccount", spec["serviceAccountName"]) in present
        claims = stateful_set["spec"].get("volumeClaimTemplates", [])
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in claims}
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        for volume in spec["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in present
            if "secret" in volume and base_name(overlay) not in SECRETS_ELSEWHERE:
                assert ("Secret", volume["secret"]["secretName"]) in present
    for binding in of_kind(objects, "RoleBinding"):
        assert ("Role", binding["roleRef"]["name"]) in present
        for subject in binding["subjects"]:
            assert (subject["kind"], subject["name"]) in present
            assert subject["namespace"] == "tidemark"


def test_groups_do_not_meet_in_any_name_label_or_right() -> None:
    objects = overlays()["ha-two-groups"]
    for group, other in (("g0", "g1"), ("g1", "g0")):
        own = [each for each in objects if each["metadata"]["name"].startswith(f"tidemark-{group}")]
        kinds = sorted(each["kind"] for each in own)
        assert kinds == sorted(
            [*("ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding"),
             *("Service", "Service", "Service", "ServiceAccount", "StatefulSet")]
        )  # fmt: skip
        for each in own:
            assert not re.search(rf"\b{other}\b|tidemark-{other}", repr(each)), each["kind"]
            assert each["metadata"]["labels"]["tidemark/group"] == group
    assert not [each for each in objects if "group: group" in repr(each)]


@pytest.mark.parametrize("overlay", ["ha", "prod"])
def test_ha_may_do_what_it_does_and_nothing_more(overlay: str) -> None:
    objects = overlays()[overlay]
    [role] = of_kind(objects, "Role")
    pods = [f"tidemark-g0-{ordinal}" for ordinal in range(NODES_MAX)]
    assert role["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": ["tidemark-g0"],
            "verbs": ["get", "update"],
        },
        {"apiGroups": [""], "resources": ["pods"], "resourceNames": pods, "verbs": ["patch"]},
    ]
    assert not of_kind(objects, "ClusterRole") + of_kind(objects, "ClusterRoleBinding")


def test_only_ha_has_the_account_and_the_secret(objects: list[Object]) -> None:
    for stateful_set in group_sets(objects):
        spec = pod_spec(stateful_set)
        assert spec["automountServiceAccountToken"] is False
        holders = {
            name: {
                container["name"]
                for container in spec["containers"]
                if name in {mount["name"] for mount in container["volumeMounts"]}
            }
            for name in ("account", "secret")
        }
        expected = {"ha"} & {container["name"] for container in spec["containers"]}
        assert holders == {"account": expected, "secret": expected}


def test_the_master_service_follows_the_label_that_ha_sets(objects: list[Object]) -> None:
    # services/ha/shell/lease_client.py announces these two words.
    for stateful_set in group_sets(objects):
        name = stateful_set["metadata"]["name"]
        master = named(objects, "Service", f"{name}-master")["spec"]["selector"]
        labels = stateful_set["spec"]["template"]["metadata"]["labels"]
        assert "role" not in labels, "a new pod has no role before ha says so"
        if stateful_set["spec"]["replicas"] == 1:
            assert master.items() <= labels.items(), "alone it is the master without a label"
            continue
        assert master == {**labels, "role": "master"}
        replica = named(objects, "Service", f"{name}-replica")["spec"]["selector"]
        assert replica == {**labels, "role": "slave"}


def test_there_is_time_to_hand_over_and_to_flush(objects: list[Object]) -> None:
    for container in containers(group_sets(objects) + of_kind(objects, "ConfigMap")):
        command = container.spec["lifecycle"]["preStop"]["exec"]["command"]
        assert command[:3] == ["tidemark", "cluster", "hand-over"]
        assert command[command.index("--timeout-s") + 1] == "15"
    leave_s, dispatch_s, flush_s = 3, ReputConfig().stop_timeout_s, 20
    for stateful_set in group_sets(objects):
        grace_s = pod_spec(stateful_set)["terminationGracePeriodSeconds"]
        assert grace_s > 15 + leave_s + dispatch_s + flush_s


def test_another_configuration_is_another_pod_template() -> None:
    with copied() as deploy:
        before = render(deploy, "ha")
        path = deploy / "k8s" / "base" / "broker.toml"
        path.write_text(path.read_text() + "# changed\n")
        after = render(deploy, "ha")
    names = [
        re.findall(r"name: (tidemark-g0-config-\w+)", text)  # the map, and the pods' volume
        for text in (before, after)
    ]
    assert [len(set(found)) for found in names] == [1, 1]
    assert names[0] != names[1]


def test_without_a_secret_nothing_is_rendered(tmp_path: Path) -> None:
    with copied() as deploy:
        (deploy / "k8s" / "overlays" / "ha" / "secret.key").unlink()
        with pytest.raises(Exception, match=r"secret\.key"):
            render(deploy, "ha")


def test_a_group_is_a_copy_of_another_with_another_name() -> None:
    groups = DEPLOY / "k8s" / "groups"
    for number in range(1, 4):
        for name in ("kustomization.yaml", "objects/kustomization.yaml"):
            first = (groups / "g0" / name).read_text()
            assert first.replace("g0", f"g{number}") == (groups / f"g{number}" / name).read_text()


def test_manifests_are_plain_characters() -> None:
    # Kustomize of kubectl 1.27 fails at a comment that ends in a character of several bytes.
    for path in (DEPLOY / "k8s").rglob("*.yaml"):
        assert path.read_text().isascii(), path


def test_dashboards_and_rules_come_with_the_component() -> None:
    objects = overlays()["ha-monitoring"]
    assert [each["metadata"]["name"] for each in of_kind(objects, "PrometheusRule")] == ["tidemark"]
    shown = {
        name
        for each in of_kind(objects, "ConfigMap")
        if each["metadata"]["labels"].get("grafana_dashboard") == "1"
        for name in each["data"]
    }
    assert shown == {path.name for path in (DEPLOY / "grafana" / "dashboards").glob("*.json")}
    assert shown, "no dashboard is there"


def test_the_operator_takes_as_many_samples_as_the_plain_prometheus() -> None:
    [monitor] = of_kind(overlays()["ha-monitoring"], "PodMonitor")
    plain = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    limits = {job["sample_limit"] for job in plain["scrape_configs"]}
    assert limits == {monitor["spec"]["sampleLimit"]}
    for endpoint in monitor["spec"]["podMetricsEndpoints"]:
        assert endpoint["interval"] == plain["global"]["scrape_interval"]
        assert endpoint["scrapeTimeout"] == plain["global"]["scrape_timeout"]


def test_kubectl_is_what_people_use() -> None:
    assert KUBECTL == ("kubectl", "kustomize")
    assert set(rendered()) >= {*NODES, *GROUPS, "ha-monitoring"}
