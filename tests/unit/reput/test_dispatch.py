from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.reput.dispatch import INNER_BATCH, keys_of, plan
from tidemark.errors import CorruptRecord
from tidemark.formats.hashing import index_hash
from tidemark.formats.queue_unit import UNIT
from tidemark.formats.scan import Entry
from tidemark.offsets import UNIT_SIZE, PhysicalOffset

PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC


def entry(
    at: int = 0,
    *,
    topic: str = "orders",
    queue: int = 0,
    offset: int = 0,
    tags_code: int = 0,
    sys_flag: int = 0,
    unique_id: str | None = None,
    keys: str = "",
    size: int = 100,
) -> Entry:
    return Entry(
        PhysicalOffset(at), size, topic, queue, offset, tags_code, 1000 + at, sys_flag, unique_id,
        keys,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("sys_flag", "units", "keys"),
    [(0, 1, 1), (COMMIT, 1, 1), (PREPARED, 0, 1), (ROLLBACK, 0, 0), (INNER_BATCH, 0, 1)],
)
def test_transaction_bits_decide_who_gets_a_unit_and_who_is_indexed(
    sys_flag: int, units: int, keys: int
) -> None:
    planned = plan([entry(sys_flag=sys_flag, unique_id="u")], index=True)
    assert (planned.units, sum(run.unit_count for run in planned.runs)) == (units, units)
    assert len(planned.rows) == keys
    assert planned.records == 1


def test_the_unique_id_comes_before_the_keys_and_empty_parts_are_none() -> None:
    one = entry(7, unique_id="id", keys="k1  k2\tx ")
    assert keys_of(one) == ["id", "k1", "k2\tx"]
    assert plan([one], index=True).rows == [
        (index_hash("orders", key), 7, 1007) for key in ("id", "k1", "k2\tx")
    ]
    assert plan([one], index=False).rows == []


def test_units_of_a_queue_go_out_in_one_run_whatever_stands_between_them() -> None:
    planned = plan(
        [
            entry(0, offset=5, tags_code=-7),
            entry(100, queue=1, offset=0),
            entry(200, offset=6, tags_code=1 << 40),
        ],
        index=True,
    )
    first, second = planned.runs
    assert (first.topic, first.queue, first.first, first.at) == ("orders", 0, 5, 0)
    assert list(UNIT.iter_unpack(first.units)) == [(0, 100, -7), (200, 100, 1 << 40)]
    assert (second.queue, second.first, second.unit_count) == (1, 0, 1)
    assert planned.unit_timestamp_ms == 1200


def test_a_queue_offset_that_does_not_follow_begins_a_run_of_its_own() -> None:
    planned = plan([entry(0, offset=1), entry(100, offset=1), entry(200, offset=9)], index=True)
    assert [(run.first, run.unit_count) for run in planned.runs] == [(1, 1), (1, 1), (9, 1)]


def test_topics_that_keep_their_units_elsewhere_are_indexed_only() -> None:
    planned = plan([entry(unique_id="u")], index=True, no_units_for=frozenset({"orders"}))
    assert (planned.runs, len(planned.rows)) == ([], 1)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "/etc", "a\0b"])
def test_a_topic_that_would_lead_out_of_the_store_is_refused_by_its_record(topic: str) -> None:
    with pytest.raises(CorruptRecord, match="cannot name a directory") as caught:
        plan([entry(300, topic=topic)], index=True)
    assert caught.value.at == 300


def test_negative_numbers_are_refused_by_their_record() -> None:
    with pytest.raises(CorruptRecord, match="queue -1"):
        plan([entry(queue=-1)], index=True)
    with pytest.raises(CorruptRecord, match="queue offset -1"):
        plan([entry(offset=-1)], index=True)


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.sampled_from([0, 4, 8, 12])),
        max_size=40,
    )
)
def test_every_unit_is_planned_once_in_order_at_its_queue_offset(
    kinds: list[tuple[str, int, int]],
) -> None:
    nexts: dict[tuple[str, int], int] = {}
    entries = []
    for number, (topic, queue, bits) in enumerate(kinds):
        offset = 0
        if bits not in (PREPARED, ROLLBACK):
            offset = nexts.get((topic, queue), 0)
            nexts[topic, queue] = offset + 1
        entries.append(entry(number * 100, topic=topic, queue=queue, offset=offset, sys_flag=bits))
    planned = plan(entries, index=True)
    found = {
        (run.topic, run.queue, run.first + at // UNIT_SIZE): UNIT.unpack_from(run.units, at)[0]
        for run in planned.runs
        for at in range(0, len(run.units), UNIT_SIZE)
    }
    expected = {
        (one.topic, one.queue_id, one.queue_offset): one.physical_offset
        for one in entries
        if one.sys_flag not in (PREPARED, ROLLBACK)
    }
    assert found == expected
    assert planned.units == len(expected)
    assert all(one[1] <= two[1] for one, two in pairwise(planned.rows))
