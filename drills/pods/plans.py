"""The contents of a pod's manifest as values: containers, probes, hooks, volumes, users. Pure.

An unknown field that affects how a container runs is an error, so that the drills never run only a
part of what users apply. Fields without an effect on one machine (limits, affinity, seccomp) are in
``NOT_DONE``, which the runner prints. The step before is ``starting``, the step after is
``kubelet``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from drills.pods.objects import BadManifest, Manifest, namespace_of

NOT_DONE: Final = (
    "limits of processor and memory",
    "seccomp and AppArmor profiles",
    "affinity, topology spread and other scheduling",
    "the size and class of claims",
    "minReadySeconds of a StatefulSet",
)
IMAGE_USER: Final = 10_001
"""The user of the image, if a manifest specifies none."""
GRACE_S: Final = 30
_POD_FIELDS: Final = """
    containers volumes serviceAccountName serviceAccount securityContext hostname subdomain
    automountServiceAccountToken enableServiceLinks terminationGracePeriodSeconds restartPolicy
    setHostnameAsFQDN affinity topologySpreadConstraints tolerations nodeSelector dnsPolicy
    priorityClassName schedulerName imagePullSecrets preemptionPolicy
"""
_CONTAINER_FIELDS: Final = """
    name image imagePullPolicy command args workingDir env envFrom ports volumeMounts resources
    startupProbe livenessProbe readinessProbe lifecycle securityContext terminationMessagePath
    terminationMessagePolicy
"""


class HttpGet(NamedTuple):
    """Send a GET; status 200 to 399 is a success."""

    port: int
    path: str
    host: str
    """Empty for the pod's address."""
    headers: tuple[tuple[str, str], ...] = ()


class TcpSocket(NamedTuple):
    port: int


class Exec(NamedTuple):
    """Run a command in the container; exit status 0 is a success."""

    command: tuple[str, ...]


class Sleep(NamedTuple):
    """Wait; only valid as a hook."""

    seconds: float


Handler = HttpGet | TcpSocket | Exec | Sleep


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe with the manifest's times, all in seconds."""

    handler: Handler
    initial_delay_s: float = 0.0
    period_s: float = 10.0
    timeout_s: float = 1.0
    success_threshold: int = 1
    failure_threshold: int = 3
    grace_s: float | None = None
    """Grace period of a container killed by this probe; None for the pod's."""


class Mount(NamedTuple):
    """A volume, or a part of it, in a container."""

    volume: str
    path: str
    read_only: bool
    sub_path: str


class EmptyDir(NamedTuple):
    """A directory that is removed with the pod."""

    memory: bool
    size_max: str
    """Limit in the manifest's format; empty for none."""


class Claim(NamedTuple):
    """A directory that survives the pod."""

    name: str


class Source(NamedTuple):
    kind: str
    """configMap, secret, downwardAPI or serviceAccountToken."""
    spec: Manifest


class Files(NamedTuple):
    """Files of ConfigMaps, Secrets and tokens."""

    sources: tuple[Source, ...]
    mode: int


Volume = EmptyDir | Claim | Files


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    image: str
    command: tuple[str, ...]
    """Command with its arguments; $(VARIABLE) is not yet expanded."""
    working_dir: str
    env: tuple[Manifest, ...]
    env_from: tuple[Manifest, ...]
    ports: Mapping[str, int]
    mounts: tuple[Mount, ...]
    resources: Manifest
    user: int
    group: int
    read_only_root: bool
    no_new_privileges: bool
    startup: Probe | None = None
    liveness: Probe | None = None
    readiness: Probe | None = None
    pre_stop: Handler | None = None


@dataclass(frozen=True, slots=True)
class PodPlan:
    """One pod, before it has an address."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    revision: str
    containers: tuple[Container, ...]
    volumes: Mapping[str, Volume]
    account: str
    mounts_token: bool
    service_links: bool
    grace_s: float
    fs_group: int | None
    fs_group_always: bool
    """False: a volume's files are given to the group only if its root is not owned by it yet."""
    groups: tuple[int, ...] = ()
    """Supplemental groups."""
    subdomain: str = ""

    @property
    def named_ports(self) -> dict[str, int]:
        return {name: port for found in self.containers for name, port in found.ports.items()}


