"""The valid files of a table, in one JSON file that is replaced by a rename.

Readers see the table before a commit or after it. A commit names its batch; a second commit of it
changes nothing. Numbered batches of a stream leave their number in the manifest. A repeated batch
is therefore detected even after its rows were compacted into other files.

Example: 1. collect commits batch 7 and dies before Spark notes it. 2. compact replaces the hour's
files, those of batch 7 included, by one. 3. collect starts again and repeats batch 7. Without the
number its rows would be in the table twice.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from analytics.errors import ManifestDamaged
from analytics.tables.files import DataFile, write_whole

_FORMAT: Final = 1


class Batch(NamedTuple):
    """The name of a batch, used in its files, and its number within its writer."""

    writer: str  # permanent for a stream: job and query id
    number: int | None = None  # increased by the writer; null: the writer is the name

    def __str__(self) -> str:
        return self.writer if self.number is None else f"{self.writer}-{self.number:08d}"


class Manifest(NamedTuple):
    """State of one table."""

    table: str
    version: int  # +1 for each commit
    files: tuple[DataFile, ...]
    removed: Mapping[str, int]  # path → when it became invisible [microseconds]; still on disk
    done: Mapping[str, int]  # writer → number of its last batch
    watermark_us: int | None  # set by the writer: last tick evaluated, newest time collected
    seen: Mapping[str, int]  # node → its newest tick [microseconds]
    read_to: Mapping[str, int] = {}
    """Collector → time up to which it has read everything [microseconds]; only of collectors that
    brought the newest tick of a node. Empty in manifests of earlier versions.
    """
    sent_by: Mapping[str, str] = {}
    """Node → the collector that brought its newest tick."""

    def has(self, batch: Batch) -> bool:
        """Whether the batch, or a later one of its writer, is committed."""
        return batch.number is not None and self.done.get(batch.writer, -1) >= batch.number


class Change(NamedTuple):
    """Changes of a commit to a table."""

    files: Collection[DataFile] = ()
    replaces: Collection[DataFile] = ()
    watermark_us: int | None = None  # never decreases
    seen: Mapping[str, int] = {}


def empty(table: str) -> Manifest:
    """The manifest of a table without files."""
    return Manifest(table, 0, (), {}, {}, None, {})


def changed(manifest: Manifest, batch: Batch, change: Change, now_us: int) -> Manifest:
    """Return the manifest after the batch; the same manifest if it has the batch already. Pure."""
    if manifest.has(batch):
        return manifest
    name = str(batch)
    kept = {file.path: file for file in manifest.files if file.batch != name}
    gone = {file.path for file in manifest.files if file.batch == name}
    for file in change.replaces:
        if kept.pop(file.path, None) is not None:
            gone.add(file.path)
    kept |= {file.path: file for file in change.files}
    removed = {**manifest.removed, **dict.fromkeys(gone, now_us)}
    marks = [mark for mark in (manifest.watermark_us, change.watermark_us) if mark is not None]
    seen = dict(manifest.seen)
    for node, tick in change.seen.items():
        seen[node] = max(tick, seen.get(node, tick))
    done = dict(manifest.done)
    if batch.number is not None:
        done[batch.writer] = batch.number
    read_to, sent_by = _collectors(manifest, batch.writer, change)
    after = manifest._replace(
        files=tuple(sorted(kept.values(), key=lambda file: (file.first_us, file.path))),
        removed={path: at for path, at in removed.items() if path not in kept},
        done=done,
        watermark_us=max(marks, default=None),
        seen=seen,
        read_to=read_to,
        sent_by=sent_by,
    )
    return manifest if after == manifest else after._replace(version=manifest.version + 1)


def _collectors(
    manifest: Manifest, writer: str, change: Change
) -> tuple[dict[str, int], dict[str, str]]:
    """Return read_to and sent_by after a change. Only a batch with a watermark is a collector's."""
    read_to, sent_by = dict(manifest.read_to), dict(manifest.sent_by)
    if change.watermark_us is not None:
        read_to[writer] = max(change.watermark_us, read_to.get(writer, change.watermark_us))
        # A collector on a new checkpoint has another name, and takes the nodes over as it reads.
        for node, tick in change.seen.items():
            if tick > manifest.seen.get(node, -1):
                sent_by[node] = writer
    readers = set(sent_by.values())
    return {name: mark for name, mark in read_to.items() if name in readers}, sent_by


class ManifestStore:
    """The manifests of one root of tables. Many readers; writers are serialised by a lock file."""

    def __init__(self, root: Path) -> None:
        self._directory = root / "_manifests"

    def tables(self) -> list[str]:
        """Names of the tables with a commit."""
        return sorted(path.stem for path in self._directory.glob("*.json"))

    def read(self, table: str) -> Manifest:
        """Return the present state of a table; empty if it was never written. Raises
        ManifestDamaged if the file is not a manifest of this version."""
        path = self._directory / f"{table}.json"
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return empty(table)
        try:
            return _decoded(table, json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestDamaged(path, str(error)) from error

    def written_us(self, table: str) -> int | None:
        """Return when the table's manifest was last replaced [microseconds]; None if never."""
        try:
            return (self._directory / f"{table}.json").stat().st_mtime_ns // 1000
        except FileNotFoundError:
            return None

    @contextmanager
    def writing(self, table: str) -> Iterator[Manifest]:
        """Lock the table against other writers until the end of the block; yield it. Then call
        `put`."""
        self._directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._directory / f".{table}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process ends, even after kill -9
            yield self.read(table)
        finally:
            os.close(lock)

    def put(self, manifest: Manifest) -> None:
        """Replace the manifest; the previous one stays beside it. Only inside `writing`."""
        path = self._directory / f"{manifest.table}.json"
        before = path.with_name(f"{path.name}.before")
        if path.exists():
            before.unlink(missing_ok=True)
            os.link(path, before)
        text = json.dumps(_encoded(manifest), separators=(",", ":")).encode()
        write_whole(path, lambda out: out.write(text))


def _encoded(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "version": manifest.version,
        "watermark": manifest.watermark_us,
        "seen": dict(manifest.seen),
        "read_to": dict(manifest.read_to),
        "sent_by": dict(manifest.sent_by),
        "done": dict(manifest.done),
        "columns": ["batch", "part", "hour", "bucket", "rows", "size", "first", "last"],
        "files": [list(file[1:]) for file in manifest.files],
        "removed": dict(manifest.removed),
    }


def _decoded(table: str, value: dict[str, Any]) -> Manifest:
    if value["format"] != _FORMAT:
        raise ValueError(f"format {value['format']}, this version knows {_FORMAT}")
    return Manifest(
        table,
        value["version"],
        tuple(DataFile(table, *file) for file in value["files"]),
        value["removed"],
        value["done"],
        value["watermark"],
        value["seen"],
        value.get("read_to", {}),
        value.get("sent_by", {}),
    )
