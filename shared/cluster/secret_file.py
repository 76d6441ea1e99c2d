"""The file with the secret that the nodes of a cluster share."""

from __future__ import annotations

import functools
import logging
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Final

from shared.cluster.group_secret import SECRET_SIZE_MAX, SECRET_SIZE_MIN
from tidemark.errors import BadConfig

log = logging.getLogger(__name__)

ROOT: Final = 0


def read_secret(path: Path, setting: str) -> bytes:
    """Return the secret without white space around it. Blocks. Raises BadConfig.

    setting: full name of the setting that has the path.
    """
    try:
        with path.open("rb") as file:
            secret = file.read(SECRET_SIZE_MAX + 1).strip()
        status = path.stat()
    except OSError as error:
        raise BadConfig(
            f"{setting} {path} cannot be read: {error.strerror}. It is not used.",
            "Write the same secret there on every node of the group.",
            path=path,
        ) from error
    if not SECRET_SIZE_MIN <= len(secret) <= SECRET_SIZE_MAX:
        raise BadConfig(
            f"{setting} {path} holds {len(secret)} bytes; {SECRET_SIZE_MIN} to "
            f"{SECRET_SIZE_MAX} are a secret. It is not used.",
            "Write a longer one, for example `openssl rand -hex 32`, the same on every node.",
            path=path,
        )
    if not is_private(
        mode=status.st_mode,
        owner=status.st_uid,
        group=status.st_gid,
        own_groups={os.getegid(), *os.getgroups()},
    ):
        _warn_of_mode(path, oct(stat.S_IMODE(status.st_mode)))
    return secret


@functools.cache
def _warn_of_mode(path: Path, mode: str) -> None:
    """Log once that a file is not private: a file beside it that cannot be used is read again and
    again, and this one with it."""
    log.warning(
        "others than the owner may read the group's secret",
        extra={"event": "secret-readable", "path": str(path), "mode": mode},
    )


def is_private(*, mode: int, owner: int, group: int, own_groups: Collection[int]) -> bool:
    """Return whether only this process's user and root can read a file.

    mode, owner, group: those of the file, as ``stat`` returns them. own_groups: the groups of this
    process. A file that only its owner can read is private. So is a file in a Kubernetes volume of
    secrets: root owns it and alone may change it, and the group that can read it (``fsGroup``)
    belongs to this pod's processes.
    """
    if mode & stat.S_IRWXO:
        return False
    if not mode & stat.S_IRWXG:
        return True
    only_reads = mode & stat.S_IRWXG == stat.S_IRGRP
    return owner == ROOT and only_reads and group in own_groups and group != ROOT
