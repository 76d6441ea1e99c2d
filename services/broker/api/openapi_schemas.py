"""The schemas of the OpenAPI document: bodies of requests and answers. Pure.

The schemas of requests are as strict as JSON Schema permits. Rules that it cannot express are in
descriptions, and in the errors that name the field.
"""

from __future__ import annotations

from typing import Any, Final

from services.broker.api.encodings import JSON, MSGPACK
from services.broker.api.messages import I32_MAX, Rules
from services.broker.fields import I64_MAX
from services.broker.limits import (
    ACK_TIMEOUT_MS_MAX,
    LIST_MAX,
    MESSAGES_MAX,
    QUEUES_LISTED_MAX,
    QUEUES_MAX,
    SHOWN_MS_MAX,
)
from services.broker.log.promises import AckLevel
from tidemark.formats.delay import DELAY_MS_MAX
from tidemark.formats.produce_wire import UNIQUE_ID_SIZE_MAX

Schema = dict[str, Any]

# Any text without the store's separators; the rest of the rule is in the description.
_TEXT: Final = "^[^\\x01\\x02]+$"


def integer(low: int, high: int, description: str = "", **more: Any) -> Schema:
    """Return the schema of a whole number in [low, high]."""
    return {
        "type": "integer",
        "format": "int64",
        "minimum": low,
        "maximum": high,
        **({"description": description} if description else {}),
        **more,
    }


def or_null(schema: Schema) -> Schema:
    """Return the schema of a field that may be null, which is equivalent to leaving it out."""
    return {**schema, "type": [schema["type"], "null"]}


def object_of(properties: dict[str, Schema], required: list[str], **more: Any) -> Schema:
    """Return the schema of a map with these fields."""
    return {"type": "object", "properties": properties, "required": required, **more}


def ref(name: str) -> Schema:
    """Return a reference to the schema of that name."""
    return {"$ref": f"#/components/schemas/{name}"}


NULL: Final[Schema] = {"type": "null"}
HALF_NAMED: Final[list[Schema]] = [
    {"properties": {"generation": {"type": "integer"}, "member": NULL}, "required": ["generation"]},
    {"properties": {"member": {"type": "string"}, "generation": NULL}, "required": ["member"]},
]
"""Matches a generation without a member or a member without a generation; both are refused."""
POLL_AFTER_MS: Final = integer(
    1,
    I64_MAX,
    "Only if the call was to be held and could not be (`held_pulls_max`): when to call again.",
)


def _message_in(rules: Rules) -> Schema:
    text = {"type": "string", "minLength": 1, "pattern": _TEXT}
    return object_of(
        {
            "body": {
                "type": "string",
                "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
                "contentEncoding": "base64",
                "description": "Base64 in JSON, bytes in msgpack. Exactly one of body and "
                f"body_text; at most {rules.message_size_max} bytes.",
            },
            "body_text": {"type": "string", "description": "The body as text."},
            "tags": or_null(
                {"type": "string", "pattern": "^[^\\x01\\x02]*$", "description": "Empty: none."}
            ),
            "keys": or_null(
                {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1, "pattern": "^[^\\x01\\x02 ]+$"},
                    "description": "Business keys to find the message by; without spaces.",
                }
            ),
            "properties": or_null(
                {
                    "type": "object",
                    "additionalProperties": text,
                    "propertyNames": {"minLength": 1, "pattern": _TEXT},
                    "description": "Names that the store sets itself are refused, and so is more "
                    "than 31,723 bytes together with tags and keys.",
                }
            ),
            "queue": or_null(integer(0, I32_MAX, "Queue number; default: the broker picks.")),
            "sharding_key": or_null({**text, "description": "Equal keys share a queue."}),
            "flag": or_null(integer(-I32_MAX - 1, I32_MAX, "The application's own number.")),
            "unique_id": or_null(
                {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": UNIQUE_ID_SIZE_MAX,
                    "pattern": "^[^\\x01\\x02 ]+$",
                    "description": "The sender's own id; default: the broker makes one.",
                }
            ),
            "delay_level": or_null(
                integer(
                    1,
                    max(1, len(rules.delay_levels_ms)),
                    "Delay level: one of `delay_levels`, 1 the shortest.",
                )
            ),
            "delay_ms": or_null(integer(0, DELAY_MS_MAX, "Delivered so long after now.")),
            "deliver_at_ms": or_null(
                integer(0, I64_MAX, "Delivered then, ms since 1970; at most 40 days ahead.")
            ),
        },
        [],
        additionalProperties=False,
        oneOf=[{"required": ["body"]}, {"required": ["body_text"]}],
        **{"not": {"anyOf": [_together(*pair) for pair in _EXCLUSIVE]}},
    )


