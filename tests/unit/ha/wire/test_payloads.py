from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from random import Random
from typing import Any

import msgpack
import pytest
from msgspec.structs import replace

from services.ha.wire import payloads
from services.ha.wire.frames import BadFrame, Frame, FrameType
from services.ha.wire.payloads import (
    TABLE_ENTRIES_MAX,
    Ack,
    Append,
    Facts,
    Fenced,
    Hello,
    HelloOk,
    Payload,
    Status,
    StatusOk,
)
from services.ha.wire.versions import SPOKEN, WITH_MSGPACK
from tests.support import ha_fuzz
from tests.support.for_each import for_each
from tests.support.fuzz_cases import damaged
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset


def entry(epoch: int, start: int) -> EpochStart:
    return EpochStart(Epoch(epoch), PhysicalOffset(start))


NODE = "5a" * 16
HELLO = Hello("g0", "n1", NODE, 2, 1 << 20, 4, 0, 900, 800, 700, (entry(1, 0), entry(3, 500)))
STATUS_OK = StatusOk(
    *("n1", NODE, "in-sync", True, False, 4, 3, 0, 9, 8, 7, 6, 5),
    in_sync=(),
    facts=Facts(reason="slow"),
    asked_ms=77,
    wall_ms=88,
)
VERSIONS = range(SPOKEN.lowest, SPOKEN.highest + 1)


def as_map(frame: Frame) -> Any:
    """The payload as another implementation of msgpack reads it."""
    return msgpack.unpackb(frame.payload)


def parse_map(kind: FrameType, fields: object) -> Payload:
    return payloads.parse(Frame(kind, 1, msgpack.packb(fields)))


def test_a_release_speaks_its_own_version_and_the_one_before() -> None:
    assert SPOKEN == (WITH_MSGPACK - 1, WITH_MSGPACK)


@for_each("version", VERSIONS)
@for_each("seed", range(200))
def test_a_payload_is_the_same_after_its_way_in_each_version(seed: int, version: int) -> None:
    rng = Random(seed)
    sent = ha_fuzz.payload(rng)
    frame = payloads.frame(7, sent, version)
    assert payloads.parse(frame, version) == sent
    assert payloads.parse(frame._replace(payload=memoryview(frame.payload)), version) == sent


def test_the_binary_version_is_written_as_the_last_release_reads_it() -> None:
    hello = struct.pack(">H6q", 2, 1 << 20, 4, 0, 900, 800, 700)
    hello = b"\x02g0\x02n1" + b"\x5a" * 16 + hello + struct.pack(">I4q", 2, 1, 0, 3, 500)
    assert payloads.frame(4, HELLO, 2) == Frame(FrameType.HELLO, 4, hello)
    status = b"\x02n1" + b"\x5a" * 16 + b"\x07in-sync" + b"\x01\x00"
    status += struct.pack(">8qB2q", 4, 3, 0, 9, 8, 7, 6, 5, 0, 77, 88) + b'{"reason":"slow"}'
    assert payloads.frame(4, STATUS_OK, 2).payload == status
    assert payloads.frame(4, Status(77), 2).payload == struct.pack(">q", 77)


def test_facts_of_the_last_release_are_read() -> None:
    # All names that it writes, and one that is not known here.
    facts = {
        **{"reason": "r", "trouble": "t", "stalls_are_over": True, "stalled_ms": 5},
        **{"broker": False, "open": False, "refused_at": 3, "hindrance": "h"},
        **{"in_sync_at": [6, 13], "lag_ms": {"n1": 12, "n2": None}, "other": [1, {}]},
    }
    frame = payloads.frame(1, replace(STATUS_OK, facts=Facts()), 2)
    payload = bytes(frame.payload).removesuffix(b"{}") + json.dumps(facts).encode()
    read = payloads.parse(frame._replace(payload=payload), 2)
    assert isinstance(read, StatusOk)
    assert read.facts == Facts(
        *("r", "t", True, 5, False, False, 3, "h", (6, 13), {"n1": 12, "n2": None})
    )
    for bad in (b"", b"[]", b"{", b"\xff", b"[" * 60_000, b'"' + b"x" * 70_000 + b'"'):
        before = bytes(frame.payload).removesuffix(b"{}")
        with pytest.raises(BadFrame):
            payloads.parse(frame._replace(payload=before + bad), 2)


