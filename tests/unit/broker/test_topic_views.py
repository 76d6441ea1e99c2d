"""Topics as the API shows them: the range of every queue, whoever else reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.broker.queue_offsets import QueueOffsets
from services.broker.topic_views import QUEUES_AT_ONCE, TopicViews
from services.broker.topics import Topics
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.state.records import TopicConfig, TopicRecord
from shared.state.state import BrokerState
from tests.support.small_store import SmallStore
from tidemark.offsets import PhysicalOffset


class NoLog:
    """Nothing is changed here."""

    async def append_state(self, body: bytes) -> PhysicalOffset:
        raise AssertionError("a look changes nothing")


QUEUES = 3 * QUEUES_AT_ONCE


class Views:
    def __init__(self, root: Path) -> None:
        self.small = SmallStore(root)
        for queue in (0, 1, 1, QUEUES - 1):
            self.small.put("orders", queue)
        self.small.flush()
        self.small.dispatch()
        state = BrokerState()
        state.apply(TopicRecord(0, TopicConfig("orders", QUEUES, QUEUES)))
        self.reader = CommitLogReader(self.small.store, self.small.positions)
        self.queues = ConsumeQueues(self.small.store, self.reader)
        topics = Topics(state, NoLog(), QueueOffsets({}), flushed=lambda: 0)
        self.views = TopicViews(
            topics,
            self.queues,
            self.reader,
            lambda: self.small.end,
            auto_create=False,
            queues_default=1,
        )


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Views]:
    views = Views(tmp_path / "store")
    yield views
    views.queues.forget()
    views.reader.close()
    views.small.close()


async def test_a_topic_lists_the_range_of_every_queue(made: Views) -> None:
    shown = await made.views.one("orders")
    ends = {each["queue"]: each["max_offset"] for each in shown["queues"]}
    assert ends == {**dict.fromkeys(range(QUEUES), 0), 0: 1, 1: 2, QUEUES - 1: 1}
    assert shown["queue_count"] == shown["write_queues"] == QUEUES


async def test_looking_at_every_queue_keeps_no_reader_and_closes_none(made: Views) -> None:
    kept = made.queues.get("orders", 1)
    await made.views.one("orders")
    assert made.queues.get("orders", 1) is kept
    assert kept.max_offset(made.small.end) == 2
    with made.queues.glance("orders", 1) as reader:
        assert reader is kept
    with made.queues.glance("orders", 0) as reader:
        assert reader.max_offset(made.small.end) == 1
    with made.queues.glance("orders", 0) as again:
        assert again is not reader


async def test_a_topic_of_many_queues_lets_other_requests_in_between(made: Views) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    before = turns
    await made.views.one("orders")
    assert turns - before == QUEUES // QUEUES_AT_ONCE - 1
    counting.cancel()
