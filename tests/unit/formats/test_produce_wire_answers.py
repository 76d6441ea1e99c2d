"""The answer to a produce request, packed by both twins: what msgpack would make of its map."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.for_each import for_each
from tests.support.twins import twin_modules_of
from tidemark.formats import batch, hosts, ids, produce_wire, properties
from tidemark.formats.batch import BadBatch, WireMessage
from tidemark.formats.hosts import Host

pytestmark = pytest.mark.parametrize("twin", twin_modules_of("wire", produce_wire))

HERE = hosts.parse("10.9.8.7:10911")


def answer(twin: ModuleType, entries: bytes, sizes: bytes, **changed: Any) -> bytes:
    arguments: dict[str, Any] = {
        "level": "disk",
        "copies": 1,
        "host": hosts.encode(HERE),
        "queue": 3,
        "first_queue_offset": 7,
        "first_physical_offset": 1000,
        "store_timestamp_ms": 1_790_000_000_000,
        "batch_id": None,
        **changed,
    }
    made: bytes = twin.pack_answer(entries, sizes, **arguments)
    return made


NUMBERS = st.one_of(
    st.sampled_from([0, 127, 128, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32, -1, -32, -33]),
    st.sampled_from([-128, -129, -32_768, -32_769, -(1 << 31), -(1 << 31) - 1, -(1 << 63)]),
    st.integers(-(1 << 63), strategies.I64_MAX - (1 << 40)),
)
PROPERTIES = st.lists(
    st.sampled_from(
        [
            *(b"UNIQ_KEY\x01abc\x02", b"UNIQ_KEY\x01", b"UNIQ_KEY", b"UNIQ_KEY\x01\x02"),
            *(b"\x01", b"\x02", b"\xff", b"TAGS\x01a\x02", b"XUNIQ_KEY\x01q\x02"),
            b"UNIQ_KEY\x01\xed\xa0\x80\x02",
            "UNIQ_KEY\x01größe".encode(),
            b"UNIQ_KEY\x01" + b"x" * 40,
            b"UNIQ_KEY\x01" + b"x" * 300,
        ]
    ),
    max_size=4,
).map(b"".join)


@given(
    st.lists(PROPERTIES, max_size=20),
    strategies.hosts(),
    st.sampled_from(["memory", "disk", "größe", "x" * 40]),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.integers(91, (1 << 32) - 1),
)
def test_an_answer_is_what_msgpack_makes_of_its_map(
    twin: ModuleType,
    raws: list[bytes],
    host: Host,
    level: str,
    queue: int,
    queue_offset: int,
    physical_offset: int,
    time_ms: int,
    size: int,
) -> None:
    entries = batch.encode(WireMessage(b"body", raw) for raw in raws)
    made = answer(
        twin,
        entries,
        struct.pack("=I", size) * len(raws),
        level=level,
        host=hosts.encode(host),
        queue=queue,
        first_queue_offset=queue_offset,
        first_physical_offset=physical_offset,
        store_timestamp_ms=time_ms,
    )
    results = [
        {
            "message_id": ids.offset_id(host, physical_offset + number * size),
            "unique_id": properties.parse(raw).get("UNIQ_KEY"),
            "queue": queue,
            "queue_offset": queue_offset + number,
            "physical_offset": physical_offset + number * size,
            "store_timestamp_ms": time_ms,
        }
        for number, raw in enumerate(raws)
    ]
    ack = {"level": level, "copies": 1}
    assert made == msgpack.packb({"status": "PUT_OK", "ack": ack, "results": results})


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_an_answer_may_have_any_number_of_results(twin: ModuleType, count: int) -> None:
    entries = batch.encode([WireMessage(b"", b"UNIQ_KEY\x01u\x02")] * count)
    found = msgpack.unpackb(answer(twin, entries, struct.pack("=I", 100) * count))
    assert len(found["results"]) == count
    assert found["ack"] == {"level": "disk", "copies": 1}


def test_messages_of_one_batch_share_its_place_and_those_without_id_its_id(
    twin: ModuleType,
) -> None:
    raws = [b"UNIQ_KEY\x01own\x02", b"", b"TAGS\x01a\x02"]
    entries = batch.encode(WireMessage(b"body", raw) for raw in raws)
    made = msgpack.unpackb(answer(twin, entries, struct.pack("=I", 500), batch_id="größe" * 30))
    assert [each["unique_id"] for each in made["results"]] == ["own", "größe" * 30, "größe" * 30]
    assert [each["queue_offset"] for each in made["results"]] == [7, 8, 9]
    assert {each["physical_offset"] for each in made["results"]} == {1000}
    assert {each["message_id"] for each in made["results"]} == {ids.offset_id(HERE, 1000)}


ONE = batch.encode([WireMessage(b"x", b"UNIQ_KEY\x01u\x02")])


@for_each(
    ("entries", "sizes", "changed", "error"),
    [
        (ONE, b"", {}, ValueError),
        (ONE, b"\0" * 8, {}, ValueError),
        (ONE, b"\0" * 3, {}, ValueError),
        (ONE, b"", {"batch_id": "A"}, ValueError),
        (ONE * 2, b"\0" * 8, {"batch_id": "A"}, ValueError),
        (ONE[:-1], b"\0" * 4, {"batch_id": "A"}, BadBatch),
        (ONE[:-1], b"\0" * 4, {}, BadBatch),
        (ONE + b"\0", b"\0" * 4, {}, BadBatch),
        (ONE, b"\0" * 4, {"first_physical_offset": 1 << 63}, ValueError),
        (ONE, b"\0" * 4, {"first_queue_offset": 1 << 64}, OverflowError),
    ],
)
def test_an_unanswerable_request_is_refused(
    twin: ModuleType, entries: bytes, sizes: bytes, changed: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        answer(twin, entries, sizes, **changed)


def test_the_last_offsets_are_answered(twin: ModuleType) -> None:
    made = answer(
        twin,
        ONE,
        b"\0" * 4,
        first_physical_offset=strategies.I64_MAX,
        first_queue_offset=(1 << 64) - 1,
        copies=True,
    )
    found = msgpack.unpackb(made)
    assert found["results"][0]["physical_offset"] == strategies.I64_MAX
    assert found["results"][0]["queue_offset"] == (1 << 64) - 1
    assert found["ack"]["copies"] is True
