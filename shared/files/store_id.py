"""The id of a store: it tells two stores apart that claim the same name in a cluster.

It is made when a broker first registers with a name service, and stays with the directory: a copy
of the directory has the same id, by which it is recognised.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from typing import Final

from shared.files.disk import read_whole, write_atomically
from shared.files.store_dir import StoreDir
from tidemark.errors import DiskFull, ReadOnlyDisk

STORE_ID: Final = "store-id"
"""Name of the file: one line with the id."""
_SIZE: Final = 16
_FORM: Final = re.compile(rb"[0-9a-f]{32}\n")


def store_id(directory: StoreDir) -> str:
    """Return the store's id; it is made if there is none or a damaged one. Blocks.

    On a disk that refuses writes the id is new with each start.
    """
    path = directory.root / STORE_ID
    found = read_whole(directory.disk, path) or b""
    if _FORM.fullmatch(found):
        return found.decode().strip()
    made = secrets.token_hex(_SIZE)
    with contextlib.suppress(DiskFull, ReadOnlyDisk):
        write_atomically(directory.disk, path, made.encode() + b"\n")
    return made