def test_payloads_are_maps_of_the_documented_fields() -> None:
    assert as_map(payloads.frame(4, HELLO)) == {
        **{"group": "g0", "node": "n1", "incarnation": NODE, "version": 2, "file_size": 1 << 20},
        **{"promised": 4, "first_offset": 0, "end": 900, "durable": 800, "confirm": 700},
        "table": [[1, 0], [3, 500]],
    }
    status = as_map(payloads.frame(4, STATUS_OK))
    assert status["facts"] == {"reason": "slow"}
    assert (status["asked_ms"], status["in_sync"]) == (77, [])
    assert as_map(payloads.frame(4, Status())) == {}  # a default is not sent


def test_append_and_ack_are_binary_in_each_version() -> None:
    append, ack = Append(3, 0, 500, 400, 9, 3, b"abc"), Ack(700, 600, 9, leaving=True)
    for version in VERSIONS:
        sent = payloads.frame(1, append, version).payload
        assert sent == struct.pack(">qqqqQI", 3, 0, 500, 400, 9, 3) + b"abc"
        assert payloads.frame(1, ack, version).payload == struct.pack(">qqQB", 700, 600, 9, 1)


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    later = {"promised": 4, "later": {"a": [1, b"x"], "b": None}}
    assert parse_map(FrameType.FENCED, later) == Fenced(4)
    facts = as_map(payloads.frame(1, STATUS_OK)) | {"facts": {"later": 1}, "later": 2.5}
    assert parse_map(FrameType.STATUS_OK, facts) == replace(STATUS_OK, facts=Facts())


def test_a_payload_of_one_version_is_refused_in_the_other() -> None:
    for sent in (Status(77), STATUS_OK, HELLO):
        for written, read in ((2, 3), (3, 2)):
            with pytest.raises(BadFrame):
                payloads.parse(payloads.frame(4, sent, written), read)


@for_each("version", VERSIONS)
@for_each("seed", range(40))
def test_damaged_payloads_are_refused_or_read_as_something_else_and_nothing_worse(
    seed: int, version: int
) -> None:
    rng = Random(seed)
    frame = ha_fuzz.frame(rng, version)
    for inside in damaged(rng, bytes(frame.payload), 100):
        with contextlib.suppress(BadFrame):
            payloads.parse(frame._replace(payload=inside), version)


@for_each("version", VERSIONS)
@for_each("seed", range(40))
def test_a_payload_that_is_cut_is_refused(seed: int, version: int) -> None:
    frame = ha_fuzz.frame(Random(seed), version)
    for cut in range(len(frame.payload)):
        with pytest.raises(BadFrame):
            payloads.parse(frame._replace(payload=frame.payload[:cut]), version)


@for_each("version", VERSIONS)
@for_each("seed", range(40))
def test_a_payload_with_bytes_behind_it_is_refused(seed: int, version: int) -> None:
    frame = ha_fuzz.frame(Random(seed), version)
    with pytest.raises(BadFrame):
        payloads.parse(frame._replace(payload=bytes(frame.payload) + b"\0"), version)


@for_each("seed", range(100))
def test_no_memory_is_taken_for_lengths_that_nothing_follows(seed: int) -> None:
    inside = ha_fuzz.inflated(Random(seed))
    tracemalloc.start()
    try:
        for kind in FrameType:
            with pytest.raises(BadFrame):
                payloads.parse(Frame(kind, 1, inside))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@for_each("version", VERSIONS)
def test_a_table_that_is_too_long_is_refused_before_its_entries_are_built(version: int) -> None:
    table = tuple(entry(number, number) for number in range(100_000))
    frame = payloads.frame(1, replace(HELLO, table=table), version)
    tracemalloc.start()
    try:
        with pytest.raises(BadFrame, match="1000"):
            payloads.parse(frame, version)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [FrameType.CHALLENGE, FrameType.WELCOME])
def test_frames_of_the_handshake_are_refused_behind_it(kind: FrameType) -> None:
    with pytest.raises(BadFrame, match=kind.name):
        payloads.parse(Frame(kind, 1, b""))


