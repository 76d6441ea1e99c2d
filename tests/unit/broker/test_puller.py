"""The shell around a pull: below the visible part of a queue, and the end of a wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, cast

import pytest

from services.broker.config import BrokerConfig
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.log.unit_checks import ANSWER_MAX_S, UnitChecks, name_unit
from services.broker.metrics import BrokerMetrics
from services.broker.read import pull
from services.broker.read.long_polls import HeldPull, Wake
from services.broker.read.pull import Puller, PullRequest
from shared.files.consume_queue import ConsumeQueues
from shared.files.positions import Positions
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health
from tests.support.log_contexts import log_context_of
from tests.support.metrics import sample
from tidemark.clock import Clock
from tidemark.errors import DamagedFile, NotServing
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset, QueueOffset


class Store(NamedTuple):
    """A log and one queue [first, end) of which nothing is ever read."""

    first: int
    end: int
    topic: str = "t"
    queue: int = 0
    has_shrunk: bool = False
    directory_is_empty: bool = False
    unit_size: int = 20

    def get(self, topic: str, queue: int) -> Store:
        return self

    def min_offset(self, physical: int) -> int:
        return self.first

    def max_offset(self, dispatched: int) -> int:
        return self.end

    def view(self, offset: int, count: int, dispatched: int) -> memoryview:
        return memoryview(b"")

    def begins_after(self, offset: int, view: memoryview) -> bool:
        return False


class Log(NamedTuple):
    """A log; only its minimum is asked for."""

    min_offset: int = 0


def puller_of(
    store: Store,
    *,
    floor: int = 0,
    registry: Registry | None = None,
    dispatched: Callable[[], PhysicalOffset] = lambda: PhysicalOffset(1000),
    known: Mapping[tuple[str, int], QueueOffset] = MappingProxyType({}),
    clock: Clock | None = None,
) -> Puller:
    return Puller(
        log_context_of(
            queues=store,
            reader=Log(),
            clock=clock or SystemClock(),
            metrics=BrokerMetrics(registry or Registry("broker")),
            dispatched=dispatched,
            end=lambda: PhysicalOffset(1000),
            unit_checks=None,
            config=BrokerConfig(held_pulls_max=1),
        ),
        QueueOffsets(known),
        floor=lambda topic, queue: QueueOffset(floor),
    )


def pulled(store: Store, *, floor: int, offset: int) -> tuple[str, int, int, int]:
    puller = puller_of(store, floor=floor)
    found = puller.read(PullRequest("t", 0, offset, 32, None, None, 0, bulk=False))
    return found.status.value, found.next_offset, found.min_offset, found.max_offset


@pytest.mark.parametrize(
    ("store", "floor", "offset", "answer"),
    [
        # A golden store asked from offset -1 returned 0, though 796 messages had expired.
        (Store(796, 1774), 0, -1, ("OFFSET_TOO_SMALL", 796, 796, 1774)),
        (Store(796, 1774), 0, 0, ("OFFSET_TOO_SMALL", 796, 796, 1774)),
        (Store(796, 1774), 0, 795, ("OFFSET_TOO_SMALL", 796, 796, 1774)),
        (Store(0, 20), 10, 3, ("OFFSET_TOO_SMALL", 10, 10, 20)),
        (Store(15, 20), 10, 3, ("OFFSET_TOO_SMALL", 15, 15, 20)),
        (Store(0, 0), 0, -1, ("NO_MESSAGE_IN_QUEUE", 0, 0, 0)),
    ],
    ids=["-1", "expired", "last expired", "deleted", "deleted and expired", "empty"],
)
def test_below_its_visible_part_a_queue_names_where_it_begins(
    store: Store, floor: int, offset: int, answer: tuple[str, int, int, int]
) -> None:
    assert pulled(store, floor=floor, offset=offset) == answer


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
    puller.long_polls.close()
    result = await held
    assert result.status.value == "OFFSET_OVERFLOW_ONE"
    ended = "tidemark_broker_long_poll_wakeups_total"
    assert sample(registry, ended, {"reason": "close"}) == 1


async def ended(puller: Puller, request: PullRequest, *, gone: bool = False) -> str:
    held = asyncio.create_task(puller.pull(request, lambda: gone))
    await asyncio.sleep(0)
    puller.long_polls.wake_disconnected()
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


# 1. A consumer is at 20; 2. a queue file is removed, and reput rebuilds the queues from the log's
# start; 3. the queue ended at 5 then, and the pull sent the consumer back to there.
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


# 1. A follower's pull is held at 20; 2. reput restarts and rebuilds the queues, which wakes all
# held pulls; 3. the pull was answered with 5, the follower went back and delivered 5 to 19 again.
async def test_a_held_pull_is_refused_when_its_queue_is_made_again() -> None:
    seen = [PhysicalOffset(1000)]
    puller = puller_of(Store(0, 20), dispatched=lambda: seen[0])
    request = PullRequest("t", 0, 20, 32, None, None, 60_000, bulk=False)
    held = asyncio.create_task(puller.pull(request, lambda: False))
    await asyncio.sleep(0)
    seen[0] = PhysicalOffset(300)
    puller._queues = cast(ConsumeQueues, Store(0, 5))
    puller.long_polls.wake_all_queues()
    with pytest.raises(NotServing, match="300 of 1000 bytes"):
        await held


def unit_checks(positions: Slots, health: Health | None = None) -> UnitChecks:
    return UnitChecks(
        cast(Positions, positions),
        health or Health(SystemClock()),
        ask=lambda: positions.rings.append(1),
        mended=lambda: positions.rings.append(2),
    )


class Slots(dict[Slot, int]):
    """A page."""

    def __init__(self) -> None:
        super().__init__()
        self.rings: list[int] = []

    def publish(self, slot: Slot, value: int) -> None:
        self[slot] = value

    def get(self, slot: Slot, default: int = 0) -> int:  # type: ignore[override]
        return super().get(slot, default)

    def resumed_dispatch(self) -> tuple[int, int] | None:
        started, resumed = self.get(Slot.REPUT_PID), self.get(Slot.RESUMED_BY)
        if started and resumed and started != resumed:
            return None
        return self.get(Slot.REPUT_PID), self.get(Slot.REPUT_GENERATION)


async def test_a_queue_that_ends_before_its_last_message_is_compared_with_the_log() -> None:
    """A unit that pointed behind the log's end hid the later ones, for good and silently."""
    page = Slots()
    far = [PhysicalOffset(900)]
    puller = puller_of(Store(0, 5), dispatched=lambda: far[0], known={("t", 0): QueueOffset(9)})
    puller.unit_checks = checks = unit_checks(page)
    request = PullRequest("t", 0, 5, 32, None, None, 0, bulk=False)
    puller.read(request)
    assert page.rings == [], "the messages behind are not dispatched yet"
    far[0] = PhysicalOffset(1000)
    assert puller.read(request).status.value == "OFFSET_OVERFLOW_ONE"
    assert (page[Slot.UNIT_CHECK_OFFSET], page[Slot.UNIT_CHECK_COUNT]) == (5, 1)
    with pytest.raises(NotServing, match="damaged unit"):
        puller.read(request._replace(offset=8))  # it would be sent back to 5
    puller.wake_held()
    watcher = HeldPull(None, lambda: False)
    puller.watch(("t", 0), 5, watcher)
    puller.wake_held()
    assert not watcher.woken.done()
    page[Slot.UNIT_CHECKED] = 1 << 1 | 1
    puller.wake_held()
    assert await watcher.woken is Wake.MESSAGE
    assert page.rings == [1, 2], "asked once, and what is known of the queues forgotten once"
    assert not checks.settle()


