from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from analytics.moments import HOUR
from analytics.schema import TABLES, fit
from analytics.tables import TableRoot
from analytics.tables.in_use import is_written, writing
from analytics.tables.retention import ORPHAN_AGE, READERS_GRACE, clean_up

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)


def gaps(at: datetime) -> pa.Table:
    row = {"source": "s", "subject": "t", "reason": "down", "detail": "", "from_ts": at}
    return fit(pa.Table.from_pylist([row]), TABLES["gaps"])


def add(root: TableRoot, batch: str, at: datetime) -> str:
    files = root.write("gaps", gaps(at), batch=batch)
    root.commit("gaps", batch=batch, files=files)
    return files[0].path


def test_rows_past_their_time_go_and_their_files_once_no_reader_can_use_them(
    tmp_path: Path,
) -> None:
    root = TableRoot.create(tmp_path)
    old = add(root, "old", NOW - timedelta(days=3))
    new = add(root, "new", NOW - timedelta(days=1))
    real_now = datetime.now(UTC)
    assert clean_up(root, NOW, {"gaps": 90}).expired == 0
    assert clean_up(root, NOW, {"gaps": 2}).expired == 1
    assert [file.path for file in root.files("gaps")] == [new]
    assert (root.path / old).exists()  # a reader may hold the manifest that names it
    # Files stop to count by the clock of the machine, not by that of their rows.
    later = real_now + READERS_GRACE + timedelta(minutes=1)
    assert clean_up(root, later, {"gaps": 3650}).files == 1
    assert not (root.path / old).exists()
    assert (root.path / new).exists()
    assert root.manifest("gaps").removed == {}


def test_what_killed_jobs_left_goes_after_a_day(tmp_path: Path) -> None:
    root = TableRoot.create(tmp_path)
    kept = add(root, "kept", NOW)
    lost = root.path / root.write("gaps", gaps(NOW), batch="lost")[0].path
    half = lost.with_name(".half-written.17.half")
    half.write_bytes(b"PAR1")
    assert clean_up(root, NOW, {}).orphans == 0  # it may be a batch in hand
    old = time.time() - ORPHAN_AGE.total_seconds() - 60
    for path in (lost, half, root.path / kept):
        os.utime(path, (old, old))
    assert clean_up(root, NOW, {}).orphans == 2
    assert (root.path / kept).exists()
    assert not lost.exists()


def test_writers_of_one_table_take_turns(tmp_path: Path) -> None:
    root = TableRoot.create(tmp_path)
    batches = [f"b{number:02d}" for number in range(24)]
    paths: list[str] = []

    def work(mine: list[str]) -> None:
        paths.extend(add(root, batch, NOW + int(batch[1:]) * HOUR) for batch in mine)

    threads = [threading.Thread(target=work, args=(batches[i::3],)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(paths) == sorted(file.path for file in root.files("gaps"))
    assert root.manifest("gaps").version == 24


def test_a_stream_that_writes_is_seen_until_it_ends(tmp_path: Path) -> None:
    assert not is_written(tmp_path, "collect")
    with writing(tmp_path, "collect"), writing(tmp_path, "collect"):
        assert is_written(tmp_path, "collect")
        assert not is_written(tmp_path, "evaluate")
    assert not is_written(tmp_path, "collect")
