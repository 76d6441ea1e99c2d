"""Dead letters: messages that a group gave up, and which of them were sent again (redriven).

That a letter was redriven is recorded only in the copy: it carries the letter's place, and is found
by its unique id in the index, in either topic that it can have gone to. So a crash leaves both the
copy and the mark, or neither. In three cases the index does not show a copy; each is handled:

- The copy is not dispatched yet. This process remembers the letters that it has redriven until
  their copies are dispatched; before it serves, it dispatches the whole recovered log.
- The index, or a part of it, is being rebuilt, as after a power cut. Then the answer is
  unknown, and calls say so until the index is complete.
- The log has more later messages of the same unique id than one look-up returns or checks. Then the
  next look-up goes on where the last one stopped, down to the letter.

A copy never expires before its letter, because it follows it in the log.
Step before: ``retry_calls``, ``redrive``. Step after: ``stored_messages`` reads.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any, Final, NamedTuple

from services.broker.groups.stored_messages import Page, StoredMessages
from services.broker.limits import QUERY_MAX
from services.broker.read.query import look_up
from services.broker.read.unpacking import messages_of
from services.broker.state.topics import Topics
from shared.files.index import Asked, IndexPlace, IndexReader
from tidemark.clock import Clock
from tidemark.errors import DispatchBehind, IndexDisabled, Overloaded
from tidemark.formats import nack
from tidemark.formats.nack import DEAD_QUEUE, RedriveOrigin, dead_topic, retry_topic
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset, QueueOffset

UNDISPATCHED_MAX: Final = 100_000
"""Bound of the redriven letters whose copies are not dispatched yet."""
LETTERS_AT_ONCE: Final = 32
"""Letters read and looked up between two turns of the loop: some milliseconds."""
BYTES_AT_ONCE: Final = 1 << 18
EXAMINED_MAX: Final = 20_000
"""Letters that one call reads, whether the filter selects them or not."""
NO_LETTERS: Final = Page([], QueueOffset(0), QueueOffset(0), QueueOffset(0))


class Redriven(Enum):
    """Whether a dead letter was redriven."""

    NO = "no"
    YES = "yes"
    UNKNOWN = "the index was not whole throughout the search"


class LetterFilter(NamedTuple):
    """Conditions on dead letters; None: no condition."""

    topic: str | None = None
    """Topic that the message was first sent to."""
    key: str | None = None
    """One of its keys."""
    begin_ms: int | None = None
    """Dead at this store time or later."""
    end_ms: int | None = None
    """Dead before this store time."""
    message_id: str | None = None
    """Message id of the letter or of its first delivery, or its unique id."""

    def matches(self, letter: Record) -> bool:
        """Return whether the filter selects a letter."""
        return (
            (self.topic is None or nack.original_topic(letter) == self.topic)
            and (self.key is None or self.key in letter.keys)
            and (self.begin_ms is None or letter.store_timestamp_ms >= self.begin_ms)
            and (self.end_ms is None or letter.store_timestamp_ms <= self.end_ms)
            and (self.message_id is None or self._is_called(letter, self.message_id))
        )

    def _is_called(self, letter: Record, name: str) -> bool:
        upper = name.upper()
        return (
            letter.unique_id == name
            or letter.message_id == upper
            or nack.original_message_id(letter) == upper
        )


class DeadLetters:
    """Reads dead letters and finds out which were redriven."""

    def __init__(
        self,
        messages: StoredMessages,
        topics: Topics,
        index: IndexReader | None,
        dispatched: Callable[[], PhysicalOffset],
        clock: Clock,
        *,
        index_is_whole: Callable[[], bool] = lambda: True,
    ) -> None:
        """index: None if the store has none. dispatched: end of what queues and index cover.
        index_is_whole: False while a part of the index is being rebuilt.
        """
        self._messages = messages
        self._topics = topics
        # Not Queries: they hide a copy whose topic was deleted or has a shorter retention than the
        # log, and the letter would seem not redriven.
        self._index = index
        self._dispatched = dispatched
        self._clock = clock
        self._index_is_whole = index_is_whole
        self._undispatched: OrderedDict[RedriveOrigin, PhysicalOffset | None] = OrderedDict()
        """Letters being redriven by this process → end of the copy in the log, None until it is
        appended; in the order of their claims."""

    def exist(self, group: str) -> bool:
        """Return whether the group ever had a dead letter."""
        return self._topics.find(dead_topic(group)) is not None

    def page(self, group: str, from_offset: int, count_max: int, bytes_max: int) -> Page:
        """Return dead letters from a queue offset on, oldest first."""
        if not self.exist(group):
            return NO_LETTERS
        return self._messages.page(dead_topic(group), DEAD_QUEUE, from_offset, count_max, bytes_max)

    async def list(
        self, group: str, wanted: LetterFilter, from_offset: int, count_max: int
    ) -> dict[str, Any]:
        """Return up to count_max selected letters, as the API shows them, and where to go on.

        One call reads EXAMINED_MAX letters at most; the next one goes on from there.
        """
        found: list[dict[str, Any]] = []
        at, examined = from_offset, 0
        while True:
            page = self.page(group, at, LETTERS_AT_ONCE, BYTES_AT_ONCE)
            at = max(at, page.next_offset)
            for letter in page.messages:
                if len(found) == count_max:
                    at = letter.queue_offset
                    break
                if wanted.matches(letter):
                    found.append(await self._view(group, letter))
            examined += len(page.messages)
            full = len(found) == count_max or examined >= EXAMINED_MAX
            if full or not page.messages or at >= page.max_offset:
                break
            await asyncio.sleep(0)  # other tasks run between two batches
        return {
            "messages": found,
            "next_offset": at,
            "min_offset": page.min_offset,
            "max_offset": page.max_offset,
            "done": at >= page.max_offset,
        }

    async def _view(self, group: str, letter: Record) -> dict[str, Any]:
        """Return a dead letter as the API shows it."""
        return {
            "queue_offset": letter.queue_offset,
            "message_id": letter.message_id,
            "unique_id": letter.unique_id,
            "original_topic": nack.original_topic(letter),
            "original_message_id": nack.original_message_id(letter),
            "reconsume_times": letter.reconsume_times,
            "dead_at_ms": letter.store_timestamp_ms,
            "born_timestamp_ms": letter.born_timestamp_ms,
            "tags": letter.tags,
            "keys": letter.keys,
            "size": letter.size,
            "redriven": await self._was_redriven(group, letter),
        }

    async def _was_redriven(self, group: str, letter: Record) -> bool | None:
        """Return whether the letter was redriven; None if that is unknown now."""
        if self._index is None or not self._index_is_whole():
            return None
        if self.is_claimed(RedriveOrigin(group, letter.queue_offset)):
            return True
        known = await self.was_sent_again(group, letter)
        return None if known is Redriven.UNKNOWN else known is Redriven.YES

    # -- which were redriven -------------------------------------------------------------------

    def check_can_tell(self) -> None:
        """Check that the index can tell which letters were redriven.

        Raises IndexDisabled if the store has no index, DispatchBehind while it is being rebuilt.
        """
        if self._index is None:
            raise IndexDisabled(
                "the store has no index (store.index_enabled is false), which alone shows which "
                "dead letters were sent again. Nothing was stored.",
                "Read the letters from their topic and send what is needed; or run with an index.",
            )
        if not self._index_is_whole():
            raise DispatchBehind(
                "the index is being rebuilt; until it is whole, it is unknown which dead letters "
                "were sent again. Nothing more was stored.",
                "Try again when reput's /ready says that it has caught up.",
            )

    def is_claimed(self, origin: RedriveOrigin) -> bool:
        """Return whether a call is redriving the letter, or its copy is not dispatched yet."""
        return origin in self._undispatched

    async def was_sent_again(self, group: str, letter: Record) -> Redriven:
        """Return whether the index has a copy of a letter. Call ``check_can_tell`` first.

        The look-up runs in slices, so a caller that is going to redrive the letter must claim it
        first.
        """
        origin = RedriveOrigin(group, letter.queue_offset)
        unique_id = nack.copy_unique_id(letter)
        was_whole = self._index_is_whole()
        for topic in {nack.original_topic(letter), retry_topic(group)}:
            if await self._is_in(topic, unique_id, origin, letter.physical_offset):
                return Redriven.YES
        # Checked before and after the look-ups, because the index may be lost or rebuilt meanwhile.
        return Redriven.NO if was_whole and self._index_is_whole() else Redriven.UNKNOWN

    async def _is_in(
        self, topic: str, unique_id: str, origin: RedriveOrigin, above: PhysicalOffset
    ) -> bool:
        """Return whether the topic has a copy of the letter, which lies at the physical offset
        above.

        The message's retries have the same unique id, but lie before the letter.
        """
        assert self._index is not None
        asked = Asked(topic, unique_id, self._dispatched(), unique_id_only=True, floor=int(above))
        place: IndexPlace | None = None
        while True:
            search = await look_up(self._index, asked, self._clock, hits_max=QUERY_MAX, at=place)
            copies = itertools.chain.from_iterable(map(messages_of, search.found))
            if any(nack.redrive_origin(each.properties) == origin for each in copies):
                return True
            place = search.place
            if place is None:
                return False

    def claim(self, origins: Collection[RedriveOrigin]) -> None:
        """Reserve letters for a redrive, so that no other call redrives them.

        Call it in the step of the loop in which ``is_claimed`` was False. Raises Overloaded
        with nothing claimed.
        """
        self._forget_dispatched()
        if len(self._undispatched) + len(origins) > UNDISPATCHED_MAX:
            raise Overloaded(
                f"{len(self._undispatched)} redriven messages are not dispatched yet, "
                f"{UNDISPATCHED_MAX} are allowed. Nothing more was stored.",
                "See reput's /ready for why dispatch is blocked; then try again.",
                limit=UNDISPATCHED_MAX,
            )
        self._undispatched.update(dict.fromkeys(origins))

    def stored(self, origins: Collection[RedriveOrigin], end: PhysicalOffset) -> None:
        """Note that the copies of claimed letters are in the log, before the offset end."""
        for origin in origins:
            self._undispatched[origin] = end

    def give_back(self, origins: Collection[RedriveOrigin]) -> None:
        """Release claimed letters whose copies could not be stored."""
        for origin in origins:
            del self._undispatched[origin]

    def _forget_dispatched(self) -> None:
        """Forget letters whose copies the index shows now."""
        dispatched = self._dispatched()
        while self._undispatched:
            end = next(iter(self._undispatched.values()))
            if end is None or end > dispatched:
                return
            self._undispatched.popitem(last=False)
