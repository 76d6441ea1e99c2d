"""Decodes the records of a pull or a fetch, restores retried messages, and filters. Pure.

A nacked message is read from the group's retry topic and has its original topic in ``RETRY_TOPIC``
(docs/formats.md). The program sees the original topic. ``source`` is the position in the retry
topic, which is committed and nacked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from tidemark.client.queue_names import QueueNames
from tidemark.client.tags import Wanted, passing
from tidemark.formats import native, properties
from tidemark.formats.message import Message, Source, iterate_records
from tidemark.formats.nack import RETRY_PREFIX
from tidemark.formats.record import UndecodableRecord
from tidemark.formats.record_layout import Buffer


class Returned(Message):
    """A message from a retry topic, shown under its original topic."""

    _read_at: Source

    @property
    def source(self) -> Source:
        """Position in the group's retry topic."""
        return self._read_at

    @classmethod
    def restore(cls, message: Message, topic: str) -> Returned:
        """Copy a message with another topic; queue and queue offset stay the retry topic's."""
        restored = cls._make(message._replace(topic=topic))
        restored._read_at = message.source
        return restored


def decode_sound(
    records: Buffer, names: QueueNames
) -> tuple[list[Message], UndecodableRecord | None]:
    """Decode the messages before the first damaged record. names: of their queues.

    Returns them and the error of that record; None if no record is damaged.
    """
    try:
        return native.decode_messages(records, names.broker_group), None
    except UndecodableRecord as error:
        damage = error
    sound: list[Message] = []
    with contextlib.suppress(UndecodableRecord):
        for stored in iterate_records(records):
            sound.append(Message.from_record(stored))
    return names.named(sound), damage


def at_or_after(messages: Sequence[Message], offset: int) -> Sequence[Message]:
    """The messages of one queue from ``offset`` on: a batch comes whole and may begin before it.

    messages: in the queue's order.
    """
    if messages and messages[0].queue_offset < offset:
        return [message for message in messages if message.queue_offset >= offset]
    return messages


def received(
    messages: Sequence[Message], topic: str, wanted: Mapping[str, Wanted], *, from_offset: int
) -> Sequence[Message]:
    """Messages of one queue of ``topic``, at or above ``from_offset``, whose tags are wanted.

    messages: in the queue's order. wanted: the wanted tags of each subscribed topic; all messages
    of a retry topic pass.
    """
    messages = at_or_after(messages, from_offset)
    if topic.startswith(RETRY_PREFIX):
        return [_restored(message) for message in messages]
    tags = wanted.get(topic)
    return messages if tags is None else passing(messages, tags)


def _restored(message: Message) -> Message:
    topic = message.properties.get(properties.RETRY_TOPIC)
    return message if topic is None else Returned.restore(message, topic)
