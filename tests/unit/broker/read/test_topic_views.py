"""Topics as the API shows them: the range of every queue, whatever other readers do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.broker.limits import SHOWN_MS_MAX
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.read.topic_views import TopicViews
from services.broker.read.visibility import retention_of
from services.broker.schema.parsing import parsed
from services.broker.schema.topics import NewTopic
from services.broker.schema.values import ListQuery
from services.broker.state.topics import StoredQueues, Topics
from shared.cluster.routes import TopicRoute
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.files.queue_math import Boundary
from shared.runtime.pauses import SLICE_S
from shared.state.records import TopicConfig, TopicRecord
from shared.state.state import BrokerState
from tests.support.small_store import FIRST_MS, SmallStore
from tests.support.still_clock import StillClock
from tidemark.errors import BadRequest, NotPermitted
from tidemark.offsets import PhysicalOffset


class NoDisk:
    """State records are durable at once."""

    async def append_state(self, body: bytes) -> PhysicalOffset:
        return PhysicalOffset(0)


QUEUES = 192


class Views:
    def __init__(self, root: Path) -> None:
        self.small = SmallStore(root)
        self.clock = StillClock(0, wall_ahead_ms=FIRST_MS)
        for queue in (0, 1, 1, QUEUES - 1):
            self.small.put("orders", queue)
        self.small.dispatch()
        state = BrokerState()
        state.apply(TopicRecord(0, TopicConfig("orders", QUEUES, QUEUES)))
        self.reader = CommitLogReader(self.small.store, self.small.positions)
        self.queues = ConsumeQueues(self.small.store, self.reader)
        self.topics = topics = Topics(state, NoDisk(), QueueOffsets({}), flushed=lambda: 0)
        self.views = TopicViews(
            topics,
            self.queues,
            self.reader,
            lambda: self.small.end,
            clock=self.clock,
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


async def test_a_topic_of_many_queues_lets_other_requests_in_between(
    made: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 queues at a time took the loop for 6 ms, in each of the turns that a send takes."""
    turns, ticks = 0, itertools.count()
    monkeypatch.setattr(made.clock, "monotonic", lambda: next(ticks) * SLICE_S / 8)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    before = turns
    await made.views.one("orders")
    assert turns - before >= QUEUES // 8
    counting.cancel()


async def test_the_type_of_the_queues_is_put_and_shown(made: Views) -> None:
    await made.views.put("batches", parsed({"queue_type": "batch"}, NewTopic))
    assert (await made.views.one("batches"))["queue_type"] == "batch"
    await made.views.put("simple", parsed({}, NewTopic))
    page = await made.views.page(ListQuery())
    types = {topic["topic"]: topic["queue_type"] for topic in page["topics"]}
    assert types["batches"] == "batch"
    assert types["simple"] == "simple"
    with pytest.raises(NotPermitted):
        await made.views.put("batches", parsed({"queue_type": "simple"}, NewTopic))


# -- a topic's own retention -----------------------------------------------------------------------


def put_each_second(made: Views, count: int) -> None:
    """Messages of queue 2, one each second from the clock's beginning on."""
    for second in range(count):
        made.small.put("orders", 2, at_ms=FIRST_MS + second * 1000)
    made.small.dispatch()


async def retained(made: Views, retention_ms: int = 3000) -> None:
    """Ten such messages, nine seconds after the first, in a topic that shows only some of them."""
    put_each_second(made, 10)
    await made.views.put("orders", parsed({"retention_ms": retention_ms}, NewTopic))
    made.clock.now_s = 9.0


async def test_messages_older_than_the_topic_shows_are_not_shown(made: Views) -> None:
    await retained(made)
    assert made.views.floor("orders", 2) == 6
    assert made.views.shown_from("orders", 2) == 6
    shown = await made.views.one("orders")
    assert shown["retention_ms"] == 3000
    assert shown["queues"][2] == {"queue": 2, "min_offset": 6, "max_offset": 10}
    found = made.views.offset_by_time("orders", 2, FIRST_MS, Boundary.LOWER)
    assert found == {"offset": 6, "min_offset": 6, "max_offset": 10}
    message = made.reader.record(
        PhysicalOffset(made.small.units[-5][3].physical_offset), made.small.end
    )
    assert message is not None
    assert message.queue_offset == 5
    assert not made.views.is_shown(message)


