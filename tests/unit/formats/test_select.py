"""Both twins of ``select``: the records that a pull gets from a queue, equal for both."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.for_each import for_each
from tests.support.twins import twins_of
from tidemark.formats import properties, record
from tidemark.formats import select as pure
from tidemark.formats.hashing import string_hash, tags_code
from tidemark.formats.hosts import Host
from tidemark.formats.queue_unit import UNIT, Unit
from tidemark.formats.record import Message
from tidemark.formats.select import Halt, Limits, Selected, Wanted
from tidemark.offsets import UNIT_SIZE

HOST = Host(b"\x0a\x00\x00\x01", 10911)
HOST_V6 = Host(bytes(range(16)), 10911)
MANY = Limits(1 << 20, 1 << 30, 1 << 20, 1 << 30)
AT = 4096
"""Physical offset of the log's first byte here."""
Select = Callable[..., Selected]

each_twin = pytest.mark.parametrize("select", twins_of("select", pure.select))


class Log:
    """Records one behind the other from AT on, and the units of one queue."""

    def __init__(self, first: int = 7) -> None:
        self.data = bytearray()
        self.units = bytearray()
        self.places: list[tuple[int, int]] = []
        self.first = first

    def put(
        self,
        *,
        topic: str = "orders",
        queue: int = 3,
        tags: str | bytes | None = None,
        body: bytes = b"body",
        host: Host = HOST,
        known: bool = True,
    ) -> None:
        """known: give the record a unit of the queue."""
        raw = properties.encode({"KEYS": "a b"})
        if tags is not None:
            raw += b"TAGS\x01" + (tags.encode() if isinstance(tags, str) else tags) + b"\x02"
        number = self.first + len(self.places)
        data = record.encode(
            Message(topic, queue, body, host, HOST, raw),
            queue_offset=number,
            physical_offset=AT + len(self.data),
            store_timestamp_ms=1,
            record_crc=True,
        )
        if known:
            at = len(self.data)
            self.places.append((at, at + len(data)))
            code = tags_code(properties.text(tags) if isinstance(tags, bytes) else tags)
            self.units += UNIT.pack(AT + at, len(data), code)
        self.data += data

    def select(self, select: Select, **changes: Any) -> Selected:
        given_: dict[str, Any] = {
            "units": bytes(self.units),
            "first": self.first,
            "window": memoryview(self.data).toreadonly(),
            "window_at": AT,
            "topic": b"orders",
            "queue": 3,
            "limits": MANY,
        } | changes
        units, first = given_.pop("units"), given_.pop("first")
        window, window_at = given_.pop("window"), given_.pop("window_at")
        return select(units, first, window, window_at, **given_)


def of(count: int, **fields: Any) -> Log:
    log = Log()
    for number in range(count):
        log.put(body=b"%d" % number, **fields)
    return log


@each_twin
def test_a_batch_is_one_stretch(select: Select) -> None:
    log = of(256)
    found = log.select(select)
    assert found.stretches == [(0, len(log.data))]
    assert (found.looked, found.message_count, found.bytes_total) == (256, 256, len(log.data))
    assert (found.filtered, found.halt) == (0, Halt.END)


@each_twin
def test_records_in_between_are_left_out(select: Select) -> None:
    log = of(2)
    log.put(topic="other", known=False)
    log.put()
    first, second, third = log.places
    assert log.select(select).stretches == [(first[0], second[1]), third]


@each_twin
def test_no_units_are_nothing_and_the_rest_of_a_unit_is_not_looked_at(select: Select) -> None:
    log = of(1)
    assert log.select(select, units=b"") == Selected(0, [], 0, 0, 0, Halt.END)
    assert log.select(select, units=bytes(log.units) + bytes(19)).looked == 1


