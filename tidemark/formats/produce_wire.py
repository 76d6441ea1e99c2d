"""Decodes a common produce request to wire entries, and encodes its answer. Pure.

This is the fast path for what nearly every sender sends: msgpack, at most one queue, valid
messages. It creates no maps or objects. ``read_plain`` accepts only requests that the broker's full
check would accept with the same result. All others are left to that check, which accepts them or
reports the error. The native implementation is ``speedups.wire``; ``native`` chooses.

Write path, step 2 for common requests, beside ``messages``. ``pack_answer`` builds the answer of
step 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeGuard, cast

import msgpack

from tidemark.formats import batch, properties
from tidemark.formats.batch import WireMessage

UNIQUE_ID_SIZE_MAX: Final = 128
"""Maximum length in characters of a sender's unique id."""

PAIRS_MAX: Final = 64
"""Maximum number of properties of one message in the fast path; more are rare, but valid."""

BODY_SIZE_MAX: Final = (1 << 31) - 1 - batch.ENTRY_OVERHEAD - properties.PROPERTIES_SIZE_MAX
"""An entry's size is an i32."""

ACK_LEVELS: Final = ("memory", "disk", "replicated")

_I32_MAX: Final = (1 << 31) - 1
_REQUEST_FIELDS: Final = frozenset({"messages", "ack", "timeout_ms", "make_unique_ids"})
_MESSAGE_FIELDS: Final = frozenset(
    {"body", "body_text", "tags", "keys", "properties", "unique_id", "flag", "queue"}
)


class PlainRequest(NamedTuple):
    """A checked request whose messages all have the same queue, or none."""

    entries: bytes
    """Wire entries (``batch``); properties as they are stored, without the record CRC."""
    message_count: int
    queue: int | None
    """The queue of every message; None if no message has one."""
    ack: str | None
    timeout_ms: int | None
    made_ids: int
    """Number of messages that had no unique id and got one."""


def read_plain(
    body: bytes,
    *,
    message_size_max: int,
    properties_size_max: int,
    messages_max: int,
    timeout_ms_max: int,
    makes_ids: bool,
    id_head: bytes,
    id_ms: int,
    id_count: int,
) -> PlainRequest | None:
    """Decode a msgpack produce request of the common form; None if it is anything else.

    The common form has ``messages``, and optionally ``ack``, ``timeout_ms``, ``make_unique_ids``.
    Each message has ``body`` or ``body_text``, and optionally ``tags``, ``keys``, ``properties``,
    ``unique_id``, ``flag`` and ``queue``, which is the same in all. No sharding key, no delay, no
    floating point number, at most PAIRS_MAX properties. nil means an absent field. It never raises:
    an invalid, damaged or other request gives None.

    message_size_max: bytes of one body. properties_size_max: bytes of one message's properties.
    makes_ids: whether unique ids are generated for messages without one, unless the request says
    otherwise: id_head, id_ms (32 bits) and a 16-bit counter from id_count on, in hex (``ids``).
    """
    fields = _decoded(body)
    if fields is None or not fields.keys() <= _REQUEST_FIELDS:
        return None
    messages, ack, timeout_ms = fields.get("messages"), fields.get("ack"), fields.get("timeout_ms")
    asks_for_ids = fields.get("make_unique_ids")
    if not isinstance(messages, list) or not 1 <= len(messages) <= messages_max:
        return None
    if ack is not None and not (isinstance(ack, str) and ack in ACK_LEVELS):
        return None
    if timeout_ms is not None and not _is_whole(timeout_ms, 1, timeout_ms_max):
        return None
    if asks_for_ids is not None and not isinstance(asks_for_ids, bool):
        return None
    entries: list[WireMessage] = []
    queues: set[int | None] = set()
    made_ids = 0
    for message in messages:
        if not _is_message(message):
            return None
        given = message.get("unique_id")
        if given is None and makes_ids and asks_for_ids is not False:
            unique_id: str | None = _made_id(id_head, id_ms, id_count + made_ids)
            made_ids += 1
        elif given is None or _is_unique_id(given):
            unique_id = given
        else:
            return None
        entry = _entry(message, unique_id)
        if (
            entry is None
            or len(entry.body) > min(message_size_max, BODY_SIZE_MAX)
            or len(entry.properties) > min(properties_size_max, properties.PROPERTIES_SIZE_MAX)
        ):
            return None
        entries.append(entry)
        queue = message.get("queue")
        if queue is not None and not _is_whole(queue, 0, _I32_MAX):
            return None
        queues.add(queue)
    if len(queues) != 1:
        return None
    return PlainRequest(
        batch.encode(entries), len(entries), queues.pop(), ack, timeout_ms, made_ids
    )


