"""Dead letters: what a group gave up, and which of it was sent again.

Whether a letter was redriven is not written down anywhere but in the copy: it carries the letter's
place, and is found by its unique id in the index, in either topic that it can have gone to. So a
crash leaves copy and mark, or neither. Three things could hide a copy from that look, and do not:

- It is not dispatched yet. This process remembers the letters that it has redriven until their
  copies are; one of before has dispatched the recovered log before anything is served.
- The index, or some of its files, is made again, as after a power cut. Then nobody can tell, and
  says so, until it is whole.
- More messages of the same unique id came behind it than one look-up shows, or judges. Then the
  next look-up goes on where that one stopped, down to the letter.

A copy never expires before its letter, for it lies behind it in the log.
Before: ``retry_calls``, ``redrive``. After: ``stored_messages`` reads.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any, Final, NamedTuple

from services.broker.api.limits import QUERY_MAX
from services.broker.groups.stored_messages import Page, StoredMessages
from services.broker.read.query import look_up
from services.broker.state.topics import Topics
from shared.files.index import Asked, IndexPlace, IndexReader
from tidemark.clock import Clock
from tidemark.errors import DispatchBehind, Overloaded, RequestError
from tidemark.formats import nack
from tidemark.formats.nack import DEAD_QUEUE, RedriveOrigin, dead_topic, retry_topic
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset, QueueOffset

UNDISPATCHED_MAX: Final = 100_000
"""Redriven letters whose copies are not dispatched yet."""
LETTERS_AT_ONCE: Final = 32
"""Letters read and looked up between two turns of the loop: some milliseconds."""
BYTES_AT_ONCE: Final = 1 << 18
LOOKED_AT_MAX: Final = 20_000
"""Letters that one call looks at, whether the filter takes them or not."""
NO_LETTERS: Final = Page([], QueueOffset(0), QueueOffset(0), QueueOffset(0))


class IndexDisabled(RequestError):
    """The store keeps no index, without which nobody can tell which dead letters were redriven."""

    code, title, status = "index-disabled", "The store keeps no index", 409


class Redriven(Enum):
    """Whether a dead letter was sent again."""

    NO = "no"
    YES = "yes"
    UNKNOWN = "the index was not whole throughout the look"


class LetterFilter(NamedTuple):
    """Which dead letters are meant; None: whatever it is."""

    topic: str | None = None
    """The one that it was first sent to."""
    key: str | None = None
    """One of its keys."""
    begin_ms: int | None = None
    """It died then or later, by its store time."""
    end_ms: int | None = None
    """It died then or before."""
    message_id: str | None = None
    """The letter's, that of its first delivery, or its unique id."""

    def matches(self, letter: Record) -> bool:
        """Whether a letter is meant."""
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
    """Reads dead letters; knows which were redriven."""

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
        """index: None if the store keeps none. dispatched: end of what queues and index cover.
        index_is_whole: False while some of the index is made again.
        """
        self._messages = messages
        self._topics = topics
        # Not Queries: it does not show a copy whose topic was deleted or keeps messages for less
        # time than the log, and the letter would look as if it had never been sent again.
        self._index = index
        self._dispatched = dispatched
        self._clock = clock
        self._index_is_whole = index_is_whole
        self._undispatched: OrderedDict[RedriveOrigin, PhysicalOffset | None] = OrderedDict()
        """Letters that this process redrives → the end of their copies, None while that is being
        appended; in the order in which they were claimed."""

    def exist(self, group: str) -> bool:
        """Whether the group ever had a dead letter."""
        return self._topics.find(dead_topic(group)) is not None

    def page(self, group: str, from_offset: int, count_max: int, bytes_max: int) -> Page:
        """Dead letters from a queue offset on, oldest first."""
        if not self.exist(group):
            return NO_LETTERS
        return self._messages.page(dead_topic(group), DEAD_QUEUE, from_offset, count_max, bytes_max)

    async def list(
        self, group: str, wanted: LetterFilter, from_offset: int, count_max: int
    ) -> dict[str, Any]:
        """Up to count_max of the letters wanted, as the API shows them, and where to go on.

        Looks at LOOKED_AT_MAX letters at most; the next call goes on.
        """
        found: list[dict[str, Any]] = []
        at, looked_at = from_offset, 0
        while True:
            page = self.page(group, at, LETTERS_AT_ONCE, BYTES_AT_ONCE)
            at = max(at, page.next_offset)
            for letter in page.messages:
                if len(found) == count_max:
                    at = letter.queue_offset
                    break
                if wanted.matches(letter):
                    found.append(await self._view(group, letter))
            looked_at += len(page.messages)
            full = len(found) == count_max or looked_at >= LOOKED_AT_MAX
            if full or not page.messages or at >= page.max_offset:
                break
            await asyncio.sleep(0)  # whoever waits for the loop goes first
        return {
            "messages": found,
            "next_offset": at,
            "min_offset": page.min_offset,
            "max_offset": page.max_offset,
            "done": at >= page.max_offset,
        }

    async def _view(self, group: str, letter: Record) -> dict[str, Any]:
        """A dead letter as the API shows it."""
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
        """None: nobody can tell now."""
        if self._index is None or not self._index_is_whole():
            return None
        if self.is_claimed(RedriveOrigin(group, letter.queue_offset)):
            return True
        known = await self.was_sent_again(group, letter)
        return None if known is Redriven.UNKNOWN else known is Redriven.YES

    # -- which were redriven -------------------------------------------------------------------

    def check_can_tell(self) -> None:
        """Raise IndexDisabled where nobody can tell which letters were redriven, DispatchBehind
        while nobody can."""
        if self._index is None:
            raise IndexDisabled(
                "the store keeps no index (store.index_enabled is false), and without it nobody "
                "can tell which dead letters were sent again. Nothing was stored.",
                "Read the letters from their topic and send what is needed; or run with an index.",
            )
        if not self._index_is_whole():
            raise DispatchBehind(
                "the index is being made again, and until it is whole nobody can tell which dead "
                "letters were sent again. Nothing more was stored.",
                "Try again when reput's /ready says that it has caught up.",
            )

    def is_claimed(self, origin: RedriveOrigin) -> bool:
        """Whether a call redrives the letter now, or its copy is not dispatched yet."""
        return origin in self._undispatched

    async def was_sent_again(self, group: str, letter: Record) -> Redriven:
        """Whether the index knows a copy of a letter. Call ``check_can_tell`` before.

        It is asked in slices: who is to send the letter again claims it before.
        """
        origin = RedriveOrigin(group, letter.queue_offset)
        unique_id = nack.copy_unique_id(letter)
        was_whole = self._index_is_whole()
        for topic in {nack.original_topic(letter), retry_topic(group)}:
            if await self._is_in(topic, unique_id, origin, letter.physical_offset):
                return Redriven.YES
        # Before and after: it may have been taken away, or become whole, between the two look-ups.
        return Redriven.NO if was_whole and self._index_is_whole() else Redriven.UNKNOWN

    async def _is_in(
        self, topic: str, unique_id: str, origin: RedriveOrigin, above: PhysicalOffset
    ) -> bool:
        """Whether the topic has a message of this unique id that descends from the letter, which
        lies at above. The message's retries, which are of this unique id as well, lie below."""
        assert self._index is not None
        asked = Asked(topic, unique_id, self._dispatched(), unique_id_only=True, floor=int(above))
        place: IndexPlace | None = None
        while True:
            search = await look_up(self._index, asked, self._clock, hits_max=QUERY_MAX, at=place)
            if any(nack.redrive_origin(each.properties) == origin for each in search.found):
                return True
            place = search.place
            if place is None:
                return False

    def claim(self, origins: Collection[RedriveOrigin]) -> None:
        """Count these letters as redriven from now on; nobody else takes them.

        Call it in the step of the loop in which ``is_claimed`` said no. Raises Overloaded with
        nothing claimed.
        """
        self._forget_dispatched()
        if len(self._undispatched) + len(origins) > UNDISPATCHED_MAX:
            raise Overloaded(
                f"{len(self._undispatched)} redriven messages are not dispatched yet, "
                f"{UNDISPATCHED_MAX} are allowed. Nothing more was stored.",
                "See reput's /ready for why it does not go on; then try again.",
                limit=UNDISPATCHED_MAX,
            )
        self._undispatched.update(dict.fromkeys(origins))

    def stored(self, origins: Collection[RedriveOrigin], end: PhysicalOffset) -> None:
        """The copies of claimed letters are in the log, below end."""
        for origin in origins:
            self._undispatched[origin] = end

    def give_back(self, origins: Collection[RedriveOrigin]) -> None:
        """The copies of claimed letters could not be stored."""
        for origin in origins:
            del self._undispatched[origin]

    def _forget_dispatched(self) -> None:
        """Forget letters whose copies can be looked up now."""
        dispatched = self._dispatched()
        while self._undispatched:
            end = next(iter(self._undispatched.values()))
            if end is None or end > dispatched:
                return
            self._undispatched.popitem(last=False)
