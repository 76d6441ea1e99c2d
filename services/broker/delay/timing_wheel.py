"""The timing wheel that this broker writes for a RocketMQ broker when it stops.

RocketMQ delivers timed messages from its own files. At a stop the sorted file of the timer's queue
is written in their format, so that RocketMQ can continue with the store. Step before: ``waiting``,
after the last delivery. Step after: ``services.broker.state.wheel_files`` writes the files.
"""

from __future__ import annotations

import logging
import sqlite3
from typing import Final

from services.broker.delay.progress import Progress
from services.broker.delay.timer_queue import TimerQueue
from services.broker.state.wheel_files import WheelFiles
from tidemark.errors import StoreError
from tidemark.formats import delay, timer_log
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

WHEEL_COUNT_MAX: Final = 1_000_000
"""Maximum number of messages written for RocketMQ at a stop: some seconds, 52 MB."""
READ_AT_STOP_MAX: Final = 32
"""Steps in which the timer's queue is read at a stop: half a million messages, some seconds."""
OVERDUE_MAX_MS: Final = 6 * 24 * 3600 * 1000
"""RocketMQ reads slots of the last seven days. It delivers older ones from the queue instead."""


def write(
    wheel: WheelFiles, timer: TimerQueue, progress: Progress, kept: PhysicalOffset, now_ms: int
) -> None:
    """Write the timing wheel from which a RocketMQ broker can continue with timed messages.

    All deliveries are on disk, and delivery has ended. Without the sorted file, or with more than
    WHEEL_COUNT_MAX messages, nothing is written. kept: end of the part of the log that has units
    and survives a crash.
    """
    # The time for reading is limited, so that a stop does not wait for a long queue.
    for _ in range(READ_AT_STOP_MAX):
        if not timer.take_in(progress, kept):
            break
    # The messages read are committed. Otherwise the next start reads them again, and may again be
    # stopped before the end. The log records that they depend on are on disk.
    timer.commit()
    count = timer.count
    if not timer.read_to or count is None:
        return
    if not timer.is_whole:
        _warn_of_wheel("are not written: not all that waits has been read yet", None)
        return
    last = timer.last(kept) if count else None
    if count and last is None:
        _warn_of_wheel("are not written: the last message of the queue is not known", None)
        return  # RocketMQ continues after the message of the last unit, so it must be the last
    if count > WHEEL_COUNT_MAX:
        _warn_of_wheel(f"are not written for more than {WHEEL_COUNT_MAX} messages", None)
        return
    waiting = (
        timer_log.Waiting(row.due_ms, row.physical_offset, row.size)
        for row in timer.all()
        if not progress.is_done(row.due_ms, row.queue_offset)
    )
    # An overdue message has the slot of its own time, and RocketMQ begins there. Otherwise: 1. It
    # gets the present slot. 2. RocketMQ is killed before it delivers that slot, and its timercheck
    # covers everything earlier. 3. We do not deliver the message either.
    first = timer.first()
    now_ms -= now_ms % delay.PRECISION_MS
    start_ms = now_ms if first is None else min(now_ms, delay.slot_ms(first[0]))
    if start_ms < now_ms - OVERDUE_MAX_MS:
        _warn_of_wheel("are not written: RocketMQ does not read slots of that age", None)
        return
    try:
        wheel.write(waiting, last, timer.read_to, now_ms=now_ms, start_ms=start_ms)
    except (sqlite3.Error, OSError, StoreError) as error:
        _warn_of_wheel("could not be written", error)
        wheel.withdraw()
        note_lowest(wheel, timer)
        return
    log.info(
        "a RocketMQ broker can continue with the waiting timer messages",
        extra={"event": "timer-wheel-written", "messages": count},
    )


def note_lowest(wheel: WheelFiles, timer: TimerQueue) -> None:
    """Note the queue offset below which nothing waits, once it is known."""
    lowest = timer.lowest()
    if lowest:
        wheel.note(lowest)


def _warn_of_wheel(problem: str, error: Exception | None) -> None:
    log.warning(
        "the files of RocketMQ's timer %s; a RocketMQ broker that opens the store now would "
        "deliver again what was delivered",
        problem,
        extra={"event": "timer-wheel-not-written", "detail": None if error is None else str(error)},
    )
