"""One record read by either twin: ``validate`` and ``decode`` agree on the same bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.strategies import MadeRecord
from tests.support.twins import twins_of
from tidemark.formats import checked_record, hosts, record
from tidemark.formats.record import Checks, Kind, Message, Record

Read = Callable[..., Record | None]

each_twin = pytest.mark.parametrize("read", twins_of("checked", checked_record.read_record))
CHECKS = st.builds(Checks, st.booleans(), st.booleans(), st.booleans(), st.booleans())
HERE = hosts.parse("127.0.0.1:10911")


def expected(view: memoryview, at: int | None, checks: Checks) -> Record | None:
    outcome = record.validate(view, 0, at=at, checks=checks)
    return record.decode(view) if outcome.kind is Kind.VALID else None


@each_twin
@given(made=strategies.records(), behind=st.binary(max_size=40), checks=CHECKS)
def test_a_record_comes_back_as_it_was_made(
    read: Read, made: MadeRecord, behind: bytes, checks: Checks
) -> None:
    view = memoryview(made.data + behind)
    found = read(view, at=made.physical_offset, checks=checks)
    assert found == expected(view, made.physical_offset, checks)
    if made.record_crc or not checks.require_record_crc:
        assert found is not None
        assert type(found) is Record
        assert found.message_id == record.decode(view).message_id
        assert (found.topic, bytes(found.body)) == (made.message.topic, made.message.body)


@each_twin
@given(made=strategies.records(), checks=CHECKS, data=st.data())
def test_damage_is_seen_as_validate_sees_it(
    read: Read, made: MadeRecord, checks: Checks, data: st.DataObject
) -> None:
    damaged = bytearray(made.data)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    view = memoryview(damaged)[: data.draw(st.integers(0, len(damaged)))]
    at = data.draw(st.sampled_from([made.physical_offset, 0, 7]))
    assert read(view, at=at, checks=checks) == expected(view, at, checks)


@each_twin
@given(made=strategies.records(), data=st.data())
def test_a_cut_record_is_none(read: Read, made: MadeRecord, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(made.data) - 1))
    assert read(memoryview(made.data)[:size], at=made.physical_offset, checks=Checks()) is None


@each_twin
@given(raw=st.binary(max_size=300), checks=CHECKS)
def test_any_bytes_are_a_record_or_none(read: Read, raw: bytes, checks: Checks) -> None:
    assert read(memoryview(raw), at=0, checks=checks) == expected(memoryview(raw), 0, checks)


@each_twin
def test_the_body_is_borrowed_and_the_rest_is_owned(read: Read) -> None:
    raw = bytearray(
        record.encode(
            Message("orders", 3, b"hello", HERE, HERE, b"KEYS\x01a b\x02"),
            queue_offset=7,
            physical_offset=100,
            store_timestamp_ms=5,
            record_crc=True,
        )
    )
    found = read(memoryview(raw), at=100, checks=Checks())
    assert found is not None
    raw[:] = bytes(len(raw))
    assert bytes(found.body) == bytes(5)
    assert (found.topic, found.queue_id, found.keys) == ("orders", 3, ["a", "b"])


@each_twin
@pytest.mark.parametrize("at", [None, 1 << 70, -1])
def test_a_place_that_no_record_can_name_is_handled_alike(read: Read, at: int | None) -> None:
    raw = record.encode(
        Message("orders", 3, b"hello", HERE, HERE),
        queue_offset=7,
        physical_offset=100,
        store_timestamp_ms=5,
        record_crc=True,
    )
    view = memoryview(raw)
    assert read(view, at=at, checks=Checks()) == expected(view, at, Checks())
