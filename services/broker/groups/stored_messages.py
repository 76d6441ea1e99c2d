"""Finds stored messages by message id, unique id, or place in a queue.

It finds what ``Queries`` and ``Puller`` show and nothing else: no message that is not dispatched,
has expired or belongs to a deleted topic. The records are checked; their bodies borrow from the
log's mapping, which stays open as long as they exist.
Step before: ``retry_calls`` names a message. Step after: ``nacks``, ``dead_letters``,
``trace``.
"""

from __future__ import annotations

from typing import NamedTuple

from services.broker.fields import shown
from services.broker.read.pull import Puller, PullRequest
from services.broker.read.query import Queries
from services.broker.read.topic_views import TopicViews
from services.broker.read.unpacking import message_at, message_count, pulled_messages
from shared.files.pull import PullStatus
from tidemark.errors import BadRequest, CorruptRecord, UnknownMessage
from tidemark.formats import ids
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

    def by_message_id(self, text: str, queue_offset: int | None = None) -> Record:
        """Return the message with this offset id. Raises BadRequest, UnknownMessage, CorruptRecord.

        queue_offset: which message of an inner batch, which all have its id; None: the first.
        """
        return message_at(self._record(text), queue_offset)

    def only_message(self, text: str) -> Record:
        """Return the message with this offset id. Raises BadRequest also if it is the id of
        several messages, those of an inner batch."""
        stored = self._record(text)
        first = message_at(stored, None)
        count = message_count(stored)
        if count > 1:
            raise BadRequest(
                f"message_id {shown(text)} is the id of the {count} messages at queue "
                f"offset {first.queue_offset} and after it of queue {first.queue_id} of topic "
                f"{first.topic!r}, which were stored as one batch.",
                "Give topic, queue and queue_offset of the message instead.",
                field="message_id",
                topic=first.topic,
                queue=first.queue_id,
                queue_offset=int(first.queue_offset),
            )
        return first

    def _record(self, text: str) -> Record:
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
        records; at least one.

        Messages that expired before offset or within the page are skipped silently: the next offset
        lies after them. Raises CorruptRecord, DamagedFile.
        """
        request = PullRequest(topic, queue, offset, count_max, bytes_max, None, 0, bulk=True)
        result = self._puller.read(request)
        if result.status is PullStatus.OFFSET_TOO_SMALL:
            result = self._puller.read(request._replace(offset=result.next_offset))
        messages: list[Record] = []
        next_offset = result.next_offset
        for queue_offset, found, _ in pulled_messages(result, self._puller.checks_at):
            if len(messages) == max(1, count_max):  # the rest of a batch
                next_offset = queue_offset
                break
            if isinstance(found, CorruptRecord):
                raise found
            messages.append(found)
        return Page(messages, next_offset, result.min_offset, result.max_offset)
