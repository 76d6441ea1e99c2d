"""Names in the manifests of lag analytics, compared with the code and with each other.

Commands, options, ports, paths, volumes, accounts and files: a name that was changed on one side
only is reported. Streams and schedules exist twice, as pods that submit and as the Spark operator's
objects: both must be equal.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import yaml

from analytics.main import jobs
from tests.support.manifests import Object, environment, of_kind

PROJECT: Final = Path(__file__).resolve().parents[2]
SITE: Final = "/opt/tidemark/lib/python3.11/site-packages/tidemark/"
"""Where a wheel has the packages that stand at the top of the repository."""
SUBMIT: Final = SITE + "analytics/submit.py"
TOKEN_DIR: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
SETTINGS_DIR: Final = "/etc/tidemark-analytics/"


class Run(NamedTuple):
    """One job as a manifest asks for it."""

    job: str
    schedule: str | None
    arguments: list[str]
    """Of the job, its name first."""


class Driver(NamedTuple):
    """One driver that a pod template makes."""

    name: str
    schedule: str | None
    pod: Object
    """The pod's spec."""
    labels: dict[str, str]
    namespace: str

    @property
    def container(self) -> Object:
        """The driver's only container."""
        [found] = self.pod["containers"]
        assert isinstance(found, dict)
        return found

    @property
    def arguments(self) -> list[str]:
        """Arguments of the container, as the kubelet passes them."""
        facts = {"metadata.namespace": self.namespace, "metadata.name": f"{self.name}-0"}
        found = environment(self.container, facts)
        pattern = re.compile(r"\$\((\w+)\)")
        return [
            pattern.sub(lambda match: found.get(match[1], match[0]), text)
            for text in self.container["args"]
        ]

    def confs(self) -> dict[str, str]:
        """Spark options on the driver's command line."""
        words = [text.removeprefix("--conf=") for text in self.arguments if "--conf=" in text]
        return dict(word.split("=", 1) for word in words)


def drivers(objects: list[Object]) -> list[Driver]:
    """Drivers of Deployments and CronJobs, except those that run no Spark."""
    found = []
    for each in of_kind(objects, "Deployment") + of_kind(objects, "CronJob"):
        name, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
        spec = each["spec"]
        template = spec.get("jobTemplate", {}).get("spec", spec)["template"]
        labels = template["metadata"]["labels"]
        if labels["app.kubernetes.io/component"] == "driver":
            found.append(Driver(name, spec.get("schedule"), template["spec"], labels, namespace))
    return found


def runs(objects: list[Object]) -> list[Run]:
    """Every job of pods or of the operator's objects; by name."""
    found = []
    for driver in drivers(objects):
        own = driver.arguments[driver.arguments.index(SUBMIT) + 1 :]
        found.append(Run(own[0], driver.schedule, own))
    for kind in ("SparkApplication", "ScheduledSparkApplication"):
        for each in of_kind(objects, kind):
            spec = each["spec"].get("template", each["spec"])
            found.append(Run(spec["arguments"][0], each["spec"].get("schedule"), spec["arguments"]))
    return sorted(found)


def unknown(objects: list[Object]) -> list[str]:
    """All names in the manifests that the code, or another manifest, does not have."""
    found: list[str] = []
    for run in runs(objects):
        found += (f"{run.job}: {each}" for each in _command(run.arguments))
    for driver in drivers(objects):
        found += (f"{driver.name}: {each}" for each in _driver(driver, objects))
    for each in of_kind(objects, "SparkApplication") + of_kind(
        objects, "ScheduledSparkApplication"
    ):
        name = each["metadata"]["name"]
        spec = each["spec"].get("template", each["spec"])
        found += (f"{name}: {wrong}" for wrong in _application(spec))
    found += _export(objects)
    found += _references(objects)
    return sorted(set(found))


def _command(arguments: list[str]) -> Iterator[str]:
    """A job and its options must be accepted by the command line."""
    job, *rest = arguments
    context = click.Context(jobs)
    command = jobs.get_command(context, job)
    if command is None:
        yield f"there is no job {job}"
        return
    try:
        command.make_context(job, list(rest))
    except click.ClickException as error:
        yield error.format_message()


