"""Commits of a pooled log: shared by a turn of the loop, paced where no sender waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from services.broker.log.committer import Committer
from shared.files.commit_log_appender import CommitLogAppender
from shared.files.write_pool import CommitPace
from shared.runtime.clock import SystemClock
from tidemark.errors import NotServing, WriteFailed
from tidemark.offsets import PhysicalOffset

NEVER = CommitPace(interval_s=3600.0, least_bytes=1, thorough_s=3600.0)
SOON = CommitPace(interval_s=0.005, least_bytes=100, thorough_s=0.02)


class Log:
    """A log in memory whose commits are counted."""

    def __init__(self) -> None:
        self.appended = PhysicalOffset(0)
        self.written = PhysicalOffset(0)
        self.commits: list[int] = []
        self.fault: Exception | None = None

    def commit(self) -> PhysicalOffset:
        if self.fault is not None:
            raise self.fault
        self.commits.append(self.appended)
        self.written = self.appended
        return self.written


@asynccontextmanager
async def committer_of(
    log: Log, pace: CommitPace = NEVER, on_committed: Callable[[], None] = lambda: None
) -> AsyncIterator[Committer]:
    stop = asyncio.Event()
    committer = Committer(
        cast(CommitLogAppender, log), pace, SystemClock(), on_committed=on_committed
    )
    task = asyncio.create_task(committer.run(stop))
    try:
        yield committer
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)


def append(log: Log, committer: Committer, size: int) -> PhysicalOffset:
    log.appended = PhysicalOffset(log.appended + size)
    committer.appended()
    return log.appended


async def test_all_appends_of_one_turn_share_one_commit() -> None:
    log = Log()

    async def sender(committer: Committer) -> None:
        assert await committer.committed(append(log, committer, 1))

    async with committer_of(log) as committer:
        await asyncio.gather(*(sender(committer) for _ in range(64)))
        assert log.commits == [64]


async def test_bytes_without_a_waiting_sender_are_committed_at_the_pace() -> None:
    log, notified = Log(), asyncio.Event()
    async with committer_of(log, SOON, notified.set) as committer:
        append(log, committer, 1)
        await asyncio.wait_for(notified.wait(), 10)
        assert log.commits == [1]


async def test_enough_bytes_do_not_wait_for_the_thorough_commit() -> None:
    log, notified = Log(), asyncio.Event()
    pace = CommitPace(interval_s=0.002, least_bytes=100, thorough_s=3600.0)
    async with committer_of(log, pace, notified.set) as committer:
        append(log, committer, 1)
        await asyncio.sleep(0.01)
        assert log.commits == []
        append(log, committer, 99)
        await asyncio.wait_for(notified.wait(), 10)
        assert log.commits == [100]


async def test_a_commit_made_by_a_flush_releases_its_senders() -> None:
    log = Log()
    async with committer_of(log) as committer:
        future = committer.committed(append(log, committer, 5))
        log.written = log.appended
        committer.flushed()
        assert future.done()
        await asyncio.sleep(0.01)
        assert log.commits == []


# A repeated send that asked for ``memory`` waited for the next flush: the search for stored
# messages had put its bytes into the file, so no commit was due any more.
async def test_bytes_that_were_put_into_the_file_elsewhere_release_their_senders() -> None:
    log = Log()
    async with committer_of(log) as committer:
        early = committer.committed(append(log, committer, 5))
        end = log.commit()
        late = committer.committed(end)
        assert await asyncio.wait_for(early, 10)
        assert await asyncio.wait_for(late, 10)
        assert log.commits == [5]


async def test_a_sender_that_waits_late_is_released_with_later_appends() -> None:
    """A sender of ``disk`` waits for the commit only after its time-out, before it gets
    ``memory``."""
    log = Log()
    async with committer_of(log) as committer:
        early = append(log, committer, 10)
        later = committer.committed(append(log, committer, 5))
        hurried = committer.committed(early)
        assert await asyncio.wait_for(hurried, 10)
        assert log.written >= early
        assert await later


# The second is a mistake of ours: left to the event loop it would be a line in the log, and the
# senders would wait forever.
@pytest.mark.parametrize("fault", [WriteFailed("planted"), ZeroDivisionError("planted")])
async def test_a_failed_commit_ends_the_part_and_fails_all_waiting_senders(
    fault: Exception,
) -> None:
    log = Log()
    log.fault = fault
    committer = Committer(
        cast(CommitLogAppender, log), NEVER, SystemClock(), on_committed=lambda: None
    )
    task = asyncio.create_task(committer.run(asyncio.Event()))
    waiter = committer.committed(append(log, committer, 10))
    with pytest.raises(type(fault)):
        await task
    with pytest.raises(NotServing):
        await waiter
    with pytest.raises(NotServing):
        await committer.committed(PhysicalOffset(99))


async def test_a_stop_releases_waiting_senders_first() -> None:
    log = Log()
    stop = asyncio.Event()
    committer = Committer(
        cast(CommitLogAppender, log), NEVER, SystemClock(), on_committed=lambda: None
    )
    task = asyncio.create_task(committer.run(stop))
    waiter = committer.committed(append(log, committer, 10))
    stop.set()
    assert await waiter
    await task
