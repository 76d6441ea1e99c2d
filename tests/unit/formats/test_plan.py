"""Both twins of ``plan_range``: the work of dispatch for a range of the log."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.twins import twins_of
from tidemark.errors import CorruptRecord
from tidemark.formats import inner_batch, properties, record
from tidemark.formats import plan as pure
from tidemark.formats.hashing import index_hash, tags_code
from tidemark.formats.hosts import Host
from tidemark.formats.index_file import ROW
from tidemark.formats.inner_batch import INNER_BATCH
from tidemark.formats.plan import Plan, PlannedRange, QueueRun, keys_of
from tidemark.formats.queue_unit import BATCH_UNIT, UNIT, batch_range
from tidemark.formats.record import Checks, Message
from tidemark.formats.scan import Stop, walk
from tidemark.offsets import BATCH_UNIT_SIZE, PhysicalOffset

PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
HOST = Host(bytes([127, 0, 0, 1]), 10911)
BASE = 4096
"""Physical offset of a log's first byte."""
FIRST_MS = 1_700_000_000_000
PlanRange = Callable[..., PlannedRange]

each_twin = pytest.mark.parametrize("plan_range", twins_of("walk", pure.plan_range))


class Log:
    """Records one behind the other, each 1 ms later than the one before it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.places: list[tuple[int, int]] = []
        """Physical offset and size of each record."""

    def put(
        self,
        *,
        topic: str = "orders",
        queue: int = 0,
        offset: int = 0,
        sys_flag: int = 0,
        raw: bytes = b"",
        at_ms: int | None = None,
        **named: str,
    ) -> None:
        """named: properties; raw: those before them, encoded."""
        at = BASE + len(self.data)
        data = record.encode(
            Message(
                topic, queue, b"body", HOST, HOST, raw + properties.encode(named), sys_flag=sys_flag
            ),
            queue_offset=offset,
            physical_offset=at,
            store_timestamp_ms=FIRST_MS + len(self.places) if at_ms is None else at_ms,
            record_crc=True,
        )
        self.data += data
        self.places.append((at, len(data)))

    def plan(
        self,
        plan_range: PlanRange,
        *,
        index: bool = True,
        batch_topics: frozenset[str] = frozenset(),
        records_max: int = 1 << 20,
        delay_levels_ms: tuple[int, ...] = (1000, 5000),
        checks: Checks = Checks(),  # noqa: B008 (immutable)
    ) -> Plan:
        """The plan of all; asserts that nothing stopped it."""
        planned = plan_range(
            memoryview(self.data),
            at=PhysicalOffset(BASE),
            checks=checks,
            records_max=records_max,
            delay_levels_ms=delay_levels_ms,
            index=index,
            batch_topics=batch_topics,
        )
        assert planned[1:] == (len(self.data), Stop.VIEW_END, "")
        return planned.plan


def log_of(**one: object) -> Log:
    """A log of one record."""
    log = Log()
    log.put(**one)  # type: ignore[arg-type]
    return log


def rows_of(planned: Plan) -> list[tuple[int, int, int]]:
    return list(ROW.iter_unpack(planned.rows))


def units_of(run: QueueRun) -> list[tuple[int, int, int]]:
    return list(UNIT.iter_unpack(run.units))


@each_twin
@pytest.mark.parametrize(
    ("sys_flag", "units", "keys"),
    [
        (0, 1, 1),
        (COMMIT, 1, 1),
        (PREPARED, 0, 1),
        (ROLLBACK, 0, 0),
        (INNER_BATCH, 0, 1),
        (INNER_BATCH | COMMIT, 0, 1),
        (INNER_BATCH | ROLLBACK, 0, 0),
    ],
)
def test_transaction_bits_decide_who_gets_a_unit_and_who_is_indexed(
    plan_range: PlanRange, sys_flag: int, units: int, keys: int
) -> None:
    planned = log_of(sys_flag=sys_flag, UNIQ_KEY="u").plan(plan_range)
    assert (planned.units, sum(run.unit_count for run in planned.runs)) == (units, units)
    assert len(rows_of(planned)) == keys
    assert planned.records == 1
    assert planned.unit_timestamp_ms == (FIRST_MS if units else 0)


@each_twin
def test_the_unique_id_comes_before_the_keys_and_empty_parts_are_none(
    plan_range: PlanRange,
) -> None:
    log = log_of(KEYS=" k1  k2\tx ", UNIQ_KEY="id")
    assert rows_of(log.plan(plan_range)) == [
        (BASE, FIRST_MS, index_hash("orders", key)) for key in ("id", "k1", "k2\tx")
    ]
    assert log.plan(plan_range, index=False).rows == b""
    (entry,) = walk(
        log.data, at=PhysicalOffset(BASE), checks=Checks(), records_max=1, delay_levels_ms=()
    ).entries
    assert keys_of(entry) == ["id", "k1", "k2\tx"]


@each_twin
@pytest.mark.parametrize("topic", ["orders", "größer", "中文😀"])
def test_keys_of_any_text_are_hashed_with_the_topic_before_them(
    plan_range: PlanRange, topic: str
) -> None:
    keys = ["a", "1234567", "12345678", "123456789", "x" * 300, "schlüssel", "钥匙😀", "~" * 17]
    log = log_of(topic=topic, KEYS=" ".join(keys), UNIQ_KEY="7F000001" * 4)
    found = [row[2] for row in rows_of(log.plan(plan_range))]
    assert found == [index_hash(topic, key) for key in ["7F000001" * 4, *keys]]


@each_twin
def test_text_that_is_not_utf_8_is_hashed_as_it_would_be_shown(plan_range: PlanRange) -> None:
    raw = b"KEYS\x01a\xff \xed\xa0\x80 \xf0\x9f b\x02TAGS\x01\xff\x02UNIQ_KEY\x01\xc3\x02"
    planned = log_of(raw=raw).plan(plan_range)
    keys = ["\ufffd", "a\ufffd", "\ufffd", "\ufffd", "b"]
    assert [row[2] for row in rows_of(planned)] == [index_hash("orders", key) for key in keys]
    assert units_of(planned.runs[0])[0][2] == 0xFFFD


@each_twin
def test_a_hash_without_an_absolute_value_counts_as_zero(plan_range: PlanRange) -> None:
    # h("orders#" + key) is −2^31 for this one: found by search, as the reference stores 0 for it.
    key = colliding("orders#", 0x80000000)
    assert index_hash("orders", key) == 0
    assert rows_of(log_of(UNIQ_KEY=key).plan(plan_range))[0][2] == 0


def colliding(before: str, wanted: int) -> str:
    """A text of printable characters whose hash behind ``before`` is wanted."""
    value = 0
    for character in before:
        value = value * 31 + ord(character)
    count = 7
    rest = (wanted - value * 31**count) % (1 << 32)
    while True:
        digits, left = [], rest
        for power in reversed(range(count)):
            digit = min(126, max(33, left // 31**power - (2 if power else 0)))
            digits.append(digit)
            left -= digit * 31**power
        if left == 0:
            return "".join(map(chr, digits))
        rest += 1 << 32


@each_twin
def test_units_of_a_queue_go_out_in_one_run_whatever_stands_between_them(
    plan_range: PlanRange,
) -> None:
    log = Log()
    log.put(offset=5, TAGS="TagA")
    log.put(queue=1, offset=0)
    log.put(offset=6, TAGS="größer")
    planned = log.plan(plan_range)
    first, second = planned.runs
    at, other, last = log.places
    assert (first.topic, first.queue, first.first, first.at) == ("orders", 0, 5, at[0])
    assert units_of(first) == [(*at, 2598919), (*last, tags_code("größer"))]
    assert (second.queue, second.first, second.unit_count, second.at) == (1, 0, 1, other[0])
    assert planned.unit_timestamp_ms == FIRST_MS + 2


@each_twin
def test_a_queue_offset_that_does_not_follow_begins_a_run_of_its_own(plan_range: PlanRange) -> None:
    log = Log()
    for offset in (1, 1, 9, 10, 9, (1 << 63) - 1, -(1 << 63)):
        log.put(offset=offset)
    planned = log.plan(plan_range)
    assert [(run.first, run.unit_count) for run in planned.runs] == [
        (1, 1), (1, 1), (9, 2), (9, 1), ((1 << 63) - 1, 1), (-(1 << 63), 1),
    ]  # fmt: skip


@each_twin
@pytest.mark.parametrize(
    ("delay", "code"),
    [
        ("1", FIRST_MS + 1000),
        ("2", FIRST_MS + 5000),
        ("3", FIRST_MS + 5000),
        ("0000000002", FIRST_MS + 5000),
        ("+1", FIRST_MS + 1000),
        ("9999999999", FIRST_MS + 5000),
        ("\u0662", FIRST_MS + 5000),  # a digit two that is no ASCII
        ("0", 2598919),
        ("-1", 2598919),
        ("1x", 2598919),
        ("99999999999", 2598919),
        ("", 2598919),
    ],
)
def test_a_delayed_records_unit_has_its_due_time(
    plan_range: PlanRange, delay: str, code: int
) -> None:
    log = log_of(topic="SCHEDULE_TOPIC_XXXX", TAGS="TagA", DELAY=delay)
    assert units_of(log.plan(plan_range).runs[0])[0][2] == code
    log = log_of(topic="OTHER_TOPIC_XXXX", TAGS="TagA", DELAY=delay)
    assert units_of(log.plan(plan_range).runs[0])[0][2] == 2598919


@each_twin
def test_a_due_time_beyond_64_bits_turns_over_as_in_the_reference(plan_range: PlanRange) -> None:
    log = log_of(topic="SCHEDULE_TOPIC_XXXX", DELAY="1", at_ms=(1 << 63) - 1)
    assert units_of(log.plan(plan_range).runs[0])[0][2] == -(1 << 63) + 999
    log = log_of(topic="SCHEDULE_TOPIC_XXXX", DELAY="1", TAGS="TagA")
    assert units_of(log.plan(plan_range, delay_levels_ms=()).runs[0])[0][2] == 2598919


@each_twin
@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "/etc", "a\0b"])
def test_a_topic_that_would_lead_out_of_the_store_is_refused_by_its_record(
    plan_range: PlanRange, topic: str
) -> None:
    log = log_of(topic="fine")
    log.put(topic=topic)
    with pytest.raises(CorruptRecord, match="cannot name a directory") as caught:
        log.plan(plan_range)
    assert caught.value.at == log.places[1][0]


@each_twin
def test_a_topic_that_names_no_directory_does_no_harm_where_it_has_no_unit(
    plan_range: PlanRange,
) -> None:
    log = log_of(topic="a/b", sys_flag=PREPARED, UNIQ_KEY="u")
    log.put(topic="a/b", sys_flag=ROLLBACK)
    planned = log.plan(plan_range)
    assert (planned.runs, len(rows_of(planned)), planned.records) == ([], 1, 2)


@each_twin
def test_negative_numbers_are_refused_by_their_record(plan_range: PlanRange) -> None:
    with pytest.raises(CorruptRecord, match="queue -1"):
        log_of(queue=-1).plan(plan_range)
    with pytest.raises(CorruptRecord, match="queue offset -1"):
        log_of(offset=-1).plan(plan_range)


@each_twin
def test_other_bytes_of_the_same_topic_are_the_same_queue(plan_range: PlanRange) -> None:
    # Not UTF-8, and as long: it is read as the first topic.
    other = b"t\xf0\x9f\x98"
    for topics in (["t\ufffd", "tabc", "t\ufffd", "tabc"], ["tabc", "t\ufffd", "tabc"]):
        log = Log()
        for offset, topic in enumerate(topics):
            log.put(topic=topic, offset=offset, KEYS="k")
        log.data = log.data.replace(b"tabc", other)
        planned = log.plan(plan_range, checks=Checks(record_crc=False))
        (run,) = planned.runs
        assert (run.topic, run.first, run.unit_count) == ("t\ufffd", 0, len(topics))
        assert {row[2] for row in rows_of(planned)} == {index_hash("t\ufffd", "k")}


@each_twin
@pytest.mark.parametrize("count", [1, 63, 64, 65, 3000])
def test_many_queues_have_a_run_each_in_the_order_of_the_log(
    plan_range: PlanRange, count: int
) -> None:
    log = Log()
    for offset in range(2):
        for number in range(count):
            log.put(topic=f"topic-{number % 7}", queue=number, offset=offset)
    planned = log.plan(plan_range)
    assert [(run.topic, run.queue, run.unit_count) for run in planned.runs] == [
        (f"topic-{number % 7}", number, 2) for number in range(count)
    ]
    places = [units_of(run)[0][:2] for run in planned.runs]
    assert places == log.places[:count]


def put_batch(log: Log, offset: int, *, count: object, base: object = None, bits: int = 0) -> None:
    """Put an inner batch; count and base are stored as they are."""
    log.put(
        offset=offset,
        sys_flag=inner_batch.SYS_FLAGS | bits,
        INNER_NUM=f"{count}",
        INNER_BASE=f"{offset if base is None else base}",
        UNIQ_KEY="U",
        KEYS="k1 k2",
    )


@each_twin
def test_an_inner_batch_gets_one_unit_of_a_batch_queue(plan_range: PlanRange) -> None:
    log = Log()
    put_batch(log, 7, count=3)
    put_batch(log, 10, count=32_767)
    planned = log.plan(plan_range)
    (run,) = planned.runs
    assert (run.first, run.unit_count, run.unit_size, planned.units) == (7, 2, BATCH_UNIT_SIZE, 2)
    assert [BATCH_UNIT.unpack_from(run.units, at) for at in (0, BATCH_UNIT_SIZE)] == [
        (*log.places[0], 0, FIRST_MS, 7, 3, -1, 0),
        (*log.places[1], 0, FIRST_MS + 1, 10, 32_767, -1, 0),
    ]
    assert len(rows_of(planned)) == 6


@each_twin
def test_batches_and_single_messages_are_in_runs_of_their_own(plan_range: PlanRange) -> None:
    log = Log()
    log.put(offset=4)
    put_batch(log, 5, count=2)
    put_batch(log, 7, count=1)
    log.put(offset=8)
    put_batch(log, 20, count=1)
    planned = log.plan(plan_range, batch_topics=frozenset())
    assert [(run.first, run.unit_size, run.unit_count) for run in planned.runs] == [
        (4, 20, 1), (5, 46, 2), (8, 20, 1), (20, 46, 1)
    ]  # fmt: skip
    planned = log.plan(plan_range, batch_topics=frozenset({"orders"}))
    assert [(run.first, run.unit_size, run.unit_count) for run in planned.runs] == [
        (4, 46, 4), (20, 46, 1)
    ]  # fmt: skip


@each_twin
@pytest.mark.parametrize(
    ("count", "base"),
    [
        (0, 5), (32_768, 5), (-1, 5), ("", 5), ("1_0", 5), (" 1", 5), ("٣", 5), ("9" * 30, 5),
        (1, 6), (1, -5), (1, ""), (1, "0x5"),
    ],
)  # fmt: skip
def test_a_batch_without_its_numbers_gets_no_unit_and_is_indexed(
    plan_range: PlanRange, count: object, base: object
) -> None:
    log = Log()
    put_batch(log, 5, count=count, base=base)
    planned = log.plan(plan_range)
    assert (planned.runs, planned.units, len(rows_of(planned))) == ([], 0, 3)


@each_twin
@pytest.mark.parametrize(("bits", "units"), [(COMMIT, 1), (PREPARED, 0), (ROLLBACK, 0)])
def test_transaction_bits_decide_whether_a_batch_gets_a_unit(
    plan_range: PlanRange, bits: int, units: int
) -> None:
    log = Log()
    put_batch(log, 5, count=2, bits=bits)
    assert log.plan(plan_range).units == units


@each_twin
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.integers(0, 2), st.sampled_from([0, 4, 8, 12, INNER_BATCH])
        ),
        max_size=40,
    )
)
def test_every_unit_is_planned_once_in_order_at_its_queue_offset(
    plan_range: PlanRange, kinds: list[tuple[str, int, int]]
) -> None:
    nexts: dict[tuple[str, int], int] = {}
    expected = {}
    log = Log()
    for topic, queue, bits in kinds:
        offset = 0
        if bits not in (PREPARED, ROLLBACK):
            offset = nexts.get((topic, queue), 0)
            nexts[topic, queue] = offset + (2 if bits == INNER_BATCH else 1)
            expected[topic, queue, offset] = BASE + len(log.data)
        log.put(
            topic=topic,
            queue=queue,
            offset=offset,
            sys_flag=bits,
            KEYS="k",
            INNER_NUM="2",
            INNER_BASE=f"{offset}",
        )
    planned = log.plan(plan_range)
    found = {}
    for run in planned.runs:
        for number in range(run.unit_count):
            at = number * run.unit_size
            offset = run.first + number
            if run.unit_size == BATCH_UNIT_SIZE:
                offset = batch_range(run.units, at)[0]
                assert offset == run.first + 2 * number
            found[run.topic, run.queue, offset] = UNIT.unpack_from(run.units, at)[0]
    assert found == expected
    assert planned.units == len(expected)
    assert all(one[0] < two[0] for one, two in pairwise(rows_of(planned)))
