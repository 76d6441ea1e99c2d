"""Names of queues: a number in a broker without name service, ``g0/3`` in a cluster. Pure.

``g0/3`` is queue 3 of broker group ``g0``. Programs see names; the API of a broker has numbers.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from tidemark.client.checks import parse_queue
from tidemark.formats.message import Message

QueueName: TypeAlias = int | str
"""A queue as programs name it."""
Queue: TypeAlias = tuple[str, QueueName]
"""(topic, queue)."""


class QueueNames:
    """The names of the queues of one broker group."""

    def __init__(self, broker_group: str | None) -> None:
        """broker_group: None where there is only one, whose queues are called by their numbers."""
        self.broker_group = broker_group
        self._made: dict[int, str] = {}

    def name(self, number: int) -> QueueName:
        """Return the name of a queue."""
        if self.broker_group is None:
            return number
        made = self._made.get(number)
        if made is None:
            made = self._made[number] = f"{self.broker_group}/{number}"
        return made

    def number(self, name: QueueName) -> int:
        """Return the number of a queue of this broker group."""
        return parse_queue(name)[1] if isinstance(name, str) else name

    def named(self, messages: list[Message]) -> list[Message]:
        """Give messages of this broker group the names of their queues."""
        if self.broker_group is None:
            return messages
        return [message._replace(queue=self.name(int(message.queue))) for message in messages]


NUMBERS: Final = QueueNames(None)
"""Queues called by their numbers."""
