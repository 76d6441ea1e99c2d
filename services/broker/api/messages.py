"""Requests and answers as values: parses produce requests, formats messages. Pure.

``parse_produce`` turns a decoded body into entries that can be stored unchanged, or raises an error
that names the wrong field; an accepted request cannot fail later because of its content. Clients
cannot inject properties: the separators 0x01 and 0x02 are refused in every name and value, and
names that the store or the SDK sets are only set by their own fields. Requests
of the common form use the fast path ``tidemark.formats.produce_wire``, which has the same result.
``encodings`` decodes the bytes before this step; after it ``deduplicator`` searches for a repeated
send (write path, step 3).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from services.broker.api.encodings import Rest
from services.broker.fields import (
    known_fields,
    shown,
    string,
    table,
    whole_number,
)
from services.broker.limits import MESSAGES_MAX
from services.broker.log.ack_levels import AckLevel
from services.broker.schema.messages import NewMessage, Send
from services.broker.schema.parsing import parsed
from services.broker.send.request import Pick, ProduceRequest
from services.broker.send.wanted_delay import Delay, wanted_delay
from tidemark.errors import (
    BadProperty,
    BadRequest,
    MessageTooLarge,
    RequestError,
    TooManyMessages,
)
from tidemark.formats import batch, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.nack import PROPERTIES_ROOM
from tidemark.formats.produce_wire import UNIQUE_ID_SIZE_MAX

I32_MAX: Final = (1 << 31) - 1
ACK_TIMEOUT_MS_DEFAULT: Final = 3000

_MESSAGE_FIELDS: Final = frozenset(NewMessage.__struct_fields__)


class Rules(NamedTuple):
    """Limits and defaults of messages on this node."""

    message_size_max: int
    """Bytes of one body."""
    record_crc: bool
    """Whether the store adds the record CRC property, which takes 20 bytes of the properties."""
    ack_default: AckLevel | None = AckLevel.DISK
    """Level of a request that names none; None in a group, where the group's state decides."""
    timeout_ms_default: int = ACK_TIMEOUT_MS_DEFAULT
    """Timeout of a request that names none."""
    delay_levels_ms: tuple[int, ...] = ()
    """Delays of the levels; [0] is the delay of level 1."""

    @property
    def properties_size_max(self) -> int:
        """Largest size [bytes] of the properties of a sent message.

        It leaves room for the properties that a delay, a retry or a dead letter adds, so that every
        accepted message can be negatively acknowledged.
        """
        return properties.size_max(record_crc=self.record_crc) - PROPERTIES_ROOM


def parse_produce(
    value: object,
    *,
    rules: Rules,
    json_body: bool,
    make_unique_id: Callable[[], str],
    has_batches: bool = False,
    rest: Rest | None = None,
) -> ProduceRequest:
    """Check a decoded produce body; the first mistake is raised with its field's name.

    json_body: ``body`` is base64 text; otherwise it is bytes. make_unique_id: called once per
    message without a ``unique_id``, unless the request has ``make_unique_ids: false``. has_batches:
    whether the topic has batch queues; then it is called for delayed messages only, which wait as
    records of their own. rest: as in ``encodings.decode``. Raises BadRequest, BadProperty,
    DelayOutOfRange, MessageTooLarge or TooManyMessages.
    """
    fields = table(value, "the request body")
    # The messages are checked below, one by one, as they are encoded.
    options = parsed({**fields, "messages": [{}]}, Send)
    raw_messages = fields.get("messages")
    if not isinstance(raw_messages, list):
        raise BadRequest(
            f"messages must be a list of messages, not {shown(raw_messages)}. Nothing was stored.",
            field="messages",
        )
    if not raw_messages:
        raise BadRequest("messages is empty: a request stores at least one. Nothing was stored.")
    if len(raw_messages) > MESSAGES_MAX:
        raise TooManyMessages(
            f"{len(raw_messages)} messages in one request, {MESSAGES_MAX} are allowed. "
            "Nothing was stored.",
            "Send them in several requests.",
            limit=MESSAGES_MAX,
        )
    if options.retry:
        _check_ids(raw_messages)
    make = make_unique_id if options.make_unique_ids else None
    entries: list[WireMessage] = []
    picks: list[Pick] = []
    delays: list[Delay | None] = []
    for index, message in enumerate(raw_messages):
        if rest is not None:
            rest()
        try:
            entry, pick, wait = _message(
                message, index, rules, json_body, make, has_batches=has_batches
            )
        except RequestError as error:
            error.facts["index"] = index  # lets a client repeat the request without this message
            raise
        entries.append(entry)
        picks.append(pick)
        delays.append(wait)
    return ProduceRequest(
        entries=batch.encode(entries),
        message_count=len(entries),
        picks=_common(picks),
        ack=rules.ack_default if options.ack is None else AckLevel(options.ack),
        timeout_ms=rules.timeout_ms_default if options.timeout_ms is None else options.timeout_ms,
        delays=delays if any(delays) else None,
        retry=options.retry,
    )