async def test_where_a_queue_begins_is_looked_for_once_a_second_and_never_moves_back(
    made: Views,
) -> None:
    await retained(made)
    assert made.views.floor("orders", 2) == 6
    made.clock.now_s = 9.9
    assert made.views.floor("orders", 2) == 6
    made.clock.now_s = 10.5
    assert made.views.floor("orders", 2) == 8
    made.clock.wall_ms = lambda: FIRST_MS  # type: ignore[method-assign]
    made.clock.now_s = 12.0
    assert made.views.floor("orders", 2) == 8


async def test_hidden_messages_are_reported_once_and_in_that_step(made: Views) -> None:
    hidden: list[tuple[str, int, int, int]] = []
    made.views.report_hidden_to(lambda *what: hidden.append(what))
    put_each_second(made, 10)
    made.clock.now_s = 5.0
    await made.views.put("orders", parsed({"retention_ms": 3000}, NewTopic))
    assert made.views.has_retention("orders")
    assert made.views.any_has_retention()
    made.views.floor("orders", 2)
    made.views.floor("orders", 2)
    made.clock.now_s = 9.0
    made.views.floor("orders", 2)
    assert hidden == [("orders", 2, 0, 2), ("orders", 2, 2, 6)]


async def test_messages_hidden_before_a_start_are_not_reported_again(made: Views) -> None:
    await retained(made)
    after_start = TopicViews(
        made.topics,
        made.queues,
        made.reader,
        lambda: made.small.end,
        clock=made.clock,
        auto_create=False,
        queues_default=1,
    )
    hidden: list[tuple[str, int, int, int]] = []
    after_start.report_hidden_to(lambda *what: hidden.append(what))
    assert after_start.floor("orders", 2) == 6
    made.clock.now_s = 10.0
    assert after_start.floor("orders", 2) == 7
    assert hidden == [("orders", 2, 6, 7)]


async def test_when_all_messages_are_too_old_the_queue_is_empty_and_goes_on(made: Views) -> None:
    put_each_second(made, 4)
    await made.views.put("orders", parsed({"retention_ms": 1000}, NewTopic))
    made.clock.now_s = 100.0
    assert made.views.floor("orders", 2) == 4
    made.small.put("orders", 2, at_ms=FIRST_MS + 100_000)
    made.small.dispatch()
    made.clock.now_s = 101.0
    assert made.views.floor("orders", 2) == 4


async def test_a_longer_retention_brings_nothing_back(made: Views) -> None:
    """Also after a restart: where the queues began is in the topic's record."""
    await retained(made)
    for retention_ms in (600_000, 0):
        await made.views.put("orders", parsed({"retention_ms": retention_ms}, NewTopic))
        assert made.views.floor("orders", 2) == 6
    topic = made.topics.get("orders")
    assert dict(topic.min_offsets)[2] == 6
    assert "reserve.time" not in topic.attributes
    assert (await made.views.one("orders"))["retention_ms"] is None


@pytest.mark.parametrize("value", [-1, True, "1h", SHOWN_MS_MAX + 1, 1.5])
async def test_a_retention_is_a_whole_number_of_milliseconds(made: Views, value: object) -> None:
    with pytest.raises(BadRequest, match="retention_ms"):
        await made.views.put("orders", parsed({"retention_ms": value}, NewTopic))


async def test_rocketmqs_value_for_no_retention_is_no_retention(made: Views) -> None:
    for text in ("-1", "", "3d", "0", "9" * 30):
        topic = TopicConfig("orders", 1, 1, attributes={"reserve.time": text})
        assert retention_of(topic) is None


async def test_clients_are_routed_to_the_queues_that_take_messages(made: Views) -> None:
    changed: list[str | None] = []
    made.views.report_changes_to(changed.append)
    assert made.views.route("orders") == TopicRoute(QUEUES, readable=True, writable=True)
    await made.views.put("paid", parsed({"queues": 2, "perm": 4}, NewTopic))
    assert made.views.route("paid") == TopicRoute(2, readable=True, writable=False)
    assert (sorted(made.views.routed()), made.views.count) == (["orders", "paid"], 2)
    await made.views.delete("orders")
    assert made.views.route("orders") is None
    assert made.views.count == 1
    for name in ("orders", "rmq_sys_tidemark_state", None):
        made.views.changed(name)
    assert changed == ["orders", None], "topics of the broker itself are nothing to clients"


def test_a_topic_that_only_has_queues_in_the_store_counts() -> None:
    # RocketMQ serves such topics as well.
    state = BrokerState()
    state.apply(TopicRecord(0, TopicConfig("known", 1, 1)))
    stored = StoredQueues({("found", 3), ("known", 0), ("SCHEDULE_TOPIC_XXXX", 2)})
    topics = Topics(state, NoDisk(), QueueOffsets({}), flushed=lambda: 0, stored=stored)
    assert topics.count == 2
