"""Batch requests: messages for a topic with batch queues, as wire entries in one body. Pure.

Such a topic stores the messages of a request for one queue as one record, and a batch request has
that record's body ready. The messages have no unique ids of their own: the batch has one.
``producer`` learns from the answer to an ordinary request that a topic has batch queues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgpack
import msgspec

from tidemark.client.messages import SendResult
from tidemark.formats import native
from tidemark.formats.inner_batch import COUNT_MAX
from tidemark.formats.produce_wire import BODY_SIZE_MAX, PlainRequest
from tidemark.formats.properties import PROPERTIES_SIZE_MAX

OCTETS: Final = "application/octet-stream"


class StoredBatch(msgspec.Struct):
    """Where the broker has stored a batch."""

    message_id: str
    unique_id: str
    queue: int
    queue_offset: int
    """That of the first message."""
    message_count: int
    physical_offset: int
    store_timestamp_ms: int

    def results(self, *, level: str, copies: int) -> list[SendResult]:
        """Return the result of each message."""
        message_id, queue, at = self.message_id, self.queue, self.physical_offset
        stored_ms, unique_id = self.store_timestamp_ms, self.unique_id
        return [
            SendResult(message_id, queue, offset, at, stored_ms, level, copies, None, unique_id)
            for offset in range(self.queue_offset, self.queue_offset + self.message_count)
        ]


def packed_batch(wires: Sequence[Mapping[str, object]]) -> PlainRequest | None:
    """Return the entries of messages in the form of the API, and their queue.

    None if they cannot be one batch: there are several queues, sharding keys or delays among them.
    """
    return native.read_plain(
        msgpack.packb({"messages": wires}),
        message_size_max=BODY_SIZE_MAX,
        properties_size_max=PROPERTIES_SIZE_MAX,
        messages_max=COUNT_MAX,
        timeout_ms_max=1,
        makes_ids=False,
        id_head=b"",
        id_ms=0,
        id_count=0,
    )


def is_one_record(results: Sequence[SendResult]) -> bool:
    """Whether messages of an ordinary request were stored as one record, as only a topic with batch
    queues does. A single message does not tell."""
    return len(results) > 1 and results[0].physical_offset == results[1].physical_offset


def single_results(stored: object) -> object:
    """Return the results in an error about a batch as results of its messages; others as they are.

    stored: what the broker named as stored: for a batch request, one map with its message count.
    """
    match stored:
        case [{"message_count": int(count), "queue_offset": int(first), **fields}]:
            return [{**fields, "queue_offset": first + index} for index in range(count)]
        case _:
            return stored
