"""Rendered manifests as objects, and their containers as the kubelet would start them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from deploy.lint.rendering import rendered

Object = dict[str, Any]
CONFIG_DIR: Final = "/etc/tidemark"
_REFERENCE: Final = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


class Container(NamedTuple):
    """One container of one pod."""

    pod: str
    spec: Object
    environment: dict[str, str]
    """Its variables, with ``$(…)`` replaced."""
    files: dict[str, str]
    """Files of its ConfigMap, by name."""

    @property
    def name(self) -> str:
        found: str = self.spec["name"]
        return found


@functools.cache
def overlays() -> dict[str, list[Object]]:
    """Objects of every overlay. Rendered once; not to be changed: take ``copy.deepcopy``."""
    return {name: documents(text) for name, text in rendered().items()}


def documents(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [each for each in objects if each["kind"] == kind]


def named(objects: list[Object], kind: str, name: str) -> Object:
    [found] = [each for each in of_kind(objects, kind) if each["metadata"]["name"] == name]
    return found


def group_sets(objects: list[Object]) -> list[Object]:
    """StatefulSets of groups: all but that of the name services."""
    return [
        each
        for each in of_kind(objects, "StatefulSet")
        if "tidemark/group" in each["metadata"]["labels"]
    ]


def pod_spec(stateful_set: Object) -> Object:
    found: Object = stateful_set["spec"]["template"]["spec"]
    return found


def containers(objects: list[Object]) -> Iterator[Container]:
    """Every container of every pod."""
    for stateful_set in of_kind(objects, "StatefulSet"):
        metadata, spec = stateful_set["metadata"], pod_spec(stateful_set)
        [config] = [volume for volume in spec["volumes"] if volume["name"] == "config"]
        files = named(objects, "ConfigMap", config["configMap"]["name"])["data"]
        labels = stateful_set["spec"]["template"]["metadata"]["labels"]
        for ordinal in range(stateful_set["spec"]["replicas"]):
            pod = f"{metadata['name']}-{ordinal}"
            facts = {
                "metadata.name": pod,
                "metadata.namespace": metadata["namespace"],
                "status.podIP": f"10.0.0.{10 + ordinal}",
                **{f"metadata.labels['{name}']": value for name, value in labels.items()},
            }
            for container in spec["containers"]:
                yield Container(pod, container, environment(container, facts), files)


def environment(container: Object, facts: dict[str, str]) -> dict[str, str]:
    """As the kubelet makes it: ``$(X)`` is replaced by what stands before it, else kept."""
    found: dict[str, str] = {}
    for entry in container.get("env", []):
        if "valueFrom" in entry:
            found[entry["name"]] = facts[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            found[entry["name"]] = _REFERENCE.sub(
                lambda match: found.get(match[1], match[0]), entry["value"]
            )
    return found


def config_file(container: Container) -> str:
    """Name of the file that its arguments name."""
    arguments = container.spec["args"]
    path = Path(arguments[arguments.index("--config") + 1])
    assert str(path.parent) == CONFIG_DIR
    return path.name
