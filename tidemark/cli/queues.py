"""Parses names of queues, and of offsets of dead letters: ``3``, or in a cluster ``g0/3``."""

from __future__ import annotations

from typing import Final

from tidemark.cli.times import Parsed
from tidemark.client.checks import parse_queue
from tidemark.client.queue_names import QueueName
from tidemark.errors import BadRequest


def parsed_queue(text: str) -> QueueName:
    """Parse a queue number or a name such as ``g0/3``. Raises ValueError."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        parse_queue(text)
    except BadRequest:
        raise ValueError(f"{text!r} is neither a number nor a name such as g0/3") from None
    return text


QUEUE: Final = Parsed("queue", parsed_queue)
OFFSET: Final = Parsed("offset", parsed_queue)
