"""A checked send as a value. Pure.

``api.messages`` and ``api.send`` build it; ``deduplicator`` and ``sender`` use it.
"""

from __future__ import annotations

import msgspec

from services.broker.log.ack_levels import AckLevel
from services.broker.send.wanted_delay import Delay

Pick = int | str | None
"""Queue selection of a message: a queue number, a sharding key, or None for round-robin."""


class ProduceRequest(msgspec.Struct, frozen=True):
    """One checked request; at least one message."""

    entries: bytes
    """All messages in order, as wire entries (``tidemark.formats.batch``): flag, body and
    properties in their stored form, without the record CRC property."""
    message_count: int
    picks: int | list[Pick] | None
    """None: no message names a queue. A number: all name that queue. Else one pick per message."""
    ack: AckLevel | None
    """Requested level. None: the request names none, and a group uses its current level."""
    timeout_ms: int
    delays: list[Delay | None] | None = None
    """Delay of each message; None: no message is delayed."""
    retry: bool = False
    """Whether the request is a repeat with unknown outcome: messages that are already in the log
    are not stored again."""
    batch_properties: bytes = b""
    """Of a batch request: properties of the inner batch that its entries are stored as."""
