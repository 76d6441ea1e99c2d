"""The state of a node of a group, kept up with what becomes confirmed while it is a slave.

Applies state records as reput dispatches them, so that a promotion has only the log's last stretch
left to read: what the master before appended and nobody has confirmed yet is in the log, in no
queue, and counts from the own epoch record on. Before: reput dispatched. After: ``node`` serves
with it, as a slave and then as the master.
"""

from __future__ import annotations

from typing import Final

from services.broker.log.log_context import Readers
from services.broker.log.open_store import OpenStore
from services.broker.log.queue_offsets import Queue
from services.broker.state import state_replay
from shared.state.records import STATE_QUEUE, STATE_TOPIC, EpochRecord, StateRecord
from shared.state.state import BrokerState
from tidemark.formats import native
from tidemark.formats.checkpoint import Slot
from tidemark.formats.record import Checks
from tidemark.formats.scan import Stop
from tidemark.offsets import PhysicalOffset, QueueOffset

APPLIED_AT_ONCE: Final = 256
"""State records taken in between two looks at anything else."""
BEHIND_MAX: Final = 2048
"""Further behind, the newest snapshot is the shorter way."""
WALKED_AT_ONCE: Final = 16_384


class FollowedState:
    """The state up to what is confirmed and dispatched. One thread at a time uses it."""

    def __init__(self, store: OpenStore) -> None:
        # Of its own: those that serve belong to the loop.
        self._readers = Readers.of(store)
        self._store = store.directory
        self._slots = store.positions
        self._reput: tuple[int, int] | None = None
        self.state = BrokerState()
        """As of the last ``follow``; changed in place while it goes on from record to record."""
        self.changed: set[type[StateRecord]] = set()
        """Kinds of the records that the last ``follow`` applied."""
        self._epoch = 0
        self._next: int | None = None
        """Queue offset of the first state record not applied; None: none was read yet."""
        self._hidden: tuple[int, int] | None = None
        """A unit that exists and cannot be seen, and how far dispatch must come for that to be
        damage."""

    @property
    def epoch(self) -> int:
        """The epoch of the newest record applied, as far as is known: that of the log at the last
        recovery, or of an epoch record since."""
        return max(self._epoch, self._slots.get(Slot.LOG_EPOCH))

    def is_far_behind(self, dispatched: PhysicalOffset) -> bool:
        """Whether ``replay`` is the shorter way: it takes a while, and makes a new ``state``."""
        return self._next is None or self._end(dispatched) - self._next > BEHIND_MAX

    def replay(self, dispatched: PhysicalOffset) -> None:
        """Read the state from its newest whole snapshot. Blocks; any thread.

        Raises CorruptRecord, DamagedFile.
        """
        readers = self._readers
        self._follow_reput()
        end = self._end(dispatched)
        self.state = state_replay.replay(readers.queues, readers.log, dispatched)
        self._next = end

    def follow(self, dispatched: PhysicalOffset) -> int:
        """Apply some of the records that were dispatched since; how many.

        Raises CorruptRecord, DamagedFile.
        """
        assert self._next is not None, "replay comes first"
        self._follow_reput()
        self.changed.clear()
        if self._end(dispatched) <= self._next and not self._reappears(self._next, dispatched):
            return 0
        end = min(self._end(dispatched), self._next + APPLIED_AT_ONCE)
        readers = self._readers
        found = state_replay.read(readers.queues, readers.log, self._next, end, dispatched)
        for stored in found:
            record = state_replay.decoded(stored)
            self.state.apply(record, stored.physical_offset)
            self.changed.add(type(record))
            if isinstance(record, EpochRecord):
                self._epoch = record.epoch
        self._next = end
        return len(found)

    def _reappears(self, number: int, dispatched: PhysicalOffset) -> bool:
        """Whether the unit at which the queue ended was damaged and is whole again.

        Reput stores a unit before it publishes that it has dispatched the record. Raises
        DamagedFile if the record is dispatched, and the unit cannot be seen.
        """
        queues = self._readers.queues
        if not self._has_unit(number):
            return False
        if self._hidden is None or self._hidden[0] != number:
            self._hidden = number, self._slots.get(Slot.WRITTEN)
        if dispatched < self._hidden[1]:
            return False
        queues.forget()  # it remembers where the queue ended
        if self._end(dispatched) > number:
            return True
        raise state_replay.hidden_from(number)

    def _has_unit(self, number: int) -> bool:
        unit = self._readers.queues.get(STATE_TOPIC, STATE_QUEUE).unit(number)
        return unit is not None and any(unit)

    def queue_ends(self, dispatched: PhysicalOffset) -> dict[Queue, QueueOffset]:
        """The next queue offset of every queue of the store, as its units tell. Blocks."""
        queues = self._readers.queues
        return {
            (topic, queue): queues.get(topic, queue).max_offset(dispatched)
            for topic, queue in self._store.queues()
        }

    def to_end(
        self, dispatched: PhysicalOffset, end: PhysicalOffset, next_offset: int
    ) -> BrokerState:
        """A state of its own, up to the log's end, where no queue leads yet. Blocks; any thread.

        next_offset: the state queue's next offset at that end. Needs the append lock. Raises
        CorruptRecord, DamagedFile.
        """
        self._readers.queues.forget()  # the end of a queue that was damaged may be another now
        if self.is_far_behind(dispatched):
            self.replay(dispatched)
        while self.follow(dispatched):
            pass
        state, behind_queue = self.state.copy(), next_offset
        log = self._readers.log
        at = max(dispatched, log.min_offset)
        while at < end:
            view = log.window(at, end)
            walked = native.walk(
                view,
                at=at,
                checks=Checks(body_crc=False, record_crc=False),  # recovery has judged them
                records_max=WALKED_AT_ONCE,
                delay_levels_ms=(),
            )
            for entry in walked.entries:
                if (entry.topic, entry.queue_id) == (STATE_TOPIC, STATE_QUEUE):
                    stored = log.record(PhysicalOffset(entry.physical_offset), end)
                    if stored is not None:
                        behind_queue = min(behind_queue, stored.queue_offset)
                        state.apply(state_replay.decoded(stored), stored.physical_offset)
            at = PhysicalOffset(at + walked.end)
            if walked.stop is Stop.BLANK or (at < end and not walked.entries):
                if walked.stop is not Stop.BLANK:
                    log.record(at, end)  # raises what is wrong, unless the file's end is too near
                at = log.next_file(at)
        assert self._next is not None, "replay or follow has set it"
        if self._next < behind_queue and self._has_unit(self._next):
            raise state_replay.hidden_from(self._next)
        return state

    def _follow_reput(self) -> None:
        """Queue files may have been made anew by another start of reput, log files by ha."""
        reput = self._slots.resumed_dispatch()
        if reput is not None and self._reput != reput:
            self._reput = reput
            self._readers.queues.forget()

    def _end(self, dispatched: PhysicalOffset) -> int:
        return int(self._readers.queues.get(STATE_TOPIC, STATE_QUEUE).max_offset(dispatched))
