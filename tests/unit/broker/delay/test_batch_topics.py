"""Delayed messages of a batch topic: delivered as inner batches, and each of them once."""

from __future__ import annotations

from collections import Counter

import pytest

from services.broker.delay import origins
from services.broker.delay.progress import Found
from tests.support.delayed_store import DelayedStore, Killed
from tests.support.small_broker import FIRST_MS, HOST, LEVELS_MS
from tests.support.stored_messages import messages_of, records_of
from tidemark.errors import CorruptRecord
from tidemark.formats import batch, delay, inner_batch, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.delay import Identity
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset


async def wait_some(store: DelayedStore, count: int = 3) -> None:
    """Messages of a batch topic that wait for one time, and as many in the levels."""
    await store.topics.create("batches", 2, is_batch=True)
    for number in range(count):
        store.wait_until(b"time%d" % number, FIRST_MS + LEVELS_MS[0], topic="batches")
        store.wait_level(b"level%d" % number, 1, topic="batches")


async def test_a_slice_is_one_batch_of_messages_that_name_their_origins(
    store: DelayedStore,
) -> None:
    await wait_some(store)
    store.now_ms += LEVELS_MS[0]
    await store.turn()
    (stored,) = records_of(store, "batches")
    assert stored.sys_flag == inner_batch.SYS_FLAGS
    found = messages_of(store, "batches")
    assert sorted(bytes(each.body) for each in found) == [
        *(b"level0", b"level1", b"level2", b"time0", b"time1", b"time2")
    ]
    assert [each.queue_offset for each in found] == list(range(6))
    assert stored.unique_id == found[0].unique_id
    assert all(delay.origin_of(each.properties) is not None for each in found)


async def test_messages_that_wait_on_are_records(store: DelayedStore) -> None:
    await wait_some(store)
    await store.turn()
    await store.delayed.carry_below(store.appender.appended)
    assert {each.sys_flag for each in records_of(store, delay.TIMER_TOPIC)} == {0}


@pytest.mark.parametrize("appends", range(6))
async def test_a_kill_after_any_append_delivers_each_message_once(
    store: DelayedStore, appends: int
) -> None:
    await wait_some(store)
    store.now_ms += LEVELS_MS[0]
    store.appends_until_kill = appends
    try:
        await store.turn()
    except Killed:
        await store.kill()
    await store.turn()
    found = Counter(bytes(each.body) for each in messages_of(store, "batches"))
    assert len(found) == 6
    assert set(found.values()) == {1}


@pytest.mark.parametrize("chunk_size", [1, 100, 4 << 20])
def test_the_origins_of_all_messages_of_a_batch_are_found(
    store: DelayedStore, monkeypatch: pytest.MonkeyPatch, chunk_size: int
) -> None:
    monkeypatch.setattr(origins, "CHUNK_SIZE", chunk_size)
    raws = [
        properties.encode(pairs)
        for pairs in (
            {"TIDEMARK_DELAY_ORIGIN": "1@5"},
            {"a": "b"},
            {"TIDEMARK_DELAY_ORIGIN": "2@7"},
            {"TIDEMARK_DELAY_ORIGIN": "0@3", "TIMER_OUT_MS": "7000"},
        )
    ]
    append_batch(store, *raws)
    found = origins.find_origins(store.reader, PhysicalOffset(0), store.appender.appended)
    assert found == Found({1: 6, 2: 8}, {3: 8000})


def test_the_copies_of_rocketmq_in_a_batch_are_counted(store: DelayedStore) -> None:
    times = {"TIMER_OUT_MS": "5000", "TIMER_DEQUEUE_MS": "6000", "REAL_TOPIC": "batches"}
    append_batch(store, *(properties.encode({"UNIQ_KEY": name, **times}) for name in "AB"))
    copies: Counter[origins.Copy] = Counter()
    end = store.appender.appended
    origins.find_origins(store.reader, PhysicalOffset(0), end, copies=copies)
    assert copies == {origins.Copy(6000, Identity(b"batches", name)): 1 for name in (b"A", b"B")}


def test_a_damaged_batch_is_not_passed_over(store: DelayedStore) -> None:
    raw = properties.encode({"TIDEMARK_DELAY_ORIGIN": "1@5"})
    of_batch = inner_batch.encode_properties("A", 2, tags=None, keys=None)
    append_batch(store, raw, of_batch=of_batch)
    with pytest.raises(CorruptRecord, match="inner batch"):
        origins.find_origins(store.reader, PhysicalOffset(0), store.appender.appended)


def append_batch(store: DelayedStore, *raws: bytes, of_batch: bytes = b"") -> None:
    """Append an inner batch of messages with these properties."""
    if not of_batch:
        of_batch = inner_batch.encode_properties("ID", len(raws), tags=None, keys=None)
    entries = batch.encode(WireMessage(b"x" * 300, raw) for raw in raws)
    run = Run("batches", 0, entries, len(raws), HOST, HOST, batch_properties=of_batch)
    store.append_now([run])
