"""Names that manifests use, compared with the code: a name that no longer exists is reported.

Ports, paths of probes, settings, environment, files, commands, labels and metrics are each checked
against the code that has them, so that a rename on either side is detected.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from aiohttp import web

from services.broker.api.role_probes import role_probes
from services.broker.config import ENV_PREFIX as BROKER_PREFIX
from services.broker.config import BrokerConfig
from services.ha.config import ENV_PREFIX as HA_PREFIX
from services.ha.config import HaConfig
from services.ha.core.states import State
from services.ha.lease.kubernetes import ACCOUNT_DIR
from services.ha.shell.lease_client import ANNOUNCED
from services.ha.shell.probes import Probes
from services.names.config import ENV_PREFIX as NAMES_PREFIX
from services.names.config import NamesConfig
from services.reput.config import ENV_PREFIX as REPUT_PREFIX
from services.reput.config import ReputConfig
from shared.metrics.catalogue import BY_NAME
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.config import load
from shared.runtime.health import AdminServer, Health
from tests.support.manifests import (
    Container,
    Object,
    config_file,
    containers,
    group_sets,
    of_kind,
    pod_spec,
)
from tidemark.cli.cluster_calls import NODE_VARIABLE, RUN_DIR_VARIABLE
from tidemark.cli.main import cli
from tidemark.errors import BadConfig

PROJECT: Final = Path(__file__).resolve().parents[2]
SETTINGS: Final[dict[str, tuple[type[Any], str]]] = {
    "broker": (BrokerConfig, BROKER_PREFIX),
    "reput": (ReputConfig, REPUT_PREFIX),
    "ha": (HaConfig, HA_PREFIX),
    "names": (NamesConfig, NAMES_PREFIX),
}
NOT_EVERYWHERE: Final = frozenset({"ha-admin", "replication", "names", "names-admin"})
"""Ports of what some overlays do not have: a standalone node has no ha, one group no names."""
PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
TARGET_LABELS: Final = frozenset({"cluster", "broker", "replica", "service", "job"})
_METRIC: Final = re.compile(r"\b(tidemark_[a-z0-9_]+|tidemark:[a-z0-9_:]+)")
_SUFFIX: Final = re.compile(r"_(bucket|sum|count)$")


def unknown(objects: list[Object], scratch: Path) -> list[str]:
    """Everything that is named in the manifests and not in the code. scratch: a directory of its
    own."""
    found: list[str] = []
    for container in containers(objects):
        found += (f"{container.pod} {container.name}: {each}" for each in _of(container, scratch))
    found += _ports_of_services(objects)
    found += _labels(objects)
    found += _metrics(objects)
    return sorted(set(found))


def _of(container: Container, scratch: Path) -> Iterator[str]:
    if container.name not in SETTINGS:
        yield "there is no such service"
        return
    kind, prefix = SETTINGS[container.name]
    path = scratch / config_file(container)
    if path.name not in container.files:
        yield f"{path.name} is not in the ConfigMap"
        return
    path.write_text(container.files[path.name])
    try:
        settings = load(kind, path, prefix, environment=container.environment)
    except BadConfig as error:
        yield from error.facts["mistakes"]
        return
    yield from _unused_environment(container, prefix)
    yield from _ports(container, settings)
    yield from _paths(container, settings)
    yield from _probes(container)
    yield from _commands(container)


def _unused_environment(container: Container, prefix: str) -> Iterator[str]:
    """A variable that is neither a setting nor part of another one, nor of the command line's,
    does nothing."""
    run_dir = container.environment.get(RUN_DIR_VARIABLE)
    if container.name == "ha" and (run_dir is None or NODE_VARIABLE not in container.environment):
        yield f"{RUN_DIR_VARIABLE} and {NODE_VARIABLE} are needed for orders"
    settings = tomllib.loads(container.files[config_file(container)])
    if run_dir not in (None, settings.get("run_dir")):
        yield f"{RUN_DIR_VARIABLE} is {run_dir}"
    values = " ".join(str(entry.get("value", "")) for entry in container.spec.get("env", []))
    for entry in container.spec.get("env", []):
        name = entry["name"]
        known = name.startswith(prefix) or name == RUN_DIR_VARIABLE
        if not known and f"$({name})" not in values:
            yield f"the variable {name} is read by no process"


def _ports(container: Container, settings: Any) -> Iterator[str]:
    named = {port["name"]: port["containerPort"] for port in container.spec["ports"]}
    expected = {f"{container.name}-admin": settings.admin_port}
    match settings:
        case BrokerConfig():
            expected["api"] = settings.port
        case NamesConfig():
            expected["names"] = settings.port
        case HaConfig():
            expected["replication"] = settings.cluster.own.port
            admin = settings.cluster.own.admin
            if not admin.endswith(f":{settings.admin_port}"):
                yield f"cluster.admin says {admin}, admin_port is {settings.admin_port}"
    if named != expected:
        yield f"ports are {named}, the service listens on {expected}"
    for probe in PROBES:
        port = container.spec[probe]["httpGet"]["port"]
        if port != f"{container.name}-admin" or port not in named:
            yield f"{probe} asks the port {port}"


def _paths(container: Container, settings: Any) -> Iterator[str]:
    """What the settings write or read lies on a volume, and every volume is used."""
    needed = {"/etc/tidemark", "/tmp"}
    if not isinstance(settings, NamesConfig):
        needed.add(str(settings.store_dir.parent))
        needed.add(str(settings.run_dir or settings.store_dir / "run"))
    match settings:
        case HaConfig():
            needed |= {str(ACCOUNT_DIR), str(_directory(settings.cluster.secret_file))}
        case NamesConfig():
            needed.add(str(_directory(settings.secret_file)))
        case BrokerConfig() if settings.names.urls:
            needed.add(str(_directory(settings.names.secret_file)))
    mounted = {mount["mountPath"] for mount in container.spec["volumeMounts"]}
    if mounted != needed:
        yield f"mounts are {sorted(mounted)}, used are {sorted(needed)}"


def _directory(secret_file: Path | None) -> Path | None:
    """The directory of a secret; None without one, which no volume is mounted at."""
    return None if secret_file is None else secret_file.parent


def _probes(container: Container) -> Iterator[str]:
    for probe in PROBES:
        path = container.spec[probe]["httpGet"]["path"]
        if path not in admin_paths(container.name):
            yield f"{probe} asks {path}, which the service does not answer"


def admin_paths(service: str) -> set[str]:
    """What the admin port of a service answers to GET."""
    clock = SystemClock()
    routes: list[web.RouteDef] = []
    if service == "broker":
        routes += role_probes(lambda: True, lambda: True)
    if service == "ha":
        routes += Probes(clock, lambda: State.RECOVERING).routes()
    server = AdminServer(Health(clock), Registry(service), host="", port=0, routes=routes)
    return {
        resource.canonical
        for resource in server.app.router.resources()
        if any(route.method == "GET" for route in resource)
    }


def _commands(container: Container) -> Iterator[str]:
    scripts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["scripts"]
    [command] = container.spec["command"]
    if command not in scripts or scripts[command] != f"tidemark.cli.programs:{container.name}":
        yield f"{command} does not start it"
    if container.name == "names":  # it has nothing to hand over
        return
    hook = container.spec["lifecycle"]["preStop"]["exec"]["command"]
    if hook[0] not in scripts:
        yield f"preStop runs {hook[0]}, which is not installed"
        return
    found: click.Command = cli
    arguments = hook[1:]
    while isinstance(found, click.Group):
        name = arguments.pop(0)
        if name not in found.commands:
            yield f"preStop: there is no command {name} of {found.name}"
            return
        found = found.commands[name]
    try:
        context = found.make_context("hook", list(arguments))
    except click.ClickException as error:
        yield f"preStop: {error.format_message()}"
        return
    _, prefix = SETTINGS[container.name]
    run_dir = tomllib.loads(container.files[config_file(container)])["run_dir"]
    if str(context.params["run_dir"]) != run_dir:
        yield f"preStop expects sockets in {context.params['run_dir']}, {prefix}… in {run_dir}"


def _ports_of_services(objects: list[Object]) -> Iterator[str]:
    numbers: dict[str, int] = {}
    for container in containers(objects):
        numbers |= {port["name"]: port["containerPort"] for port in container.spec["ports"]}
    for service in of_kind(objects, "Service"):
        for port in service["spec"]["ports"]:
            name = port["targetPort"]
            if name in numbers and port["port"] != numbers[name]:
                yield f"{service['metadata']['name']}: {name} is {numbers[name]}"
            if name not in numbers and name not in NOT_EVERYWHERE:
                yield f"{service['metadata']['name']}: no container has a port {name}"
    for policy in of_kind(objects, "NetworkPolicy"):
        for way in ("ingress", "egress"):
            for rule in policy["spec"].get(way, []):
                for port in rule.get("ports", []):
                    name = port["port"]
                    if isinstance(name, str) and name not in {*numbers, *NOT_EVERYWHERE}:
                        yield f"{policy['metadata']['name']}: no container has a port {name}"
    for monitor in of_kind(objects, "PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            if endpoint["port"] not in {*numbers, *NOT_EVERYWHERE}:
                yield f"PodMonitor: no container has a port {endpoint['port']}"
            if endpoint["path"] not in admin_paths("reput"):
                yield f"PodMonitor: {endpoint['path']} is not served"
            set_labels = {each["targetLabel"] for each in endpoint["relabelings"]}
            if set_labels != TARGET_LABELS:
                yield f"PodMonitor: labels are {sorted(set_labels)}"


def _labels(objects: list[Object]) -> Iterator[str]:
    roles = set(ANNOUNCED.values())
    for service in of_kind(objects, "Service"):
        role = service["spec"]["selector"].get("role")
        if role is not None and role not in roles:
            yield f"{service['metadata']['name']}: ha announces no role {role}"
    for stateful_set in group_sets(objects):
        labels = stateful_set["spec"]["template"]["metadata"]["labels"]
        for volume in pod_spec(stateful_set)["volumes"]:
            if volume["name"] == "secret" and "secretName" not in volume["secret"]:
                yield "the secret has no name"
        for service in of_kind(objects, "Service"):
            selector = {k: v for k, v in service["spec"]["selector"].items() if k != "role"}
            own = selector.get("tidemark/group") == labels["tidemark/group"]
            if own and not selector.items() <= labels.items():
                yield f"{service['metadata']['name']} selects no pod"


def _metrics(objects: list[Object]) -> Iterator[str]:
    rules = [
        rule
        for each in of_kind(objects, "PrometheusRule")
        for group in each["spec"]["groups"]
        for rule in group["rules"]
    ]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    texts = [rule["expr"] for rule in rules]
    for config_map in of_kind(objects, "ConfigMap"):
        if "grafana_dashboard" in config_map["metadata"].get("labels", {}):
            texts += config_map["data"].values()
    for text in texts:
        for name in _METRIC.findall(text):
            if name in recorded or name in BY_NAME:
                continue
            family = BY_NAME.get(_SUFFIX.sub("", name))
            if family is None:
                yield f"there is no metric {name}"