@for_each("version", VERSIONS)
@for_each(
    "said",
    [
        replace(HELLO, end=700),  # durable behind it
        replace(HELLO, first_offset=901),
        replace(HELLO, confirm=-1),
        replace(HELLO, table=(entry(1, 0), entry(1, 5))),
        replace(HELLO, table=(entry(1, 5), entry(2, 5))),
        replace(HELLO, table=(entry(2, 0), entry(1, 5))),
        replace(HELLO, table=(entry(-1, 0),)),
        replace(HELLO, table=tuple(entry(number, number) for number in range(1001))),
        HelloOk(point=901, crc=0, crc_size=0, first_offset=0, end=900, confirm=0, table=()),
        HelloOk(point=5, crc=0, crc_size=0, first_offset=6, end=900, confirm=0, table=()),
        HelloOk(0, 0, 0, 0, 900, 0, (), foreign=(20, 10)),
        HelloOk(point=5, crc=0, crc_size=6, first_offset=0, end=900, confirm=0, table=()),
        Ack(-1, -2, 1),
        Ack(4, -1, 1),
        Append(1, 0, -1, 0, 1, 0),
        Append(1, 5, 4, 0, 1, 3, b"abc"),  # the epoch begins behind its first byte
        Append(1, 0, 4, 0, 1, 2, b"abc"),
        Append(1, 0, 4, 0, 1, 4, b"abc"),
        Fenced(-1),
    ],
)
def test_an_impossible_payload_is_refused(said: Payload, version: int) -> None:
    with pytest.raises(BadFrame):
        payloads.parse(payloads.frame(1, said, version), version)


@for_each(
    "fields",
    [
        *({"node": "x" * 256}, {"node": 7}, {"node": b"n1"}, {"node": None}),
        *({"incarnation": "5a"}, {"incarnation": "5A" * 16}, {"incarnation": NODE + "\n"}),
        *({"end": 1 << 63}, {"end": -1}, {"end": 1.0}, {"end": "9"}, {"initialised": 1}),
        *({"in_sync": [["n1"]]}, {"in_sync": [["n1", NODE, 1]]}, {"in_sync": [["n1", "x"]]}),
        *({"in_sync": [["n1", NODE]] * 256}, {"in_sync": {}}, {"state": "x" * 256}),
        *({"facts": []}, {"facts": {"reason": b"x"}}, {"facts": {"lag_ms": {"n": "x"}}}),
        *({"facts": {"reason": "x" * 65_537}}, {"facts": {"in_sync_at": [1]}}),
    ],
)
def test_a_field_out_of_bounds_is_refused_by_its_name(fields: dict[str, Any]) -> None:
    whole = as_map(payloads.frame(1, STATUS_OK))
    assert parse_map(FrameType.STATUS_OK, whole) == STATUS_OK
    with pytest.raises(BadFrame, match=f"STATUS_OK.*{next(iter(fields))}"):
        parse_map(FrameType.STATUS_OK, whole | fields)
    del whole[next(iter(fields))]
    with contextlib.suppress(BadFrame):
        parse_map(FrameType.STATUS_OK, whole)


@for_each("inside", [None, [], "text", 7, {}, {"promised": "4"}, {1: 2}])
def test_a_payload_of_another_shape_is_refused(inside: object) -> None:
    with pytest.raises(BadFrame):
        parse_map(FrameType.FENCED, inside)


@for_each("text", ["ä" * 100, "\ud800"])
def test_text_is_utf_8(text: str) -> None:
    fields = as_map(payloads.frame(1, HELLO)) | {"node": text}
    raw = msgpack.packb(fields, unicode_errors="surrogatepass")
    if text.startswith("ä"):
        assert payloads.parse(Frame(FrameType.HELLO, 1, raw)) == replace(HELLO, node=text)
    else:
        with pytest.raises(BadFrame):
            payloads.parse(Frame(FrameType.HELLO, 1, raw))


def test_a_table_has_at_most_a_thousand_entries() -> None:
    table = tuple(entry(number, number) for number in range(TABLE_ENTRIES_MAX + 1))
    for version in VERSIONS:
        full = payloads.frame(1, replace(HELLO, table=table[1:]), version)
        assert payloads.parse(full, version) == replace(HELLO, table=table[1:])
        with pytest.raises(BadFrame, match="1000"):
            payloads.parse(payloads.frame(1, replace(HELLO, table=table), version), version)


def test_the_bytes_of_an_append_are_not_copied() -> None:
    frame = payloads.frame(1, Append(1, 0, 0, 0, 1, 3, b"abc"))
    said = payloads.parse(frame)
    assert isinstance(said, Append)
    assert isinstance(said.data, memoryview)
    assert said.data.obj is frame.payload
