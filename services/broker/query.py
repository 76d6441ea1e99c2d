"""Look-ups: one message by its offset id, messages by key or unique id.

Every look-up stops at ``dispatched``: what is not in a queue yet is not shown either. An offset id
is a number somebody may have made up, so a record counts only if its own queue points to it: bytes
inside a body that look like a record are nobody's message. Before: ``shared.files.index``. After:
``http_api`` sends the answer.
"""

from __future__ import annotations

from collections.abc import Callable

from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.files.index import IndexReader
from tidemark.errors import UnknownMessage
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset


class Queries:
    """Answers look-ups. Not for use by two threads at once."""

    def __init__(
        self,
        log: CommitLogReader,
        queues: ConsumeQueues,
        index: IndexReader,
        dispatched: Callable[[], PhysicalOffset],
        is_shown: Callable[[Record], bool],
    ) -> None:
        """is_shown: whether a message's topic still exists and the message is not from before."""
        self._is_shown = is_shown
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatched = dispatched

    def by_offset(self, offset: PhysicalOffset) -> Record:
        """The message whose record starts at offset. Raises UnknownMessage."""
        end = self._dispatched()
        if self._log.min_offset <= offset < end:
            found = self._log.find(offset, end)
            if found is not None and self._is_queued(found, end) and self._is_shown(found):
                return found
        raise UnknownMessage(
            f"no message at physical offset {offset}: the log holds {self._log.min_offset} to "
            f"{end}, and no queue points there.",
            "It has expired, was never stored, or is not dispatched yet.",
            physical_offset=int(offset),
            min_offset=int(self._log.min_offset),
            max_offset=int(end),
        )

    def stored_at(self, offset: PhysicalOffset) -> Record | None:
        """The record that starts at offset, of whatever topic; None if there is none.

        Raises CorruptRecord, DamagedFile.
        """
        end = self._dispatched()
        return self._log.find(offset, end) if self._log.min_offset <= offset < end else None

    def by_key(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, hits_max: int
    ) -> list[Record]:
        """Messages of topic with this key or unique id, in physical order."""
        found = self._index.records(
            topic,
            key,
            begin_ms=begin_ms,
            end_ms=end_ms,
            hits_max=hits_max,
            dispatched=self._dispatched(),
        )
        return [message for message in found if self._is_shown(message)]

    def by_unique_id(self, topic: str, unique_id: str, *, hits_max: int) -> list[Record]:
        """Messages of topic with this unique id: one, or several if somebody sent it again."""
        found = self._index.records(
            topic, unique_id, hits_max=hits_max, dispatched=self._dispatched(), unique_id_only=True
        )
        return [message for message in found if self._is_shown(message)]

    def _is_queued(self, found: Record, end: PhysicalOffset) -> bool:
        queue = self._queues.get(found.topic, found.queue_id)
        units = queue.units(found.queue_offset, 1, end)
        return bool(units) and units[0].physical_offset == found.physical_offset