@each_twin
@for_each(
    ("limits", "taken"),
    [
        (Limits(2, 1 << 30, 99, 1 << 30), 2),
        (Limits(99, 1 << 30, 3, 1 << 30), 3),
        (Limits(0, 1 << 30, 0, 1 << 30), 1),
        (Limits(99, 300, 99, 1 << 30), 2),
        (Limits(99, 1 << 30, 99, 300), 2),
        (Limits(99, 1, 99, 1 << 30), 1),
        (Limits(99, 0, 99, 1 << 30), 0),
    ],
)
def test_a_full_answer_ends_the_walk_and_the_first_message_always_fits(
    select: Select, limits: Limits, taken: int
) -> None:
    log = of(5)
    size = log.places[0][1]
    assert 300 // size == 2
    found = log.select(select, limits=limits)
    assert (found.message_count, found.looked, found.halt) == (taken, taken, Halt.FULL)


@each_twin
def test_records_already_in_the_answer_count(select: Select) -> None:
    log = of(5)
    found = log.select(select, limits=MANY._replace(count_max=4), count=2, bytes_total=1000)
    assert (found.message_count, found.looked) == (4, 2)
    assert found.bytes_total == 1000 + log.places[1][1]


@each_twin
def test_a_record_outside_of_the_window_halts_before_it(select: Select) -> None:
    log = of(3)
    (_, one), (_, two), _ = log.places
    cut = memoryview(log.data)[: two + 5]
    found = log.select(select, window=cut)
    assert (found.looked, found.stretches, found.halt) == (2, [(0, two)], Halt.OUTSIDE)
    later = log.select(select, window=memoryview(log.data)[one:], window_at=AT + one)
    assert (later.looked, later.stretches, later.halt) == (0, [], Halt.OUTSIDE)


@each_twin
@for_each(
    "unit",
    [
        Unit(AT, 0, 0),
        Unit(AT, -1, 0),
        Unit(AT, -(1 << 31), 0),
        Unit(AT, 0x7FFFFFFF, 0),
        Unit(AT - 1, 120, 0),
        Unit(-1, 120, 0),
        Unit(-(1 << 63), 120, 0),
        Unit((1 << 63) - 1, 120, 0),
        Unit((1 << 63) - 1, 0x7FFFFFFF, 0),
        Unit(0, 0x7FFFFFFF, 0),
        Unit(0, 0, 0),
    ],
)
@for_each("window_at", [AT, 0, (1 << 63) - 1, -(1 << 63), -5])
def test_a_hostile_unit_reads_nothing(select: Select, unit: Unit, window_at: int) -> None:
    log = of(1)
    found = log.select(select, units=UNIT.pack(*unit), window_at=window_at, skip_until=-(1 << 63))
    assert (found.looked, found.stretches, found.message_count) == (0, [], 0)
    assert found.halt in (Halt.OUTSIDE, Halt.STRANGER)


@each_twin
@pytest.mark.parametrize(
    "changes", [{"topic": b"order"}, {"topic": b"ordersx"}, {"queue": 4}, {"first": 8}]
)
def test_another_ones_record_halts_the_walk(select: Select, changes: dict[str, Any]) -> None:
    found = of(3).select(select, **changes)
    assert (found.looked, found.stretches, found.halt) == (0, [], Halt.STRANGER)


@each_twin
@pytest.mark.parametrize("topic", ["t" * 127, "t" * 128, "%RETRY%" + "g" * 248])
@pytest.mark.parametrize("host", [HOST, HOST_V6])
def test_long_topics_and_ipv6_hosts_have_their_own_layout(
    select: Select, topic: str, host: Host
) -> None:
    log = of(2, topic=topic, host=host, tags="a")
    wanted = Wanted(frozenset({string_hash("a")}), frozenset({"a"}))
    found = log.select(select, topic=topic.encode(), wanted=wanted)
    assert found.stretches == [(0, len(log.data))]
    assert log.select(select, topic=topic[:-1].encode()).halt is Halt.STRANGER