def plan_pod(stateful_set: Manifest, ordinal: int, revision: str) -> PodPlan:
    """Return the pod with an ordinal, from a StatefulSet's template. Raises BadManifest."""
    spec = stateful_set["spec"]
    name = f"{stateful_set['metadata']['name']}-{ordinal}"
    template = spec["template"]
    pod = template["spec"]
    _known(pod, _POD_FIELDS, f"pod {name}")
    security = pod.get("securityContext") or {}
    claims = [found["metadata"]["name"] for found in spec.get("volumeClaimTemplates") or ()]
    volumes: dict[str, Volume] = {
        found["name"]: volume_of(found, name) for found in pod.get("volumes") or ()
    }
    volumes |= {claim: Claim(f"{claim}-{name}") for claim in claims}
    containers = tuple(_container(found, security, name) for found in pod["containers"])
    plan = PodPlan(
        name=name,
        namespace=namespace_of(stateful_set),
        labels={
            **(template["metadata"].get("labels") or {}),
            "statefulset.kubernetes.io/pod-name": name,
            "apps.kubernetes.io/pod-index": str(ordinal),
            "controller-revision-hash": revision,
        },
        annotations=template["metadata"].get("annotations") or {},
        revision=revision,
        containers=containers,
        volumes=volumes,
        account=pod.get("serviceAccountName") or pod.get("serviceAccount") or "default",
        mounts_token=pod.get("automountServiceAccountToken", True),
        service_links=pod.get("enableServiceLinks", True),
        grace_s=float(pod.get("terminationGracePeriodSeconds", GRACE_S)),
        fs_group=security.get("fsGroup"),
        fs_group_always=security.get("fsGroupChangePolicy", "Always") == "Always",
        groups=tuple(security.get("supplementalGroups") or ()),
        subdomain=spec.get("serviceName", ""),
    )
    for container in containers:
        for mount in container.mounts:
            if mount.volume not in volumes:
                raise BadManifest(f"{name}: {container.name} mounts {mount.volume}: no such volume")
    return plan


def _known(found: Manifest, known: str, where: str) -> None:
    beyond = set(found) - set(known.split())
    if beyond:
        raise BadManifest(f"{where}: {', '.join(sorted(beyond))} cannot be done here")


def _container(found: Manifest, pod: Manifest, where: str) -> Container:
    name = found["name"]
    where = f"{where}: container {name}"
    _known(found, _CONTAINER_FIELDS, where)
    own = found.get("securityContext") or {}
    user = int({"runAsUser": IMAGE_USER, **pod, **own}["runAsUser"])
    if user == 0 and own.get("runAsNonRoot", pod.get("runAsNonRoot", False)):
        raise BadManifest(f"{where}: runAsNonRoot is set, and it would run as root")
    if own.get("privileged"):
        raise BadManifest(f"{where}: a privileged container is not run")
    if (own.get("capabilities") or {}).get("add"):
        raise BadManifest(f"{where}: capabilities cannot be added here: every one is dropped")
    command = (*(found.get("command") or ()), *(found.get("args") or ()))
    if not found.get("command"):
        raise BadManifest(f"{where}: it has no command, and there is no image to take one from")
    ports = {
        str(entry.get("name") or entry["containerPort"]): int(entry["containerPort"])
        for entry in found.get("ports") or ()
    }
    lifecycle = found.get("lifecycle") or {}
    if "postStart" in lifecycle:
        raise BadManifest(f"{where}: postStart cannot be done here")
    return Container(
        name=name,
        image=found["image"],
        command=tuple(map(str, command)),
        working_dir=found.get("workingDir", "/"),
        env=tuple(found.get("env") or ()),
        env_from=tuple(found.get("envFrom") or ()),
        ports=ports,
        mounts=tuple(map(_mount, found.get("volumeMounts") or ())),
        resources=found.get("resources") or {},
        user=user,
        group=int({"runAsGroup": 0, **pod, **own}["runAsGroup"]),
        read_only_root=bool(own.get("readOnlyRootFilesystem")),
        no_new_privileges=not own.get("allowPrivilegeEscalation", True),
        startup=_probe(found.get("startupProbe"), ports, where),
        liveness=_probe(found.get("livenessProbe"), ports, where),
        readiness=_probe(found.get("readinessProbe"), ports, where),
        pre_stop=_handler(lifecycle["preStop"], ports, where) if "preStop" in lifecycle else None,
    )


