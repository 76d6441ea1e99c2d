"""``make lint-deploy`` finds nothing in the manifests, and finds what is broken in a copy."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from deploy.lint import custom
from deploy.lint.rendering import DEPLOY

Breaking = tuple[str, str, str, str]
BROKEN: Final[dict[str, Breaking]] = {
    # what: file, old text, new text, beginning of the finding
    "a field that no version knows": (
        *("k8s/base/statefulset.yaml", "podManagementPolicy:", "podManagement:"),
        "schema: cluster: StatefulSet/tidemark-g0: Kubernetes",
    ),
    "a value of the wrong type": (
        *("k8s/base/services.yaml", "publishNotReadyAddresses: true"),
        *(
            'publishNotReadyAddresses: "yes"',
            "schema: cluster: Service/tidemark-g0-nodes: Kubernetes",
        ),
    ),
    "a field that only the operator's objects lack": (
        *("k8s/components/monitoring/podmonitor.yaml", "scrapeTimeout", "scrapeTimeOut"),
        "schema: cluster-monitoring: PodMonitor/tidemark: Kubernetes",
    ),
    "a field that only the Spark operator's objects lack": (
        *("k8s/components/analytics-operator/application.yaml", "mainApplicationFile", "mainFile"),
        "schema: analytics-operator: SparkApplication/tidemark-analytics-collect: Kubernetes",
    ),
    "a driver whose root can be written": (
        *("k8s/components/analytics/driver.yaml", "readOnlyRootFilesystem: true"),
        *("readOnlyRootFilesystem: false", "policy: analytics.yaml: Deployment"),
    ),
    "a container that may become root": (
        *("k8s/base/statefulset.yaml", "allowPrivilegeEscalation: false"),
        *("allowPrivilegeEscalation: true", "policy: ha.yaml: StatefulSet"),
    ),
    "a root that can be written": (
        *("k8s/base/statefulset.yaml", "readOnlyRootFilesystem: true"),
        *("readOnlyRootFilesystem: false", "policy: ha.yaml: StatefulSet"),
    ),
    "an exception that nothing needs": (
        *("checkov.yaml", "skip-check:\n", "skip-check:\n  - CKV_K8S_16\n"),
        "policy: checkov.yaml excepts CKV_K8S_16",
    ),
    "an exception that is missing": (
        *("checkov.yaml", "  - CKV_K8S_11\n", ""),
        "policy: ha.yaml: StatefulSet.tidemark.tidemark-g0: CKV_K8S_11",
    ),
    "YAML with a name twice": (
        *("k8s/base/disruption.yaml", "  maxUnavailable: 1\n"),
        *("  maxUnavailable: 1\n  maxUnavailable: 2\n", "yamllint:"),
    ),
    "a resource that is not there": (
        *("k8s/base/kustomization.yaml", "- services.yaml", "- service.yaml", "kustomize:"),
    ),
    "a group's line that is gone": (
        *("k8s/overlays/ha/kustomization.yaml", "A further group is one line"),
        *("More groups", "kustomize: ha: the line"),
    ),
    "a name service that may become root": (
        *("k8s/names/statefulset.yaml", "allowPrivilegeEscalation: false"),
        *("allowPrivilegeEscalation: true", "policy: cluster.yaml: StatefulSet"),
    ),
    "a Dockerfile that uses the latest of everything": (
        *("docker/Dockerfile", "FROM python AS run", "FROM debian:latest AS run", "hadolint:"),
    ),
}


STEP_OF: Final = {"schema": "schemas", "policy": "policies", "kustomize": "yamllint"}


def lint(python: Path, deploy: Path, step: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "deploy.lint", "--deploy", deploy, *(["--only", step] if step else [])],
        cwd=DEPLOY.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "secret.key", "*.py")
    return Path(shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=ignored))


def test_the_manifests_are_sound(deploy: Path, tools: Path) -> None:
    done = lint(tools, deploy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("\n0 findings\n")
    assert "13 overlays, Kubernetes 1." in done.stdout


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_found(what: str, deploy: Path, tools: Path) -> None:
    file, old, new, finding = BROKEN[what]
    path = deploy / file
    text = path.read_text()
    assert old in text, f"{old!r} is not in {file} any more: change this test with it"
    path.write_text(text.replace(old, new))
    kind = finding.partition(":")[0]
    done = lint(tools, deploy, STEP_OF.get(kind, kind))
    assert done.returncode == 1, done.stdout + done.stderr
    assert any(line.startswith(finding) for line in done.stdout.splitlines()), done.stdout


def _endpoint(**more: object) -> dict[str, object]:
    return {"port": "broker-admin", "path": "/metrics", **more}


def _monitor(**spec: object) -> dict[str, object]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": "tidemark"},
        "spec": {"selector": {"matchLabels": {}}, **spec},
    }


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (lambda: _monitor(podMetricsEndpoints=[_endpoint()]), None),
        (lambda: _monitor(podMetricsEndpoint=[]), "is not a known field"),
        (lambda: _monitor(podMetricsEndpoints=[_endpoint(port=8081)]), "is not a str"),
        (lambda: _monitor(podMetricsEndpoints=_endpoint()), "is not a list"),
        (lambda: _monitor(podMetricsEndpoints=["broker-admin"]), "is not an object"),
        (lambda: {**_monitor(), "kind": "PodMonitors"}, "there is no kind"),
    ],
)
def test_the_operators_objects_are_held_to_their_fields(
    change: Callable[[], dict[str, object]], mistake: str | None
) -> None:
    found = custom.mistakes(change())
    assert found == [] if mistake is None else mistake in found[0]
