"""Limits of the broker.

Every resource that a caller can use up has a limit here or in the configuration: bytes of request
bodies in memory, held pulls, connections, messages per request. At a limit the *next* request is
refused with a specific error, and accepted work continues (``shared.runtime.budget`` counts).
"""

from __future__ import annotations

from typing import Final

MESSAGES_MAX: Final = 4096
"""Messages in one produce request."""

BATCH_SIZE_MAX: Final = 4 << 20
"""Bytes of the messages of one inner batch: RocketMQ's default ``maxMessageSize``."""

VALUES_MAX: Final = 1 << 18
"""Values in one request body, including map keys: 64 per message of a request of MESSAGES_MAX."""

MAPS_MAX: Final = 1 << 15
"""Maps in one request body: a map costs more than other values."""

SCANNED_SIZE_MIN: Final = 1 << 15
"""Size [bytes] below which a body cannot hold many values, so that they are not counted."""

QUEUES_MAX: Final = 4096
"""Queues of one topic: each costs a directory with files and an entry in every table."""

QUEUES_LISTED_MAX: Final = 16_384
"""Queues of one topic in one answer: files of RocketMQ, or a directory created by hand, may claim
2**31 queues."""

PULL_MAX: Final = 1024
"""Messages in one pull; a larger ``max`` is refused instead of being reduced silently."""

PULL_BYTES_MAX: Final = 32 << 20
"""``max_bytes`` of one pull."""

DECODED_BYTES_MAX: Final = 1 << 20
"""Bytes of records in one decoded answer (a single larger record is allowed). As JSON they take up
to twenty times as much memory, and encoding them occupies the event loop."""

DECODED_FETCH_MAX: Final = 256
"""Messages in one decoded answer to a fetch: they take some milliseconds of the event loop."""

WAIT_MS_MAX: Final = 60_000
"""``wait_ms`` of one pull: below the idle time-outs of common proxies."""

ACK_TIMEOUT_MS_MAX: Final = 60_000
"""``timeout_ms`` of one send."""

LIST_MAX: Final = 500
"""Topics or groups in one answer: about 200 KiB of JSON and 2 ms of the event loop at most."""

QUERY_MAX: Final = 64
"""Hits of one look-up by key (RocketMQ's maxMsgsNumBatch)."""


BODY_SILENCE_S: Final = 10.0
"""Time without a byte of the body after which the request is refused."""
BODY_STALL_S: Final = 1.0
"""Time in which less than ``BODY_STEP`` of a body has arrived, after which its memory is given to
other requests that need it."""
BODY_STEP: Final = 1 << 16

SHOWN_MS_MAX: Final = 10 * 365 * 24 * 3_600_000
"""Longest retention of a topic of its own."""
