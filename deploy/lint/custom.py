"""Schemas of the objects of the Prometheus and Spark operators.

They are written by hand and contain only the fields used here; an unknown field is a mistake, as in
all other schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

API_VERSIONS: Final = frozenset({"monitoring.coreos.com/v1", "sparkoperator.k8s.io/v1beta2"})
_RELABELING: Final = {
    "sourceLabels": list,
    "separator": str,
    "targetLabel": str,
    "regex": str,
    "replacement": str,
    "action": str,
}
_CONFINED: Final = {
    "allowPrivilegeEscalation": bool,
    "readOnlyRootFilesystem": bool,
    "capabilities": {"drop": list},
}
_SPARK_POD: Final = {
    "cores": int,
    "coreRequest": str,
    "memory": str,
    "memoryOverhead": str,
    "serviceAccount": str,
    "labels": dict,
    "podSecurityContext": {
        "runAsNonRoot": bool,
        "runAsUser": int,
        "runAsGroup": int,
        "fsGroup": int,
        "fsGroupChangePolicy": str,
        "seccompProfile": {"type": str},
    },
    "securityContext": _CONFINED,
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
_SPARK: Final = {
    "type": str,
    "pythonVersion": str,
    "mode": str,
    "image": str,
    "imagePullPolicy": str,
    "sparkVersion": str,
    "mainApplicationFile": str,
    "arguments": list,
    "restartPolicy": {
        "type": str,
        "onFailureRetries": int,
        "onFailureRetryInterval": int,
        "onSubmissionFailureRetries": int,
        "onSubmissionFailureRetryInterval": int,
    },
    "timeToLiveSeconds": int,
    "dynamicAllocation": {"enabled": bool, "initialExecutors": int, "maxExecutors": int},
    "sparkConf": dict,
    "volumes": list,
    "driver": _SPARK_POD,
    "executor": {**_SPARK_POD, "instances": int},
}
_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "PodMonitor": {
        "selector": {"matchLabels": dict},
        "sampleLimit": int,
        "podTargetLabels": list,
        "podMetricsEndpoints": [
            {
                "port": str,
                "path": str,
                "interval": str,
                "scrapeTimeout": str,
                "honorLabels": bool,
                "relabelings": [_RELABELING],
            }
        ],
    },
    "SparkApplication": _SPARK,
    "ScheduledSparkApplication": {
        "schedule": str,
        "concurrencyPolicy": str,
        "successfulRunHistoryLimit": int,
        "failedRunHistoryLimit": int,
        "template": _SPARK,
    },
    "PrometheusRule": {
        "groups": [
            {
                "name": str,
                "interval": str,
                "rules": [
                    {
                        "alert": str,
                        "record": str,
                        "expr": str,
                        "for": str,
                        "keep_firing_for": str,
                        "labels": dict,
                        "annotations": dict,
                    }
                ],
            }
        ],
    },
}


def mistakes(document: dict[str, Any]) -> list[str]:
    """Return the mistakes in one object; empty if there are none."""
    fields = _FIELDS.get(document["kind"])
    if fields is None:
        return [f"there is no kind {document['kind']} in {document['apiVersion']}"]
    top = {"apiVersion": str, "kind": str, "metadata": dict, "spec": fields}
    return list(_differences(document, top, document["kind"]))


def _differences(value: object, shape: Any, where: str) -> list[str]:
    if isinstance(shape, type):
        return [] if isinstance(value, shape) else [f"{where} is no {shape.__name__}"]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where} is no list"]
        found: list[str] = []
        for index, each in enumerate(value):
            found += _differences(each, shape[0], f"{where}[{index}]")
        return found
    if not isinstance(value, dict):
        return [f"{where} is no object"]
    found = []
    for name, each in value.items():
        if name in shape:
            found += _differences(each, shape[name], f"{where}.{name}")
        else:
            found.append(f"{where}.{name} is not a known field")
    return found
