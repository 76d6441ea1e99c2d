"""What leaves the tables: rows past their time, files that compaction replaced, remains of kills.

A file stops to count first and is removed later, when no reader can still use it by an older
manifest. Files that no manifest ever named, left by a killed driver, go after a day.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from analytics.schema import TABLES
from analytics.tables.layout import HOUR, HOUR_US, hour_of, to_us
from analytics.tables.manifest import Batch, ManifestStore
from analytics.tables.root import TableRoot

KEEP_DAYS: Final[Mapping[str, int]] = {
    **dict.fromkeys(TABLES, 14),
    **dict.fromkeys(("pair_lag", "stages", "status_changes", "offset_events", "gaps"), 90),
    **dict.fromkeys(("rollup", "capacity", "forecasts", "anomalies"), 400),
}
"""How long rows are kept: full detail for two weeks, what is bounded by pairs for a season."""
READERS_GRACE: Final = timedelta(hours=1)
"""A reader may hold a manifest for so long: longer than any query, shorter than disks fill."""
ORPHAN_AGE: Final = timedelta(days=1)


class Removed(NamedTuple):
    """What a clean-up removed."""

    expired: int  # files whose rows are past their time; removed from disk later
    files: int  # from disk
    orphans: int  # of these, files that no manifest named


def expire(root: TableRoot, table: str, before: datetime) -> int:
    """Make files of hours that end before this time invisible; return their number."""
    last = to_us(hour_of(before))
    old = [file for file in root.manifest(table).files if file.hour_us + HOUR_US <= last]
    if old:
        root.commit(table, batch=Batch(f"expire-{last}"), replaces=old)
    return len(old)


def clean_up(root: TableRoot, now: datetime, keep_days: Mapping[str, int]) -> Removed:
    """Expire rows and remove files that no reader uses; also what killed drivers left."""
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
    """Files of a table that no manifest names, older than any batch in hand."""
    due = time.time() - ORPHAN_AGE.total_seconds()
    return [
        path
        for path in (root / table).glob("dt=*/**/*")
        if path.is_file()
        and path.relative_to(root).as_posix() not in named
        and path.stat().st_mtime < due
    ]


def _remove_empty(directory: Path) -> None:
    """Directories of hours that have nothing left; a file may come in meanwhile, then it stays."""
    hours = sorted(directory.glob("dt=*/**/"), key=lambda path: len(path.parts), reverse=True)
    for path in hours:
        if not any(path.iterdir()) and time.time() - path.stat().st_mtime > HOUR.total_seconds():
            try:
                path.rmdir()
            except OSError:
                continue  # a writer was faster
