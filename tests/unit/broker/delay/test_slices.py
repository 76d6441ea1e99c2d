"""What goes into one append: neighbours share a run, queues keep their order, losses are named."""

from __future__ import annotations

import logging

import pytest

from services.broker.delay.slices import SLICE_COUNT_MAX, Entry, Slices
from tests.support.delayed_store import DelayedStore
from tests.support.small_broker import CONFIG, FIRST_MS
from tidemark.errors import DamagedFile
from tidemark.formats import batch, delay
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset

FILE_SIZE = CONFIG.commit_log_file_size


def slices_of(store: DelayedStore, *, gone: str = "", file_size: int = FILE_SIZE) -> Slices:
    return Slices(store.reader, file_size=file_size, topic_is_gone=lambda topic, _: topic == gone)


def entry(stored: Record, due_ms: int = FIRST_MS) -> Entry:
    return Entry(
        due_ms,
        delay.level_of(stored),
        stored.queue_offset,
        stored.physical_offset,
        stored.size,
        None,
    )


def test_messages_alike_share_a_run_and_those_of_a_queue_keep_their_order(
    store: DelayedStore,
) -> None:
    stored = [store.wait_level(b"%d" % number, 1, queue=number % 2) for number in range(6)]
    (made,) = slices_of(store).delivering(map(entry, stored), store.dispatched(), FIRST_MS)
    assert [(run.topic, run.queue_id, run.message_count) for run in made.runs] == [
        ("orders", 0, 3),
        ("orders", 1, 3),
    ]
    bodies = [[bytes(each.body) for each in batch.iterate(run.entries)] for run in made.runs]
    assert bodies == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]
    assert (made.levels, made.message_count, made.lost_count) == ({1: 6}, 6, 0)


def test_cancelled_entries_move_the_progress_without_a_copy(store: DelayedStore) -> None:
    cancelled = entry(store.wait_level(b"a", 1))._replace(passed_over=True)
    (made,) = slices_of(store).delivering([cancelled], store.dispatched(), FIRST_MS)
    assert made.runs == []
    assert (made.levels, made.lost_count) == ({1: 1}, 0)


def test_a_slice_is_bounded_in_messages_and_in_bytes(store: DelayedStore) -> None:
    stored = entry(store.wait_level(b"a", 1))
    many = [stored] * (2 * SLICE_COUNT_MAX + 1)
    made = slices_of(store, file_size=1 << 30).delivering(many, store.dispatched(), FIRST_MS)
    assert [each.message_count for each in made] == [SLICE_COUNT_MAX, SLICE_COUNT_MAX, 1]
    for each in slices_of(store).delivering(many, store.dispatched(), FIRST_MS):
        assert sum(len(run.entries) for run in each.runs) <= FILE_SIZE // 8


def test_messages_without_a_destination_are_counted_and_logged_in_one_line(
    store: DelayedStore, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [
        entry(store.wait_level(b"deleted", 1, topic="gone")),
        entry(store.wait_level(b"nowhere", 1, topic="..")),
        entry(store.wait_level(b"x" * 3500, 1)),
        entry(store.wait_level(b"fine", 1)),
    ]
    slices = slices_of(store, gone="gone", file_size=4096 - 300)
    with caplog.at_level(logging.WARNING):
        made = slices.delivering(entries, store.dispatched(), FIRST_MS)
    assert sum(each.message_count for each in made) == 1
    assert sum(each.lost_count for each in made) == 3
    reasons = [vars(line)["reasons"] for line in caplog.records]
    assert {why for each in reasons for why in each} == {
        "its topic was deleted",
        "it names no queue that it could go to",
        "with what is added it fits into no record, or no file",
    }


def test_a_place_that_holds_another_message_is_damage(store: DelayedStore) -> None:
    first = store.wait_level(b"a", 1)
    other = store.wait_level(b"b", 2)
    wrong = entry(first)._replace(physical_offset=other.physical_offset)
    with pytest.raises(DamagedFile, match="should be at"):
        slices_of(store).delivering([wrong], PhysicalOffset(store.dispatched()), FIRST_MS)
