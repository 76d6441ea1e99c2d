"""The compiled walk and plan against the pure ones: equal results, whatever the bytes are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.twins import twins_of
from tidemark.errors import CorruptRecord
from tidemark.formats import hosts, plan, record, scan
from tidemark.formats.record import Checks, Message
from tidemark.offsets import PhysicalOffset

BASE = 4096
LEVELS_MS = [1000, 5000, 10_000]
HOSTS = (hosts.parse("127.0.0.1:10911"), hosts.parse("[::1]:10911"))
LENIENT = Checks(body_crc=False, record_crc=False, position=False)

compiled = pytest.mark.parametrize(
    ("compiled_plan", "compiled_walk"),
    [
        pytest.param(one.values[0], other.values[0], marks=one.marks)
        for one, other in zip(
            twins_of("walk", plan.plan_range)[1:], twins_of("walk", scan.walk)[1:], strict=True
        )
    ],
)
Twin = Callable[..., object]

pieces = st.sampled_from(
    [
        b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"\x01", b"\x02", b" ", b"a", b"7F000001" * 4,
        b"1", b"12", b"+", b"99999999999", "größer".encode(), "中😀".encode(), b"\xff",
        b"\xed\xa0\x80", b"X", b"\x00", b"__CRC32#", b"0000000000",
    ]
)  # fmt: skip
raw_properties = st.one_of(
    st.lists(pieces, max_size=20).map(b"".join),
    st.lists(
        st.tuples(
            st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"X", b""]),
            st.lists(pieces, max_size=4).map(lambda parts: b"".join(parts).replace(b"\x02", b"")),
        ),
        max_size=6,
    ).map(lambda pairs: b"\x02".join(name + b"\x01" + value for name, value in pairs)),
)
topics = st.sampled_from(
    [
        "orders",
        "bills",
        "a",
        "SCHEDULE_TOPIC_XXXX",
        "größer",
        "t\ufffd",
        "中" * 60,
        "a/b",
        "",
        "x" * 127,
    ]
)


@st.composite
def logs(draw: st.DrawFn, *, hostile: bool = False) -> bytearray:
    """Some adjacent records of few queues. hostile: also some that name no directory."""
    log = bytearray()
    for _ in range(draw(st.integers(0, 8))):
        topic = draw(topics)
        log += record.encode(
            Message(
                topic if hostile or topic not in ("", "a/b") else "orders",
                draw(st.integers(-1 if hostile else 0, 2)),
                draw(st.binary(max_size=40)),
                draw(st.sampled_from(HOSTS)),
                draw(st.sampled_from(HOSTS)),
                draw(raw_properties),
                sys_flag=draw(st.sampled_from([0, 0, 0, 0x4, 0x8, 0xC, 0x80, 0x1])),
            ),
            queue_offset=draw(st.integers(-1 if hostile else 0, 3)),
            physical_offset=BASE + len(log),
            store_timestamp_ms=draw(st.one_of(st.integers(0, 1 << 50), st.just((1 << 63) - 1))),
            record_crc=draw(st.booleans()),
        )
    return log


checks = st.builds(Checks, st.booleans(), st.booleans(), st.booleans(), st.booleans())
bounds = st.one_of(st.integers(-1, 6), st.just(1 << 70))


def outcome(function: Callable[..., object], *args: Any, **named: Any) -> object:
    """What it returns, or which corruption it names."""
    try:
        return function(*args, **named)
    except CorruptRecord as error:
        return error.at, error.reason


def same(
    compiled_plan: Twin,
    compiled_walk: Twin,
    view: bytes | bytearray | memoryview,
    checks: Checks,
    *,
    records_max: int = 1 << 20,
    at: int = BASE,
    index: bool = True,
    no_units_for: frozenset[str] = frozenset(),
) -> None:
    named: dict[str, Any] = {
        "at": PhysicalOffset(at),
        "checks": checks,
        "records_max": records_max,
        "delay_levels_ms": LEVELS_MS,
    }
    assert compiled_walk(view, **named) == scan.walk(view, **named)
    named |= {"index": index, "no_units_for": no_units_for}
    assert outcome(compiled_plan, view, **named) == outcome(plan.plan_range, view, **named)


@compiled
@given(logs(), checks, bounds, st.booleans(), st.frozensets(topics, max_size=2))
def test_both_take_the_same_of_a_valid_log(
    compiled_plan: Twin,
    compiled_walk: Twin,
    log: bytearray,
    checks: Checks,
    records_max: int,
    index: bool,
    no_units_for: frozenset[str],
) -> None:
    for view in (log, bytes(log), memoryview(log).toreadonly()):
        same(
            compiled_plan,
            compiled_walk,
            view,
            checks,
            records_max=records_max,
            index=index,
            no_units_for=no_units_for,
        )


@compiled
@given(logs(hostile=True), checks, st.data())
def test_both_refuse_the_same_names_and_the_same_damage(
    compiled_plan: Twin, compiled_walk: Twin, log: bytearray, checks: Checks, data: st.DataObject
) -> None:
    log += data.draw(st.sampled_from([b"", bytes(9), record.encode_blank(200)]))
    for _ in range(data.draw(st.integers(0, 3))):
        if log:
            log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    del log[data.draw(st.integers(0, len(log))) :]
    same(compiled_plan, compiled_walk, log, checks)
    same(compiled_plan, compiled_walk, log, LENIENT)


@compiled
@given(
    st.lists(strategies.records(), max_size=3), st.sampled_from([LENIENT, Checks(position=False)])
)
def test_both_take_the_same_of_any_fields(
    compiled_plan: Twin,
    compiled_walk: Twin,
    made: list[strategies.MadeRecord],
    checks: Checks,
) -> None:
    same(compiled_plan, compiled_walk, b"".join(one.data for one in made), checks)


@compiled
@given(st.binary(max_size=300), checks, st.integers(0, (1 << 63) - 1))
def test_both_find_the_same_in_any_bytes(
    compiled_plan: Twin, compiled_walk: Twin, raw: bytes, checks: Checks, at: int
) -> None:
    same(compiled_plan, compiled_walk, raw, checks, at=at)


@compiled
def test_every_cut_and_every_flipped_bit_of_a_log_end_both_alike(
    compiled_plan: Twin, compiled_walk: Twin
) -> None:
    log = bytearray()
    for number, topic in enumerate(["orders", "ö" * 70, "SCHEDULE_TOPIC_XXXX", "orders"]):
        log += record.encode(
            Message(topic, 0, b"body" * number, HOSTS[number % 2], HOSTS[number // 2],
                    b"TAGS\x01a\x02KEYS\x01k l\x02DELAY\x012"),
            queue_offset=number,
            physical_offset=BASE + len(log),
            store_timestamp_ms=7,
            record_crc=number != 1,
        )  # fmt: skip
    for size in range(len(log) + 1):
        same(compiled_plan, compiled_walk, log[:size], Checks())
    for bit in range(len(log) * 8):
        log[bit // 8] ^= 1 << bit % 8
        same(compiled_plan, compiled_walk, log, Checks())
        same(compiled_plan, compiled_walk, log, LENIENT)
        log[bit // 8] ^= 1 << bit % 8


@compiled
def test_physical_offsets_beyond_63_bits_are_left_to_the_pure_ones(
    compiled_plan: Twin, compiled_walk: Twin
) -> None:
    data = record.encode(
        Message("orders", 0, b"", HOSTS[0], HOSTS[0]),
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=0,
        record_crc=True,
    )
    for at in (-5, (1 << 63) - 1 - len(data), (1 << 63) - len(data)):
        same(compiled_plan, compiled_walk, data, Checks(position=False), at=at)


@compiled
def test_a_view_large_enough_to_give_the_interpreter_lock_away_is_planned_alike(
    compiled_plan: Twin, compiled_walk: Twin
) -> None:
    log = bytearray()
    for number in range(1500):
        log += record.encode(
            Message(("orders", "größer")[number % 2], number % 16, b"b" * 50, HOSTS[0], HOSTS[0],
                    f"TAGS\x01{'ü' if number % 5 == 0 else 't'}\x02KEYS\x01ö{number} k".encode()),
            queue_offset=number // 16,
            physical_offset=BASE + len(log),
            store_timestamp_ms=number,
            record_crc=True,
        )  # fmt: skip
    assert len(log) > 2 * 65_536
    same(compiled_plan, compiled_walk, log, Checks())
    log[-30] ^= 1
    same(compiled_plan, compiled_walk, log, Checks())
