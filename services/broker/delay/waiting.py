"""All waiting messages and the due ones; does the disk I/O, in the delay thread.

This class combines the queues of the levels and of the timer. Due messages are returned as slices,
each of which is one append. ``delivery`` then appends a slice and moves the ``Progress``, or puts
the slice back; it changes the progress only while the thread is idle. Every method blocks, and
raises CorruptRecord or DamagedFile for a damaged log or queue.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from services.broker.delay import listing, origins, timing_wheel
from services.broker.delay.level_queues import LevelQueues
from services.broker.delay.listing import ListTime, Page
from services.broker.delay.progress import NOTHING_FOUND, Progress, Time
from services.broker.delay.slices import Entry, Slice, Slices
from services.broker.delay.timer_messages import offsets_of_copies
from services.broker.delay.timer_queue import TimerQueue
from services.broker.state.wheel_files import WheelFiles
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.files.index import IndexReader
from shared.state.values import DelayState, TimerMark
from tidemark.errors import StoreError
from tidemark.formats import delay
from tidemark.formats.delay import TIMER_LEVEL, TIMER_QUEUE, TIMER_TOPIC
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.nack import RETRY_PREFIX
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

BATCH_COUNT_MAX: Final = 4096
"""Messages delivered between two scans."""
BATCH_BYTES_MAX: Final = 8 << 20
SAME_ID_MAX: Final = 64
"""Maximum number of messages read for one unique id; a sender that retries makes a few."""
CARRY_COUNT_MAX: Final = 1024
"""Messages carried between two deliveries."""


class Ends(NamedTuple):
    """Readable ends of the log."""

    dispatched: PhysicalOffset
    """End of the part that has units."""
    flushed: PhysicalOffset
    """End of the part on disk, beyond which the sorted file must have no message."""

    @property
    def kept(self) -> PhysicalOffset:
        """Return the end of the part that has units and survives a crash."""
        return min(self.dispatched, self.flushed)


class Scan(NamedTuple):
    """The result of reading all queues."""

    slices: Sequence[Slice]
    """Due messages in the order of their due times: to be appended, or put back."""
    more: bool
    """There may be more due or unread messages: scan again at once."""
    next_due_ms: int | None
    """Due time of the next message that is in no slice; None: none waits."""
    seen: Mapping[int, int]
    """Level → end of its queue at this reading; the timer's too."""
    oldest: PhysicalOffset | None
    """Lower bound of the records that wait or are in a slice; None: none."""
    timer_count: int | None
    """Number of messages that wait in the timer's queue, without the slices; None: unknown."""
    first: Time | None
    """The first due message of these."""
    read_to: int
    """End of the part of the timer's queue that was read, as a queue offset."""
    timer_is_known: bool
    """Whether the timer's queue is read far enough to know what is due."""
    stands_still: StoreError | None
    """Lasting reason why the timer's queue is not delivered."""


class Waiting:
    """The queues of the delay topics. One thread uses it."""

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
        """log_reader, queues: the readers of the delay thread, which the other arguments use
        too."""
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
        """Find the delivered messages.

        Returns the progress, which the caller moves from now on, and the end of the record of the
        last checkpoint. state: the progress in the log's records. levels: all levels in which
        messages ever waited, including TIMER_LEVEL; if empty, nothing is read.
        """
        found, start = NOTHING_FOUND, ends.dispatched
        if levels:
            start = origins.last_checkpoint(self._queues, self._log, ends.dispatched)
            copies: Counter[origins.Copy] = Counter()
            found = origins.find_origins(
                self._log,
                start,
                ends.dispatched,
                rocketmq_from_ms=state.timer.due_ms - origins.CHECK_IS_LATE_MS,
                copies=copies,
            )
            if copies:
                queue = self._queues.get(TIMER_TOPIC, TIMER_QUEUE)
                of_copies = offsets_of_copies(self._log, queue, copies, state.timer, ends.kept)
                found = found._replace(timer={**of_copies, **found.timer})
            log.info(
                "delivered messages were found in the log",
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
        """Write the timing wheel for a RocketMQ broker (``timing_wheel.write``)."""
        timing_wheel.write(self._wheel, self._timer, self._progress, ends.kept, now_ms)

    def scan(self, ends: Ends, now_ms: int) -> Scan:
        """Read new messages, and make slices of due ones, which no longer count as waiting."""
        progress = self._progress
        more = self._timer.take_in(progress, ends.kept)
        # Only before the first delivery: later, copies may not be on disk yet, and ``commit`` does
        # it.
        if not self._wheel.was_noted:
            timing_wheel.note_lowest(self._wheel, self._timer)
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
            # The file may lack a cancellation whose commit was interrupted.
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
        return Scan(
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
        """Return slices that carry some of the messages below physical_offset; [] if there are
        none.

        None: the timer's queue is not fully read yet; call again. Raises DiskFull or FileNotReady
        if its sorted file cannot be opened or filled: retention must not wait for a file that
        itself waits for free space.
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
        if not self._timer_is_known(ends):  # lost during the call: an empty result proves nothing
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
        """Put slices that were not appended back among the waiting messages."""
        for each in slices:
            self._timer.put_back(each.rows)

    def find(self, unique_id: str, topic: str | None, ends: Ends, now_ms: int) -> list[Entry]:
        """Return the waiting messages of that id that are not cancelled.
        topic: restricts them to this topic; None: any but the retry topics, which no sender
        uses."""
        self._timer.take_in(self._progress, ends.kept)
        entries = (
            self._waits(stored, ends, now_ms) for stored in self._sent_as(unique_id, topic, ends)
        )
        return [entry for entry in entries if entry is not None]

    def find_cancelled(self, unique_id: str, topic: str | None, ends: Ends) -> list[int]:
        """Return due times of cancelled messages of that id; they are known until they are due."""
        cancelled = self._progress.cancelled
        places = (
            (delay.level_of(stored), stored.queue_offset)
            for stored in self._sent_as(unique_id, topic, ends)
        )
        return [cancelled[place] for place in places if place in cancelled]

    def _sent_as(self, unique_id: str, topic: str | None, ends: Ends) -> Iterator[Record]:
        """Return the records of that id that wait, or waited; topic: see ``find``."""
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
        """Return the entry of a record; None if it does not wait."""
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
        """Return a page of messages that are due after a time, by due time."""
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
        """Remove cancelled messages."""
        self._timer.remove([entry.row for entry in entries if entry.row is not None])

    def commit(self) -> None:
        """Commit changes whose records are on disk, up to the last append."""
        self._timer.commit()
        timing_wheel.note_lowest(self._wheel, self._timer)

    def let_go(self) -> None:
        """Open all files again, without mappings of deleted ones."""
        self._index.close()
        self._queues.forget()
        self._log.refresh()

    def close(self) -> None:
        """Close files and mappings."""
        self._timer.close()
        self._index.close()
        self._queues.forget()
        self._log.close()


def _time(entry: Entry) -> tuple[int, int, int]:
    return entry.due_ms, entry.level, entry.queue_offset


def _is_meant(waits_for: str, topic: str | None) -> bool:
    return not waits_for.startswith(RETRY_PREFIX) if topic is None else waits_for == topic


def _first(entries: Sequence[Entry]) -> list[Entry]:
    """Return as many entries as are delivered at a time."""
    chosen: list[Entry] = []
    size = 0
    for entry in entries[:BATCH_COUNT_MAX]:
        size += entry.size
        if chosen and size > BATCH_BYTES_MAX:
            break
        chosen.append(entry)
    return chosen
