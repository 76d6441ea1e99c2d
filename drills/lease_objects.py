"""The behaviour of a Kubernetes API server for Leases and pods, as far as a group needs it. Pure.

The rules are those of its storage: every change increments one resource version for all objects; a
write without a change does not. A PUT needs the version that it replaces. A PUT to a missing Lease
*creates* it, unless it names a uid, which then does not match. Not implemented: validation of other
fields, watches, lists.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

COORDINATION: Final = "/apis/coordination.k8s.io/v1"
LEASES: Final = "leases"
PODS: Final = "pods"


class Answer(NamedTuple):
    status: int
    body: dict[str, Any]


class LeaseObjects:
    def __init__(self, new_uid: Callable[[], str] = lambda: str(uuid.uuid4())) -> None:
        self._leases: dict[tuple[str, str], dict[str, Any]] = {}
        self._labels: dict[tuple[str, str], dict[str, str]] = {}
        self.pods_are_made = False
        """True: only pods from ``make_pod`` exist; False: every pod exists."""
        self._version = 1000
        self._new_uid = new_uid

    def get(self, namespace: str, name: str) -> Answer:
        found = self._leases.get((namespace, name))
        return _missing(LEASES, name) if found is None else Answer(200, copy.deepcopy(found))

    def post(self, namespace: str, body: dict[str, Any]) -> Answer:
        name = body.get("metadata", {}).get("name")
        if not isinstance(name, str) or not name:
            return failure(422, "Invalid", "metadata.name: required", LEASES, "")
        if (namespace, name) in self._leases:
            return failure(409, "AlreadyExists", f'leases "{name}" already exists', LEASES, name)
        if body["metadata"].get("resourceVersion"):
            text = "resourceVersion should not be set on objects to be created"
            return failure(500, "InternalError", text, LEASES, name)
        return self._make(namespace, name, body)

    def put(self, namespace: str, name: str, body: dict[str, Any]) -> Answer:
        metadata = body.get("metadata", {})
        found = self._leases.get((namespace, name))
        uid_there = "" if found is None else found["metadata"]["uid"]
        if metadata.get("uid") and metadata["uid"] != uid_there:
            text = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object "
            return failure(409, "Conflict", f"{text}meta: {uid_there}", LEASES, name)
        if found is None:
            return self._make(namespace, name, body)
        version = metadata.get("resourceVersion")
        if not version:
            text = "metadata.resourceVersion: must be specified for an update"
            return failure(422, "Invalid", text, LEASES, name)
        if version != found["metadata"]["resourceVersion"]:
            text = "the object has been modified; please apply your changes to the latest version"
            return failure(409, "Conflict", text, LEASES, name)
        replaced = copy.deepcopy(body)
        for kept in ("uid", "namespace", "name", "resourceVersion"):
            replaced["metadata"][kept] = found["metadata"][kept]
        if replaced != found:
            replaced["metadata"]["resourceVersion"] = self._next_version()
            self._leases[namespace, name] = replaced
        return Answer(200, copy.deepcopy(replaced))

    def delete(self, namespace: str, name: str) -> Answer:
        if self._leases.pop((namespace, name), None) is None:
            return _missing(LEASES, name)
        self._next_version()
        return Answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def make_pod(self, namespace: str, name: str, labels: Mapping[str, str]) -> None:
        self._labels[namespace, name] = dict(labels)
        self._next_version()

    def remove_pod(self, namespace: str, name: str) -> None:
        self._labels.pop((namespace, name), None)
        self._next_version()

    def labels(self, namespace: str, name: str) -> dict[str, str]:
        """Return a pod's labels; empty for a missing pod."""
        return dict(self._labels.get((namespace, name), {}))

    def patch_pod(self, namespace: str, name: str, body: dict[str, Any]) -> Answer:
        """Merge labels into those of a pod."""
        if self.pods_are_made and (namespace, name) not in self._labels:
            return _missing(PODS, name)
        labels = self._labels.setdefault((namespace, name), {})
        labels.update(body.get("metadata", {}).get("labels", {}))
        self._next_version()
        return self.get_pod(namespace, name)

    def get_pod(self, namespace: str, name: str) -> Answer:
        if self.pods_are_made and (namespace, name) not in self._labels:
            return _missing(PODS, name)
        labels = dict(self._labels.get((namespace, name), {}))
        metadata = {"namespace": namespace, "name": name, "labels": labels}
        return Answer(200, {"kind": "Pod", "apiVersion": "v1", "metadata": metadata})

    def _make(self, namespace: str, name: str, body: dict[str, Any]) -> Answer:
        made = {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", **copy.deepcopy(body)}
        made["metadata"] |= {
            "namespace": namespace,
            "name": name,
            "uid": self._new_uid(),
            "resourceVersion": self._next_version(),
        }
        self._leases[namespace, name] = made
        return Answer(201, copy.deepcopy(made))

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)


def failure(status: int, reason: str, message: str, kind: str, name: str) -> Answer:
    return Answer(
        status,
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": reason,
            "message": message,
            "details": {"kind": kind, "name": name},
            "code": status,
        },
    )


def _missing(kind: str, name: str) -> Answer:
    group = "" if kind == PODS else ".coordination.k8s.io"
    return failure(404, "NotFound", f'{kind}{group} "{name}" not found', kind, name)
