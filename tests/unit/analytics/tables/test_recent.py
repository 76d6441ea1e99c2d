from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from analytics.tables import DataFile, TableRoot, recent
from analytics.tables.recent import read_recent
from tests.unit.analytics.tables.test_root import START, TICK, add, positions, same

pytestmark = pytest.mark.xdist_group("recent")  # one worker writes the tables

LOOK_BACK = timedelta(minutes=3)
TICKS = 30


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables with one file of positions per tick and bucket. Tests get copies."""
    place = tmp_path_factory.mktemp("tables")
    root = TableRoot.create(place, buckets=2)
    rows = positions([1, 2], TICKS)
    for tick in range(TICKS):
        add(root, rows.slice(4 * tick, 4))
    return place


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Iterator[TableRoot]:
    recent._kept.clear()
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    yield TableRoot.create(tmp_path)
    recent._kept.clear()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the files that were read."""
    paths: list[str] = []
    real = TableRoot.rows_of

    def counted(self: TableRoot, file: DataFile, **of: object) -> object:
        paths.append(file.path)
        return real(self, file, **of)  # type: ignore[arg-type]

    monkeypatch.setattr(TableRoot, "rows_of", counted)
    return paths


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows that were read from each file."""
    found: list[int] = []
    real = TableRoot.rows_of

    def counted(self: TableRoot, file: DataFile, **of: object) -> pa.Table:
        rows = real(self, file, **of)  # type: ignore[arg-type]
        found.append(rows.num_rows)
        return rows

    monkeypatch.setattr(TableRoot, "rows_of", counted)
    return found


def check(root: TableRoot, tick: int, bucket: int = 0) -> None:
    before = START + (tick + 1) * TICK
    since = before - LOOK_BACK
    found = read_recent(root, "positions", since, before, [bucket])
    assert same(found, root.read("positions", since=since, before=before, buckets=[bucket]))


def test_a_window_that_moves_reads_only_the_new_file(root: TableRoot, opened: list[str]) -> None:
    before = START + 20 * TICK
    read_recent(root, "positions", before - LOOK_BACK, before, [0])
    assert len(opened) == 12
    for _ in range(3):
        before += TICK
        opened.clear()
        read_recent(root, "positions", before - LOOK_BACK, before, [0])
        assert len(opened) == 1


@pytest.mark.parametrize("bound", [0, 1 << 12, 1 << 28])
def test_the_rows_are_those_of_the_table_however_little_is_kept(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    monkeypatch.setattr(recent, "KEPT_BYTES_MAX", bound)
    for tick in (20, 21, 26, 25, 5, 29):
        for bucket in (0, 1):
            check(root, tick, bucket)
            assert sum(entry.size for entry in recent._kept.values()) <= bound


def test_files_that_were_merged_meanwhile_are_read_from_their_start_if_asked(
    root: TableRoot,
) -> None:
    check(root, 20)
    found = root.delta("positions")
    assert found is not None
    found.optimize.compact()
    for tick in (24, 25, 17, 29):  # 17: earlier than what was kept of the merged file
        check(root, tick)


def test_large_pieces_are_not_kept(root: TableRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "ENTRY_BYTES_MAX", 10)
    check(root, 20)
    assert not recent._kept


@pytest.mark.parametrize("bound", ["SPAN_MAX_US", "ENTRY_BYTES_MAX"])
def test_of_a_file_of_a_whole_day_only_the_window_is_read_and_nothing_kept(
    root: TableRoot, monkeypatch: pytest.MonkeyPatch, sizes: list[int], bound: str
) -> None:
    monkeypatch.setattr(recent, bound, 10)
    found = root.delta("positions")
    assert found is not None
    found.optimize.compact()
    before = START + 20 * TICK
    wanted = read_recent(root, "positions", before - LOOK_BACK, before, [0]).num_rows
    assert sizes == [wanted]
    assert 0 < wanted < 2 * 20
    check(root, 20)
    assert not recent._kept
