"""Finds out which nacks were carried out already, so that a repeated one stores no second copy.

The caller gives a nack an id of its own, and says when it repeats it because the outcome is
unknown. The copy carries that id, so a crash leaves both or neither. Nacks of this process are
remembered, even while the first attempt is overtaken by its repetition. Copies stored by an earlier
process are found in the index by the message's unique id: the broker serves only after its log is
dispatched. Without an index they are not found.
Step before: ``nacks`` has a nack with an id. Step after: ``nacks`` appends what is not
found.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from services.broker.limits import QUERY_MAX
from services.broker.read.query import look_up
from shared.files.index import Asked, IndexPlace, IndexReader
from tidemark.clock import Clock
from tidemark.errors import DispatchBehind
from tidemark.formats import nack
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.record import Record
from tidemark.offsets import PhysicalOffset

REMEMBERED_MAX: Final = 1 << 16
"""Nacks that this process remembers: some 40 MiB."""


class Nacked(NamedTuple):
    """The result of a nack."""

    status: str
    topic: str | None
    """Topic of the retry or dead letter; None if nothing was stored."""
    reconsume_times: int
    delay_level: int
    deliver_at_ms: int | None
    """When a retry is delivered [wall clock ms]; None for a dead letter."""
    message_id: str | None
    """Message id of the stored copy; None if there is none."""
    unique_id: str | None

    def as_dict(self) -> dict[str, object]:
        """Return the body of the response."""
        return self._asdict()


class StoredNack(NamedTuple):
    """What a nack has stored."""

    sent: Nacked
    end: PhysicalOffset
    """Physical offset after its record."""


class RepeatedNacks:
    """Remembers and finds what nacks have stored. Belongs to one loop."""

    def __init__(
        self,
        index: IndexReader | None,
        dispatched: Callable[[], PhysicalOffset],
        clock: Clock,
        *,
        index_is_whole: Callable[[], bool] = lambda: True,
    ) -> None:
        """index: None if the store has none. dispatched: end of what the index covers.
        index_is_whole: False while a part of the index is being rebuilt.
        """
        self._index = index
        self._dispatched = dispatched
        self._clock = clock
        self._index_is_whole = index_is_whole
        self._under_way: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._stored: OrderedDict[tuple[str, str], StoredNack] = OrderedDict()

    async def once(
        self, group: str, nack_id: str, store: Callable[[], Awaitable[StoredNack]]
    ) -> StoredNack:
        """Return what the nack has stored; store it now if this process has not done so."""
        key = group, nack_id
        while (before := self._under_way.get(key)) is not None:
            await asyncio.wait((before,))
        if (known := self._stored.get(key)) is not None:
            return known
        going = self._under_way[key] = asyncio.get_running_loop().create_future()
        try:
            stored = self._stored[key] = await store()
        finally:
            del self._under_way[key]
            going.set_result(None)
        if len(self._stored) > REMEMBERED_MAX:
            self._stored.popitem(last=False)
        return stored

    async def find(self, group: str, nack_id: str, message: Record) -> Record | None:
        """Return the record that an earlier process stored for a nack of a message.

        Raises DispatchBehind while that is unknown, DamagedFile.
        """
        if self._index is None:
            return None
        was_whole = self._index_is_whole()
        for topic in (SCHEDULE_TOPIC, nack.dead_topic(group)):
            asked = Asked(
                topic,
                nack.nacked_unique_id(message),
                self._dispatched(),
                unique_id_only=True,
                floor=int(message.physical_offset),
            )
            place: IndexPlace | None = None
            while True:
                search = await look_up(
                    self._index, asked, self._clock, hits_max=QUERY_MAX, at=place
                )
                for found in search.found:
                    if nack.nack_id(found.properties) == nack_id:
                        return found
                place = search.place
                if place is None:
                    break
        if not (was_whole and self._index_is_whole()):
            raise DispatchBehind(
                "the index is being rebuilt; until it is whole, it is unknown whether the message "
                "was sent back before. Nothing was stored.",
                "Try again when reput's /ready says that it has caught up.",
            )
        return None
