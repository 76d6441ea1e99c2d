"""One flush for all waiting senders; when other bytes are flushed; a failure ends the part."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import cast

import pytest

from services.broker.log.flusher import Flusher, FlushIntervals, due_in_s
from services.broker.metrics import BrokerMetrics
from shared.files.commit_log_appender import CommitLogAppender
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from tests.support.for_each import for_each
from tidemark.errors import FlushFailed, NotServing, WriteFailed
from tidemark.offsets import PhysicalOffset

CONTINUOUS = FlushIntervals(interval_s=0.005)
INTERVAL = FlushIntervals(interval_s=0.5, least_bytes=16_384, thorough_s=10.0)


class Log:
    """A log whose flush can be held, so that a test decides when the disk answers."""

    def __init__(self) -> None:
        self.appended = PhysicalOffset(0)
        self.flushed = PhysicalOffset(0)
        self.flushes: list[int] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.fails = False
        self.reads_late = False
        """Whether a flush that is held takes in what is appended meanwhile."""
        self.began = threading.Event()

    def flush(self) -> PhysicalOffset:
        self.began.set()
        end = self.appended
        self.may_go_on.wait()
        if self.reads_late:
            end = self.appended
        if self.fails:
            raise FlushFailed("planted")
        self.flushes.append(end)
        self.flushed = end
        return end


def flusher_on(log: Log, intervals: FlushIntervals = CONTINUOUS) -> Flusher:
    return Flusher(
        cast(CommitLogAppender, log),
        intervals,
        SystemClock(),
        BrokerMetrics(Registry("broker")),
        on_flushed=lambda: None,
    )


@asynccontextmanager
async def flusher_of(log: Log, intervals: FlushIntervals = CONTINUOUS) -> AsyncIterator[Flusher]:
    stop = asyncio.Event()
    flusher = flusher_on(log, intervals)
    task = asyncio.create_task(flusher.run(stop))
    try:
        yield flusher
    finally:
        stop.set()
        log.may_go_on.set()
        await asyncio.gather(task, return_exceptions=True)


def append(log: Log, flusher: Flusher, size: int) -> PhysicalOffset:
    log.appended = PhysicalOffset(log.appended + size)
    flusher.appended()
    return log.appended


@pytest.mark.parametrize(
    ("unflushed", "waiting", "since_first_s", "since_flush_s", "due"),
    [
        (0, False, 0.0, 99.0, None),
        (0, True, 0.0, 99.0, None),
        (1, True, 0.0, 0.0, 0.0),
        (1, False, 0.0, 99.0, 0.005),
        (1, False, 0.003, 99.0, 0.002),
        (1, False, 9.0, 0.0, 0.0),
    ],
)
def test_continuous_pace(
    unflushed: int, waiting: bool, since_first_s: float, since_flush_s: float, due: float | None
) -> None:
    found = due_in_s(
        CONTINUOUS,
        unflushed=unflushed,
        waiting=waiting,
        since_first_s=since_first_s,
        since_flush_s=since_flush_s,
    )
    assert found == (due if due is None else pytest.approx(due))


@pytest.mark.parametrize(
    ("unflushed", "waiting", "since_flush_s", "due"),
    [
        (16_384, False, 0.1, 0.4),
        (16_384, False, 0.6, 0.0),
        (16_383, False, 0.6, 9.4),
        (1, False, 11.0, 0.0),
        (1, True, 0.0, 0.0),
    ],
)
def test_interval_pace_is_rocketmqs(
    unflushed: int, waiting: bool, since_flush_s: float, due: float
) -> None:
    found = due_in_s(
        INTERVAL,
        unflushed=unflushed,
        waiting=waiting,
        since_first_s=0.0,
        since_flush_s=since_flush_s,
    )
    assert found == pytest.approx(due)


async def test_senders_that_arrive_during_a_flush_share_the_next_one() -> None:
    log = Log()
    async with flusher_of(log) as flusher:
        log.may_go_on.clear()
        first = flusher.durable(append(log, flusher, 10))
        await asyncio.to_thread(log.began.wait)
        later = [flusher.durable(append(log, flusher, 10)) for _ in range(20)]
        assert log.flushes == [], "appends go on meanwhile"
        log.may_go_on.set()
        await asyncio.gather(first, *later)
        assert log.flushes == [10, 210]


async def test_senders_that_are_woken_together_share_a_flush() -> None:
    # The first of them once started a flush of its own, and the other 63 waited for two.
    log = Log()
    released: list[int] = []

    async def sender(number: int, flusher: Flusher) -> None:
        for turn in range(3):
            await flusher.durable(append(log, flusher, 1))
            released.append(64 * turn + number)

    async with flusher_of(log) as flusher:
        await asyncio.gather(*(sender(number, flusher) for number in range(64)))
        assert log.flushes == [64, 128, 192]
        assert released == list(range(192)), "in the order of their bytes"


async def test_senders_that_keep_coming_do_not_hold_a_flush_back() -> None:
    log = Log()
    stop = asyncio.Event()

    async def one_more_each_turn(flusher: Flusher) -> None:
        while not stop.is_set():
            flusher.durable(append(log, flusher, 1))
            await asyncio.sleep(0)

    async with flusher_of(log) as flusher:
        coming = asyncio.create_task(one_more_each_turn(flusher))
        await flusher.durable(append(log, flusher, 1))
        stop.set()
        await coming


async def test_the_next_flush_starts_without_a_new_append_if_a_sender_waits() -> None:
    log = Log()
    async with flusher_of(log, FlushIntervals(interval_s=3600.0)) as flusher:
        log.may_go_on.clear()
        first = flusher.durable(append(log, flusher, 10))
        await asyncio.to_thread(log.began.wait)
        second = flusher.durable(append(log, flusher, 10))
        log.may_go_on.set()
        assert (await first, await second) == (True, True)


async def test_a_sender_times_out_while_the_disk_hangs() -> None:
    log = Log()
    async with flusher_of(log) as flusher:
        log.may_go_on.clear()
        now = SystemClock().monotonic()
        patient = flusher.durable(append(log, flusher, 10), now + 3600)
        hurried = [flusher.durable(append(log, flusher, 10), now + 0.01) for _ in range(3)]
        assert await asyncio.gather(*hurried) == [False] * 3
        assert not patient.done()
        log.may_go_on.set()
        assert await patient


async def test_by_interval_enough_bytes_do_not_wait_for_the_thorough_flush() -> None:
    # The timer was set by the first byte, to the thorough flush, and no later one moved it.
    log = Log()
    async with flusher_of(
        log, FlushIntervals(interval_s=0.002, least_bytes=100, thorough_s=3600)
    ) as flusher:
        append(log, flusher, 1)
        await asyncio.sleep(0.01)
        assert log.flushes == []
        append(log, flusher, 99)
        assert await asyncio.to_thread(log.began.wait, 5)


async def test_bytes_that_a_running_flush_took_along_do_not_hide_later_ones() -> None:
    # They counted as not flushed yet, with nothing left to flush: no timer was set, and none for
    # the bytes after them either. Consumers saw nothing until a send asked for ack=disk.
    log = Log()
    log.reads_late = True
    async with flusher_of(log) as flusher:
        log.may_go_on.clear()
        append(log, flusher, 10)
        await asyncio.to_thread(log.began.wait)
        append(log, flusher, 10)
        first = flusher.durable(PhysicalOffset(20))
        log.may_go_on.set()
        await first
        await asyncio.sleep(0)
        log.began.clear()
        append(log, flusher, 10)
        assert await asyncio.to_thread(log.began.wait, 5), "no sender waits"


async def test_a_flushed_offset_is_reached_at_once() -> None:
    log = Log()
    async with flusher_of(log) as flusher:
        await flusher.durable(append(log, flusher, 10))
        assert flusher.durable(PhysicalOffset(10)).result() is True


async def test_a_cancelled_sender_leaves_its_task_and_its_bytes_are_flushed() -> None:
    log = Log()
    async with flusher_of(log) as flusher:
        log.may_go_on.clear()

        async def send() -> None:
            await flusher.durable(append(log, flusher, 10))

        task = asyncio.create_task(send())
        await asyncio.to_thread(log.began.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        log.may_go_on.set()
        assert await flusher.durable(append(log, flusher, 10))
        assert log.flushed == 20


async def test_a_failed_flush_ends_the_part_and_fails_all_waiting_senders() -> None:
    log = Log()
    log.fails = True
    flusher = flusher_on(log)
    task = asyncio.create_task(flusher.run(asyncio.Event()))
    waiter = flusher.durable(append(log, flusher, 10))
    with pytest.raises(NotServing, match="may not be on disk"):
        await waiter
    with pytest.raises(FlushFailed):
        await task
    with pytest.raises(NotServing):
        await flusher.durable(PhysicalOffset(99))


async def test_an_error_of_our_own_in_the_flush_ends_the_part_too() -> None:
    log = Log()

    def broken() -> PhysicalOffset:
        raise KeyError("planted")

    log.flush = broken  # type: ignore[method-assign]
    flusher = flusher_on(log)
    append(log, flusher, 10)
    with pytest.raises(KeyError):
        await flusher.run(asyncio.Event())


async def test_no_sender_is_released_when_the_part_is_cancelled_in_a_flush() -> None:
    log = Log()
    flusher = flusher_on(log)
    task = asyncio.create_task(flusher.run(asyncio.Event()))
    log.may_go_on.clear()
    waiter = flusher.durable(append(log, flusher, 10))
    await asyncio.to_thread(log.began.wait)
    task.cancel()
    release = threading.Timer(0.02, log.may_go_on.set)  # the part waits for the flush in flight
    release.start()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(NotServing):
        await waiter


async def test_stopping_flushes_what_is_left() -> None:
    log = Log()
    stop = asyncio.Event()
    flusher = flusher_on(log, FlushIntervals(interval_s=3600.0))
    task = asyncio.create_task(flusher.run(stop))
    append(log, flusher, 10)
    stop.set()
    await task
    assert log.flushed == 10


async def test_a_failed_write_ends_the_part_although_there_is_nothing_to_flush() -> None:
    log = Log()
    flusher = flusher_on(log)
    task = asyncio.create_task(flusher.run(asyncio.Event()))
    await asyncio.sleep(0)
    flusher.fail(WriteFailed("planted"))
    with pytest.raises(WriteFailed):
        await task


async def test_a_write_that_failed_before_the_part_ran_ends_it_at_once() -> None:
    flusher = flusher_on(Log())
    flusher.fail(WriteFailed("planted"))
    with pytest.raises(WriteFailed):
        await flusher.run(asyncio.Event())


@for_each("seed", range(20))
async def test_all_bytes_are_flushed_and_no_sender_waits_for_ever(seed: int) -> None:
    random = Random(seed)
    log = Log()
    log.reads_late = random.random() < 0.5
    waiting: list[asyncio.Future[bool]] = []
    async with flusher_of(log, FlushIntervals(interval_s=0.001)) as flusher:
        for _ in range(200):
            match random.randrange(5):
                case 0:
                    log.may_go_on.clear()
                case 1:
                    log.may_go_on.set()
                case 2:
                    waiting.append(flusher.durable(append(log, flusher, 1)))
                case 3:
                    append(log, flusher, 1)
                case _:
                    await asyncio.sleep(random.choice([0, 0, 0.0005]))
            if waiting and random.random() < 0.05:
                waiting.pop().cancel()
        log.may_go_on.set()
        assert all(await asyncio.wait_for(asyncio.gather(*waiting), 10))
        flushed = asyncio.Event()
        flusher._on_flushed = flushed.set
        while log.flushed < log.appended:
            await asyncio.wait_for(flushed.wait(), 10)
            flushed.clear()


async def test_a_wait_beyond_the_flushed_offset_flushes_at_once() -> None:
    log = Log()
    async with flusher_of(log, FlushIntervals(interval_s=60.0)) as flusher:
        end = append(log, flusher, 10)
        flusher.hurry()
        async with asyncio.timeout(5):
            await asyncio.to_thread(log.began.wait)
            await flusher.durable(end)
        assert log.flushes == [10]


async def test_a_hurry_while_a_flush_is_in_flight_starts_the_next_one() -> None:
    log = Log()
    log.may_go_on.clear()
    async with flusher_of(log, FlushIntervals(interval_s=60.0)) as flusher:
        append(log, flusher, 10)
        flusher.hurry()
        await asyncio.to_thread(log.began.wait)
        end = append(log, flusher, 10)
        flusher.hurry()
        log.may_go_on.set()
        async with asyncio.timeout(5):
            await flusher.durable(end)
        assert log.flushes == [10, 20]
