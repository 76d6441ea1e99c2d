"""Removes expired rows, files that compaction replaced, and files that killed drivers left.

A file first becomes invisible. It is removed later, when no reader can still use it through an
older manifest. Files that no manifest ever named are removed after a day.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from analytics.moments import HOUR, HOUR_US, hour_of, to_us
from analytics.schema import TABLES
from analytics.tables.manifest import Batch, ManifestStore
from analytics.tables.root import TableRoot

KEEP_DAYS: Final[Mapping[str, int]] = {
    **dict.fromkeys(TABLES, 14),
    **dict.fromkeys(("pair_lag", "stages", "status_changes", "offset_events", "gaps"), 90),
    **dict.fromkeys(("rollup", "capacity", "forecasts", "anomalies"), 400),
}
"""Retention of rows: full detail for two weeks, tables bounded by pairs for a season."""
READERS_GRACE: Final = timedelta(hours=1)
"""Maximum time for which a reader may use a manifest; longer than any query."""
ORPHAN_AGE: Final = timedelta(days=1)


class Removed(NamedTuple):
    """Result of a clean-up."""

    expired: int  # expired files; removed from disk later
    files: int  # from disk
    orphans: int  # files among them that no manifest named


def expire(root: TableRoot, table: str, before: datetime) -> int:
    """Make files of hours that end before this time invisible; return their number."""
    last = to_us(hour_of(before))
    old = [file for file in root.manifest(table).files if file.hour_us + HOUR_US <= last]
    if old:
        root.commit(table, batch=Batch(f"expire-{last}"), replaces=old)
    return len(old)


def clean_up(root: TableRoot, now: datetime, keep_days: Mapping[str, int]) -> Removed:
    """Expire rows and remove files that no reader uses, including those of killed drivers."""
    expired = files = orphans = 0
    store = ManifestStore(root.path)
    for table in store.tables():
        days = keep_days.get(table, KEEP_DAYS[table])
        expired += expire(root, table, now - timedelta(days=days))
        due = to_us(now - READERS_GRACE)
        with store.writing(table) as manifest:
            gone = [path for path, at in manifest.removed.items() if at <= due]
            for path in gone:
                (root.path / path).unlink(missing_ok=True)
            files += len(gone)
            named = {file.path for file in manifest.files} | set(manifest.removed)
            lost = _orphans(root.path, table, named)
            orphans += len(lost)
            for orphan in lost:
                orphan.unlink(missing_ok=True)
            if gone:
                left = {path: at for path, at in manifest.removed.items() if path not in set(gone)}
                store.put(manifest._replace(removed=left, version=manifest.version + 1))
        _remove_empty(root.path / table)
    for attempt in (root.path / "_parts").glob("*"):
        if time.time() - attempt.stat().st_mtime > ORPHAN_AGE.total_seconds():
            shutil.rmtree(attempt, ignore_errors=True)
    return Removed(expired, files + orphans, orphans)


def _orphans(root: Path, table: str, named: set[str]) -> list[Path]:
    """Files of a table that no manifest names and that are older than any batch in progress."""
    due = time.time() - ORPHAN_AGE.total_seconds()
    return [
        path
        for path in (root / table).glob("dt=*/**/*")
        if path.is_file()
        and path.relative_to(root).as_posix() not in named
        and path.stat().st_mtime < due
    ]


def _remove_empty(directory: Path) -> None:
    """Remove empty directories of hours; one that gets a file in the meantime stays."""
    hours = sorted(directory.glob("dt=*/**/"), key=lambda path: len(path.parts), reverse=True)
    for path in hours:
        if not any(path.iterdir()) and time.time() - path.stat().st_mtime > HOUR.total_seconds():
            try:
                path.rmdir()
            except OSError:
                continue  # a writer was faster
