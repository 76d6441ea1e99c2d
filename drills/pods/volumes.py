"""Volumes of a pod as directories of this machine: created, filled, with owners and modes.

The directory of a claim is kept; all others are removed with the pod. Owners and modes for
``fsGroup`` are set like the kubelet does, because services check the modes of secrets. Memory
volumes are mounted in this process's mount namespace, so they end with it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from drills.pods.environment import Placed, field_value
from drills.pods.objects import BadManifest, Manifest, Objects, quantity
from drills.pods.plans import Claim, EmptyDir, Files, PodPlan, Source, Volume, content_of

ACCOUNT_PLACE: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
ACCOUNT_VOLUME: Final = "kube-api-access"
CA_NAME: Final = "kube-root-ca.crt"
FILE_BITS: Final = 0o660
FILE_BITS_READ_ONLY: Final = 0o440
DIRECTORY_BITS: Final = 0o110 | stat.S_ISGID


def with_account(plan: PodPlan) -> Mapping[str, Volume]:
    """Return the pod's volumes, with that of its account's token if it has one."""
    if not plan.mounts_token:
        return plan.volumes
    sources = (
        Source("serviceAccountToken", {"path": "token"}),
        Source("configMap", {"name": CA_NAME, "items": [{"key": "ca.crt", "path": "ca.crt"}]}),
        Source(
            "downwardAPI",
            {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]},
        ),
    )
    return {**plan.volumes, ACCOUNT_VOLUME: Files(sources, 0o644)}


class Volumes:
    """The volumes of one pod, from its start to its end."""

    def __init__(
        self,
        plan: PodPlan,
        placed: Placed,
        objects: Objects,
        directory: Path,
        claims: Path,
        token: str,
    ) -> None:
        """directory: directory of this pod only. claims: directory of all claims. token: token of
        the pod's account."""
        self._plan, self._placed, self._objects = plan, placed, objects
        self._directory, self._claims, self._token = directory, claims, token
        self._mounted: list[Path] = []
        self.places: dict[str, Path] = {}

    def make(self) -> None:
        """Create all volumes. Raises BadManifest for a missing object."""
        for name, volume in with_account(self._plan).items():
            place = self._directory / "volumes" / name
            match volume:
                case Claim(claim):
                    place = self._claims / claim
                    place.mkdir(parents=True, exist_ok=True)
                    self._give(place, read_only=False)
                case EmptyDir(memory, size_max):
                    place.mkdir(parents=True)
                    if memory:
                        self._mount(place, size_max)
                    place.chmod(0o777)
                    self._give(place, read_only=False)
                case Files():
                    place.mkdir(parents=True)
                    self._fill(place, volume)
                    self._give(place, read_only=True)
            self.places[name] = place

    def remove(self) -> None:
        """Remove all volumes except claims."""
        for place in self._mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=True)
        self._mounted.clear()
        shutil.rmtree(self._directory / "volumes", ignore_errors=True)

    def _mount(self, place: Path, size_max: str) -> None:
        size = f",size={int(quantity(size_max))}" if size_max else ""
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"mode=777{size}", "tmpfs", str(place)], check=True
        )
        self._mounted.append(place)

    # -- files ------------------------------------------------------------------------------------

    def _fill(self, place: Path, volume: Files) -> None:
        """Write files like the kubelet: the data in a hidden directory, and links to it."""
        data = place / f"..{secrets.token_hex(4)}"
        data.mkdir()
        for source in volume.sources:
            for path, (content, mode) in self._files_of(source, volume.mode).items():
                target = data / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                target.chmod(mode)
        (place / "..data").symlink_to(data.name)
        for entry in sorted(data.iterdir()):
            (place / entry.name).symlink_to(Path("..data") / entry.name)

    def _files_of(self, source: Source, mode: int) -> dict[str, tuple[bytes, int]]:
        spec = source.spec
        match source.kind:
            case "serviceAccountToken":
                own_mode = mode if self._plan.fs_group is None else 0o600
                return {spec["path"]: (self._token.encode(), own_mode)}
            case "downwardAPI":
                found = {}
                for item in spec.get("items") or ():
                    value = field_value(item["fieldRef"]["fieldPath"], self._plan, self._placed)
                    found[item["path"]] = (value.encode(), item.get("mode", mode))
                return found
            case "configMap":
                return self._keys(spec, "ConfigMap", mode)
            case "secret":
                return self._keys(spec, "Secret", mode)
        raise BadManifest(f"{self._plan.name}: {source.kind} in a volume cannot be done here")

    def _keys(self, spec: Manifest, kind: str, mode: int) -> dict[str, tuple[bytes, int]]:
        name, optional = spec["name"], spec.get("optional", False)
        found = self._objects.find(kind, self._plan.namespace, name)
        if found is None:
            if optional:
                return {}
            raise BadManifest(f"{self._plan.name}: there is no {kind} {name}")
        content = content_of(found)
        items = spec.get("items")
        if items is None:
            return {key: (value, mode) for key, value in content.items()}
        missing = [item["key"] for item in items if item["key"] not in content]
        if missing and not optional:
            raise BadManifest(f"{self._plan.name}: {kind} {name} has no key {', '.join(missing)}")
        return {
            item["path"]: (content[item["key"]], item.get("mode", mode))
            for item in items
            if item["key"] in content
        }

    # -- owners -----------------------------------------------------------------------------------

    def _give(self, place: Path, *, read_only: bool) -> None:
        group = self._plan.fs_group
        if group is None:
            return
        status = place.stat()
        given = status.st_gid == group and status.st_mode & stat.S_ISGID
        if given and not self._plan.fs_group_always:
            return
        bits = FILE_BITS_READ_ONLY if read_only else FILE_BITS
        _walk(place, lambda path: _give_one(path, group, bits))


def _walk(place: Path, act: Callable[[str], None]) -> None:
    """Call act for everything below place, then for place itself, which marks completion."""
    for directory, directories, files in os.walk(place, topdown=False):
        for name in (*files, *directories):
            act(os.path.join(directory, name))  # noqa: PTH118 (faster: a store has many files)
    act(str(place))


def _give_one(path: str, group: int, bits: int) -> None:
    status = os.lstat(path)
    os.lchown(path, -1, group)
    if stat.S_ISLNK(status.st_mode):
        return
    more = bits | DIRECTORY_BITS if stat.S_ISDIR(status.st_mode) else bits
    Path(path).chmod(stat.S_IMODE(status.st_mode) | more)
