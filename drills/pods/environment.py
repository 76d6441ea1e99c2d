"""The variables and the command of a container, with the kubelet's rules. Pure.

In ascending precedence: the image's variables, those of the namespace's services, ``envFrom``,
``env``. ``$(NAME)`` is replaced by a variable defined before it, and kept if it is undefined;
``$$`` becomes ``$``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Final, NamedTuple

from drills.pods.objects import BadManifest, Manifest, Objects, quantity
from drills.pods.plans import Container, PodPlan, content_of

IMAGE: Final[Mapping[str, str]] = {
    "PATH": "/opt/tidemark/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
"""Variables set by the image."""
_REFERENCE: Final = re.compile(r"\$(\$|\(([A-Za-z_.][A-Za-z0-9_.-]*)\))")
_KEYED: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class Placed(NamedTuple):
    """Facts about a pod that are known only when it starts."""

    uid: str
    address: str
    node: str
    node_address: str
    allocatable: Mapping[str, str]
    """Resources of the node: the default of unset limits."""


class ServiceAddress(NamedTuple):
    name: str
    address: str
    ports: tuple[tuple[str, int], ...]
    """(name, port); the name may be empty."""


def variables(
    container: Container,
    plan: PodPlan,
    placed: Placed,
    objects: Objects,
    services: Iterable[ServiceAddress],
) -> dict[str, str]:
    """Return all variables of a container. Raises BadManifest for an unresolvable reference."""
    found: dict[str, str] = {**IMAGE, "HOSTNAME": plan.name}
    for service in services:
        if service.name == "kubernetes" or plan.service_links:
            found |= service_links(service)
    for entry in container.env_from:
        found |= _all_of(entry, plan.namespace, objects)
    for entry in container.env:
        found |= _one(entry, found, container, plan, placed, objects)
    return found


def service_links(service: ServiceAddress) -> dict[str, str]:
    """Return the variables of a service, in the format of Docker links."""
    prefix = service.name.upper().replace("-", "_")
    first = service.ports[0][1]
    found = {
        f"{prefix}_SERVICE_HOST": service.address,
        f"{prefix}_SERVICE_PORT": str(first),
        f"{prefix}_PORT": f"tcp://{service.address}:{first}",
    }
    for name, port in service.ports:
        if name:
            found[f"{prefix}_SERVICE_PORT_{name.upper().replace('-', '_')}"] = str(port)
        found |= {
            f"{prefix}_PORT_{port}_TCP": f"tcp://{service.address}:{port}",
            f"{prefix}_PORT_{port}_TCP_PROTO": "tcp",
            f"{prefix}_PORT_{port}_TCP_PORT": str(port),
            f"{prefix}_PORT_{port}_TCP_ADDR": service.address,
        }
    return found


def expand(text: str, defined: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` for defined variables."""

    def replace(found: re.Match[str]) -> str:
        if found[1] == "$":
            return "$"
        return defined.get(found[2], found[0])

    return _REFERENCE.sub(replace, text)


def field_value(path: str, plan: PodPlan, placed: Placed) -> str:
    keyed = _KEYED.fullmatch(path)
    if keyed is not None:
        table = plan.labels if keyed[1] == "labels" else plan.annotations
        return table.get(keyed[2], "")
    found = {
        "metadata.name": plan.name,
        "metadata.namespace": plan.namespace,
        "metadata.uid": placed.uid,
        "spec.nodeName": placed.node,
        "spec.serviceAccountName": plan.account,
        "status.podIP": placed.address,
        "status.podIPs": placed.address,
        "status.hostIP": placed.node_address,
    }
    if path not in found:
        raise BadManifest(f"{plan.name}: there is no field {path}")
    return found[path]


def resource_value(reference: Manifest, container: Container, placed: Placed) -> str:
    """Return the value of a resourceFieldRef in divisors, rounded up. Raises BadManifest."""
    kind, _, name = reference["resource"].partition(".")
    if kind not in ("limits", "requests"):
        raise BadManifest(f"{container.name}: there is no resource {reference['resource']}")
    own = (container.resources.get(kind) or {}).get(name)
    value = own if own is not None else placed.allocatable.get(name)
    if value is None:
        raise BadManifest(f"{container.name}: nothing is known of {reference['resource']}")
    divisor = reference.get("divisor") or "1"
    return str(ceil(quantity(value) / quantity("1" if str(divisor) == "0" else divisor)))


def _one(
    entry: Manifest,
    defined: Mapping[str, str],
    container: Container,
    plan: PodPlan,
    placed: Placed,
    objects: Objects,
) -> dict[str, str]:
    name, source = entry["name"], entry.get("valueFrom")
    if source is None:
        return {name: expand(str(entry.get("value") or ""), defined)}
    match dict(source):
        case {"fieldRef": reference}:
            return {name: field_value(reference["fieldPath"], plan, placed)}
        case {"resourceFieldRef": reference}:
            return {name: resource_value(reference, container, placed)}
        case {"configMapKeyRef": reference}:
            return _keyed(name, "ConfigMap", reference, plan.namespace, objects)
        case {"secretKeyRef": reference}:
            return _keyed(name, "Secret", reference, plan.namespace, objects)
    raise BadManifest(f"{container.name}: {name} comes from {dict(source)}")


def _keyed(
    name: str, kind: str, reference: Manifest, namespace: str, objects: Objects
) -> dict[str, str]:
    found = objects.find(kind, namespace, reference["name"])
    content = {} if found is None else content_of(found)
    if reference["key"] in content:
        return {name: content[reference["key"]].decode()}
    if reference.get("optional"):
        return {}
    raise BadManifest(f"{name}: there is no key {reference['key']} in {kind} {reference['name']}")


def _all_of(entry: Manifest, namespace: str, objects: Objects) -> dict[str, str]:
    kind = "ConfigMap" if "configMapRef" in entry else "Secret"
    reference = entry.get("configMapRef") or entry["secretRef"]
    found = objects.find(kind, namespace, reference["name"])
    if found is None:
        if reference.get("optional"):
            return {}
        raise BadManifest(f"there is no {kind} {reference['name']} in namespace {namespace}")
    prefix = entry.get("prefix", "")
    return {f"{prefix}{key}": value.decode() for key, value in content_of(found).items()}


def addresses_of(
    objects: Objects, namespace: str, given: Mapping[tuple[str, str], str]
) -> list[ServiceAddress]:
    """Return a namespace's services that have an address. given: addresses by (namespace, name)."""
    found = []
    for service in objects.of_kind("Service", namespace):
        address = given.get((namespace, service["metadata"]["name"]))
        if address is not None:
            ports = ((one.get("name", ""), int(one["port"])) for one in service["spec"]["ports"])
            found.append(ServiceAddress(service["metadata"]["name"], address, tuple(ports)))
    return found
