"""Lag analytics on Kubernetes: what its manifests name is in the code, and who may do what."""

from __future__ import annotations

import functools
from typing import Final

import pytest

from deploy.lint.rendering import rendered
from drills.pods.policies import End, is_allowed
from tests.support.analytics_names import drivers, executor, runs, unknown
from tests.support.manifests import documents, of_kind, overlays

OVERLAYS: Final = ("analytics", "analytics-operator")
SPACE: Final = "tidemark-analytics"
RENAMED: Final = {
    "job": ("- rollup\n", "- summary\n"),
    "option of a job": ("--checkpoint=/var", "--place=/var"),
    "option of export": ("--port=9190", "--listen=9190"),
    "program": ("- spark-submit\n", "- spark-run\n"),
    "file that is submitted": ("analytics/submit.py", "analytics/start.py"),
    "variable": ("name: IMAGE", "name: PICTURE"),
    "port of a driver": ("containerPort: 7078", "containerPort: 7178"),
    "port in the settings": ("spark.ui.port=4040", "spark.ui.port=4041"),
    "name of a driver": ("hostname: collect", "hostname: collector"),
    "service of drivers": ("name: tidemark-analytics-drivers\n", "name: tidemark-drivers\n"),
    "label of drivers": (
        *("selector:\n    app.kubernetes.io/component: driver", "selector:\n    component: driver"),
    ),
    "claim": ("claimName: tidemark-analytics\n", "claimName: tables\n"),
    "account of executors": ("serviceAccountName: tidemark-analytics-executor",
                             "serviceAccountName: tidemark-analytics-worker"),
    "template of executors": ("executor.yaml: |", "worker.yaml: |"),
    "mount of the tables": ("mountPath: /var/lib/tidemark-analytics", "mountPath: /tables"),
    "mount of the token": ("kubernetes.io/serviceaccount\n", "kubernetes.io/account\n"),
    "port of metrics": ("path: /metrics\n    port: admin", "path: /metrics\n    port: web"),
}  # fmt: skip


@functools.cache
def texts() -> dict[str, str]:
    return rendered()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_name_in_a_manifest_is_in_the_code(overlay: str) -> None:
    assert unknown(overlays()[overlay]) == []


@pytest.mark.parametrize("what", RENAMED)
def test_a_name_that_is_changed_in_a_manifest_is_reported(what: str) -> None:
    old, new = RENAMED[what]
    text = texts()["analytics"]
    assert old in text, f"{old!r} is not in the manifest any more: change this test with it"
    try:
        found = unknown(documents(text.replace(old, new)))
    except (KeyError, ValueError) as error:
        found = [repr(error)]
    assert found != []


def test_both_ways_run_the_same_jobs_at_the_same_times() -> None:
    pods, operator = (runs(overlays()[overlay]) for overlay in OVERLAYS)
    assert pods == operator
    assert [run.job for run in pods] == [
        *("collect", "compact", "evaluate", "forecast", "report", "rollup")
    ]
    assert [run.job for run in pods if run.schedule is None] == ["collect", "evaluate"]
    assert not drivers(overlays()["analytics-operator"])


def test_a_driver_of_either_way_has_a_token_and_no_executor_has() -> None:
    for overlay, is_given in zip(OVERLAYS, (False, True), strict=True):
        accounts = {
            each["metadata"]["name"].removeprefix(f"{SPACE}-"): each["automountServiceAccountToken"]
            for each in of_kind(overlays()[overlay], "ServiceAccount")
        }
        # Drivers in pods of ours mount one themselves; the operator's have but what is given.
        assert accounts == {"driver": is_given, "executor": False}, overlay


def test_one_driver_at_a_time_works_on_a_checkpoint() -> None:
    for each in of_kind(overlays()["analytics"], "Deployment"):
        if each["metadata"]["labels"]["app.kubernetes.io/component"] == "driver":
            assert each["spec"]["replicas"] == 1
            assert each["spec"]["strategy"] == {"type": "Recreate"}
    for each in of_kind(overlays()["analytics"], "CronJob"):
        assert each["spec"]["concurrencyPolicy"] == "Forbid"
    for each in of_kind(overlays()["analytics-operator"], "ScheduledSparkApplication"):
        assert each["spec"]["concurrencyPolicy"] == "Forbid"


def test_a_stream_may_end_by_itself_before_sigterm() -> None:
    streams = [each for each in drivers(overlays()["analytics"]) if each.schedule is None]
    assert len(streams) == 2
    for driver in streams:
        [place] = [text for text in driver.arguments if text.startswith("--checkpoint=")]
        command = driver.container["lifecycle"]["preStop"]["exec"]["command"][-1]
        marker, waits = command.split(" && ")
        assert marker == f"touch {place.removeprefix('--checkpoint=')}/stop"
        assert int(waits.split()[1]) < driver.pod["terminationGracePeriodSeconds"]


def test_pods_are_confined_executors_too() -> None:
    for overlay in OVERLAYS:
        objects = overlays()[overlay]
        specs = [driver.pod for driver in drivers(objects)] + [executor(objects)["spec"]]
        for spec in specs:
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["runAsUser"] == 10001
            assert spec["automountServiceAccountToken"] is False
            for container in spec["containers"]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }


def test_who_may_delete_pods_has_a_namespace_without_brokers() -> None:
    objects = overlays()["analytics"]
    [role] = of_kind(objects, "Role")
    assert role["metadata"]["namespace"] == SPACE
    assert not of_kind(objects, "ClusterRole") + of_kind(objects, "ClusterRoleBinding")
    [binding] = of_kind(objects, "RoleBinding")
    subjects = [(each["name"], each["namespace"]) for each in binding["subjects"]]
    assert subjects == [("tidemark-analytics-driver", SPACE)]
    nodes = {each["metadata"]["namespace"] for each in of_kind(overlays()["ha"], "StatefulSet")}
    assert SPACE not in nodes


def test_pods_reach_what_they_need_and_nothing_else() -> None:
    policies = of_kind(overlays()["analytics"], "NetworkPolicy")

    def pod(number: int, component: str) -> End:
        labels = {
            "app.kubernetes.io/name": SPACE,
            "app.kubernetes.io/component": component,
        }
        own = {"kubernetes.io/metadata.name": SPACE}
        return End(f"10.0.0.{number}", SPACE, labels, own, {"admin": 9190})

    driver, worker, export = pod(1, "driver"), pod(2, "executor"), pod(3, "export")
    watching = {"kubernetes.io/metadata.name": "monitoring"}
    prometheus = End("10.0.9.1", "monitoring", {}, watching)
    server = End("10.96.0.1")
    for port in (7078, 7079):
        assert is_allowed(policies, worker, driver, port)
        assert is_allowed(policies, driver, worker, port)
    assert is_allowed(policies, worker, prometheus, 9090)
    assert is_allowed(policies, driver, server, 443)
    assert is_allowed(policies, prometheus, export, 9190)
    assert not is_allowed(policies, worker, server, 443), "executors do not ask for pods"
    assert not is_allowed(policies, prometheus, driver, 7078)
    assert not is_allowed(policies, driver, export, 9190)
    stranger = End("10.0.9.9", "default", {}, {"kubernetes.io/metadata.name": "default"})
    assert not is_allowed(policies, stranger, driver, 4040)
    assert not is_allowed(policies, worker, stranger, 80)
