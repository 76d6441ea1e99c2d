"""The files with this node's secrets: ``cluster.secret_file``, and beside it what else is accepted.

``FILE`` holds the secret that is proved, ``FILE.also`` one that is only accepted; it may be
missing. Two files cannot be replaced at once, so ``FILE.swapping`` holds the former secret while
both are. Every name that exists is accepted, so a crash between two writes loses no secret. All
calls block.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from shared.cluster.group_secret import Secrets
from shared.cluster.secret_file import read_secret
from shared.files.os_disk import OsDisk

SETTING: Final = "cluster.secret_file"


class Stamp(NamedTuple):
    """What shows that a file was replaced or written."""

    inode: int
    size: int
    modified_ns: int


class SecretFiles:
    """Reads, checks and replaces the files."""

    def __init__(self, path: Path) -> None:
        """path: ``cluster.secret_file``."""
        self.path = path
        self.also = path.with_name(path.name + ".also")
        self._swapping = path.with_name(path.name + ".swapping")

    def stamps(self) -> tuple[Stamp | None, ...]:
        """Return a stamp for each file, None for a missing one; other stamps: read again."""
        return tuple(_stamp(path) for path in (self.path, self.also, self._swapping))

    def read(self) -> Secrets:
        """Return the secrets without white space around them. Raises BadConfig."""
        proved = read_secret(self.path, SETTING)
        others = [
            read_secret(each, SETTING) for each in (self.also, self._swapping) if each.exists()
        ]
        return Secrets(proved, tuple(dict.fromkeys((proved, *others))))

    def write(self, before: Secrets, after: Secrets) -> None:
        """Replace the files; after a crash they hold the secrets of before, after or both.

        1. The former secret is written under the third name. 2. The new one replaces the proved
        one. 3. The third name replaces the second. Raises OSError.
        """
        if after.proved != before.proved:
            _replace(self._swapping, before.proved)
            _replace(self.path, after.proved)
            self._swapping.rename(self.also)
        elif len(after.accepted) > 1:
            _replace(self.also, after.accepted[1])
        else:
            self.also.unlink(missing_ok=True)
            self._swapping.unlink(missing_ok=True)
        OsDisk().sync_directory(self.path.parent)

    @property
    def writable(self) -> bool:
        """Whether this process may replace the files: not in a mounted volume of secrets."""
        return not self.path.is_symlink() and os.access(self.path.parent, os.W_OK | os.X_OK)


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return Stamp(found.st_ino, found.st_size, found.st_mtime_ns)


def _replace(path: Path, secret: bytes) -> None:
    """Write a secret that only this process's user can read, durably and at once."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(descriptor)
    temporary.rename(path)
