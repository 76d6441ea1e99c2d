"""Check the requirements of pods, render an overlay, and prepare this process for them.

Rendering and the published sockets come first, because they use this machine's network; then the
process moves to its own network namespace.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from drills.namespaces import LOOPBACK, Namespaces, NoNamespaces
from drills.pods.api import NoTool
from drills.pods.containers import PROJECT, TREES
from drills.pods.objects import BadManifest, Manifest, Objects, namespace_of
from drills.pods.services import is_headless

SECRET_KEY: Final = "secret"
"""Key that services expect in a Secret that is mounted as a whole."""
NEEDED: Final = {
    "kubectl": "kubectl is not installed, or older than 1.27: it renders the manifests "
    "(https://kubernetes.io/docs/tasks/tools/)",
    "ip": "`ip` is not installed: apt-get install iproute2",
    "openssl": "openssl is not installed: apt-get install openssl",
}


class Published(NamedTuple):
    """A Service's port that is published on this machine."""

    service: str
    port: int
    listening: socket.socket

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.listening.getsockname()[1]}"


def render(directory: Path) -> Objects:
    """Return the objects of an overlay. Raises NoTool, BadManifest."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(directory)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BadManifest(f"{directory} cannot be rendered: {done.stderr.strip()}")
    return Objects(parse(done.stdout))


def parse(text: str) -> list[Manifest]:
    """Return the documents of a YAML stream. Raises NoTool."""
    try:
        import yaml
    except ImportError:
        raise NoTool("PyYAML is not installed: pip install PyYAML") from None
    return [one for one in yaml.safe_load_all(text) if one]


def what_is_missing() -> str:
    """Return why pods cannot be run here, with remedies; empty if they can."""
    missing = [text for name, text in NEEDED.items() if shutil.which(name) is None]
    if os.geteuid() != 0:
        missing.append("pods need namespaces and mounts of their own: run it as root, with sudo")
    if (unreadable := _unreadable()) is not None:
        missing.append(f"{unreadable} cannot be read by the pods' user: chmod -R o+rX {unreadable}")
    return "; ".join(missing)


def with_secrets(objects: Objects) -> tuple[Objects, list[str]]:
    """Add a random Secret for each one that pods mount but that the overlay leaves to the user.

    Return the objects and the names of the added Secrets.
    """
    made: dict[tuple[str, str], dict[str, object]] = {}
    for stateful_set in objects.of_kind("StatefulSet"):
        namespace = namespace_of(stateful_set)
        for volume in stateful_set["spec"]["template"]["spec"].get("volumes") or ():
            spec = volume.get("secret") or {"optional": True}
            name = spec.get("secretName", "")
            if spec.get("optional") or objects.find("Secret", namespace, name) is not None:
                continue
            made[namespace, name] = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": namespace},
                "stringData": {
                    item["key"]: secrets.token_hex(32)
                    for item in spec.get("items") or ({"key": SECRET_KEY},)
                },
            }
    return Objects([*objects, *made.values()]), sorted(name for _, name in made)


def publish(objects: Objects) -> list[Published]:
    """Listen on this machine for each port of each Service, with the same number if it is free."""
    found: list[Published] = []
    for service in objects.of_kind("Service"):
        if not is_headless(service):
            for entry in service["spec"]["ports"]:
                port = int(entry["port"])
                found.append(Published(service["metadata"]["name"], port, _listen(port)))
    return found


def new_network() -> Namespaces:
    """Move this process to its own network. Raises NoTool, NoNamespaces."""
    try:
        return Namespaces()
    except NoNamespaces as error:
        raise NoTool(str(error)) from error


def _listen(port: int) -> socket.socket:
    for wanted in (port, 0):
        with contextlib.suppress(OSError):
            return socket.create_server((LOOPBACK, wanted))
    raise OSError(f"nothing can listen on {LOOPBACK}")


def _unreadable() -> Path | None:
    """Return the first part of the project that is not world-readable; None if all are."""
    for path in (PROJECT / name for name in TREES):
        wanted = 0o005 if path.is_dir() else 0o004
        if path.stat().st_mode & wanted != wanted:
            return path
    return None
