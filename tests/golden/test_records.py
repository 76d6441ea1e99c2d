"""Every record of every golden store, field by field, against what RocketMQ answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import golden
from tidemark.formats import hosts, ids, record, scan
from tidemark.formats.record import Checks, Kind, Message, Record
from tidemark.formats.scan import Entry, Stop
from tidemark.offsets import PhysicalOffset

RECORDS_PER_WALK = 7
"""Small, so that walks also start and end everywhere inside a file."""

Expected = dict[str, Any]
Blank = dict[str, int]


def delay_levels_ms(name: str) -> list[int]:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    levels = golden.manifest(name)["config"]["messageDelayLevel"].split()
    return [int(level[:-1]) * units[level[-1]] * 1000 for level in levels]


def expected_records(name: str) -> list[Expected]:
    """The manifest's records in physical order, each with the tags code dispatch gives it."""
    unqueued = [
        {**message, "tagsCode": message["dispatchTagsCode"]}
        for message in golden.manifest(name)["unqueued"]
    ]
    found = golden.queued_messages(name) + unqueued
    return sorted(found, key=lambda message: int(message["physicalOffset"]))


def walk_store(name: str, into: Path) -> Iterator[tuple[Entry, Record, bytes] | Blank]:
    """Entries, decoded records and bytes of all files in order; a mapping for each filler.

    Checks that what stands at the recovered end is not a valid record, then stops there.
    """
    config = golden.manifest(name)["config"]
    end = golden.manifest(name)["commitLog"]["maxOffset"]
    for base, path in golden.commit_log_files(golden.unpack(name, into)):
        if base >= end:
            return
        data = memoryview(path.read_bytes())
        at = 0
        while True:
            walk = scan.walk(
                data[at:],
                at=PhysicalOffset(base + at),
                checks=Checks(),
                records_max=RECORDS_PER_WALK,
                delay_levels_ms=delay_levels_ms(name),
            )
            for entry in walk.entries:
                start = entry.physical_offset - base
                raw = bytes(data[start : start + entry.size])
                yield entry, record.decode(data, start), raw
            at += walk.end
            if walk.stop is not Stop.LIMIT:
                break
        if base + at == end:
            assert walk.stop is Stop.BAD
            return
        assert walk.stop is Stop.BLANK, f"file {path.name} ends at {at}: {walk}"
        filler = record.validate(data, at, at=base + at, checks=Checks())
        assert filler.kind is Kind.BLANK
        assert filler.size == config["mappedFileSizeCommitLog"] - at
        yield {"physicalOffset": base + at, "size": filler.size}


def described(entry: Entry, found: Record) -> Expected:
    """A record with the manifest's field names."""
    return {
        "queueId": found.queue_id,
        "queueOffset": found.queue_offset,
        "physicalOffset": found.physical_offset,
        "size": found.size,
        "tagsCode": entry.tags_code,
        "topic": found.topic,
        "sysFlag": found.sys_flag,
        "flag": found.flag,
        "bornTimestamp": found.born_timestamp_ms,
        "storeTimestamp": found.store_timestamp_ms,
        "bornHost": found.born_host,
        "storeHost": found.store_host,
        "reconsumeTimes": found.reconsume_times,
        "preparedTransactionOffset": found.prepared_transaction_offset,
        "bodySize": len(found.body),
        "bodyCrc": found.body_crc,
        "bodySha256": hashlib.sha256(found.body).hexdigest(),
        "properties": found.property_map,
        "msgId": found.message_id,
    }


def as_described(expected: Expected) -> Expected:
    """The manifest's record with hosts parsed: it writes IPv6 in full, uncompressed."""
    parsed = {name: hosts.parse(expected[name]) for name in ("bornHost", "storeHost")}
    described = {**expected, **parsed}
    described.pop("dispatchTagsCode", None)
    return described


@pytest.mark.parametrize("name", golden.golden_names())
def test_every_record_reads_as_rocketmq_reads_it(name: str, tmp_path: Path) -> None:
    expected = expected_records(name)
    commit_log = golden.manifest(name)["commitLog"]
    assert len(expected) == commit_log["records"]
    walked = list(walk_store(name, tmp_path))
    found = [item for item in walked if not isinstance(item, dict)]
    for (entry, decoded, _), wanted in zip(found, expected, strict=True):
        assert described(entry, decoded) == as_described(wanted)
    blanks = [item for item in walked if isinstance(item, dict)]
    assert blanks == commit_log["blanks"]


@pytest.mark.parametrize("name", golden.golden_names())
def test_dispatch_reads_the_fields_of_the_record(name: str, tmp_path: Path) -> None:
    for item in walk_store(name, tmp_path):
        if isinstance(item, dict):
            continue
        entry, decoded, _ = item
        assert entry[:5] == (
            decoded.physical_offset,
            decoded.size,
            decoded.topic,
            decoded.queue_id,
            decoded.queue_offset,
        )
        assert entry.store_timestamp_ms == decoded.store_timestamp_ms
        assert entry.sys_flag == decoded.sys_flag
        assert entry.unique_id == decoded.property_map.get("UNIQ_KEY") == decoded.unique_id
        assert entry.keys == decoded.property_map.get("KEYS", "")
        assert ids.parse_offset_id(decoded.message_id) == (
            decoded.store_host,
            decoded.physical_offset,
        )


@pytest.mark.parametrize("name", golden.golden_names())
def test_encoding_a_decoded_record_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    for item in walk_store(name, tmp_path):
        if isinstance(item, dict):
            continue
        _, decoded, raw = item
        message = Message(
            decoded.topic,
            decoded.queue_id,
            decoded.body,
            decoded.born_host,
            decoded.store_host,
            decoded.properties,
            decoded.flag,
            decoded.sys_flag,
            decoded.born_timestamp_ms,
            decoded.reconsume_times,
            decoded.prepared_transaction_offset,
        )
        again = record.encode(
            message,
            queue_offset=decoded.queue_offset,
            physical_offset=decoded.physical_offset,
            store_timestamp_ms=decoded.store_timestamp_ms,
            record_crc=False,
        )
        assert again == raw
        assert record.encoded_size(message, record_crc=False) == len(raw)


@pytest.mark.parametrize(
    "name",
    [name for name in golden.golden_names() if "torn" in golden.manifest(name).get("damage", {})],
)
def test_a_torn_tail_is_no_record(name: str, tmp_path: Path) -> None:
    torn = golden.manifest(name)["damage"]["torn"]
    config = golden.manifest(name)["config"]
    files = dict(golden.commit_log_files(golden.unpack(name, tmp_path)))
    at = torn["physicalOffset"]
    start = at % config["mappedFileSizeCommitLog"]
    data = files[at - start].read_bytes()
    assert record.peek_size(data, start) == torn["recordSize"]
    assert record.validate(data, start, at=at, checks=Checks()).kind is not Kind.VALID
    # If the file goes on behind it, it is checked; if the view ends with it, more is waited for.
    cut = data[: start + torn["bytesWritten"]]
    assert record.validate(cut, start, at=at, checks=Checks()).kind is Kind.INCOMPLETE