def _check_ids(raw_messages: Sequence[object]) -> None:
    """Raise BadRequest if a message of a repeated send has no id."""
    for index, message in enumerate(raw_messages):
        if isinstance(message, Mapping) and message.get("unique_id") is None:
            raise BadRequest(
                f"messages[{index}] has no unique_id, and retry finds messages by theirs. "
                "Nothing was stored.",
                "Choose an id for every message before its first send, and repeat it.",
                field=f"messages[{index}].unique_id",
            )


def _common(picks: list[Pick]) -> int | list[Pick] | None:
    """Return the pick if all messages name the same queue number or all name none; else the list of
    picks."""
    first = picks[0]
    if isinstance(first, str) or any(pick != first for pick in picks):
        return picks
    return first


def _message(
    value: object,
    index: int,
    rules: Rules,
    json_body: bool,
    make_unique_id: Callable[[], str] | None,
    *,
    has_batches: bool,
) -> tuple[WireMessage, Pick, Delay | None]:
    """Return one checked message, its queue selection and its delay."""
    at = f"messages[{index}]"
    fields = known_fields(table(value, at), _MESSAGE_FIELDS, at + ".")
    wait = wanted_delay(fields, at, level_count=len(rules.delay_levels_ms))
    queue = fields.get("queue")
    flag = fields.get("flag")
    pairs = _properties(fields, at, None if has_batches and wait is None else make_unique_id)
    encoded = properties.encode(pairs)
    limit = rules.properties_size_max
    if len(encoded) > limit:
        raise BadProperty(
            f"{at}: properties, tags and keys together take {len(encoded)} bytes, {limit} are "
            f"allowed: a record keeps {PROPERTIES_ROOM} free for delays and retries. Nothing was "
            "stored.",
            "Put large values into the body.",
            field=f"{at}.properties",
            limit=limit,
        )
    entry = WireMessage(
        _body(fields, at, rules.message_size_max, json_body),
        encoded,
        0 if flag is None else whole_number(flag, f"{at}.flag", -I32_MAX - 1, I32_MAX),
    )
    if queue is not None:
        return entry, whole_number(queue, f"{at}.queue", 0, I32_MAX), wait
    return entry, pairs.get(properties.SHARDING_KEY), wait


def _body(fields: Mapping[str, object], at: str, size_max: int, json_body: bool) -> bytes:
    body, text = fields.get("body"), fields.get("body_text")
    if ("body" in fields) == ("body_text" in fields):
        both = "has both body and body_text" if "body" in fields else "has no body"
        raise BadRequest(
            f"{at} {both}. Nothing was stored.",
            "Give body (bytes in msgpack, base64 in JSON) or body_text (a string); "
            "an empty one is fine.",
            field=f"{at}.body",
        )
    if "body_text" in fields:
        data = string(text, f"{at}.body_text").encode()
    elif json_body:
        data = _from_base64(body, f"{at}.body")
    elif isinstance(body, bytes):
        data = body
    else:
        raise BadRequest(
            f"{at}.body must be bytes (msgpack bin), not {shown(body)}. Nothing was stored.",
            "Encode it first, or use body_text.",
            field=f"{at}.body",
        )
    if len(data) > size_max:
        raise MessageTooLarge(
            f"{at}: the body has {len(data)} bytes, {size_max} are allowed. Nothing was stored.",
            "Split the message, or raise message_size_max on the broker.",
            field=f"{at}.body",
            limit=size_max,
        )
    return data


