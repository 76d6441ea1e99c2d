"""Reading of batch queues: positions, times and pulls, by queue offsets inside the batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import Boundary, ConsumeQueueReader
from shared.files.pull import PullResult, PullStatus, get_message
from tests.support.small_store import FIRST_MS, SmallStore
from tidemark.errors import DamagedFile
from tidemark.formats import inner_batch, record
from tidemark.formats.hashing import string_hash
from tidemark.formats.queue_unit import BATCH_UNIT
from tidemark.formats.select import Wanted


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallStore]:
    store = SmallStore(tmp_path / "store")
    yield store
    store.close()


def reading(small: SmallStore) -> tuple[ConsumeQueueReader, CommitLogReader]:
    log = CommitLogReader(small.store, small.positions)
    return ConsumeQueueReader(small.store, "batches", 0, log), log


def pull(small: SmallStore, offset: int, **limits: int) -> PullResult:
    queue, log = reading(small)
    return get_message(queue, log, offset=offset, dispatched=small.end, **limits)  # type: ignore[arg-type]


def put(small: SmallStore, *sizes: int) -> None:
    """Append batches of that many messages; each body is the message's queue offset."""
    first = 0
    for size in sizes:
        small.put_batch([b"%d" % number for number in range(first, first + size)])
        first += size
    small.flush()


def bodies(result: PullResult) -> list[bytes]:
    return [
        bytes(message.body)
        for _, _, data in result.records()
        for message in inner_batch.unpack(record.decode(data))
    ]


def test_offsets_count_messages_and_not_units(small: SmallStore) -> None:
    put(small, 3, 1, 5)
    queue, _ = reading(small)
    assert queue.max_offset(small.end) == 9
    assert queue.min_offset(0) == 0
    ends = [queue.located_unit(number) for number in range(9)]
    assert [unit[0] for unit in ends if unit is not None] == [0, 0, 0, 3, 4, 4, 4, 4, 4]


def test_only_batches_up_to_the_dispatched_offset_count(small: SmallStore) -> None:
    put(small, 3, 1)
    queue, _ = reading(small)
    assert queue.max_offset(small.end - 1) == 3
    assert queue.last_record_end(small.end) == small.end


def test_a_reader_that_was_opened_before_the_first_batch_sees_it(small: SmallStore) -> None:
    queue, _ = reading(small)
    assert queue.max_offset(small.end) == 0
    put(small, 2)
    assert queue.max_offset(small.end) == 2


def test_the_minimum_is_the_first_message_of_the_first_kept_batch(small: SmallStore) -> None:
    put(small, *[2] * 30)
    queue, _ = reading(small)
    for number in (0, 7, 29):
        found = queue.unit(2 * number)
        assert found is not None
        assert queue.min_offset(found.physical_offset) == 2 * number
        assert queue.min_offset(found.physical_offset + 1) == 2 * number + 2
    assert queue.min_offset(small.end) == 60  # all expired: the numbering continues


@pytest.mark.parametrize(
    ("boundary", "in_batch", "before", "behind"),
    [(Boundary.LOWER, 0, 0, 75), (Boundary.UPPER, 2, 0, 74)],
)
def test_a_time_leads_to_the_first_or_the_last_message_of_its_batch(
    small: SmallStore, boundary: Boundary, in_batch: int, before: int, behind: int
) -> None:
    put(small, *[3] * 25)  # store times rise by 1 ms per batch
    queue, _ = reading(small)
    for number in (0, 11, 24):
        found = queue.offset_by_time(FIRST_MS + 1 + number, boundary, dispatched=small.end)
        assert found == 3 * number + in_batch
    assert queue.offset_by_time(FIRST_MS - 9, boundary, dispatched=small.end) == before
    assert queue.offset_by_time(FIRST_MS + 99, boundary, dispatched=small.end) == behind


@given(st.lists(st.integers(1, 40), min_size=1, max_size=40), st.data())
def test_pulls_from_any_offset_give_every_message_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    small = SmallStore(tmp_path_factory.mktemp("store"))
    try:
        put(small, *sizes)
        at = first = data.draw(st.integers(0, sum(sizes) - 1))
        seen: list[bytes] = []
        while at < sum(sizes):
            result = pull(small, at, count_max=data.draw(st.integers(1, 50)))
            assert result.status is PullStatus.FOUND
            new = bodies(result)
            seen += new[-result.message_count :]
            assert result.next_offset == at + result.message_count
            at = result.next_offset
        assert seen == [b"%d" % number for number in range(first, sum(sizes))]
    finally:
        small.close()


def test_a_batch_is_handed_out_whole_however_few_messages_were_asked_for(small: SmallStore) -> None:
    put(small, 5, 5)
    result = pull(small, 3, count_max=1)
    assert (result.message_count, result.next_offset, len(bodies(result))) == (2, 5, 5)


def test_a_filter_skips_batches_of_another_tag_and_takes_those_without_one(
    small: SmallStore,
) -> None:
    for tags in ("red", None, "blue"):
        small.put_batch([b"%r" % tags] * 2, tags=tags)
    small.flush()
    queue, log = reading(small)
    wanted = Wanted(frozenset({string_hash("blue")}))
    result = get_message(queue, log, offset=0, dispatched=small.end, wanted=wanted)
    assert bodies(result) == [b"None"] * 2 + [b"'blue'"] * 2
    assert (result.filtered, result.next_offset) == (2, 6)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("field", ["at", "base", "count"])
@pytest.mark.parametrize("by", [-1, 1, 2])
def test_a_damaged_unit_never_hides_or_moves_a_message(
    small: SmallStore, number: int, field: str, by: int
) -> None:
    put(small, 3, 3, 3, 3, 3)
    path = small.store.queue_directory("batches", 0).path / "00000000000000000000"
    content = bytearray(path.read_bytes())
    values = list(BATCH_UNIT.unpack_from(content, number * 46))
    values[{"at": 0, "base": 4, "count": 5}[field]] += by
    BATCH_UNIT.pack_into(content, number * 46, *values)
    path.write_bytes(content)
    for offset in range(15):
        try:
            result = pull(small, offset)
        except DamagedFile:
            continue
        if result.status is PullStatus.OFFSET_TOO_SMALL:
            pytest.fail(f"a consumer at {offset} would be moved to {result.next_offset}")
        new = bodies(result)
        assert new[-result.message_count :] == [
            b"%d" % each for each in range(offset, result.next_offset)
        ]


def test_a_pull_at_a_damaged_unit_names_the_offset_that_was_asked_for(small: SmallStore) -> None:
    put(small, 2, 2, 2)
    path = small.store.queue_directory("batches", 0).path / "00000000000000000000"
    content = bytearray(path.read_bytes())
    content[46:66] = content[0:20]  # the second unit points to the first batch
    path.write_bytes(content)
    assert pull(small, 0).next_offset == 2
    with pytest.raises(DamagedFile, match="another message") as caught:
        pull(small, 3)
    assert caught.value.facts["queue_offset"] == 3
