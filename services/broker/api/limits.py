"""Bounds of the broker.

Everything a caller can make grow has a bound here or in the configuration: bytes of request bodies
in memory, held pulls, connections, messages per request. At a bound the *next* one is refused with
a named error; what is already there goes on (``shared.runtime.budget`` counts).
"""

from __future__ import annotations

from typing import Final

MESSAGES_MAX: Final = 4096
"""Messages in one produce request."""

VALUES_MAX: Final = 1 << 18
"""Values in one request body, keys of maps among them: 64 for each message of a full request."""

MAPS_MAX: Final = 1 << 15
"""Maps among them: each costs more than other values do."""

SCANNED_SIZE_MIN: Final = 1 << 15
"""Bytes: shorter bodies cannot hold many values, and are decoded without being counted."""

QUEUES_MAX: Final = 4096
"""Queues of one topic: each is a directory with files and an entry in every table."""

QUEUES_LISTED_MAX: Final = 16_384
"""Of one topic in one answer: RocketMQ's files, or a directory made by hand, may say 2**31."""

PULL_MAX: Final = 1024
"""Messages in one pull; a larger ``max`` is refused, not cut silently."""

PULL_BYTES_MAX: Final = 32 << 20
"""``max_bytes`` of one pull."""

DECODED_BYTES_MAX: Final = 1 << 20
"""Bytes of records in one answer that is not raw, or one larger record: as JSON they take up to
twenty times as much memory, and the loop while they are written."""

DECODED_FETCH_MAX: Final = 256
"""Messages in one answer to a fetch that is not raw: some milliseconds of the loop."""

WAIT_MS_MAX: Final = 60_000
"""``wait_ms`` of one pull: below the idle time-outs of common proxies."""

ACK_TIMEOUT_MS_MAX: Final = 60_000
"""``timeout_ms`` of one send."""

LIST_MAX: Final = 500
"""Topics or groups in one answer: at most some 200 KiB of JSON, and 2 ms of the loop at once."""

QUERY_MAX: Final = 64
"""Hits of one look-up by key (maxMsgsNumBatch, store layout 5.6)."""


BODY_SILENCE_S: Final = 10.0
"""No byte of a body arrives for so long: the request is refused."""