def _from_base64(value: object, at: str) -> bytes:
    text = string(value, at)
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(
            f"{at} must be base64, not {shown(text)}. Nothing was stored.",
            "Use body_text for text.",
            field=at,
        ) from None


def _properties(
    fields: Mapping[str, object], at: str, make_unique_id: Callable[[], str] | None
) -> dict[str, str]:
    """Return all properties to store; the unique id is the last of them."""
    pairs: dict[str, str] = {}
    given = fields.get("properties")
    if given is not None:
        for name, value in table(given, f"{at}.properties").items():
            where = f"{at}.properties.{shown_name(name)}"
            _check_text(name, where, "name")
            if properties.is_refused(name):
                raise BadProperty(
                    f"{where}: the name is reserved for the store. Nothing was stored.",
                    "Use another name; tags, keys, sharding_key and unique_id have own fields.",
                    field=where,
                )
            if not isinstance(value, str):
                raise BadRequest(
                    f"{where} must be a string, not {shown(value)}. Nothing was stored.",
                    field=where,
                )
            _check_text(value, where, "value")
            pairs[name] = value
    tags = fields.get("tags")
    if tags is not None and tags != "":
        pairs[properties.TAGS] = _text(tags, f"{at}.tags")
    keys = fields.get("keys")
    if keys is not None:
        joined = _keys(keys, f"{at}.keys")
        if joined:
            pairs[properties.KEYS] = joined
    sharding_key = fields.get("sharding_key")
    if sharding_key is not None:
        pairs[properties.SHARDING_KEY] = _text(sharding_key, f"{at}.sharding_key")
    unique_id = fields.get("unique_id")
    if unique_id is not None:
        pairs[properties.UNIQ_KEY] = _unique_id(unique_id, f"{at}.unique_id")
    elif make_unique_id is not None:
        pairs[properties.UNIQ_KEY] = make_unique_id()
    return pairs


def _keys(value: object, at: str) -> str:
    if not isinstance(value, list):
        raise BadRequest(
            f"{at} must be a list of strings, not {shown(value)}. Nothing was stored.", field=at
        )
    for index, key in enumerate(value):
        _text(key, f"{at}[{index}]")
        if " " in key:
            # Keys are stored in one property, separated by spaces: this key would become two.
            raise BadProperty(
                f"{at}[{index}]: {shown(key)} contains a space, which separates keys. "
                "Nothing was stored.",
                field=f"{at}[{index}]",
            )
    return " ".join(value)


def _unique_id(value: object, at: str) -> str:
    text = _text(value, at)
    if " " in text or len(text) > UNIQUE_ID_SIZE_MAX:
        raise BadProperty(
            f"{at}: {shown(text)} contains a space or is longer than {UNIQUE_ID_SIZE_MAX} "
            "characters. Nothing was stored.",
            field=at,
        )
    return text


def _text(value: object, at: str) -> str:
    """Return a string that is valid in properties. Raises BadRequest for a wrong type, else
    BadProperty."""
    if not isinstance(value, str):
        raise BadRequest(
            f"{at} must be a string, not {shown(value)}. Nothing was stored.", field=at
        )
    _check_text(value, at, "value")
    return value


def _check_text(text: str, at: str, what: str) -> None:
    if not text:
        # RocketMQ's readers silently drop an empty name or value (docs/formats.md, 2.6).
        raise BadProperty(
            f"{at}: the {what} is empty, and would be lost in the record. Nothing was stored.",
            "Leave it out.",
            field=at,
        )
    if "\x01" in text or "\x02" in text:
        raise BadProperty(
            f"{at}: the {what} contains 0x01 or 0x02, which separate properties. "
            "Nothing was stored.",
            field=at,
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadProperty(
                f"{at}: the {what} is not UTF-8 text. Nothing was stored.", field=at
            ) from None


def shown_name(name: str) -> str:
    """Return a property name for an error message: unchanged if printable, else escaped."""
    return name if name.isascii() and name.isprintable() and 0 < len(name) <= 64 else shown(name)