def pack_answer(
    entries: bytes,
    sizes: bytes,
    *,
    level: str,
    copies: int,
    host: bytes,
    queue: int,
    first_queue_offset: int,
    first_physical_offset: int,
    store_timestamp_ms: int,
    batch_id: str | None,
) -> bytes:
    """Encode the msgpack answer for a request whose messages have adjacent offsets in one queue.

    entries: as they were encoded. sizes: sizes of the records, as ``encode_runs`` returned them.
    host: the encoded store host. batch_id: unique id of the inner batch that the messages became,
    which messages without one have in the answer; None: each became a record. Raises BadBatch, and
    ValueError if there is not one size per record or an offset does not fit into 63 bits.
    """
    if len(sizes) % 4:
        raise ValueError(f"{len(sizes)} bytes are not sizes of 4 bytes each")
    results: list[dict[str, object]] = []
    at = first_physical_offset
    found = list(batch.iterate(entries))
    steps = list(memoryview(sizes).cast("I"))
    if batch_id is not None:
        if len(steps) != 1:
            raise ValueError(f"one batch with {len(steps)} sizes")
        steps = [0] * len(found)
    for entry, size in zip(found, steps, strict=True):
        unique_id = properties.find(bytes(entry.properties), b"UNIQ_KEY")
        results.append(
            {
                "message_id": (host + _offset(at)).hex().upper(),
                "unique_id": batch_id if unique_id is None else properties.text(unique_id),
                "queue": queue,
                "queue_offset": first_queue_offset + len(results),
                "physical_offset": at,
                "store_timestamp_ms": store_timestamp_ms,
            }
        )
        at += size
    answer = {
        "status": "PUT_OK",
        "ack": {"level": level, "copies": copies},
        "results": results,
    }
    return cast(bytes, msgpack.packb(answer))


def _offset(value: int) -> bytes:
    try:
        return value.to_bytes(8, "big", signed=True)
    except OverflowError:
        raise ValueError(f"physical offset {value} does not fit into 8 bytes") from None


def _decoded(body: bytes) -> dict[object, object] | None:
    try:
        value = msgpack.unpackb(
            body, raw=False, strict_map_key=True, object_pairs_hook=_without_duplicates
        )
    except (ValueError, RecursionError, OverflowError, msgpack.UnpackException):
        return None
    return value if isinstance(value, dict) else None


def _without_duplicates(pairs: Sequence[tuple[object, object]]) -> dict[object, object]:
    built = dict(pairs)
    if len(built) != len(pairs):
        raise ValueError("a key appears twice in one map")
    return built


def _is_message(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict) and value.keys() <= _MESSAGE_FIELDS


def _entry(message: Mapping[str, object], unique_id: str | None) -> WireMessage | None:
    """Build the message's entry without checking its size; None if a field is invalid."""
    if ("body" in message) == ("body_text" in message):
        return None
    body = message["body"] if "body" in message else message["body_text"]
    if not isinstance(body, bytes if "body" in message else str):
        return None
    data = body if isinstance(body, bytes) else body.encode()
    pairs = message.get("properties")
    if pairs is None:
        pairs = {}
    if not isinstance(pairs, dict) or len(pairs) > PAIRS_MAX:
        return None
    for name, value in pairs.items():
        if not _is_text(name) or properties.is_refused(name) or not _is_text(value):
            return None
    tags, keys, flag = message.get("tags"), message.get("keys"), message.get("flag")
    if tags is not None and tags != "":
        if not _is_text(tags):
            return None
        pairs[properties.TAGS] = tags
    if keys is not None:
        if not isinstance(keys, list) or not all(_is_text(key) and " " not in key for key in keys):
            return None
        if keys:
            pairs[properties.KEYS] = " ".join(keys)
    if unique_id is not None:
        pairs[properties.UNIQ_KEY] = unique_id
    if flag is not None and not _is_whole(flag, -_I32_MAX - 1, _I32_MAX):
        return None
    return WireMessage(data, properties.encode(pairs), 0 if flag is None else flag)


def _is_text(value: object) -> TypeGuard[str]:
    """Whether it can be stored as a property's name or value and be read back unchanged."""
    return isinstance(value, str) and value != "" and "\x01" not in value and "\x02" not in value


def _is_unique_id(value: object) -> TypeGuard[str]:
    return _is_text(value) and " " not in value and len(value) <= UNIQUE_ID_SIZE_MAX


def _is_whole(value: object, low: int, high: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _made_id(head: bytes, ms: int, count: int) -> str:
    return f"{head.decode('ascii')}{ms & 0xFFFFFFFF:08X}{count & 0xFFFF:04X}"
