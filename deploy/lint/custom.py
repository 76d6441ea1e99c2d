"""Schemas of the objects of the Prometheus and Spark operators.

They are written by hand and contain only the fields used here; an unknown field is a mistake, as in
all other schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

API_VERSIONS: Final = frozenset({"monitoring.coreos.com/v1", "sparkoperator.k8s.io/v1beta2"})


def _shape(kind: type, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), kind)


_CONFINED: Final = {
    **_shape(bool, "allowPrivilegeEscalation readOnlyRootFilesystem"),
    "capabilities": {"drop": list},
}
_SPARK_POD: Final = {
    "cores": int,
    **_shape(str, "coreRequest memory memoryOverhead serviceAccount"),
    "labels": dict,
    "podSecurityContext": {
        "runAsNonRoot": bool,
        **_shape(int, "runAsUser runAsGroup fsGroup"),
        "fsGroupChangePolicy": str,
        "seccompProfile": {"type": str},
    },
    "securityContext": _CONFINED,
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
_RETRIES: Final = (
    "onFailureRetries onFailureRetryInterval onSubmissionFailureRetries "
    "onSubmissionFailureRetryInterval"
)
_SPARK: Final = {
    **_shape(str, "type pythonVersion mode image imagePullPolicy sparkVersion mainApplicationFile"),
    "arguments": list,
    "restartPolicy": {"type": str, **_shape(int, _RETRIES)},
    "timeToLiveSeconds": int,
    "dynamicAllocation": {"enabled": bool, **_shape(int, "initialExecutors maxExecutors")},
    "sparkConf": dict,
    "volumes": list,
    "driver": _SPARK_POD,
    "executor": {**_SPARK_POD, "instances": int},
}
_ENDPOINT: Final = {
    **_shape(str, "port path interval scrapeTimeout"),
    "honorLabels": bool,
    "relabelings": [
        {"sourceLabels": list, **_shape(str, "separator targetLabel regex replacement action")}
    ],
}
_RULE: Final = {
    **_shape(str, "alert record expr for keep_firing_for"),
    **_shape(dict, "labels annotations"),
}
_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "PodMonitor": {
        "selector": {"matchLabels": dict},
        "sampleLimit": int,
        "podTargetLabels": list,
        "podMetricsEndpoints": [_ENDPOINT],
    },
    "SparkApplication": _SPARK,
    "ScheduledSparkApplication": {
        **_shape(str, "schedule concurrencyPolicy"),
        **_shape(int, "successfulRunHistoryLimit failedRunHistoryLimit"),
        "template": _SPARK,
    },
    "PrometheusRule": {"groups": [{"name": str, "interval": str, "rules": [_RULE]}]},
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
        return [] if isinstance(value, shape) else [f"{where} is not a {shape.__name__}"]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where} is not a list"]
        found: list[str] = []
        for index, each in enumerate(value):
            found += _differences(each, shape[0], f"{where}[{index}]")
        return found
    if not isinstance(value, dict):
        return [f"{where} is not an object"]
    found = []
    for name, each in value.items():
        if name in shape:
            found += _differences(each, shape[name], f"{where}.{name}")
        else:
            found.append(f"{where}.{name} is not a known field")
    return found
