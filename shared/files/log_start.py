"""The file ``log-start``: start of the commit log, as of the last removal of its oldest files.

While nothing is damaged, the name of the first log file gives the same offset. This file is needed
if that file is missing: otherwise a log whose beginning was removed by accident could not be
distinguished from one whose beginning has expired. The checkpoint's MIN holds the same offset; the
larger of the two counts, since each may be lost, damaged or restored from an old copy
(docs/formats.md, section 1.6).

It is written durably before the files below are removed. A full disk may refuse that; the
checkpoint, whose block is reserved, is synced in any case.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from pathlib import Path
from typing import Final

from shared.files.disk import Disk, read_whole, write_atomically
from tidemark.errors import DiskFull, ReadOnlyDisk

FORMAT: Final = 1
SIZE_MAX: Final = 4096


def read_log_start(disk: Disk, path: Path) -> int | None:
    """Return the physical offset in the file; None if it is missing or damaged."""
    content = (read_whole(disk, path) or b"")[: SIZE_MAX + 1]
    line, _, rest = content.partition(b"\n")
    if rest != b"crc32 %08x\n" % zlib.crc32(line):
        return None
    try:
        facts = json.loads(line)
    except ValueError:
        return None
    found = facts.get("log_start") if isinstance(facts, dict) else None
    return found if type(found) is int and facts.get("format") == FORMAT else None


def write_log_start(disk: Disk, path: Path, log_start: int) -> None:
    """Store the start of the log durably, unless it is stored already or the disk is full."""
    if read_log_start(disk, path) == log_start:
        return
    line = json.dumps({"format": FORMAT, "log_start": log_start}).encode()
    with contextlib.suppress(DiskFull, ReadOnlyDisk):
        write_atomically(disk, path, line + b"\ncrc32 %08x\n" % zlib.crc32(line))
