"""What manifests name is in the code; and whatever is renamed on one side only is reported."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from deploy.lint.rendering import rendered
from shared.metrics.catalogue import BY_NAME
from tests.support import deploy_names
from tests.support.deploy_names import unknown
from tests.support.manifests import documents, overlays

OVERLAYS = [
    *("dev", "ha", "prod", "ha-two-groups", "prod-two-groups", "ha-monitoring"),
    *("cluster", "cluster-three-groups", "cluster-monitoring"),
]
RENAMED = {
    "port of a container": ("containerPort: 8083", "containerPort: 8183"),
    "name of a container's port": ("name: reput-admin", "name: reput-probes"),
    "port of a service": ("port: 8084", "port: 8085"),
    "port of a policy": ("- port: replication", "- port: copying"),
    "path of startup": ("path: /startup", "path: /started"),
    "path of liveness": ("path: /live", "path: /healthz"),
    "path of readiness": ("path: /in-sync", "path: /insync"),
    "path of metrics": ("path: /metrics", "path: /prometheus"),
    "variable that is a setting": ("TIDEMARK_HA_CLUSTER_NODES", "TIDEMARK_HA_CLUSTER_PEERS"),
    "variable that is part of one": ("name: NAMESPACE", "name: NAME_SPACE"),
    "group in a setting": ("CLUSTER_GROUP\n", "CLUSTER_SHARD\n"),
    "variable of the command line": ("name: TIDEMARK_RUN_DIR", "name: TIDEMARK_RUNDIR"),
    "setting in a file": ("stop_timeout_s = 10.0", "drain_timeout_s = 10.0"),
    "table of a file": ("[cluster]", "[group]"),
    "port in a file": ("admin_port = 8082", "admin_port = 8092"),
    "file of settings": ("  reput.toml: |", "  dispatcher.toml: |"),
    "file in an argument": ("/etc/tidemark/ha.toml", "/etc/tidemark/replication.toml"),
    "directory of the store": (
        'store_dir = "/var/lib/tidemark/store"',
        'store_dir = "/data/tidemark/store"',
    ),
    "directory of sockets": ('run_dir = "/run/tidemark"', 'run_dir = "/run/sockets"'),
    "mount of the volume": ("mountPath: /var/lib/tidemark", "mountPath: /var/lib/store"),
    "mount of the secret": ("mountPath: /etc/tidemark-secret", "mountPath: /etc/secret"),
    "mount of the account": ("kubernetes.io/serviceaccount\n", "kubernetes.io/account\n"),
    "command": ("- tidemark-ha\n", "- tidemark-replication\n"),
    "command of preStop": ("- hand-over", "- step-down"),
    "option of preStop": ("- --timeout-s", "- --timeout"),
    "directory of preStop": ("- --run-dir\n              - /run/tidemark",
                             "- --run-dir\n              - /run/elsewhere"),
    "role": ("role: master", "role: leader"),
    "metric of a rule": ("tidemark_group_lag_messages", "tidemark_group_lag"),
    "metric of a dashboard": ("tidemark_node_info", "tidemark_build_info"),
    "port of name services": ("containerPort: 9870", "containerPort: 9970"),
    "port of name services in a policy": ("- port: names\n", "- port: routes\n"),
    "list of name services": ("TIDEMARK_BROKER_NAMES_URLS", "TIDEMARK_BROKER_NAMES_PEERS"),
    "URL of a name service": ("name: TIDEMARK_NAMES_URL", "name: TIDEMARK_NAMES_ADDRESS"),
    "mount of their secret": ("mountPath: /etc/tidemark-names-secret", "mountPath: /etc/names"),
    "command of name services": ("- tidemark-names\n", "- tidemark-routes\n"),
    "number of nodes": ("TIDEMARK_HA_CLUSTER_NODE_COUNT", "TIDEMARK_HA_CLUSTER_COUNT"),
    "label of a target": ("targetLabel: replica", "targetLabel: node"),
}  # fmt: skip


@functools.cache
def texts() -> dict[str, str]:
    return rendered()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_name_in_a_manifest_is_in_the_code(overlay: str, tmp_path: Path) -> None:
    assert unknown(overlays()[overlay], tmp_path) == []


@pytest.mark.parametrize("what", RENAMED)
def test_a_name_that_is_changed_in_a_manifest_is_reported(what: str, tmp_path: Path) -> None:
    old, new = RENAMED[what]
    text = texts()["cluster-monitoring"]
    assert old in text, f"{old!r} is not in the manifest any more: change this test with it"
    assert unknown(documents(text.replace(old, new)), tmp_path) != []


def test_a_metric_that_is_renamed_in_the_code_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "tidemark_group_lag_messages"
    left = {other: family for other, family in BY_NAME.items() if other != name}
    monkeypatch.setattr(deploy_names, "BY_NAME", left)
    assert unknown(overlays()["ha-monitoring"], tmp_path) == [f"there is no metric {name}"]


def test_a_role_that_is_renamed_in_the_code_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy_names, "ANNOUNCED", {1: "primary", 2: "standby"})
    found = unknown(overlays()["ha"], tmp_path)
    assert found == [
        "tidemark-g0-master: ha announces no role master",
        "tidemark-g0-replica: ha announces no role slave",
    ]


def test_a_path_that_is_renamed_in_the_code_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = deploy_names.admin_paths
    monkeypatch.setattr(
        deploy_names, "admin_paths", lambda service: answered(service) - {"/startup"}
    )
    found = unknown(overlays()["ha"], tmp_path)
    assert len(found) == 6, "three containers of two pods"
    assert all("startupProbe asks /startup" in each for each in found)
