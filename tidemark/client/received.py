"""From what a pull or a fetch brought to messages: decode, restore, filter. Pure.

A message that was sent back comes through the group's retry topic and says in ``RETRY_TOPIC``
where it is from (docs/formats.md): the program sees that topic, and ``source`` keeps the place
where it was read, which is what is committed and sent back again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from tidemark.client.tags import Wanted, passing
from tidemark.formats import properties, twins
from tidemark.formats.message import Message, Source, iterate_records
from tidemark.formats.record import UndecodableRecord
from tidemark.formats.record_layout import Buffer
from tidemark.formats.send_back import RETRY_PREFIX


class Returned(Message):
    """A message out of a retry topic under the topic that it was first sent to."""

    _read_at: Source

    @property
    def source(self) -> Source:
        """Where it was read: the group's retry topic."""
        return self._read_at

    @classmethod
    def restore(cls, message: Message, topic: str) -> Returned:
        """The same message under ``topic``; its queue and queue offset stay the retry topic's."""
        restored = cls._make(message._replace(topic=topic))
        restored._read_at = message.source
        return restored


def decode_sound(records: Buffer) -> tuple[list[Message], UndecodableRecord | None]:
    """The messages before the first record that is not what the broker stored, and what is wrong
    with that one; None: nothing."""
    try:
        return twins.decode_messages(records), None
    except UndecodableRecord as error:
        damage = error
    sound: list[Message] = []
    with contextlib.suppress(UndecodableRecord):
        for stored in iterate_records(records):
            sound.append(Message.from_record(stored))
    return sound, damage


def received(
    messages: Sequence[Message], topic: str, wanted: Mapping[str, Wanted], *, from_offset: int
) -> Sequence[Message]:
    """Messages of one queue of ``topic``, at or above ``from_offset``, whose tags are wanted.

    messages: in the queue's order. wanted: per subscribed topic; every retry passes.
    """
    if messages and messages[0].queue_offset < from_offset:
        messages = [message for message in messages if message.queue_offset >= from_offset]
    if topic.startswith(RETRY_PREFIX):
        return [_restored(message) for message in messages]
    tags = wanted.get(topic)
    return messages if tags is None else passing(messages, tags)


def _restored(message: Message) -> Message:
    topic = message.properties.get(properties.RETRY_TOPIC)
    return message if topic is None else Returned.restore(message, topic)
