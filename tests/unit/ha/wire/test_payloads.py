from __future__ import annotations

import contextlib
import struct
from random import Random

import pytest

from services.ha.wire import payloads
from services.ha.wire.frames import BadFrame, Frame, FrameType
from services.ha.wire.payload_fields import Reader
from services.ha.wire.payloads import Append, Fenced, Hello, HelloOk, Payload, Status, StatusOk
from services.ha.wire.versions import SPOKEN, WITH_CLOCKS
from tests.support import ha_fuzz
from tests.support.for_each import for_each
from tests.support.fuzz_cases import damaged
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset


def entry(epoch: int, start: int) -> EpochStart:
    return EpochStart(Epoch(epoch), PhysicalOffset(start))


HELLO = Hello("g0", "n1", "5a" * 16, 1, 1 << 20, 4, 0, 900, 800, 700, (entry(1, 0), entry(3, 500)))


VERSIONS = range(SPOKEN.lowest, SPOKEN.highest + 1)


def as_known(said: Payload, version: int) -> Payload:
    """The value as a version can carry it."""
    if version < WITH_CLOCKS:
        match said:
            case Status():
                return Status()
            case StatusOk():
                return said._replace(asked_ms=0, wall_ms=0)
    return said


@for_each("version", VERSIONS)
@for_each("seed", range(200))
def test_what_a_frame_says_comes_back_as_far_as_the_version_knows_it(
    seed: int, version: int
) -> None:
    rng = Random(seed)
    said = ha_fuzz.payload(rng)
    frame = payloads.frame(7, said, version)
    known = as_known(said, version)
    assert payloads.parse(frame, version) == known
    assert payloads.parse(frame._replace(payload=memoryview(frame.payload)), version) == known


STATUS_OK = StatusOk(
    "n1", "5a" * 16, "in-sync", True, False, 4, 3, 0, 9, 8, 7, 6, 5, (), {}, asked_ms=77, wall_ms=88
)


def test_the_first_version_is_written_as_the_release_that_knows_only_it_reads_it() -> None:
    facts = b"\x02n1" + b"\x5a" * 16 + b"\x07in-sync" + b"\x01\x00"
    facts += struct.pack(">8qB", 4, 3, 0, 9, 8, 7, 6, 5, 0)
    assert payloads.frame(4, Status(77), 1).payload == b""
    assert payloads.frame(4, STATUS_OK, 1).payload == facts + b"{}"
    assert payloads.frame(4, Status(77), 2).payload == struct.pack(">q", 77)
    assert payloads.frame(4, STATUS_OK, 2).payload == facts + struct.pack(">2q", 77, 88) + b"{}"


def test_what_is_written_for_another_version_is_not_read_as_something_else() -> None:
    for said in (Status(77), STATUS_OK):
        for written, read in ((1, 2), (2, 1)):
            with pytest.raises(BadFrame):
                payloads.parse(payloads.frame(4, said, written), read)


def test_hello_has_the_bytes_that_the_documentation_says() -> None:
    expected = (
        b"\x02g0\x02n1"
        + b"\x5a" * 16
        + struct.pack(">H6q", 1, 1 << 20, 4, 0, 900, 800, 700)
        + struct.pack(">I4q", 2, 1, 0, 3, 500)
    )
    assert payloads.frame(4, HELLO) == Frame(FrameType.HELLO, 4, expected)


@for_each("seed", range(40))
def test_damaged_payloads_are_refused_or_say_something_else_and_nothing_worse(seed: int) -> None:
    rng = Random(seed)
    frame = ha_fuzz.frame(rng)
    for inside in damaged(rng, bytes(frame.payload), 100):
        with contextlib.suppress(BadFrame):
            payloads.parse(frame._replace(payload=inside))


@for_each("seed", range(40))
def test_a_payload_that_is_cut_is_refused(seed: int) -> None:
    frame = ha_fuzz.frame(Random(seed))
    for cut in range(len(frame.payload)):
        with pytest.raises(BadFrame):
            payloads.parse(frame._replace(payload=frame.payload[:cut]))


