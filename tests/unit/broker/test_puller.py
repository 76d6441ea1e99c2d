"""The shell around a pull: what is below the shown part of a queue, and the end of a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, cast

import pytest

from services.broker.metrics import BrokerMetrics
from services.broker.pull import Puller, PullRequest
from services.broker.queue_offsets import QueueOffsets
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from tests.support.metrics import sample
from tidemark.errors import NotServing
from tidemark.offsets import PhysicalOffset, QueueOffset


class Store(NamedTuple):
    """A log and one queue [first, end) of which nothing is ever read."""

    first: int
    end: int
    topic: str = "t"
    queue: int = 0
    has_shrunk: bool = False

    def get(self, topic: str, queue: int) -> Store:
        return self

    def min_offset(self, physical: int) -> int:
        return self.first

    def max_offset(self, dispatched: int) -> int:
        return self.end

    def view(self, offset: int, count: int, dispatched: int) -> memoryview:
        return memoryview(b"")


class Log(NamedTuple):
    """The minimum is all that is asked."""

    min_offset: int = 0


def puller_of(
    store: Store,
    *,
    floor: int = 0,
    registry: Registry | None = None,
    dispatched: Callable[[], PhysicalOffset] = lambda: PhysicalOffset(1000),
) -> Puller:
    return Puller(
        cast(ConsumeQueues, store),
        cast(CommitLogReader, Log()),
        QueueOffsets({}),
        SystemClock(),
        BrokerMetrics(registry or Registry("broker")),
        floor=lambda topic, queue: QueueOffset(floor),
        dispatched=dispatched,
        written=lambda: PhysicalOffset(1000),
        held_max=1,
    )


def pulled(store: Store, *, floor: int, offset: int) -> tuple[str, int, int, int]:
    puller = puller_of(store, floor=floor)
    found = puller.look(PullRequest("t", 0, offset, 32, None, None, 0, bulk=False))
    return found.status.value, found.next_offset, found.min_offset, found.max_offset


# A golden store asked from offset -1 and was told 0 as minimum, though 796 messages had expired.
@pytest.mark.parametrize("offset", [-1, 0, 795])
def test_below_an_expired_part_the_minimum_is_told(offset: int) -> None:
    answer = pulled(Store(first=796, end=1774), floor=0, offset=offset)
    assert answer == ("OFFSET_TOO_SMALL", 796, 796, 1774)


def test_below_a_deleted_part_the_next_offset_is_where_the_new_topic_begins() -> None:
    assert pulled(Store(0, 20), floor=10, offset=3) == ("OFFSET_TOO_SMALL", 10, 10, 20)


def test_of_a_deleted_part_that_expired_too_the_later_end_counts() -> None:
    assert pulled(Store(15, 20), floor=10, offset=3) == ("OFFSET_TOO_SMALL", 15, 15, 20)


def test_an_empty_queue_says_so_whatever_the_offset() -> None:
    assert pulled(Store(0, 0), floor=0, offset=-1) == ("NO_MESSAGE_IN_QUEUE", 0, 0, 0)


# 1. A pull was held; 2. SIGTERM closed the held pulls, which woke it; 3. there was nothing, so it
# waited again, on a future that was done already: the loop never turned again until wait_ms were
# over, and the broker did not stop for so long.
async def test_a_held_pull_ends_when_the_node_stops() -> None:
    registry = Registry("broker")
    puller = puller_of(Store(0, 5), registry=registry)
    request = PullRequest("t", 0, 5, 32, None, None, 2_000, bulk=False)
    held = asyncio.create_task(puller.pull(request, lambda: False))
    await asyncio.sleep(0)
    assert sample(registry, "tidemark_broker_long_polls") == 1
    puller.held.close()
    result = await held
    assert result.status.value == "OFFSET_OVERFLOW_ONE"
    ended = "tidemark_broker_long_poll_wakeups_total"
    assert sample(registry, ended, {"reason": "close"}) == 1


async def ended(puller: Puller, request: PullRequest, *, gone: bool = False) -> str:
    held = asyncio.create_task(puller.pull(request, lambda: gone))
    await asyncio.sleep(0)
    puller.held.let_go_of_gone()
    return (await held).status.value


async def test_a_held_pull_ends_after_its_time_or_when_its_client_is_gone() -> None:
    registry = Registry("broker")
    puller = puller_of(Store(0, 5), registry=registry)
    request = PullRequest("t", 0, 5, 32, None, None, 1, bulk=False)
    assert await ended(puller, request) == "OFFSET_OVERFLOW_ONE"
    later = request._replace(wait_ms=3_600_000)
    assert await ended(puller, later, gone=True) == "OFFSET_OVERFLOW_ONE"
    name = "tidemark_broker_long_poll_wakeups_total"
    assert sample(registry, name, {"reason": "timeout"}) == 2
    assert sample(registry, "tidemark_broker_long_polls") == 0


async def test_a_pull_that_cannot_be_held_says_when_to_come_again() -> None:
    puller = puller_of(Store(0, 5))
    request = PullRequest("t", 0, 5, 32, None, None, 20_000, bulk=False)
    with puller.place():
        result = await puller.pull(request, lambda: False)
        assert result.status.value == "OFFSET_OVERFLOW_ONE"
        assert result.poll_after_ms is not None
        assert 100 <= result.poll_after_ms <= 20_000
        at_once = await puller.pull(request._replace(wait_ms=0), lambda: False)
        assert at_once.poll_after_ms is None
    held = await puller.pull(request._replace(wait_ms=1), lambda: False)
    assert held.poll_after_ms is None


# 1. A consumer stands at 20; 2. a queue file is removed, and reput makes the queues again from the
# log's start; 3. the queue ended at 5 then, and the pull sent the consumer back to there.
async def test_a_pull_beyond_a_queue_that_is_made_again_waits_for_it() -> None:
    seen = [PhysicalOffset(1000)]
    puller = puller_of(Store(0, 20), dispatched=lambda: seen[0])
    request = PullRequest("t", 0, 20, 32, None, None, 0, bulk=False)
    assert (await puller.pull(request, lambda: False)).status.value == "OFFSET_OVERFLOW_ONE"
    puller._queues = cast(ConsumeQueues, Store(0, 5))
    beyond = await puller.pull(request, lambda: False)
    assert (beyond.status.value, beyond.next_offset) == ("OFFSET_OVERFLOW_BADLY", 5)
    seen[0] = PhysicalOffset(300)
    with pytest.raises(NotServing, match="300 of 1000 bytes"):
        await puller.pull(request, lambda: False)
    within = await puller.pull(request._replace(offset=5), lambda: False)
    assert within.status.value == "OFFSET_OVERFLOW_ONE"


# 1. A follower's pull is held at 20; 2. reput starts again and makes the queues again, which wakes
# all held pulls; 3. the pull was answered with 5, the follower went back and delivered 5 to 19
# again.
async def test_a_held_pull_is_refused_when_its_queue_is_made_again() -> None:
    seen = [PhysicalOffset(1000)]
    puller = puller_of(Store(0, 20), dispatched=lambda: seen[0])
    request = PullRequest("t", 0, 20, 32, None, None, 60_000, bulk=False)
    held = asyncio.create_task(puller.pull(request, lambda: False))
    await asyncio.sleep(0)
    seen[0] = PhysicalOffset(300)
    puller._queues = cast(ConsumeQueues, Store(0, 5))
    puller.held.may_all_look()
    with pytest.raises(NotServing, match="300 of 1000 bytes"):
        await held
