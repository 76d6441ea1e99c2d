"""Messages read from the timer's queue: their due times, and the messages that they replace.

Most messages only wait. A carried copy replaces the message that it names. In a store that RocketMQ
used, a message may also be one that was put back, which replaces the earlier one, or a
cancellation. Copies that RocketMQ appended show which messages it has delivered. Step before:
dispatch wrote the units. Step after: ``timer_queue`` puts the messages into the sorted file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

from services.broker.delay.origins import Copy
from services.broker.delay.pending_times import Pending, PendingTimes
from services.broker.delay.progress import Progress, Time
from services.broker.delay.slices import Entry, read_entry
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueueReader
from shared.files.queue_math import is_filler
from shared.state.values import TimerMark
from tidemark.formats import delay
from tidemark.formats.delay import PRECISION_MS, TIMER_LEVEL, Identity
from tidemark.formats.queue_unit import Unit
from tidemark.offsets import PhysicalOffset

UNITS_AT_ONCE: Final = 1024


class TimerMessages:
    """Messages of the queue that were read in one step."""

    def __init__(self, log_reader: CommitLogReader) -> None:
        self._log = log_reader
        self.rows: list[Pending] = []
        """Waiting messages."""
        self.identities: list[tuple[int, int, Identity]] = []
        """Their due time, queue offset and identity, if earlier cancellations are stored."""
        self.replaced: list[int] = []
        """Queue offsets of messages that carried copies replace."""
        self.rolled: dict[int, dict[Identity, list[int]]] = {}
        """Due time → identity → queue offsets of messages that RocketMQ put back."""
        self.cancelled: dict[int, set[bytes]] = {}
        """``TIMER_OUT_MS`` → keys of cancellations."""
        self.undated: list[int] = []
        """Queue offsets of messages without a due time."""

    def add(
        self,
        number: int,
        unit: Unit,
        readable: PhysicalOffset,
        progress: Progress,
        *,
        may_be_cancelled: bool,
    ) -> None:
        """Classify the message at that queue offset, and add it."""
        entry = Entry(0, TIMER_LEVEL, number, unit.physical_offset, unit.size, None)
        stored = read_entry(self._log, entry, readable)
        if stored is None:
            return
        origin = delay.origin_of(stored.properties)
        if origin is not None and origin.level == TIMER_LEVEL:
            self.replaced.append(origin.queue_offset)
        cancellation = delay.cancellation_of(stored.properties)
        if cancellation is not None:
            self.cancelled.setdefault(cancellation.out_ms, set()).add(cancellation.key)
            return
        due_ms = delay.timer_due_ms(stored.properties)
        if due_ms is None:
            self.undated.append(number)
            return
        was_put_back = delay.is_out_of_wheel(stored.properties)
        identity = None
        if was_put_back or may_be_cancelled:
            identity = delay.identity_of(stored.properties)
        if identity is not None and was_put_back:
            self.rolled.setdefault(due_ms, {}).setdefault(identity, []).append(number)
        if not progress.is_done(due_ms, number):
            self.rows.append(Pending(due_ms, number, unit.physical_offset, unit.size))
            if identity is not None and may_be_cancelled:
                self.identities.append((due_ms, number, identity))

    def apply_rocketmqs(self, times: PendingTimes, readable: PhysicalOffset) -> None:
        """Apply the messages that RocketMQ put back, and its cancellations.

        RocketMQ puts a message with a distant due time back into the queue when its window ends:
        the new message replaces the earlier one. A cancellation applies to every message of its
        slot and unique id, even to later ones, because a message may be put back after its
        cancellation.
        """
        times.add_cancelled(
            [(out_ms, key) for out_ms, keys in self.cancelled.items() for key in keys]
        )
        for due_ms, rolled in self.rolled.items():
            earlier = self._of_identities(times, due_ms, due_ms, readable, rolled.__contains__)
            for identity, numbers in rolled.items():
                rows = iter(earlier.get(identity, ()))
                for number in numbers:
                    row = next(rows, None)
                    if row is not None and row.queue_offset < number:
                        times.remove([row])
        for out_ms, keys in self.cancelled.items():
            last_ms = out_ms + PRECISION_MS
            matches = partial(_is_in, keys)
            matching = self._of_identities(times, out_ms + 1, last_ms, readable, matches)
            for rows_of_one in matching.values():
                times.remove(rows_of_one)
        for due_ms, number, identity in self.identities:
            if times.is_cancelled(delay.slot_ms(due_ms), identity.keys):
                times.remove_at(number)

    def _of_identities(
        self,
        times: PendingTimes,
        first_ms: int,
        last_ms: int,
        readable: PhysicalOffset,
        matches: Callable[[Identity], bool],
    ) -> dict[Identity, list[Pending]]:
        """Return waiting messages that match and are due in [first_ms, last_ms], by identity and in
        queue order."""
        found: dict[Identity, list[Pending]] = {}
        after: Time = (first_ms, -1)
        while rows := times.after(*after, UNITS_AT_ONCE):
            for row in rows:
                if row.due_ms > last_ms:
                    break
                stored = read_entry(self._log, entry_of(row), readable)
                identity = None if stored is None else delay.identity_of(stored.properties)
                if identity is not None and matches(identity):
                    found.setdefault(identity, []).append(row)
            after = rows[-1][:2]
            if after[0] > last_ms:
                break
        for each in found.values():
            each.sort(key=lambda row: row.queue_offset)
        return found


def offsets_of_copies(
    log_reader: CommitLogReader,
    queue: ConsumeQueueReader,
    copies: Mapping[Copy, int],
    mark: TimerMark,
    readable: PhysicalOffset,
) -> dict[int, int | None]:
    """Return the due times, by queue offset, of the messages whose copies RocketMQ has appended.

    copies: number of copies per identity; if more messages than that have the identity, the rest
    are left out. mark: progress of the timer; the messages before it are known to be delivered
    and are left out, too.
    """
    found: dict[Copy, list[int]] = {}
    at = int(queue.min_offset(log_reader.min_offset))
    end = int(queue.max_offset(readable))
    while copies and at < end:
        units = queue.units(at, min(UNITS_AT_ONCE, end - at), readable)
        for number, unit in enumerate(units, at):
            if is_filler(unit.physical_offset, unit.size):
                continue
            entry = Entry(0, TIMER_LEVEL, number, unit.physical_offset, unit.size, None)
            stored = read_entry(log_reader, entry, readable)
            due_ms = None if stored is None else delay.timer_due_ms(stored.properties)
            if stored is None or due_ms is None:
                continue
            identity = delay.identity_of(stored.properties)
            if identity is None or (copy := Copy(due_ms, identity)) not in copies:
                continue
            same = found.setdefault(copy, [])
            if same and delay.is_out_of_wheel(stored.properties):
                del same[0]  # RocketMQ has replaced that message by this one
            if not mark.passed(due_ms, number):
                same.append(number)
        at = at + len(units) if units else min(end, int(queue.roll_next(at)))
    return {
        number: copy.due_ms for copy, numbers in found.items() for number in numbers[: copies[copy]]
    }


def entry_of(row: Pending) -> Entry:
    """Return the entry of a waiting message."""
    return Entry(row.due_ms, TIMER_LEVEL, row.queue_offset, row.physical_offset, row.size, row)


def _is_in(keys: Collection[bytes], identity: Identity) -> bool:
    return any(key in keys for key in identity.keys)
