"""A small StatefulSet and related objects, for tests of modules that read manifests."""

from __future__ import annotations

import base64
import copy
from typing import Any, Final

from drills.pods.objects import Objects

NAMESPACE: Final = "shop"

_STATEFUL_SET: Final[dict[str, Any]] = {
    "kind": "StatefulSet",
    "metadata": {"name": "mark-g0", "namespace": NAMESPACE},
    "spec": {
        "replicas": 2,
        "serviceName": "mark-g0-nodes",
        "template": {
            "metadata": {"labels": {"app": "mark"}, "annotations": {"colour": "blue"}},
            "spec": {
                "serviceAccountName": "mark",
                "terminationGracePeriodSeconds": 45,
                "securityContext": {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001},
                "containers": [
                    {
                        "name": "broker",
                        "image": "mark:1",
                        "command": ["mark-broker"],
                        "args": ["--node", "$(NODE)"],
                        "ports": [{"name": "admin", "containerPort": 8081}],
                        "env": [
                            {
                                "name": "NODE",
                                "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
                            },
                            {"name": "GREETING", "value": "$(NODE) at $(PLACE), $$(NODE)"},
                        ],
                        "resources": {"limits": {"memory": "1Gi", "cpu": "1500m"}},
                        "livenessProbe": {
                            "httpGet": {"path": "/live", "port": "admin"},
                            "periodSeconds": 5,
                        },
                        "lifecycle": {"preStop": {"exec": {"command": ["mark", "away"]}}},
                        "securityContext": {
                            "readOnlyRootFilesystem": True,
                            "allowPrivilegeEscalation": False,
                        },
                        "volumeMounts": [
                            {"name": "data", "mountPath": "/var/lib/mark"},
                            {"name": "secret", "mountPath": "/etc/secret"},
                        ],
                    }
                ],
                "volumes": [
                    {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
                    {"name": "secret", "secret": {"secretName": "key", "defaultMode": 0o440}},
                ],
            },
        },
        "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
    },
}


def stateful_set() -> dict[str, Any]:
    """Return a copy that may be changed."""
    return copy.deepcopy(_STATEFUL_SET)


def pod_spec(found: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def container(found: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = pod_spec(found)["containers"][0]
    return first


def secret(value: bytes = b"open sesame") -> dict[str, Any]:
    data = {"secret": base64.b64encode(value).decode()}
    return {"kind": "Secret", "metadata": {"name": "key", "namespace": NAMESPACE}, "data": data}


def config(**data: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": "conf", "namespace": NAMESPACE}, "data": data}


def objects(*more: dict[str, Any]) -> Objects:
    return Objects([stateful_set(), secret(), *more])