async def test_a_queue_that_reput_found_sound_is_not_compared_again_until_reput_restarts() -> None:
    page = Slots()
    checks = unit_checks(page)
    assert checks.is_open("t", 0, 5)
    assert checks.is_open("t", 0, 7), "one at a time: that one waits"
    assert page[Slot.UNIT_CHECK_COUNT] == 1
    page[Slot.UNIT_CHECKED] = 1 << 1
    assert not checks.is_open("t", 0, 5)
    assert checks.is_open("t", 0, 7)
    assert page[Slot.UNIT_CHECK_COUNT] == 2
    page[Slot.UNIT_CHECKED] = 2 << 1 | 1
    assert checks.is_open("t", 0, 7)
    assert not checks.is_open("t", 0, 5)
    page[Slot.REPUT_PID] = 77
    assert checks.is_open("t", 0, 5)


def test_an_unanswered_comparison_is_reported_until_it_is_answered() -> None:
    """Readers of the unit had to retry forever, and the node was ready."""

    class Now(SystemClock):
        s = 100.0

        def monotonic(self) -> float:
            return self.s

    clock, page = Now(), Slots()
    health = Health(clock)
    checks = unit_checks(page, health)
    assert checks.is_open("t", 3, 5)
    checks.settle()
    assert health.reasons == []
    clock.s += ANSWER_MAX_S
    checks.settle()
    assert "unit 5 of queue 3 of topic 't' with the log for 30 s" in health.reasons[0].detail
    page[Slot.UNIT_CHECKED] = 1 << 1 | 1
    checks.settle()
    assert health.reasons == []


def test_short_queues_that_are_not_asked_for_again_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pull, "SHORT_MAX", 3)
    queues = {("t", number): QueueOffset(9) for number in range(8)}
    puller = puller_of(Store(0, 5), dispatched=lambda: PhysicalOffset(900), known=queues)
    for number in range(8):
        puller.read(PullRequest("t", number, 5, 32, None, None, 0, bulk=False))
    assert list(puller._short) == [("t", 5), ("t", 6), ("t", 7)]


