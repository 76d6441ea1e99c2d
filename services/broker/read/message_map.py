"""A stored message in the form of an answer. Pure.

``pull`` and ``query`` find the record before this step; ``api.encodings`` encodes the map after it.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from tidemark.formats import hashing, properties
from tidemark.formats.record import Record


def tags_code(record: Record, delay_levels_ms: Sequence[int]) -> int:
    """Return the tags code of the record's queue unit (docs/formats.md, 3)."""
    found = record.property_map
    if record.topic == hashing.SCHEDULE_TOPIC:
        due_ms = hashing.delivery_time_code(
            found.get(properties.DELAY), record.store_timestamp_ms, delay_levels_ms
        )
        if due_ms is not None:
            return due_ms
    return hashing.tags_code(found.get(properties.TAGS))


def message_map(record: Record, *, code: int, json_body: bool) -> dict[str, object]:
    """Return one message in the form of an answer; its body is a copy."""
    found = record.property_map
    body = bytes(record.body)
    message: dict[str, object] = {
        "message_id": record.message_id,
        "unique_id": found.get(properties.UNIQ_KEY),
        "topic": record.topic,
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "size": record.size,
        "tags": found.get(properties.TAGS),
        "keys": [key for key in found.get(properties.KEYS, "").split(" ") if key],
        "properties": found,
        "born_timestamp_ms": record.born_timestamp_ms,
        "store_timestamp_ms": record.store_timestamp_ms,
        "born_host": record.born_host.text,
        "store_host": record.store_host.text,
        "reconsume_times": record.reconsume_times,
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "body_crc": record.body_crc,
        "tags_code": code,
        "prepared_transaction_offset": record.prepared_transaction_offset,
    }
    if not json_body:
        message["body"] = body
        return message
    try:
        message["body_text"] = body.decode()
    except UnicodeDecodeError:
        message["body"] = base64.b64encode(body).decode("ascii")
    return message
