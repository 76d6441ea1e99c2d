"""Who may read the file that holds the group's secret. Pure; ``startup`` reads the file."""

from __future__ import annotations

import stat
from collections.abc import Collection

ROOT = 0


def is_private(*, mode: int, owner: int, group: int, own_groups: Collection[int]) -> bool:
    """Whether nobody but this process's user and root can read a file.

    mode: as of ``stat``. owner, group: of the file. own_groups: of this process. Readable by its
    owner alone is private. So is what a pod finds in a volume of secrets: root owns it, and may
    alone change it; the group that reads it (``fsGroup``) has been given to this pod's processes.
    """
    if mode & stat.S_IRWXO:
        return False
    if not mode & stat.S_IRWXG:
        return True
    only_reads = mode & stat.S_IRWXG == stat.S_IRGRP
    return owner == ROOT and only_reads and group in own_groups and group != ROOT
