"""The directory of a node's sockets and, if the store is read-only, of its locks.

Pure except for its calls to the file system. Step before: configuration. Step after: ``doorbell``,
and ``shared.files.store_dir`` on a store that cannot be written.
"""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256
from pathlib import Path

from tidemark.errors import ReadOnlyDisk


def usable_run_dir(wanted: Path) -> Path:
    """Return the wanted directory, or a substitute if it cannot be written.

    The default, ``run/`` in the store, is useless on a disk that became read-only: the node could
    neither bind a socket nor lock anything, and would end although all its data can still be read.
    The substitute has the same name for all processes of the node, and a different one for a store
    of the same path on another file system. Call this once in the life of a process. Raises
    ReadOnlyDisk if the substitute cannot be used either.
    """
    present = next(each for each in (wanted, *wanted.absolute().parents) if each.exists())
    if os.access(present, os.W_OK | os.X_OK):
        return wanted
    try:
        facts = present.stat()
        what = f"{facts.st_dev} {facts.st_ino} {wanted.absolute()}"
        name = sha256(os.fsencode(what)).hexdigest()[:16]
        stand_in = Path(tempfile.gettempdir()) / f"tidemark-{os.geteuid()}-{name}"
        stand_in.mkdir(mode=0o700, exist_ok=True)
        found = stand_in.lstat()
    except OSError as error:
        raise _refused(wanted, f"and so does the directory for temporary files: {error}") from error
    # Every user may create names in /tmp: another user's directory or link must not be trusted.
    if stand_in.is_symlink() or not stand_in.is_dir() or found.st_uid != os.geteuid():
        raise _refused(wanted, f"and {stand_in} in its place belongs to another user")
    return stand_in


def _refused(wanted: Path, why: str) -> ReadOnlyDisk:
    return ReadOnlyDisk(
        f"{wanted} refuses the sockets and locks that the processes of this node need, {why}. "
        "What is stored is untouched; nothing was started.",
        "Set run_dir to a directory that this user may write, on tmpfs for example, and start "
        "again: the store is then served for reading.",
        path=wanted,
    )
