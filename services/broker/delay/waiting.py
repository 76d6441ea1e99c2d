"""Everything that waits, and what of it is due: the side of the disk, in the delay's one thread.

Puts the levels' queues and the timer's together. Whatever is found due comes back as slices, each
of them one append. Nothing here is decided for good: ``delivery`` appends a slice and moves the
``Progress``, or puts the slice back; it changes the progress only while nothing runs here. Every
method blocks, and raises CorruptRecord or DamagedFile where the log or a queue cannot be trusted.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from services.broker.delay import listing, origins
from services.broker.delay.level_queues import LevelQueues
from services.broker.delay.listing import ListTime, Page
from services.broker.delay.progress import NOTHING_FOUND, Progress, Time
from services.broker.delay.slices import Entry, Slice, Slices
from services.broker.delay.timer_queue import TimerQueue
from services.broker.state.wheel_files import WheelFiles
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.files.index import IndexReader
from shared.state.values import DelayState, TimerMark
from tidemark.errors import StoreError
from tidemark.formats import delay, timer_log
from tidemark.formats.delay import TIMER_LEVEL, TIMER_TOPIC
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.nack import RETRY_PREFIX
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

BATCH_COUNT_MAX: Final = 4096
"""Messages delivered between two looks at what is due."""
BATCH_BYTES_MAX: Final = 8 << 20
SAME_ID_MAX: Final = 64
"""Messages of one unique id that are looked at: a sender that retries makes a few."""
WHEEL_COUNT_MAX: Final = 1_000_000
"""Messages that wait and are written for RocketMQ as delivery ends: some seconds, 52 MB."""
READ_AT_STOP_MAX: Final = 32
"""Times that the timer's queue is read on at a stop: half a million messages, some seconds."""
OVERDUE_MAX_MS: Final = 6 * 24 * 3600 * 1000
"""RocketMQ reads slots of the last seven days. It delivers what is older from the queue instead."""
CARRY_COUNT_MAX: Final = 1024
"""Messages carried between two deliveries."""


class Ends(NamedTuple):
    """How far the log can be read now."""

    dispatched: PhysicalOffset
    """End of what has units."""
    flushed: PhysicalOffset
    """End of what is on disk: the sorted file must not know of more."""

    @property
    def kept(self) -> PhysicalOffset:
        """End of what has units and no crash can take back."""
        return min(self.dispatched, self.flushed)


class Look(NamedTuple):
    """What a look at everything found."""

    slices: Sequence[Slice]
    """What is due, in the order of its times: to be appended, or put back."""
    more: bool
    """There may be more that is due or to be read: look again at once."""
    next_due_ms: int | None
    """When the next message is due that is in no slice; None: none waits."""
    seen: Mapping[int, int]
    """Level -> queue offset up to which its queue was there to be looked at, the timer's too."""
    oldest: PhysicalOffset | None
    """No record that waits, or is in a slice, lies below; None: none waits."""
    timer_count: int | None
    """How many wait in the timer's queue, without the slices; None: not known now."""
    first: Time | None
    """Of these the one that is due first."""
    read_to: int
    """Queue offset up to which the timer's queue has been read."""
    timer_is_known: bool
    """Whether that is far enough to say what of it is due."""
    stands_still: StoreError | None
    """Why nothing of the timer's queue is delivered, where that lasts."""


