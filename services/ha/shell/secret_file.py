"""Checks who can read the file with the group's secret. Pure; ``startup`` reads the file."""

from __future__ import annotations

import stat
from collections.abc import Collection

ROOT = 0


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
