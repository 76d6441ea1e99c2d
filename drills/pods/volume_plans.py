"""The definitions of a pod's volumes, and the contents of ConfigMaps and Secrets. Pure."""

from __future__ import annotations

import base64
from typing import NamedTuple

from drills.pods.objects import BadManifest, Manifest


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
