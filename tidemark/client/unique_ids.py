"""Generates unique ids of messages: 32 hex digits, in the form of RocketMQ's clients.

A message with a unique id can be sent again without being stored twice. 80 random bits identify the
client, 48 bits count its messages. Used by ``producer``.
"""

from __future__ import annotations

import secrets
from typing import Final

CLIENT_BYTES: Final = 10


class UniqueIds:
    """Generates the ids of one client."""

    def __init__(self) -> None:
        self._client = secrets.token_hex(CLIENT_BYTES).upper()
        self._count = 0

    def make(self) -> str:
        """Return the next id."""
        self._count += 1
        return f"{self._client}{self._count:012X}"

    def make_all(self, count: int) -> list[str]:
        """Return the next ids; cheaper than one at a time."""
        client, first = self._client, self._count + 1
        self._count += count
        return [f"{client}{number:012X}" for number in range(first, first + count)]
