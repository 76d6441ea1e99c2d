"""Stores written by Apache RocketMQ itself, and its answers when it opens them.

They are the reference for our readers: where our code and a manifest disagree, our code is wrong.
The archives are found in the directory named by ``TIDEMARK_GOLDEN``, else in ``../shared/golden``
beside the project, else among the small copies in ``tests/golden/data``. They are never edited.
"""

from __future__ import annotations

import functools
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

_PROJECT = Path(__file__).resolve().parents[2]
_SMALL_COPIES: Final = _PROJECT / "tests" / "golden" / "data"


@functools.lru_cache(maxsize=1)
def golden_directory() -> Path:
    """The directory that holds ``NAME.tar.gz`` and ``NAME.json``."""
    named = os.environ.get("TIDEMARK_GOLDEN")
    if named:
        return Path(named)
    beside = _PROJECT.parent / "shared" / "golden"
    return beside if beside.is_dir() else _SMALL_COPIES


BROKER_AS_IT_WAS: Final[Mapping[str, object]] = {
    "deliver_delayed": False,
    "retention_age_ms": 1 << 50,
}
"""Settings of a broker whose answers are compared with a manifest, which describes the store before
anything was delivered or had expired."""


def golden_names() -> list[str]:
    """Names of all stores that have an archive and a manifest, sorted."""
    directory = golden_directory()
    archives = sorted(path.name.removesuffix(".tar.gz") for path in directory.glob("*.tar.gz"))
    return [name for name in archives if (directory / f"{name}.json").is_file()]


def directory_of(name: str) -> Path:
    """The directory that holds a store: that of the small copies where no other one has it."""
    found = golden_directory()
    return found if (found / f"{name}.tar.gz").is_file() else _SMALL_COPIES


@functools.lru_cache(maxsize=8)
def manifest(name: str) -> dict[str, Any]:
    """The answers of the real implementation. One copy for all callers: do not change it."""
    text = (directory_of(name) / f"{name}.json").read_text(encoding="utf-8")
    return cast(dict[str, Any], json.loads(text))


def unpack(name: str, into: Path) -> Path:
    """Unpack a store below ``into`` (holes and modification times kept); return its directory.

    Opening a store changes it: unpack into a fresh directory per test.
    """
    with tarfile.open(directory_of(name) / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    return into / name


def commit_log_files(store: Path) -> list[tuple[int, Path]]:
    """(start offset, path) of every commit log file of an unpacked store, in order."""
    files = sorted((store / "commitlog").glob("[0-9]*"))
    return [(int(path.name), path) for path in files]


def queued_messages(name: str) -> list[dict[str, Any]]:
    """All readable messages of all queues, each with its ``queueId``, in no order of note."""
    return [
        {**message, "queueId": queue["queueId"]}
        for queue in manifest(name)["queues"]
        for message in queue["messages"]
        if message.get("readable", True)
    ]