_EXCLUSIVE: Final = (
    ("queue", "sharding_key"),
    ("delay_level", "delay_ms"),
    ("delay_level", "deliver_at_ms"),
    ("delay_ms", "deliver_at_ms"),
)
"""Pairs of fields that exclude each other in a message."""


def _together(*names: str) -> Schema:
    """Return a schema that matches a map in which all of these fields are given and not null."""
    given = {"type": ["string", "integer"]}
    return {"properties": dict.fromkeys(names, given), "required": list(names)}


def _message_out() -> Schema:
    number = {"type": "integer"}
    text = {"type": "string"}
    optional = {"type": ["string", "null"]}
    return object_of(
        {
            "message_id": {**text, "description": "Offset id: store host and physical offset."},
            "unique_id": optional,
            "topic": text,
            "queue": number,
            "queue_offset": number,
            "physical_offset": number,
            "size": {**number, "description": "Bytes of the whole record."},
            "tags": optional,
            "keys": {"type": "array", "items": text},
            "properties": {"type": "object", "additionalProperties": text},
            "body": {**text, "description": "Bytes in msgpack; base64 in JSON if it is no text."},
            "body_text": {**text, "description": "JSON only, if the body is UTF-8."},
            "born_timestamp_ms": number,
            "store_timestamp_ms": number,
            "born_host": text,
            "store_host": text,
            "reconsume_times": number,
            "flag": number,
            "sys_flag": number,
            "body_crc": number,
            "tags_code": number,
            "prepared_transaction_offset": number,
        },
        [
            "message_id", "unique_id", "topic", "queue", "queue_offset", "physical_offset", "size",
            "tags", "keys", "properties", "born_timestamp_ms", "store_timestamp_ms", "born_host",
            "store_host", "reconsume_times", "flag", "sys_flag", "body_crc", "tags_code",
            "prepared_transaction_offset",
        ],
    )  # fmt: skip


def parameter(name: str, where: str, schema: Schema, description: str) -> Schema:
    """Return a parameter of a call; parameters in the path are required."""
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "description": description,
        "schema": schema,
    }


NEXT_NAME: Final = or_null(
    {"type": "string", "description": "`after` of the next page; null: there is no more."}
)
"""Schema of the field ``next`` of a list with pages."""


def list_parameters(what: str) -> tuple[Schema, ...]:
    """Return the parameters of a call that lists names."""
    after: Schema = {"type": "string", "description": "`next` of the page before."}
    return (
        parameter("after", "query", after, f"Only {what} whose names come behind this one."),
        parameter("max", "query", integer(1, LIST_MAX, default=LIST_MAX), "At most so many."),
    )


def bodies(schema: Schema) -> Schema:
    """Return the content description of a body in both encodings."""
    return {JSON: {"schema": schema}, MSGPACK: {"schema": schema}}


def _default_level(rules: Rules) -> str:
    if rules.ack_default is None:
        return "replicated while the in-sync set has two members or more, else disk"
    return rules.ack_default.value


