"""The state of a slave, kept up with confirmed records.

It applies state records as reput dispatches them, so that a promotion only has to read the end of
the log: records of the last master that are not confirmed are in the log but in no queue, and count
from this node's own epoch record on. Step before: reput dispatched. Step after: ``slave`` serves
with the state, and ``master`` from a promotion on.
"""

from __future__ import annotations

from typing import Final

from services.broker.log.log_context import Readers
from services.broker.log.open_store import OpenStore
from services.broker.state import state_replay
from shared.state.records import STATE_QUEUE, STATE_TOPIC, EpochRecord, StateRecord
from shared.state.state import BrokerState
from tidemark.formats import native
from tidemark.formats.checkpoint import Slot
from tidemark.formats.record import Checks
from tidemark.formats.scan import Stop
from tidemark.offsets import PhysicalOffset, Queue, QueueOffset

APPLIED_AT_ONCE: Final = 256
"""State records applied between two checks of other work."""
BEHIND_MAX: Final = 2048
"""Lag beyond which it is faster to load the newest snapshot."""
WALKED_AT_ONCE: Final = 16_384


class FollowedState:
    """The state up to what is confirmed and dispatched. One thread at a time uses it."""

    def __init__(self, store: OpenStore) -> None:
        # Separate readers: those that serve belong to the loop.
        self._readers = Readers.of(store)
        self._store = store.directory
        self._slots = store.positions
        self._reput: tuple[int, int] | None = None
        self.state = BrokerState()
        """As of the last ``follow``; a running ``follow`` changes it in place, record by record."""
        self.changed: set[type[StateRecord]] = set()
        """Kinds of the records that the last ``follow`` applied."""
        self._epoch = 0
        self._next: int | None = None
        """Queue offset of the first state record not applied; None: none was read yet."""
        self._hidden: tuple[int, int] | None = None
        """A unit that exists but cannot be read, and the dispatched offset at which that means
        damage."""

    @property
    def epoch(self) -> int:
        """Epoch of the newest applied record, as far as known: of the log at the last recovery, or
        of a later epoch record."""
        return max(self._epoch, self._slots.get(Slot.LOG_EPOCH))

    def is_far_behind(self, dispatched: PhysicalOffset) -> bool:
        """Return whether ``replay`` is faster: it takes a while, and makes a new ``state``."""
        return self._next is None or self._end(dispatched) - self._next > BEHIND_MAX

    def is_whole(self) -> bool:
        """Return whether the state is complete: no records before the log's beginning are missing
        in it, because there are none or because a whole snapshot was applied."""
        return self.state.snapshots > 0 or self._readers.log.min_offset == 0

    def replay(self, dispatched: PhysicalOffset) -> None:
        """Load the state from its newest whole snapshot. Blocks; any thread.

        Raises CorruptRecord, DamagedFile.
        """
        readers = self._readers
        self._follow_reput()
        end = self._end(dispatched)
        self.state = state_replay.replay(readers.queues, readers.log, dispatched)
        self._next = end

    def follow(self, dispatched: PhysicalOffset) -> int:
        """Apply some of the records that were dispatched since; return how many.

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
        """Return whether the unit at which the queue ended was damaged and is whole again.

        Reput stores a unit before it publishes that it has dispatched the record. Raises
        DamagedFile if the record is dispatched, and the unit cannot be read.
        """
        queues = self._readers.queues
        if not self._has_unit(number):
            return False
        if self._hidden is None or self._hidden[0] != number:
            self._hidden = number, self._slots.get(Slot.WRITTEN)
        if dispatched < self._hidden[1]:
            return False
        queues.forget()  # it caches where the queue ended
        if self._end(dispatched) > number:
            return True
        raise state_replay.hidden_from(number)

    def _has_unit(self, number: int) -> bool:
        unit = self._readers.queues.get(STATE_TOPIC, STATE_QUEUE).unit(number)
        return unit is not None and any(unit)

    def queue_ends(self, dispatched: PhysicalOffset) -> dict[Queue, QueueOffset]:
        """Return the next queue offset of every queue of the store, from its units. Blocks."""
        queues = self._readers.queues
        return {
            (topic, queue): queues.get(topic, queue).max_offset(dispatched)
            for topic, queue in self._store.queues()
        }

    def to_end(
        self, dispatched: PhysicalOffset, end: PhysicalOffset, next_offset: int
    ) -> BrokerState:
        """Return a separate state up to the log's end, which no queue covers yet. Blocks; any
        thread.

        next_offset: the state queue's next offset at that end. Needs the append lock. Raises
        CorruptRecord, DamagedFile.
        """
        self._readers.queues.forget()  # a queue that was damaged may have another end now
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
                checks=Checks(body_crc=False, record_crc=False),  # recovery has checked them
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
                    log.record(at, end)  # raises the error, unless the file's end is too near
                at = log.next_file(at)
        assert self._next is not None, "replay or follow has set it"
        if self._next < behind_queue and self._has_unit(self._next):
            raise state_replay.hidden_from(self._next)
        return state

    def _follow_reput(self) -> None:
        """Reopen files: a restarted reput may have rebuilt queue files, and ha log files."""
        reput = self._slots.resumed_dispatch()
        if reput is not None and self._reput != reput:
            self._reput = reput
            self._readers.queues.forget()

    def _end(self, dispatched: PhysicalOffset) -> int:
        return int(self._readers.queues.get(STATE_TOPIC, STATE_QUEUE).max_offset(dispatched))
