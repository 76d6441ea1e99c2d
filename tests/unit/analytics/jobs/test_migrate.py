"""Tables of the format before Delta Lake are copied once, with all their rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analytics.errors import TablesDamaged, TablesDiffer, TablesMissing
from analytics.jobs.migrate import run
from analytics.moments import from_us, hour_of, to_us
from analytics.tables import TableRoot
from analytics.tables.layout import placed
from tests.unit.analytics.tables.test_root import START, positions, same


def old_tables(directory: Path, rows: pa.Table, watermark: int | None) -> None:
    """Write positions as the format before had them: a file per hour and bucket."""
    files = []
    for number, (place, piece) in enumerate(placed("positions", rows, 4)):
        hour = from_us(place.hour_us)
        path = (
            f"positions/dt={hour:%Y-%m-%d}/hr={hour:%H}/bucket={place.bucket:03d}/"
            f"collect-ab-00000007-{number:05d}.parquet"
        )
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(piece, directory / path)
        files.append(
            ["collect-ab-00000007", number, place.hour_us, place.bucket, piece.num_rows, 9, 0, 0]
        )
    columns = ["batch", "part", "hour", "bucket", "rows", "size", "first", "last"]
    manifest = {"format": 1, "watermark": watermark, "columns": columns, "files": files}
    (directory / "_manifests").mkdir()
    (directory / "_manifests/positions.json").write_text(json.dumps(manifest))
    (directory / "_manifests/positions.json.before").write_text("{}")
    (directory / "_root.json").write_text('{"format": 1, "buckets": 4}')


def test_rows_and_watermark_are_copied_once(tmp_path: Path) -> None:
    old, rows = tmp_path / "old", positions([1, 2, 3], 100).drop_columns(["member"])
    mark = to_us(hour_of(START))
    old_tables(old, rows, mark)
    assert run(old, tmp_path / "new") == {"positions": 600}
    root = TableRoot(tmp_path / "new")
    assert root.buckets == 4
    assert same(root.read("positions").drop_columns(["member"]), rows)
    assert root.watermark("positions") == from_us(mark)
    assert run(old, tmp_path / "new") == {}
    assert root.read("positions").num_rows == 600


def test_what_cannot_be_copied_is_named(tmp_path: Path) -> None:
    old = tmp_path / "old"
    with pytest.raises(TablesMissing, match="old holds no tables"):
        run(old, tmp_path / "new")
    old_tables(old, positions([1], 3), None)
    TableRoot.create(tmp_path / "other", buckets=9)
    with pytest.raises(TablesDiffer, match="number of buckets"):
        run(old, tmp_path / "other")
    (old / "_manifests/positions.json").write_text('{"format": 1, "files": [[1]]}')
    with pytest.raises(TablesDamaged, match=r"positions\.json is unreadable"):
        run(old, tmp_path / "new")