def _driver(driver: Driver, objects: list[Object]) -> Iterator[str]:
    container, arguments = driver.container, driver.arguments
    if arguments[0] != "spark-submit":
        yield f"{arguments[0]} is not spark-submit"
    if SUBMIT not in arguments or not (PROJECT / SUBMIT.removeprefix(SITE)).exists():
        yield "it does not submit what is in the image"
    if unset := [text for text in arguments if "$(" in text]:
        yield f"variables that are never set: {unset}"
    properties = _properties(objects)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    expected = {
        "driver": int(properties["spark.driver.port"]),
        "blocks": int(properties["spark.driver.blockManager.port"]),
        "ui": int(properties["spark.ui.port"]),
    }
    if ports != expected:
        yield f"ports are {ports}, Spark has {expected}"
    confs = driver.confs()
    [service] = of_kind(objects, "Service")
    host = f"{driver.pod['hostname']}.{driver.pod['subdomain']}.{driver.namespace}.svc"
    if driver.pod["subdomain"] != service["metadata"]["name"]:
        yield f"there is no service {driver.pod['subdomain']}"
    if confs["spark.driver.host"] != host:
        yield f"executors call {confs['spark.driver.host']}, its name is {host}"
    if not service["spec"]["selector"].items() <= driver.labels.items():
        yield "the service of drivers does not select it"
    if confs["spark.kubernetes.container.image"] != container["image"]:
        yield f"executors run {confs['spark.kubernetes.container.image']}"
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    if TOKEN_DIR not in mounted:
        yield "it has no token to make executors with"
    volumes = {volume["name"] for volume in driver.pod["volumes"]}
    if volumes != set(mounted.values()):
        yield f"volumes are {sorted(volumes)}, mounted are {sorted(mounted.values())}"
    for path in _paths(arguments):
        if not any(path.startswith(each) for each in mounted):
            yield f"{path} lies on no volume"


def _paths(arguments: list[str]) -> list[str]:
    return [path for text in arguments for path in re.findall(r"=(/(?:var|etc)/\S+)", text)]


def _application(spec: Object) -> Iterator[str]:
    if spec["mainApplicationFile"] != f"local://{SUBMIT}":
        yield "it does not submit what is in the image"
    lock = (PROJECT / "requirements-analytics.lock").read_text()
    if f"pyspark=={spec['sparkVersion']} " not in lock:
        yield f"Spark {spec['sparkVersion']} is not the one of the lock file"
    volumes = {volume["name"] for volume in spec["volumes"]}
    for role in ("driver", "executor"):
        mounts = {mount["name"] for mount in spec[role]["volumeMounts"]}
        if mounts != volumes:
            yield f"{role} mounts {sorted(mounts)} of {sorted(volumes)}"


def _export(objects: list[Object]) -> Iterator[str]:
    [found] = [
        each
        for each in of_kind(objects, "Deployment")
        if each["metadata"]["labels"]["app.kubernetes.io/component"] == "export"
    ]
    [container] = found["spec"]["template"]["spec"]["containers"]
    program, *arguments = container["args"]
    scripts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["scripts"]
    if program not in scripts:
        yield f"export: {program} is not installed"
    yield from (f"export: {each}" for each in _command(arguments))
    [port] = container["ports"]
    if f"--port={port['containerPort']}" not in arguments:
        yield f"export: it does not listen on {port['containerPort']}"
    [monitor] = of_kind(objects, "PodMonitor")
    for endpoint in monitor["spec"]["podMetricsEndpoints"]:
        if endpoint["port"] != port["name"]:
            yield f"PodMonitor: no container has a port {endpoint['port']}"
    labels = found["spec"]["template"]["metadata"]["labels"]
    if not monitor["spec"]["selector"]["matchLabels"].items() <= labels.items():
        yield "PodMonitor selects no pod"


def _references(objects: list[Object]) -> Iterator[str]:
    """Accounts, claims, maps and files that are referred to must exist."""
    present = {(each["kind"], each["metadata"]["name"]) for each in objects}
    named: list[tuple[str, str]] = []
    specs = [driver.pod for driver in drivers(objects)]
    template = executor(objects)
    specs.append(template["spec"])
    for spec in specs:
        named.append(("ServiceAccount", spec["serviceAccountName"]))
        for volume in spec["volumes"]:
            if "persistentVolumeClaim" in volume:
                named.append(
                    ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
                )
            if "configMap" in volume:
                named.append(("ConfigMap", volume["configMap"]["name"]))
    for each in of_kind(objects, "SparkApplication"):
        for role in ("driver", "executor"):
            named.append(("ServiceAccount", each["spec"][role]["serviceAccount"]))
    yield from (f"there is no {kind} {name}" for kind, name in named if (kind, name) not in present)
    properties = _properties(objects)
    file = properties["spark.kubernetes.executor.podTemplateFile"]
    if not file.startswith(SETTINGS_DIR) or file.removeprefix(SETTINGS_DIR) not in _files(objects):
        yield f"there is no file {file}"
    containers = {each["name"] for each in template["spec"]["containers"]}
    if properties["spark.kubernetes.executor.podTemplateContainerName"] not in containers:
        yield "the template of executors has no such container"


def _files(objects: list[Object]) -> dict[str, str]:
    [found] = of_kind(objects, "ConfigMap")
    files: dict[str, str] = found["data"]
    return files


def _properties(objects: list[Object]) -> dict[str, str]:
    lines = _files(objects)["spark.properties"].splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def executor(objects: list[Object]) -> Any:
    """Return the pod template of executors."""
    return yaml.safe_load(_files(objects)["executor.yaml"])