def _mount(entry: Manifest) -> Mount:
    read_only, sub_path = bool(entry.get("readOnly")), entry.get("subPath", "")
    return Mount(entry["name"], entry["mountPath"], read_only, sub_path)


def _probe(found: Manifest | None, ports: Mapping[str, int], where: str) -> Probe | None:
    if not found:
        return None
    grace = found.get("terminationGracePeriodSeconds")
    return Probe(
        handler=_handler(found, ports, where),
        initial_delay_s=float(found.get("initialDelaySeconds", 0)),
        period_s=float(found.get("periodSeconds", 10)),
        timeout_s=float(found.get("timeoutSeconds", 1)),
        success_threshold=int(found.get("successThreshold", 1)),
        failure_threshold=int(found.get("failureThreshold", 3)),
        grace_s=None if grace is None else float(grace),
    )


def _handler(found: Manifest, ports: Mapping[str, int], where: str) -> Handler:
    def number(port: object) -> int:
        if isinstance(port, int):
            return port
        if port not in ports:
            raise BadManifest(f"{where}: it has no port {port}")
        return ports[str(port)]

    if "httpGet" in found:
        get = found["httpGet"]
        if get.get("scheme", "HTTP") != "HTTP":
            raise BadManifest(f"{where}: probes over {get['scheme']} cannot be done here")
        headers = tuple((one["name"], one["value"]) for one in get.get("httpHeaders") or ())
        return HttpGet(number(get["port"]), get.get("path", "/"), get.get("host", ""), headers)
    if "exec" in found:
        return Exec(tuple(found["exec"]["command"]))
    if "tcpSocket" in found:
        return TcpSocket(number(found["tcpSocket"]["port"]))
    if "sleep" in found:
        return Sleep(float(found["sleep"]["seconds"]))
    raise BadManifest(f"{where}: a probe or hook does nothing that is known: {dict(found)}")


def volume_of(found: Manifest, pod: str) -> Volume:
    """Parse a volume of a pod's manifest. Raises BadManifest."""
    kinds = sorted(set(found) - {"name"})
    match kinds:
        case ["emptyDir"]:
            spec = found["emptyDir"] or {}
            return EmptyDir(spec.get("medium") == "Memory", str(spec.get("sizeLimit", "")))
        case ["persistentVolumeClaim"]:
            return Claim(found["persistentVolumeClaim"]["claimName"])
        case ["configMap"]:
            spec = found["configMap"]
            return Files((Source("configMap", spec),), _mode(spec))
        case ["secret"]:
            spec = {**found["secret"], "name": found["secret"]["secretName"]}
            return Files((Source("secret", spec),), _mode(spec))
        case ["projected"]:
            spec = found["projected"]
            sources = tuple(
                Source(kind, inner) for one in spec["sources"] for kind, inner in one.items()
            )
            return Files(sources, _mode(spec))
        case ["downwardAPI"]:
            spec = found["downwardAPI"]
            return Files((Source("downwardAPI", spec),), _mode(spec))
    raise BadManifest(f"{pod}: volume {found['name']} is {kinds}, which cannot be done here")


def _mode(spec: Manifest) -> int:
    return int(spec.get("defaultMode", 0o644))


def content_of(found: Manifest) -> dict[str, bytes]:
    """Return the keys of a ConfigMap or a Secret with their values."""
    if found["kind"] == "Secret":
        coded = {key: base64.b64decode(text) for key, text in (found.get("data") or {}).items()}
        plain = {key: str(t).encode() for key, t in (found.get("stringData") or {}).items()}
        return coded | plain
    plain = {key: str(text).encode() for key, text in (found.get("data") or {}).items()}
    binary = found.get("binaryData") or {}
    return plain | {key: base64.b64decode(text) for key, text in binary.items()}
