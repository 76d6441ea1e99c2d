"""Unique ids that a client gives its messages: 32 hex digits, as RocketMQ's clients make them.

With one of its own a message can be sent again without being stored twice. 80 random bits are this
client's, 48 count its messages. Used by ``producer``.
"""

from __future__ import annotations

import secrets
from typing import Final

CLIENT_BYTES: Final = 10


class UniqueIds:
    """The ids of one client."""

    def __init__(self) -> None:
        self._client = secrets.token_hex(CLIENT_BYTES).upper()
        self._count = 0

    def make(self) -> str:
        """The next one."""
        self._count += 1
        return f"{self._client}{self._count:012X}"
