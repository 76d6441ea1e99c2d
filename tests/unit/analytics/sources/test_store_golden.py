"""Stores that RocketMQ wrote, as tables: every record, unit and offset that it has itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analytics.sources.store.options import StoreOptions
from analytics.sources.store.reader import StoreReader
from tests.support import golden
from tests.unit.analytics.sources.test_store_records import gaps_of

NAMES = golden.golden_names()


def rows_of(root: Path, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = StoreReader(StoreOptions(root=root, **options)).table().to_pylist()
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_records_are_rocketmqs(name: str, tmp_path: Path) -> None:
    manifest = golden.manifest(name)
    expected = {
        message["physicalOffset"]: message
        for message in [*golden.queued_messages(name), *manifest["unqueued"]]
    }
    root = golden.unpack(name, tmp_path)
    rows = rows_of(root, verify=True, split_min=9)
    records = {row["physical_offset"]: row for row in rows if row["gap"] is None}
    assert expected.keys() <= records.keys()
    for offset, message in expected.items():
        row = records[offset]
        assert row["crc_ok"]
        assert (row["size"], row["topic"], row["queue_offset"], row["sys_flag"]) == (
            message["size"],
            message["topic"],
            message["queueOffset"],
            message["sysFlag"],
        )
        assert row["store_ts"].timestamp() * 1000 == pytest.approx(message["storeTimestamp"])
        assert row["born_ts"].timestamp() * 1000 == pytest.approx(message["bornTimestamp"])
        assert row["body_size"] == message["bodySize"]
        assert row["keys"] == message["properties"].get("KEYS")
        if "queueId" in message:
            assert row["queue"] == message["queueId"]
    end = manifest["commitLog"]["maxOffset"]
    # What RocketMQ cuts away at its next start is behind a gap here, or behind its end.
    assert all(offset >= end for offset in records.keys() - expected.keys())
    assert all(offset >= end for _, offset in gaps_of(rows))


@pytest.mark.parametrize("name", NAMES)
def test_units_are_rocketmqs(name: str, tmp_path: Path) -> None:
    found = {
        (row["topic"], row["queue"], row["queue_offset"]): (
            row["physical_offset"],
            row["size"],
            row["tags_code"],
        )
        for row in rows_of(golden.unpack(name, tmp_path), table="queue_units")
    }
    expected = {
        (message["topic"], message["queueId"], message["queueOffset"]): (
            message["physicalOffset"],
            message["size"],
            message["tagsCode"],
        )
        for message in golden.queued_messages(name)
    }
    common = expected.keys() & found.keys()
    assert common
    assert {key: found[key] for key in common} == {key: expected[key] for key in common}
    if name in ("basic", "defaults", "expired"):  # stopped in order: nothing is left to dispatch
        assert common == expected.keys()


def test_offsets_are_those_of_rocketmqs_file(tmp_path: Path) -> None:
    root = golden.unpack("defaults", tmp_path)
    path = root / "config" / "consumerOffset.json"
    text = path.read_text(encoding="utf-8")
    rows = rows_of(root, table="offsets")
    assert rows
    for row in rows:
        key = f'"{row["topic"]}@{row["group"]}"'
        assert key in text
        assert row["origin"] == "json"
        assert row["min_offset"] <= row["max_offset"]
    ends = {
        (queue["topic"], queue["queueId"]): queue["maxOffset"]
        for queue in golden.manifest("defaults")["queues"]
    }
    assert {row["max_offset"] - ends[row["topic"], row["queue"]] for row in rows} == {0}
    path.write_text(json.dumps({"offsetTable": 7}), encoding="utf-8")
    with pytest.raises(Exception, match=r"consumerOffset\.json"):
        rows_of(root, table="offsets")