def test_a_queue_of_a_topic_that_was_deleted_and_made_again_is_not_compared() -> None:
    page = Slots()
    store = Store(0, 0, directory_is_empty=True)
    puller = puller_of(store, floor=9, known={("t", 0): QueueOffset(9)})
    puller.unit_checks = unit_checks(page)
    puller.read(PullRequest("t", 0, 3, 32, None, None, 0, bulk=False))
    assert page.rings == []


def test_an_answer_from_before_a_page_was_restored_is_ignored() -> None:
    page = Slots()
    page[Slot.UNIT_CHECKED] = 1 << 1  # "sound", to a count that the older page does not know of
    checks = unit_checks(page)
    assert checks.is_open("t", 0, 5)
    assert page[Slot.UNIT_CHECK_COUNT] == 2
    assert checks.is_open("t", 0, 5), "reput has not answered yet"


# While a restarted reput rebuilt the queues, reads of units that were missing reported damage.
async def test_while_reput_begins_anew_a_missing_unit_is_no_damage() -> None:
    page = Slots()
    page[Slot.REPUT_PID] = page[Slot.RESUMED_BY] = 7
    checks = unit_checks(page)
    error = name_unit(DamagedFile("the unit points nowhere"), "t", 0, 5)
    page[Slot.REPUT_PID] = 8
    assert checks.may_heal(error)
    assert Slot.UNIT_CHECK_COUNT not in page, "that start of reput makes the queues whole by itself"
    reads: list[int] = []

    async def read() -> int:
        reads.append(page[Slot.RESUMED_BY])
        if reads[-1] == 7:
            raise error
        return reads[-1]

    healing = asyncio.create_task(checks.healed(read, lambda: True))
    await asyncio.sleep(0)
    page[Slot.RESUMED_BY] = 8
    assert await healing == 8
    assert reads == [7, 8]
    assert page.rings == [2], "what is known of the queues is forgotten"
    assert checks.may_heal(error)
    assert page.rings == [2, 1], "and now it is asked"


class Outdated(Store):
    """Says that a unit is damaged until it is forgotten."""

    is_known = True

    def forget(self) -> None:
        self.is_known = False

    def get(self, topic: str, queue: int) -> Outdated:
        return self

    def view(self, offset: int, count: int, dispatched: int) -> memoryview:
        if self.is_known:
            raise DamagedFile("the unit points nowhere")
        return memoryview(b"")


def test_a_reader_that_knows_the_queues_of_before_reput_began_anew_reads_them_again() -> None:
    page = Slots()
    page[Slot.REPUT_PID] = page[Slot.RESUMED_BY] = 7
    store = Outdated(0, 5)
    puller = puller_of(store)
    puller.unit_checks = UnitChecks(
        cast(Positions, page),
        Health(SystemClock()),
        ask=lambda: page.rings.append(1),
        mended=store.forget,
    )
    request = PullRequest("t", 0, 2, 32, None, None, 0, bulk=False)
    with pytest.raises(DamagedFile):
        puller.read(request)
    page[Slot.REPUT_PID] = page[Slot.RESUMED_BY] = 8
    assert puller.read(request).max_offset == 5


async def test_a_pull_held_at_the_end_of_a_cut_queue_is_woken_once_it_is_whole() -> None:
    """Dispatch had reached its end again before the broker checked: the pull was held to its
    time-out."""
    page = Slots()
    page[Slot.REPUT_PID] = page[Slot.RESUMED_BY] = 7
    puller = puller_of(Store(0, 5), known={("t", 0): QueueOffset(9)})
    puller.unit_checks = unit_checks(page)
    puller.wake_held()
    watcher = HeldPull(None, lambda: False)
    puller.watch(("t", 0), 5, watcher)
    puller.wake_held()
    assert not watcher.woken.done()
    page[Slot.REPUT_PID] = page[Slot.RESUMED_BY] = 8
    puller.wake_held()
    assert await watcher.woken is Wake.MESSAGE
    assert page.rings == [2], "what is known of the queues is forgotten"


class Hand(SystemClock):
    """A clock whose time the test sets."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


async def test_a_pull_is_woken_by_its_message_though_later_ones_are_not_confirmed() -> None:
    """The log went on to 1000 when the pull was held, and the group confirmed no more than 900,
    where its message was: the pull was held to its time-out."""
    end, clock = [PhysicalOffset(500)], Hand()
    puller = puller_of(
        Store(0, 5), dispatched=lambda: end[0], known={("t", 0): QueueOffset(9)}, clock=clock
    )
    clock.now_s += pull.WAKE_EARLY_S
    puller.wake_held()
    watcher = HeldPull(None, lambda: False)
    puller.watch(("t", 0), 5, watcher)
    end[0] = PhysicalOffset(900)
    puller.wake_held()
    assert not watcher.woken.done(), "each wake-up reads the queue, so they are limited"
    clock.now_s += pull.WAKE_EARLY_S
    puller.wake_held()
    assert await watcher.woken is Wake.MESSAGE