class Waiting:
    """The queues of the delay topics. For one thread."""

    def __init__(
        self,
        log_reader: CommitLogReader,
        queues: ConsumeQueues,
        level_queues: LevelQueues,
        timer_queue: TimerQueue,
        slices: Slices,
        index: IndexReader,
        wheel: WheelFiles,
    ) -> None:
        """log_reader, queues: those of this thread, which the others use too."""
        self._log = log_reader
        self._queues = queues
        self._levels = level_queues
        self._timer = timer_queue
        self._slices = slices
        self._index = index
        self._wheel = wheel
        self._progress = Progress(DelayState())

    def recover(
        self, state: DelayState, levels: Sequence[int], ends: Ends
    ) -> tuple[Progress, PhysicalOffset]:
        """Find out what is delivered; the progress, to be moved by the caller from now on, and
        the end of what it was told in.

        state: as the records of the log tell it. levels: all in which messages ever waited,
        TIMER_LEVEL among them; of none nothing is read.
        """
        found, start = NOTHING_FOUND, ends.dispatched
        if levels:
            start = origins.last_told(self._queues, self._log, ends.dispatched)
            copies: Counter[origins.Copy] = Counter()
            found = origins.find_origins(
                self._log,
                start,
                ends.dispatched,
                rocketmq_from_ms=state.timer.due_ms - origins.CHECK_IS_LATE_MS,
                copies=copies,
            )
            if copies:
                of_copies = self._timer.of_copies(copies, state.timer, ends.kept)
                found = found._replace(timer={**of_copies, **found.timer})
            log.info(
                "it is known what has been delivered",
                extra={
                    "event": "delay-recovered",
                    "start_offset": start,
                    "end_offset": ends.dispatched,
                    "levels": dict(found.levels),
                    "timer_messages": len(found.timer),
                },
            )
        progress = self._progress = Progress(state, found)
        for level in levels:
            if level != TIMER_LEVEL:
                at = progress.levels.get(level, 0)
                progress.levels[level] = self._levels.clamped(level, at, ends.dispatched)
        if (
            progress.timer == TimerMark()
            and not found.timer
            and self._timer.first_is_foreign(ends.kept)
        ):
            log.warning(
                "RocketMQ left no config/timercheck: what its timer has delivered is not known, "
                "and is delivered again",
                extra={"event": "timer-progress-unknown", "messages": self._timer.end(ends.kept)},
            )
        self._timer.open(progress, ends.kept)
        self._wheel.withdraw()
        return progress, start

    def write_wheel(self, ends: Ends, now_ms: int) -> None:
        """Let a RocketMQ broker that opens the store go on with what waits for any time.

        Everything delivered so far is on disk, and nothing is delivered any more. Without the
        sorted file, or with more that waits than WHEEL_COUNT_MAX, nothing is written.
        """
        progress = self._progress
        # A stop must not wait for a queue of any length.
        for _ in range(READ_AT_STOP_MAX):
            if not self._timer.take_in(progress, ends.kept):
                break
        # What was read is kept: otherwise the next start reads it again, and may be stopped before
        # its end each time. Everything that it follows from is on disk.
        self._timer.commit()
        count = self._timer.count
        if not self._timer.read_to or count is None:
            return
        if not self._timer.is_whole:
            _warn_of_wheel("are not written: not all that waits has been read yet", None)
            return
        last = self._timer.last(ends.kept) if count else None
        if count and last is None:
            _warn_of_wheel("are not written: the last message of the queue is not known", None)
            return  # RocketMQ goes on behind the last unit's message: it has to be the queue's last
        if count > WHEEL_COUNT_MAX:
            _warn_of_wheel(f"are not written for more than {WHEEL_COUNT_MAX} messages", None)
            return
        waiting = (
            timer_log.Waiting(row.due_ms, row.physical_offset, row.size)
            for row in self._timer.all()
            if not progress.is_done(row.due_ms, row.queue_offset)
        )
        # An overdue message gets the slot of its own time, and RocketMQ begins there. Otherwise:
        # 1. it gets the present slot; 2. RocketMQ is killed before it delivers that slot, and by
        # its timercheck everything earlier is delivered; 3. we do not deliver the message either.
        first = self._timer.first()
        now_ms -= now_ms % delay.PRECISION_MS
        start_ms = now_ms if first is None else min(now_ms, delay.slot_ms(first[0]))
        if start_ms < now_ms - OVERDUE_MAX_MS:
            _warn_of_wheel("are not written: RocketMQ does not read slots of that age", None)
            return
        try:
            self._wheel.write(waiting, last, self._timer.read_to, now_ms=now_ms, start_ms=start_ms)
        except (sqlite3.Error, OSError, StoreError) as error:
            _warn_of_wheel("could not be written", error)
            self._wheel.withdraw()
            self._note()
            return
        log.info(
            "a RocketMQ broker can go on with what waits for any time",
            extra={"event": "timer-wheel-written", "messages": count},
        )

    def look(self, ends: Ends, now_ms: int) -> Look:
        """Read what has come, and make slices of what is due; they wait no more."""
        progress = self._progress
        more = self._timer.take_in(progress, ends.kept)
        # Before the first delivery only: afterwards copies may not be on disk yet, and ``commit``
        # does it.
        if not self._wheel.was_noted:
            self._note()
        found: list[Entry] = []
        seen: dict[int, int] = {}
        next_dues: list[int] = []
        oldest: list[PhysicalOffset] = []
        for level in sorted(progress.levels):
            head = self._levels.head(
                level,
                progress.levels[level],
                dispatched=ends.dispatched,
                now_ms=now_ms,
                is_cancelled=progress.is_cancelled,
                count_max=BATCH_COUNT_MAX,
            )
            found += head.due
            seen[level] = head.end
            if head.next_due_ms is not None:
                next_dues.append(head.next_due_ms)
            if head.oldest is not None:
                oldest.append(head.oldest)
        if (timer_oldest := self._timer.oldest(ends.kept)) is not None:
            oldest.append(timer_oldest)
        for entry in self._timer.due(now_ms, BATCH_COUNT_MAX):
            # Of a cancellation that was cut short, the file may not know.
            done = progress.is_done(entry.due_ms, entry.queue_offset)
            found.append(entry._replace(passed_over=done))
        chosen = _first(sorted(found, key=_time))
        slices = self._slices.delivering(chosen, ends.dispatched, now_ms)
        for each in slices:
            self._timer.remove(each.rows)
        first = self._timer.first()
        if first is not None:
            next_dues.append(first[0])
        seen[TIMER_LEVEL] = self._timer.read_to
        return Look(
            slices,
            more or len(chosen) < len(found) or len(chosen) == BATCH_COUNT_MAX,
            min(next_dues, default=None),
            seen,
            min(oldest, default=None),
            self._timer.count if self._timer.end(ends.kept) else 0,
            first,
            self._timer.read_to,
            self._timer_is_known(ends),
            self._timer.stands_still,
        )

    def to_carry(
        self, physical_offset: PhysicalOffset, ends: Ends, now_ms: int
    ) -> list[Slice] | None:
        """Slices that carry some of what lies below physical_offset; [] if nothing does.

        None: the timer's queue has not been read to its end yet: ask again. Raises DiskFull, or
        FileNotReady, if its sorted file cannot be opened, or filled: whoever makes room on a full
        disk must not wait for a file that waits for room.
        """
        progress = self._progress
        if self._timer.take_in(progress, ends.kept) or not self._timer_is_known(ends):
            self._check_can_use_timer()
            return None
        found: list[Entry] = []
        for level in sorted(progress.levels):
            waiting = self._levels.waiting(level, progress.levels[level], ends.dispatched, now_ms)
            for entry in waiting:
                if entry.physical_offset >= physical_offset or len(found) >= CARRY_COUNT_MAX:
                    break
                cancelled = progress.is_cancelled(level, entry.queue_offset)
                found.append(entry._replace(passed_over=cancelled))
        found += self._timer.below(physical_offset, CARRY_COUNT_MAX)
        if not self._timer_is_known(ends):  # lost as it was asked: nothing found is not nothing
            self._check_can_use_timer()
            return None
        slices = self._slices.carrying(found, ends.dispatched)
        for each in slices:
            self._timer.remove(each.rows)
        return slices

    def _check_can_use_timer(self) -> None:
        if self._timer.cannot is not None:
            raise self._timer.cannot

    def _timer_is_known(self, ends: Ends) -> bool:
        return self._timer.is_whole or not self._timer.end(ends.kept)

    def put_back(self, slices: Sequence[Slice]) -> None:
        """Those were not appended: they wait on."""
        for each in slices:
            self._timer.put_back(each.rows)

    def find(self, unique_id: str, topic: str | None, ends: Ends, now_ms: int) -> list[Entry]:
        """The messages of that id that wait and are not cancelled.

        topic: only those for it; None: for any but the retry topics, whose messages nobody sent.
        """
        self._timer.take_in(self._progress, ends.kept)
        entries = (
            self._waits(stored, ends, now_ms) for stored in self._sent_as(unique_id, topic, ends)
        )
        return [entry for entry in entries if entry is not None]

    def find_cancelled(self, unique_id: str, topic: str | None, ends: Ends) -> list[int]:
        """Due times of the messages of that id that are cancelled; known until these are over."""
        cancelled = self._progress.cancelled
        places = (
            (delay.level_of(stored), stored.queue_offset)
            for stored in self._sent_as(unique_id, topic, ends)
        )
        return [cancelled[place] for place in places if place in cancelled]

    def _sent_as(self, unique_id: str, topic: str | None, ends: Ends) -> Iterator[Record]:
        """The records of that id that wait, or waited; topic: as of ``find``."""
        for name in (SCHEDULE_TOPIC, TIMER_TOPIC):
            for stored in self._index.records(
                name,
                unique_id,
                hits_max=SAME_ID_MAX,
                dispatched=ends.dispatched,
                unique_id_only=True,
            ):
                place = delay.real_place(stored.properties)
                if place is not None and _is_meant(place.topic, topic):
                    yield stored

    def _waits(self, stored: Record, ends: Ends, now_ms: int) -> Entry | None:
        """The record as something that waits; None if it does not, or not any more."""
        level, queue_offset = delay.level_of(stored), stored.queue_offset
        if self._progress.is_cancelled(level, queue_offset):
            return None
        if level == TIMER_LEVEL:
            return self._timer.find(queue_offset)
        if queue_offset < self._progress.levels.get(level, 0):
            return None
        found = next(self._levels.waiting(level, queue_offset, ends.dispatched, now_ms), None)
        return found if found is not None and found.queue_offset == queue_offset else None

    def page(
        self, after: ListTime, topic: str | None, count_max: int, ends: Ends, now_ms: int
    ) -> Page:
        """Some of what waits behind a time, by their times."""
        self._timer.take_in(self._progress, ends.kept)
        levels = listing.of_levels(self._levels, self._progress, after, ends.dispatched, now_ms)
        return listing.page(
            [*levels, listing.of_timer(self._timer, after)],
            self._log,
            ends.dispatched,
            topic=topic,
            count_max=count_max,
        )

    def cancelled(self, entries: Sequence[Entry]) -> None:
        """Those are not to be delivered."""
        self._timer.remove([entry.row for entry in entries if entry.row is not None])

    def commit(self) -> None:
        """Everything appended so far is on disk: keep what follows from it."""
        self._timer.commit()
        self._note()

    def _note(self) -> None:
        lowest = self._timer.lowest()
        if lowest:
            self._wheel.note(lowest)

    def let_go(self) -> None:
        """Look at all files anew, and keep none mapped that is gone."""
        self._index.close()
        self._queues.forget()
        self._log.refresh()

    def close(self) -> None:
        """Give files and mappings back."""
        self._timer.close()
        self._index.close()
        self._queues.forget()
        self._log.close()


def _warn_of_wheel(problem: str, error: Exception | None) -> None:
    log.warning(
        "the files of RocketMQ's timer %s; a RocketMQ broker that opens the store now would "
        "deliver again what was delivered",
        problem,
        extra={"event": "timer-wheel-not-written", "detail": None if error is None else str(error)},
    )


def _time(entry: Entry) -> tuple[int, int, int]:
    return entry.due_ms, entry.level, entry.queue_offset


def _is_meant(waits_for: str, topic: str | None) -> bool:
    return not waits_for.startswith(RETRY_PREFIX) if topic is None else waits_for == topic


def _first(entries: Sequence[Entry]) -> list[Entry]:
    """As many as are delivered at a time."""
    chosen: list[Entry] = []
    size = 0
    for entry in entries[:BATCH_COUNT_MAX]:
        size += entry.size
        if chosen and size > BATCH_BYTES_MAX:
            break
        chosen.append(entry)
    return chosen
