"""Finds stored messages by message id, unique id, or place in a queue.

It finds what ``Queries`` and ``Puller`` show and nothing else: no message that is not dispatched,
has expired or belongs to a deleted topic. The records are checked; their bodies borrow from the
log's mapping, which stays open as long as they exist.
Step before: ``retry_calls`` names a message. Step after: ``nacks``, ``dead_letters``,
``trace``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from services.broker.fields import shown
from services.broker.read.pull import Puller, PullRequest
from services.broker.read.query import Queries
from services.broker.read.topic_views import TopicViews
from shared.files.pull import PullResult, PullStatus
from tidemark.errors import BadRequest, CorruptRecord, UnknownMessage
from tidemark.formats import ids, record
from tidemark.formats.record import Record
from tidemark.offsets import QueueOffset


class Place(NamedTuple):
    """One message of one queue."""

    topic: str
    queue: int
    queue_offset: int


class Page(NamedTuple):
    """Consecutive messages of one queue, and where the queue goes on."""

    messages: list[Record]
    next_offset: QueueOffset
    """Queue offset after the last one that was read."""
    min_offset: QueueOffset
    max_offset: QueueOffset


class StoredMessages:
    """Finds messages. Belongs to one loop."""

    def __init__(self, queries: Queries, puller: Puller, topics: TopicViews) -> None:
        self._queries = queries
        self._puller = puller
        self._topics = topics

    def by_message_id(self, text: str) -> Record:
        """Return the message with this offset id. Raises BadRequest, UnknownMessage."""
        try:
            _, offset = ids.parse_offset_id(text)
        except ValueError:
            raise BadRequest(
                f"message_id {shown(text)} is not a message id: 32 or 56 hexadecimal digits.",
                field="message_id",
            ) from None
        found = self._queries.by_offset(offset)
        if found.message_id != text.upper():
            raise UnknownMessage(
                f"the message at physical offset {offset} was stored by another host: its id is "
                f"{found.message_id}.",
                "Ask the node that stored it, or by that id.",
                physical_offset=int(offset),
            )
        return found

    def by_place(self, place: Place) -> Record:
        """Return the message at a queue offset. Raises UnknownTopic, UnknownQueue,
        UnknownMessage."""
        topic, queue, offset = place
        self._topics.check_readable(topic, queue)
        page = self.page(topic, queue, offset, 1)
        if page.messages and page.messages[0].queue_offset == offset:
            return page.messages[0]
        raise UnknownMessage(
            f"topic {topic!r} has no message at offset {offset} of queue {queue}: it holds "
            f"{page.min_offset} to {page.max_offset}.",
            "It has expired, was never stored, or is not dispatched yet.",
            topic=topic,
            queue=queue,
            queue_offset=offset,
            min_offset=int(page.min_offset),
            max_offset=int(page.max_offset),
        )

    def page(
        self, topic: str, queue: int, offset: int, count_max: int, bytes_max: int | None = None
    ) -> Page:
        """Return up to count_max messages from offset on, of up to about bytes_max bytes of
        records.

        Messages that expired before offset or within the page are skipped silently: the next offset
        lies after them. Raises CorruptRecord, DamagedFile.
        """
        request = PullRequest(topic, queue, offset, count_max, bytes_max, None, 0, bulk=True)
        result = self._puller.read(request)
        if result.status is PullStatus.OFFSET_TOO_SMALL:
            result = self._puller.read(request._replace(offset=result.next_offset))
        return Page(
            list(self._checked(result)), result.next_offset, result.min_offset, result.max_offset
        )

    def _checked(self, result: PullResult) -> Iterator[Record]:
        for _, unit, data in result.messages():
            offset = unit.physical_offset
            outcome = record.validate(data, 0, at=offset, checks=self._puller.checks_at(offset))
            if outcome.kind is not record.Kind.VALID:
                raise CorruptRecord(offset, outcome.reason)
            yield record.decode(data)
