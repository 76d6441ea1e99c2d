"""A produce request parsed in both ways: by the fast path's twin, and by the general path."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgpack

from services.broker.api import encodings, messages
from services.broker.api.encodings import Encoding
from services.broker.api.messages import Rules, parse_produce
from services.broker.limits import ACK_TIMEOUT_MS_MAX, MESSAGES_MAX
from services.broker.send.request import ProduceRequest
from tidemark.errors import RequestError
from tidemark.formats.ids import UniqueIdMaker
from tidemark.formats.produce_wire import PlainRequest

RULES = Rules(message_size_max=300, record_crc=True)
V4, V6 = bytes([10, 9, 8, 7]), bytes(range(16))
MS = 0x088D5C80


def maker(address: bytes = V4, count: int = 0) -> UniqueIdMaker:
    made = UniqueIdMaker(address, pid=0xABCD, salt=0x18B4AAC2)
    made.take(count)
    return made


def read(
    twin: ModuleType,
    body: Any,
    *,
    rules: Rules = RULES,
    address: bytes = V4,
    count: int = 0,
    makes_ids: bool = True,
) -> PlainRequest | None:
    unique_ids = maker(address, count)
    plain: PlainRequest | None = twin.read_plain(
        body,
        message_size_max=rules.message_size_max,
        properties_size_max=rules.properties_size_max,
        messages_max=MESSAGES_MAX,
        timeout_ms_max=ACK_TIMEOUT_MS_MAX,
        makes_ids=makes_ids,
        id_head=unique_ids.head,
        id_ms=MS,
        id_count=unique_ids.take(0),
    )
    return plain


def careful(
    body: bytes, *, rules: Rules = RULES, address: bytes = V4, count: int = 0
) -> tuple[ProduceRequest, int] | None:
    """The request as the general path parses it, and how many ids it made; None if it refuses."""
    unique_ids = maker(address, count)
    try:
        request = parse_produce(
            encodings.decode(body, Encoding.MSGPACK),
            rules=rules,
            json_body=False,
            make_unique_id=lambda: unique_ids.make(MS),
        )
    except RequestError:
        return None
    return request, unique_ids.take(0) - count


def assert_same(plain: PlainRequest, other: tuple[ProduceRequest, int] | None) -> None:
    assert other is not None, "the careful way refuses it"
    request, made_ids = other
    assert plain.entries == request.entries
    assert (plain.message_count, plain.queue) == (request.message_count, request.picks)
    assert (plain.ack or RULES.ack_default) == request.ack
    assert (plain.timeout_ms or messages.ACK_TIMEOUT_MS_DEFAULT) == request.timeout_ms
    assert plain.made_ids == made_ids


def packed(fields: dict[str, Any], **request: Any) -> bytes:
    """A request of one message with a body and these fields."""
    whole = {"messages": [{"body": b"x", **fields}], **request}
    return bytes(msgpack.packb(whole, unicode_errors="surrogateescape"))
