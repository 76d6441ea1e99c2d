"""Look-ups: one message by its offset id, messages by key or unique id.

Every look-up ends at ``dispatched``: a message that is not in a queue yet is not returned. A client
may send an arbitrary number as offset id, so a record is returned only if its queue points to it;
otherwise bytes inside a body that have the form of a record would be returned as a message. The
step before is ``shared.files.index``; after it ``http_api`` sends the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from services.broker.limits import DECODED_BYTES_MAX
from services.broker.read.unpacking import has_word, messages_from
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.files.index import TIME_MAX, Asked, Budget, IndexPlace, IndexReader, Search
from shared.runtime.pauses import Pauses
from shared.runtime.time_slicer import TimeSlicer
from tidemark.clock import Clock
from tidemark.errors import CorruptRecord, DamagedFile, UnknownMessage
from tidemark.formats import record
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset


class Page(NamedTuple):
    """One page of the messages that a look-up finds."""

    messages: list[Record]
    size: int
    """Bytes of their records."""
    next: IndexPlace | None
    """Start of the next page; None: there are no older messages."""


async def look_up(
    index: IndexReader,
    asked: Asked,
    clock: Clock,
    *,
    hits_max: int,
    at: IndexPlace | None = None,
) -> Search:
    """Run a bounded look-up in slices, so that other calls are served in between.

    The returned search has ended, found hits_max messages, or reached its bounds. at: place where
    an earlier look-up stopped. Raises DamagedFile.
    """
    search = index.search(asked, hits_max=hits_max, budget=Budget(), at=at)
    await TimeSlicer(clock, Pauses()).through(search.steps())
    return search


class Queries:
    """Answers look-ups. Not for use by two threads at once."""

    def __init__(
        self,
        log: CommitLogReader,
        queues: ConsumeQueues,
        index: IndexReader,
        dispatched: Callable[[], PhysicalOffset],
        is_shown: Callable[[Record], bool],
        clock: Clock,
    ) -> None:
        """is_shown: whether a message's topic exists and has not been recreated since."""
        self._is_shown = is_shown
        self._clock = clock
        self._searching = asyncio.Lock()
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatched = dispatched

    def by_offset(self, offset: PhysicalOffset) -> Record:
        """Return the record that starts at offset and is in a queue.

        Raises UnknownMessage, or CorruptRecord if a damaged record begins there."""
        end = self._dispatched()
        if self._log.min_offset <= offset < end:
            found = self._log.find(offset, end)
            if found is not None and self._is_queued(found, end) and self._is_shown(found):
                return found
            if found is None:
                self._check_damage(offset, end)
        raise UnknownMessage(
            f"no message at physical offset {offset}: the log holds {self._log.min_offset} to "
            f"{end}, and no queue points there.",
            "It has expired, was never stored, or is not dispatched yet.",
            physical_offset=int(offset),
            min_offset=int(self._log.min_offset),
            max_offset=int(end),
        )

    def _check_damage(self, offset: PhysicalOffset, end: PhysicalOffset) -> None:
        """Raise CorruptRecord if a damaged record begins at offset.

        A record began there if the index has an entry of it, or if the queue that the bytes name
        points to them. Nothing is raised if the record is in no index and the damage is in these
        fields: then it cannot be distinguished from an offset where no record ever began.
        """
        data = self._log.window(offset, end)
        outcome = record.validate(data, 0, at=offset, checks=self._log.checks_at(offset))
        if self._is_indexed(offset) or (
            outcome.kind is record.Kind.BAD and self._names_its_queue(data, end)
        ):
            raise CorruptRecord(offset, outcome.reason or "no record begins there any more")

    def _names_its_queue(self, data: memoryview, end: PhysicalOffset) -> bool:
        """Whether the queue that these bytes name points to them."""
        try:
            damaged = record.decode(data)
        except (record.RecordError, ValueError):
            return False
        return self._is_queued(damaged, end) and self._is_shown(damaged)

    def _is_indexed(self, offset: PhysicalOffset) -> bool:
        try:
            return self._index.has_record(offset)
        except DamagedFile:  # it is no evidence then
            return False

    def stored_at(self, offset: PhysicalOffset) -> Record | None:
        """Return the record that starts at offset, of any topic; None if there is none.

        Raises CorruptRecord, DamagedFile.
        """
        end = self._dispatched()
        return self._log.find(offset, end) if self._log.min_offset <= offset < end else None

    async def find(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        hits_max: int,
        unique_id_only: bool = False,
        before: IndexPlace | None = None,
        pauses: Pauses | None = None,
    ) -> Page:
        """Return messages of topic with this key or unique id, in physical order.

        The page holds the newest ones, at most hits_max records or about DECODED_BYTES_MAX bytes,
        or fewer if the look-up reaches its bounds. Of an inner batch it holds the messages that
        have the key or unique id. It runs in slices, one look-up at a time, so that other
        calls are served in between. before: place where an earlier page stopped. pauses: the pauses
        between slices; None: only yield to the loop. A page ends before a damaged record. Raises
        DamagedFile if nothing is left; ``next`` is then the place after that record.
        """
        asked = Asked(topic, key, self._dispatched(), begin_ms, end_ms, unique_id_only)
        async with self._searching:
            search = self._index.search(asked, hits_max=hits_max, budget=Budget(), at=before)
            slicer = TimeSlicer(self._clock, pauses or Pauses())
            try:
                for _ in search.steps():
                    if search.found_size >= DECODED_BYTES_MAX:
                        break
                    if slicer.over:
                        await slicer.pass_on()
            except DamagedFile as error:
                if not search.found:
                    raise _passable(error, search) from None
            messages: list[Record] = []
            size = 0
            for found in filter(self._is_shown, search.found):
                every: list[Record] = []
                named: list[Record] = []
                for message in messages_from(found, found.queue_offset):
                    if slicer.over:
                        await slicer.pass_on()
                    every.append(message)
                    if has_word(message, key, unique_id_only=unique_id_only):
                        named.append(message)
                messages += named or every  # none has it: it is a word of the batch
                size += found.size
        return Page(messages, size, search.place)

    def _is_queued(self, found: Record, end: PhysicalOffset) -> bool:
        queue = self._queues.get(found.topic, found.queue_id)
        units = queue.units(found.queue_offset, 1, end)
        return bool(units) and units[0].physical_offset == found.physical_offset


def _passable(error: DamagedFile, search: Search) -> DamagedFile:
    """Return the same error with the place after the damaged record, if it is about a record."""
    at = error.facts.get("physical_offset")
    if at is None:
        return error
    more = f"{error.advice} Older messages: the same call with `before` set to `next`."
    return DamagedFile(error.detail, more, **error.facts, next=str(search.place_after(at)))
