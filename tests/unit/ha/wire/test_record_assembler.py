"""Bytes cut anywhere are assembled to whole records, exactly those and no others."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.ha.wire.record_assembler import BadBytes, Part, RecordAssembler
from tests.support.for_each import for_each
from tests.support.replica_store import FILE, MASTER, MasterLog
from tests.support.sim_disk import SimDisk
from tests.support.small_store import SmallStore
from tidemark.formats.filenames import offset_name

LOG = MasterLog(40, seed=1)


def taken(records: RecordAssembler, data: bytes) -> list[tuple[Part, int, bytes]]:
    return [(piece.part, piece.at, bytes(piece.data)) for piece in records.take(data)]


def from_start() -> RecordAssembler:
    records = RecordAssembler(FILE)
    records.begin(0)
    return records


def test_a_whole_log_comes_out_as_it_is_with_its_fillers_apart() -> None:
    pieces = taken(from_start(), LOG.data)
    assert b"".join(data for _, _, data in pieces) == LOG.data
    at = 0
    for part, offset, data in pieces:
        assert offset == at
        at += len(data)
        if part is Part.RECORDS:
            assert {offset, at} <= set(LOG.borders)
            assert offset // FILE == (at - 1) // FILE
        if part is Part.FILLER:
            assert len(data) == 8
            assert offset in LOG.borders
        if part is Part.REST:
            assert at % FILE == 0
    assert {part for part, _, _ in pieces} == set(Part)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_wherever_it_is_cut_the_same_records_come_out(sizes: list[int]) -> None:
    records = from_start()
    out = bytearray()
    at = 0
    while at < len(LOG.data):
        for size in sizes:
            for part, offset, data in taken(records, LOG.data[at : at + size]):
                assert offset == len(out)
                out += data
                if part is Part.RECORDS:
                    assert len(out) in LOG.borders
            at = min(at + size, len(LOG.data))
            assert records.received == at
            assert records.received - records.pending_size == len(out)
    assert out == LOG.data


def test_byte_by_byte_nothing_is_handed_out_before_its_last_byte() -> None:
    records = from_start()
    ends = []
    for at in range(3 * FILE):
        ends += [
            offset + len(data)
            for part, offset, data in taken(records, LOG.data[at : at + 1])
            if part is Part.RECORDS
        ]
        assert not ends or ends[-1] <= at + 1
    ends_of_records = set(LOG.borders[2::2])
    assert ends == sorted(end for end in ends_of_records if end <= 3 * FILE)


@for_each("bit", range(0, 8 * 60, 7))
def test_a_flipped_bit_is_named_and_nothing_from_its_record_on_comes_out(bit: int) -> None:
    third = LOG.borders[5]
    damaged = bytearray(LOG.data[: 2 * FILE])
    damaged[third + bit // 8] ^= 1 << bit % 8
    records = from_start()
    out = bytearray()
    # Suppressed, not expected: a damaged size may ask for more bytes, though never past the file.
    with contextlib.suppress(BadBytes):
        for piece in records.take(bytes(damaged)):
            out += piece.data
    assert len(out) <= third


def test_a_size_beyond_the_file_is_refused_at_once_and_not_waited_for() -> None:
    head = (FILE + 1).to_bytes(4, "big") + LOG.data[4:40]
    with pytest.raises(BadBytes, match="before the end of its file"):
        taken(from_start(), head)


def test_zeros_are_no_record() -> None:
    with pytest.raises(BadBytes, match="zeros"):
        taken(from_start(), bytes(100))


def test_a_record_of_another_place_is_refused() -> None:
    second = LOG.borders[3]
    with pytest.raises(BadBytes, match="physical offset"):
        taken(from_start(), LOG.data[second : second + 200])


def test_a_stretch_may_begin_inside_the_rest_of_a_filler_whose_head_has_come() -> None:
    records = from_start()
    filler = next(at for part, at, _ in taken(records, LOG.data[:FILE]) if part is Part.FILLER)
    records.begin(filler + 20)
    rest = taken(records, LOG.data[filler + 20 : FILE + 300])
    assert rest[0] == (Part.REST, filler + 20, LOG.data[filler + 20 : FILE])
    # After a cut below the filler these are ordinary bytes again.
    records.begin(LOG.borders[3])
    again = taken(records, LOG.data[LOG.borders[3] : LOG.borders[3] + 400])
    assert [part for part, _, _ in again] == [Part.RECORDS]


def test_what_waited_is_dropped_by_a_new_stretch() -> None:
    records = from_start()
    taken(records, LOG.data[:30])
    assert records.pending_size == 30
    records.begin(0)
    assert (records.pending_size, records.received) == (0, 0)
    assert taken(records, LOG.data[: LOG.borders[2]])[0][0] is Part.RECORDS


def test_a_name_that_dispatch_refuses_is_copied_all_the_same() -> None:
    # The master's reput stops there; the slave's log must not differ because of it.
    small = SmallStore(Path("/master"), MASTER, disk=SimDisk(1))
    small.put("..", body=b"x")
    path = Path("/master/commitlog") / offset_name(0)
    data = small.store.disk.open(path, writable=False).pread(small.end, 0)
    assert [part for part, _, _ in taken(from_start(), data)] == [Part.RECORDS]


def test_record_crcs_are_not_judged_where_rocketmq_wrote() -> None:
    # Records 3 to 6 carry a record CRC that is another record's.
    ends = LOG.borders[2::2]
    begin, until = ends[2], ends[6]
    data = bytearray(LOG.data)
    for end in ends[3:7]:
        data[end - 3] ^= 1
    judging = from_start()
    with pytest.raises(BadBytes) as caught:
        taken(judging, bytes(data))
    assert caught.value.at == begin
    records = from_start()
    records.set_foreign(begin, until)
    pieces = [
        *taken(records, bytes(data[: until - 5])),
        *taken(records, bytes(data[until - 5 :])),
    ]
    assert b"".join(found for _, _, found in pieces) == data
    for wrong in (begin - 3, ends[8] - 3):
        also = bytearray(data)
        also[wrong] ^= 1
        records = from_start()
        records.set_foreign(begin, until)
        with pytest.raises(BadBytes):
            taken(records, bytes(also))
