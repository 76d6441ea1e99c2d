"""Contents of a stopped store: records walked and keys looked up, without any process."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from shared.files.commit_log import CommitLogReader
from shared.files.index import IndexReader
from shared.files.os_disk import OsDisk
from shared.files.store_dir import StoreConfig, StoreDir
from tests.support.index_query import query
from tests.support.node import PROJECT, SMALL_STORE
from tidemark.formats import hashing, record

_ENTRY: Final = struct.Struct(">iqii")


def store_config(settings: Mapping[str, object] = SMALL_STORE) -> StoreConfig:
    """The configuration that a Node's store was made with."""
    return StoreConfig(**settings)  # type: ignore[arg-type]


def records(store: Path) -> list[record.Record]:
    """Every record of the log in physical order, walked from the first byte to the last record.

    Knows only sizes and fillers; raises UndecodableRecord at a record that cannot be read.
    """
    found = []
    for path in sorted((store / "commitlog").glob("[0-9]*")):
        view = memoryview(path.read_bytes())
        at = 0
        while at + record.BLANK_SIZE <= len(view):
            size, magic = record.peek_size(view, at), int.from_bytes(
                view[at + 4 : at + 8], "big", signed=True
            )  # fmt: skip
            if magic == record.MAGIC_BLANK or size == 0:
                break
            found.append(record.decode(view, at))
            at += size
    return found


def lookups(
    store: Path,
    keys: list[tuple[str, str]],
    end: int,
    settings: Mapping[str, object] = SMALL_STORE,
) -> dict[tuple[str, str], list[int]]:
    """Physical offsets that each (topic, key) finds in the store's index."""
    directory = StoreDir(OsDisk(), store, store_config(settings))
    reader = IndexReader(directory, CommitLogReader(directory, None))
    try:
        return {key: list(query(reader, *key, dispatched=end)) for key in keys}
    finally:
        reader.close()


def reachable(
    store: Path, settings: Mapping[str, object] = SMALL_STORE
) -> Counter[tuple[int, int]]:
    """(key hash, physical offset) of every entry that a look-up can reach, in all index files.

    Follows every chain from its slot, so it says of all keys at once what they find. Layout of
    docs/formats.md, section 5, spelled out a second time.
    """
    config = store_config(settings)
    slots, entries = config.index_slots, config.index_entries
    found: Counter[tuple[int, int]] = Counter()
    for path in sorted((store / "index").iterdir()):
        raw = path.read_bytes()
        (count,) = struct.unpack_from(">i", raw, 36)
        for number in struct.unpack_from(f">{slots}i", raw, 40):
            at = number
            while 0 < at < min(count, entries):
                key_hash, offset, _, previous = _ENTRY.unpack_from(raw, 40 + 4 * slots + 20 * at)
                found[key_hash, offset] += 1
                at = previous if previous < at else 0
    return found


def expected_entries(records: Iterable[record.Record]) -> Counter[tuple[int, int]]:
    """(key hash, physical offset) of every entry that the index has to have for these records."""
    return Counter(
        (hashing.index_hash(one.topic, key), int(one.physical_offset))
        for one in records
        for key in keys_of(one)
    )


def keys_of(one: record.Record) -> list[str]:
    """What finds a record: its unique id, then its keys."""
    return [*([one.unique_id] if one.unique_id else []), *one.keys]


def rebuilt_copy(store: Path, target: Path, config: Path) -> Path:
    """A copy of a stopped store whose queues, index and checkpoint were made anew from the log.

    config: settings file of a reput for this store; paths on its command line win.
    """
    shutil.copytree(store, target, symlinks=True, ignore=shutil.ignore_patterns("run"))
    for name in ("consumequeue", "index"):
        shutil.rmtree(target / name, ignore_errors=True)
    (target / "checkpoint").unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "services.reput", "--store", str(target),
         "--config", str(config), "--once"],
        cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"rebuilding failed: {done.stdout}{done.stderr}"
    return target
