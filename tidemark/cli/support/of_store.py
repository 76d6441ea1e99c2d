"""Collects data of a store: the list of files, the checkpoint page, epochs, identity.

It reads no message and takes no lock, so it works on a damaged, used or read-only store. Unreadable
parts are recorded as omissions.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tidemark.cli.support.bundle import Bundle
from tidemark.formats import epochs
from tidemark.formats.checkpoint import SIZE, SLOT_SIZE, Slot, decode_head

FILES_MAX: Final = 20_000
SMALL_SIZE_MAX: Final = 16 << 10
SMALL_FILES: Final = ("tidemark.json", "ha/identity", "ha/promise", "ha/confirm", "ha/intent")
"""Settings of the store and ha's persistent votes: they contain no messages and no secret."""


def listing(bundle: Bundle, store: Path) -> None:
    """Add every file with size, allocated space, time and mode, one JSON object per line."""
    lines = []
    for index, path in enumerate(_walk(store)):
        if index == FILES_MAX:
            bundle.leave_out("store/files.jsonl", f"more than {FILES_MAX} files; the rest")
            break
        lines.append(json.dumps(_facts(path, store), ensure_ascii=False))
    bundle.add_text("store/files.jsonl", "\n".join(lines) + "\n")


def checkpoint(bundle: Bundle, store: Path) -> None:
    """Add the page that the processes share: RocketMQ's head and Tidemark's slots by name."""
    page = _small(store / "checkpoint", SIZE)
    if len(page) < SIZE:
        bundle.leave_out("store/checkpoint.json", f"the page has {len(page)} bytes, not {SIZE}")
        return
    slots = {
        slot.name.lower(): int.from_bytes(page[slot * SLOT_SIZE :][:SLOT_SIZE], "little")
        for slot in Slot
    }
    bundle.add_json("store/checkpoint.json", {"head": decode_head(page)._asdict(), "slots": slots})


def epoch_table(bundle: Bundle, store: Path) -> None:
    """Add the start of each epoch; as text if the table cannot be decoded."""
    path = store / "epochFileCheckpoint"
    if not path.exists():
        bundle.leave_out("store/epochs.json", "no epoch table: the node is in no group, or new")
        return
    data = _small(path, 1 << 20)
    try:
        bundle.add_json("store/epochs.json", [entry._asdict() for entry in epochs.decode(data)])
    except epochs.EpochsUnreadable as error:
        bundle.leave_out("store/epochs.json", f"unreadable: {error}")
        bundle.add("store/epochs.txt", data[:SMALL_SIZE_MAX])


def small_files(bundle: Bundle, store: Path) -> None:
    """Add the description of the store and ha's files unchanged."""
    for name in SMALL_FILES:
        path = store / name
        try:
            bundle.add(f"store/{name}", _small(path, SMALL_SIZE_MAX))
        except FileNotFoundError:
            continue  # ha's files exist only in a group, an intent only during a command
        except OSError as error:
            bundle.leave_out(f"store/{name}", f"{error.strerror}")


def _walk(store: Path) -> Iterator[Path]:
    """Yield all files and directories below; links are not followed."""
    yield store
    for directory, directories, names in os.walk(store):
        directories.sort()
        for name in sorted([*directories, *names]):
            yield Path(directory) / name


def _facts(path: Path, store: Path) -> dict[str, Any]:
    try:
        facts = path.lstat()
    except OSError as error:
        return {"path": str(path.relative_to(store)), "error": error.strerror}
    return {
        "path": str(path.relative_to(store)),
        "kind": stat.filemode(facts.st_mode)[0],
        "mode": oct(stat.S_IMODE(facts.st_mode)),
        "owner": f"{facts.st_uid}:{facts.st_gid}",
        "size": facts.st_size,
        "on_disk": facts.st_blocks * 512,
        "modified_ms": facts.st_mtime_ns // 1_000_000,
    }


def _small(path: Path, size_max: int) -> bytes:
    """Read the first bytes of a regular file. Raises OSError; ValueError for other files."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is not a regular file")
    with path.open("rb") as file:
        return file.read(size_max)