@each_twin
def test_tags_are_compared_by_hash_and_then_by_themselves(select: Select) -> None:
    log = Log()
    assert string_hash("Aa") == string_hash("BB")
    for tags in ("Aa", "BB", None, "c", "Aa"):
        log.put(tags=tags)
    hashes = frozenset({string_hash("Aa")})
    by_hash = log.select(select, wanted=Wanted(hashes))
    assert (by_hash.message_count, by_hash.filtered, by_hash.looked) == (3, 2, 5)
    exact = log.select(select, wanted=Wanted(hashes, frozenset({"Aa"})))
    assert (exact.message_count, exact.filtered) == (2, 3)
    assert exact.stretches == [log.places[0], log.places[4]]
    none = log.select(select, wanted=Wanted(frozenset(), frozenset()))
    assert (none.message_count, none.filtered, none.stretches) == (0, 5, [])


@each_twin
def test_the_due_time_in_place_of_a_tags_code_is_compared_by_its_low_half(select: Select) -> None:
    log = of(1)
    units = UNIT.pack(*UNIT.unpack(log.units)[:2], (5 << 32) | 0xFFFFFFFE)
    assert log.select(select, units=units, wanted=Wanted(frozenset({-2}))).message_count == 1
    assert (
        log.select(
            select, units=units, wanted=Wanted(frozenset({0xFFFFFFFE, 1 << 70}))
        ).message_count
        == 0
    )


@each_twin
@for_each(
    ("stored", "tag", "fits"),
    [
        ("ü", "ü", True),
        (b"\xff", "�", True),
        (b"\xff", "ÿ", False),
        (b"\xed\xa0\x80", "\ud800", False),
        (b"a\x01b", "a\x01b", True),
        (b"x\x02TAGS\x01y", "y", True),
        (b"x\x02TAGS\x01y", "x", False),
        (b"x\x02TAGS\x01", "x", True),
        (b"\x02XTAGS\x01y", "y", False),
    ],
)
def test_tags_are_compared_as_readers_see_them(
    select: Select, stored: str | bytes, tag: str, fits: bool
) -> None:
    log = of(1, tags=stored)
    code = UNIT.unpack(log.units)[2]
    wanted = Wanted(frozenset({code}), frozenset({tag, "other"}))
    assert log.select(select, wanted=wanted).message_count == int(fits)


@each_twin
def test_properties_that_do_not_end_the_record_are_no_tags(select: Select) -> None:
    log = of(1, tags="a")
    at = bytes(log.data).index(b"orders") + 6
    (size,) = struct.unpack_from(">h", log.data, at)
    wanted = Wanted(frozenset({string_hash("a")}), frozenset({"a"}))
    for wrong in (size - 1, size + 1, -1, 32767):
        struct.pack_into(">h", log.data, at, wrong)
        assert log.select(select, wanted=wanted).halt is Halt.STRANGER
        assert log.select(select).message_count == 1  # not looked at where no tags are asked for


@each_twin
def test_units_of_a_lost_file_are_passed_until_one_is_taken(select: Select) -> None:
    log = of(4)
    second = AT + log.places[1][0]
    found = log.select(select, skip_until=second)
    assert (found.looked, found.message_count, found.filtered) == (4, 3, 0)
    # A unit that goes back, behind one that was taken: looked at again.
    units = bytes(log.units)
    back = units[UNIT_SIZE : 2 * UNIT_SIZE] + units[:UNIT_SIZE]
    assert log.select(select, units=back, first=8, skip_until=second).halt is Halt.STRANGER


@each_twin
def test_a_damaged_unit_does_not_pass_for_one_of_a_lost_file(select: Select) -> None:
    log = of(4)
    unit = UNIT.pack(-AT, log.places[0][1], 0)
    for skip_until in (-1, 0, 1 << 62):
        assert log.select(select, units=unit, skip_until=skip_until).halt is Halt.OUTSIDE