def schemas(rules: Rules) -> dict[str, Schema]:
    """Return all schemas by name."""
    number = {"type": "integer"}
    text = {"type": "string"}
    acked = object_of(
        {
            "level": {"type": "string", "enum": [level.value for level in AckLevel]},
            "copies": {"type": "integer", "minimum": 1},
        },
        ["level", "copies"],
    )
    result = object_of(
        {
            "message_id": text,
            "unique_id": {"type": ["string", "null"], "description": "null: sent without one."},
            "queue": number,
            "queue_offset": number,
            "physical_offset": number,
            "store_timestamp_ms": number,
        },
        ["message_id", "queue", "queue_offset", "physical_offset", "store_timestamp_ms"],
    )
    return {
        "Error": object_of(
            {
                "code": {**text, "description": "Stable; a heading of docs/runbook.md."},
                "title": text,
                "detail": {**text, "description": "What happened, and what is still safe."},
                "advice": {**text, "description": "What to do."},
                "retriable": {
                    "type": "boolean",
                    "description": "The same call, unchanged, may succeed later.",
                },
            },
            ["code", "title", "detail", "advice", "retriable"],
            description="More fields hold the error's own facts: field, limit, path …",
        ),
        "Message": _message_out(),
        "NewMessage": _message_in(rules),
        "Send": object_of(
            {
                "messages": {
                    "type": "array",
                    "items": ref("NewMessage"),
                    "minItems": 1,
                    "maxItems": MESSAGES_MAX,
                },
                "ack": {
                    "type": ["string", "null"],
                    "enum": [*(level.value for level in AckLevel), None],
                    "description": f"Level to wait for; default {_default_level(rules)}.",
                },
                "retry": or_null(
                    {
                        "type": "boolean",
                        "description": "true: it was sent before, and its outcome is unknown. "
                        "Messages whose unique_id was stored in the last ten minutes are not "
                        "stored again; the answer has their old places. Every message needs its "
                        "unique_id then.",
                    }
                ),
                "make_unique_ids": or_null(
                    {
                        "type": "boolean",
                        "description": "false: a message without unique_id gets none, and is "
                        "not indexed for it. Default: true.",
                    }
                ),
                "timeout_ms": or_null(
                    integer(
                        1,
                        ACK_TIMEOUT_MS_MAX,
                        f"Longest wait for the level; default {rules.timeout_ms_default}.",
                    )
                ),
            },
            ["messages"],
            additionalProperties=False,
        ),
        "Sent": object_of(
            {
                "status": {"type": "string", "enum": ["PUT_OK"]},
                "ack": acked,
                "results": {"type": "array", "items": result},
            },
            ["status", "ack", "results"],
        ),
        "Pulled": object_of(
            {
                "status": {**text, "description": "RocketMQ's word: FOUND, OFFSET_TOO_SMALL …"},
                "next_offset": number,
                "min_offset": number,
                "max_offset": number,
                "messages": {"type": "array", "items": ref("Message")},
                "poll_after_ms": POLL_AFTER_MS,
            },
            ["status", "next_offset", "min_offset", "max_offset", "messages"],
        ),
        "Messages": object_of(
            {
                "messages": {"type": "array", "items": ref("Message")},
                "next": {
                    "type": ["string", "null"],
                    "description": "To be given as `before`, for older messages; null: there are "
                    "none. An answer may hold fewer messages than `max`, even none, and a next.",
                },
            },
            ["messages", "next"],
        ),
        "Offset": object_of(
            {"offset": number, "min_offset": number, "max_offset": number},
            ["offset", "min_offset", "max_offset"],
        ),
        "NewTopic": object_of(
            {
                "queues": or_null(integer(1, QUEUES_MAX, "How many queues; default 4.")),
                "perm": or_null(integer(0, 7, "4 read, 2 write, 1 inherit, added; default 6.")),
                "retention_ms": or_null(
                    integer(0, SHOWN_MS_MAX, "So long messages are shown; 0: no such bound.")
                ),
            },
            [],
            additionalProperties=False,
        ),
        "Topic": object_of(
            {
                "topic": text,
                "queues": {
                    "type": "array",
                    "items": object_of(
                        {"queue": number, "min_offset": number, "max_offset": number},
                        ["queue", "min_offset", "max_offset"],
                    ),
                    "maxItems": QUEUES_LISTED_MAX,
                },
                "queue_count": {**number, "description": "Of all queues, shown or not."},
                "perm": number,
                "write_queues": {**number, "description": "Queues that take new messages."},
                "system": {"type": "boolean", "description": "Kept by the broker for itself."},
                "retention_ms": or_null({**number, "description": "So long messages are shown."}),
            },
            ["topic", "queues", "queue_count", "perm", "write_queues", "system", "retention_ms"],
        ),
        "Topics": object_of(
            {
                "topics": {
                    "type": "array",
                    "items": object_of(
                        {"topic": text, "queues": number, "perm": number},
                        ["topic", "queues", "perm"],
                    ),
                },
                "next": NEXT_NAME,
            },
            ["topics", "next"],
        ),
    }