@for_each("seed", range(40))
def test_a_payload_with_bytes_behind_it_is_refused(seed: int) -> None:
    frame = ha_fuzz.frame(Random(seed))
    with pytest.raises(BadFrame):
        payloads.parse(frame._replace(payload=bytes(frame.payload) + b"\0"))


@pytest.mark.parametrize("kind", [FrameType.CHALLENGE, FrameType.WELCOME])
def test_the_handshakes_frames_mean_nothing_behind_it(kind: FrameType) -> None:
    with pytest.raises(BadFrame, match=kind.name):
        payloads.parse(Frame(kind, 1, b""))


@for_each(
    "said",
    [
        HELLO._replace(end=700),  # durable behind it
        HELLO._replace(first_offset=901),
        HELLO._replace(confirm=-1),
        HELLO._replace(table=(entry(1, 0), entry(1, 5))),
        HELLO._replace(table=(entry(1, 5), entry(2, 5))),
        HELLO._replace(table=(entry(2, 0), entry(1, 5))),
        HelloOk(point=901, crc=0, crc_size=0, first_offset=0, end=900, confirm=0, table=()),
        HelloOk(point=5, crc=0, crc_size=0, first_offset=6, end=900, confirm=0, table=()),
        HelloOk(0, 0, 0, 0, 900, 0, (), foreign=(20, 10)),
        HelloOk(point=5, crc=0, crc_size=6, first_offset=0, end=900, confirm=0, table=()),
        Append(1, 0, -1, 0, 1, 0),
        Append(1, 5, 4, 0, 1, 3, b"abc"),  # the epoch begins behind its first byte
        Append(1, 0, 4, 0, 1, 2, b"abc"),
        Append(1, 0, 4, 0, 1, 4, b"abc"),
        Fenced(-1),
    ],
)
def test_what_cannot_be_is_refused(said: payloads.Payload) -> None:
    with pytest.raises(BadFrame):
        payloads.parse(payloads.frame(1, said))


def test_a_table_has_its_newest_thousand_entries_and_a_longer_one_is_refused() -> None:
    table = tuple(entry(number, number) for number in range(1500))
    parsed = payloads.parse(payloads.frame(1, HELLO._replace(table=table)))
    assert isinstance(parsed, Hello)
    assert parsed.table == table[500:]
    with pytest.raises(BadFrame, match="1001"):
        Reader(struct.pack(">I", 1001) + bytes(1001 * 16), "HELLO").table()


def test_facts_are_a_json_object_of_at_most_64_kib() -> None:
    status = StatusOk(
        "n1", "5a" * 16, "in-sync", True, False, 1, 1, 0, 9, 9, 9, 1, 1, (), {"a": [None, 1]}
    )
    frame = payloads.frame(1, status)
    assert payloads.parse(frame) == status
    before = bytes(frame.payload).partition(b"{")[0]
    for facts in (b"", b"[]", b"{", b"\xff", b"[" * 10_000, b'"' + b"x" * 70_000 + b'"'):
        with pytest.raises(BadFrame):
            payloads.parse(frame._replace(payload=before + facts))
    with pytest.raises(ValueError, match="facts"):
        payloads.frame(1, status._replace(facts={"a": "x" * 70_000}))


def test_a_text_of_more_than_255_bytes_and_a_wrong_incarnation_cannot_be_said() -> None:
    with pytest.raises(ValueError, match="256"):
        payloads.frame(1, HELLO._replace(node="x" * 256))
    with pytest.raises(ValueError, match="32 hexadecimal"):
        payloads.frame(1, HELLO._replace(incarnation="5a"))


def test_the_bytes_of_an_append_are_not_copied() -> None:
    frame = payloads.frame(1, Append(1, 0, 0, 0, 1, 3, b"abc"))
    said = payloads.parse(frame)
    assert isinstance(said, Append)
    assert isinstance(said.data, memoryview)
    assert said.data.obj is frame.payload
