"""The OpenAPI document of the API: every call, parameter, answer and error. Pure.

Written by hand because it is read by people; ``tests/processes/test_openapi.py`` holds it against
the running server in both directions: what it allows is accepted, what it forbids is refused with
an answer that it lists.
"""

from __future__ import annotations

from typing import Any, Final

from services.broker.encodings import JSON, MSGPACK, RECORDS
from services.broker.fields import I64_MAX
from services.broker.limits import (
    ACK_TIMEOUT_MS_MAX,
    MESSAGES_MAX,
    PULL_BYTES_MAX,
    PULL_MAX,
    QUERY_MAX,
    WAIT_MS_MAX,
)
from services.broker.messages import I32_MAX, UNIQUE_ID_SIZE_MAX, AckLevel, Rules
from services.broker.topics import QUEUES_MAX

PULL_PARAMETERS: Final = frozenset({"offset", "max", "max_bytes", "tags", "wait_ms"})
OFFSET_PARAMETERS: Final = frozenset({"timestamp_ms", "boundary"})
QUERY_PARAMETERS: Final = frozenset({"unique_id", "key", "begin_ms", "end_ms", "max"})

Schema = dict[str, Any]

# Letters that the store's separators are not: the rest of the rule is in the description.
_TEXT: Final = "^[^\\x01\\x02]+$"
_NAME: Final[Schema] = {
    "type": "string",
    "pattern": "^[%|a-zA-Z0-9_-]+$",
    "minLength": 1,
    "maxLength": 127,
    "example": "orders",
}
_RETRIABLE: Final = "Nothing was stored; the same call may succeed later."
_ERRORS: Final[dict[int, str]] = {
    400: "A field or name is missing, of the wrong type or out of range; `detail` names it.",
    403: "The topic's permissions do not allow it.",
    404: "No such topic, queue, message or call; `detail` says what exists.",
    405: "The path is known, but not with this method.",
    408: "The request did not arrive in time.",
    413: "Too large, or too many messages; `limit` is the bound.",
    415: "Content type or content encoding not understood.",
    503: f"The node does not serve now, or is at a bound. {_RETRIABLE}",
    504: "Stored, but the level was not reached in time: the outcome is unknown. See `results`.",
    507: f"The disk is full or read-only: `path`, free bytes and limit are given. {_RETRIABLE}",
}


def _int(low: int, high: int, description: str = "", **more: Any) -> Schema:
    return {
        "type": "integer",
        "format": "int64",
        "minimum": low,
        "maximum": high,
        **({"description": description} if description else {}),
        **more,
    }


def _or_null(schema: Schema) -> Schema:
    """A field that may be null, which means the same as leaving it out."""
    return {**schema, "type": [schema["type"], "null"]}


def _object(properties: dict[str, Schema], required: list[str], **more: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": required, **more}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _parameter(name: str, where: str, schema: Schema, description: str) -> Schema:
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "description": description,
        "schema": schema,
    }


def _bodies(schema: Schema) -> Schema:
    return {JSON: {"schema": schema}, MSGPACK: {"schema": schema}}


def _call(
    name: str,
    summary: str,
    answer: Schema,
    errors: tuple[int, ...],
    *,
    parameters: tuple[Schema, ...] = (),
    body: Schema | None = None,
    description: str = "",
) -> Schema:
    """One operation. 400 and 405 can happen to every call."""
    call: Schema = {
        "operationId": name,
        "summary": summary,
        "responses": {
            **answer,
            **{
                str(status): {
                    "description": _ERRORS[status],
                    "content": _bodies(_ref("Error")),
                }
                for status in sorted({400, *errors})
            },
        },
    }
    if description:
        call["description"] = description
    if parameters:
        call["parameters"] = list(parameters)
    if body is not None:
        # Only JSON is described: the msgpack body is the same map, with bytes in `body`.
        call["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return call


def _ok(schema: Schema, description: str) -> Schema:
    return {"200": {"description": description, "content": _bodies(schema)}}


def _message_in(rules: Rules) -> Schema:
    text = {"type": "string", "minLength": 1, "pattern": _TEXT}
    return _object(
        {
            "body": {
                "type": "string",
                "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
                "contentEncoding": "base64",
                "description": "Base64 in JSON, bytes in msgpack. Exactly one of body and "
                f"body_text; at most {rules.message_size_max} bytes.",
            },
            "body_text": {"type": "string", "description": "The body as text."},
            "tags": _or_null(
                {"type": "string", "pattern": "^[^\\x01\\x02]*$", "description": "Empty: none."}
            ),
            "keys": _or_null(
                {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1, "pattern": "^[^\\x01\\x02 ]+$"},
                    "description": "Business keys to find the message by; without spaces.",
                }
            ),
            "properties": _or_null(
                {
                    "type": "object",
                    "additionalProperties": text,
                    "propertyNames": {"minLength": 1, "pattern": _TEXT},
                    "description": "Names that the store sets itself are refused, and so is more "
                    "than 32,767 bytes together with tags and keys.",
                }
            ),
            "queue": _or_null(_int(0, I32_MAX, "Queue number; default: the broker picks.")),
            "sharding_key": _or_null({**text, "description": "Equal keys share a queue."}),
            "flag": _or_null(_int(-I32_MAX - 1, I32_MAX, "The application's own number.")),
            "unique_id": _or_null(
                {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": UNIQUE_ID_SIZE_MAX,
                    "pattern": "^[^\\x01\\x02 ]+$",
                    "description": "The sender's own id; default: the broker makes one.",
                }
            ),
            "delay_level": {"type": "null", "description": "Delayed delivery is not served."},
            "delay_ms": {"type": "null", "description": "Delayed delivery is not served."},
            "deliver_at_ms": {"type": "null", "description": "Delayed delivery is not served."},
        },
        [],
        additionalProperties=False,
        oneOf=[{"required": ["body"]}, {"required": ["body_text"]}],
        **{
            "not": {
                "properties": {"queue": {"type": "integer"}, "sharding_key": {"type": "string"}},
                "required": ["queue", "sharding_key"],
            }
        },
    )


def _message_out() -> Schema:
    integer = {"type": "integer"}
    text = {"type": "string"}
    optional = {"type": ["string", "null"]}
    return _object(
        {
            "message_id": {**text, "description": "Offset id: store host and physical offset."},
            "unique_id": optional,
            "topic": text,
            "queue": integer,
            "queue_offset": integer,
            "physical_offset": integer,
            "size": {**integer, "description": "Bytes of the whole record."},
            "tags": optional,
            "keys": {"type": "array", "items": text},
            "properties": {"type": "object", "additionalProperties": text},
            "body": {**text, "description": "Bytes in msgpack; base64 in JSON if it is no text."},
            "body_text": {**text, "description": "JSON only, if the body is UTF-8."},
            "born_timestamp_ms": integer,
            "store_timestamp_ms": integer,
            "born_host": text,
            "store_host": text,
            "reconsume_times": integer,
            "flag": integer,
            "sys_flag": integer,
            "body_crc": integer,
            "tags_code": integer,
            "prepared_transaction_offset": integer,
        },
        [
            "message_id", "unique_id", "topic", "queue", "queue_offset", "physical_offset", "size",
            "tags", "keys", "properties", "born_timestamp_ms", "store_timestamp_ms", "born_host",
            "store_host", "reconsume_times", "flag", "sys_flag", "body_crc", "tags_code",
            "prepared_transaction_offset",
        ],
    )  # fmt: skip


def _schemas(rules: Rules) -> dict[str, Schema]:
    integer = {"type": "integer"}
    text = {"type": "string"}
    acked = _object(
        {
            "level": {"type": "string", "enum": [level.value for level in AckLevel]},
            "copies": {"type": "integer", "minimum": 1},
        },
        ["level", "copies"],
    )
    result = _object(
        {
            "message_id": text,
            "unique_id": text,
            "queue": integer,
            "queue_offset": integer,
            "physical_offset": integer,
            "store_timestamp_ms": integer,
        },
        ["message_id", "queue", "queue_offset", "physical_offset", "store_timestamp_ms"],
    )
    return {
        "Error": _object(
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
        "Send": _object(
            {
                "messages": {
                    "type": "array",
                    "items": _ref("NewMessage"),
                    "minItems": 1,
                    "maxItems": MESSAGES_MAX,
                },
                "ack": {
                    "type": ["string", "null"],
                    "enum": [*(level.value for level in AckLevel), None],
                    "description": f"Level to wait for; default {rules.ack_default.value}.",
                },
                "timeout_ms": _or_null(
                    _int(1, ACK_TIMEOUT_MS_MAX, "Longest wait for the level; default 3000.")
                ),
            },
            ["messages"],
            additionalProperties=False,
        ),
        "Sent": _object(
            {
                "status": {"type": "string", "enum": ["PUT_OK"]},
                "ack": acked,
                "results": {"type": "array", "items": result},
            },
            ["status", "ack", "results"],
        ),
        "Pulled": _object(
            {
                "status": {**text, "description": "RocketMQ's word: FOUND, OFFSET_TOO_SMALL …"},
                "next_offset": integer,
                "min_offset": integer,
                "max_offset": integer,
                "messages": {"type": "array", "items": _ref("Message")},
            },
            ["status", "next_offset", "min_offset", "max_offset", "messages"],
        ),
        "Messages": _object(
            {"messages": {"type": "array", "items": _ref("Message")}}, ["messages"]
        ),
        "Offset": _object(
            {"offset": integer, "min_offset": integer, "max_offset": integer},
            ["offset", "min_offset", "max_offset"],
        ),
        "NewTopic": _object(
            {
                "queues": _or_null(_int(1, QUEUES_MAX, "How many queues; default 4.")),
                "perm": _or_null(_int(0, 7, "4 read, 2 write, 1 inherit, added; default 6.")),
            },
            [],
            additionalProperties=False,
        ),
        "Topic": _object(
            {
                "topic": text,
                "queues": {
                    "type": "array",
                    "items": _object(
                        {"queue": integer, "min_offset": integer, "max_offset": integer},
                        ["queue", "min_offset", "max_offset"],
                    ),
                },
            },
            ["topic", "queues"],
        ),
        "Topics": _object(
            {
                "topics": {
                    "type": "array",
                    "items": _object(
                        {"topic": text, "queues": integer, "perm": integer},
                        ["topic", "queues", "perm"],
                    ),
                }
            },
            ["topics"],
        ),
    }


def document(*, version: str, rules: Rules, request_size_max: int) -> Schema:
    """The whole document."""
    topic = _parameter("topic", "path", _NAME, "The topic's name.")
    queue = _parameter("queue", "path", _int(0, I32_MAX), "Queue number, from 0.")
    i64 = _int(-I64_MAX - 1, I64_MAX)
    pull = (
        topic,
        queue,
        {
            **_parameter("offset", "query", i64, "Queue offset of the first message wanted."),
            "required": True,
        },
        _parameter("max", "query", _int(0, PULL_MAX, default=32), "At most so many messages."),
        _parameter("max_bytes", "query", _int(1, PULL_BYTES_MAX), "At most so many record bytes."),
        _parameter(
            "tags",
            "query",
            {"type": "string", "example": "new || paid"},
            "Only messages with one of these tags; * for all.",
        ),
        _parameter(
            "wait_ms",
            "query",
            _int(0, WAIT_MS_MAX, default=0),
            "Hold the call while there is none.",
        ),
    )
    time = _int(0, I64_MAX)
    topic_calls = {
        "get": _call(
            "getTopic",
            "One topic with the range of every queue",
            _ok(_ref("Topic"), "The topic."),
            (404, 503),
            parameters=(topic,),
        ),
        "put": _call(
            "putTopic",
            "Make a topic, or give it more queues",
            _ok(_ref("Topic"), "The topic as it is now; the same call may be repeated."),
            (408, 413, 415, 503, 507),
            parameters=(topic,),
            body=_ref("NewTopic"),
        ),
        "delete": _call(
            "deleteTopic",
            "Delete a topic: its messages are no longer served",
            {"204": {"description": "It is deleted."}},
            (404, 503, 507),
            parameters=(topic,),
        ),
    }
    message_calls = {
        "post": _call(
            "send",
            "Store messages: all of the request or none",
            _ok(_ref("Sent"), "Stored, at the level named."),
            (403, 404, 408, 413, 415, 503, 504, 507),
            parameters=(topic,),
            body=_ref("Send"),
            description="Messages without queue and sharding_key share one queue, picked in turn. "
            f"A request body has at most {request_size_max} bytes.",
        ),
        "get": _call(
            "find",
            "Messages by unique id or by key",
            _ok(_ref("Messages"), "What was found, oldest first; may be empty."),
            (404, 503),
            parameters=(
                topic,
                _parameter("unique_id", "query", {"type": "string"}, "Either this or key."),
                _parameter("key", "query", {"type": "string"}, "A business key, or a unique id."),
                _parameter("begin_ms", "query", time, "Stored at or after; with key only."),
                _parameter("end_ms", "query", time, "Stored at or before; with key only."),
                _parameter("max", "query", _int(1, QUERY_MAX, default=32), "The newest so many."),
            ),
        ),
    }
    pull_answer = _ok(_ref("Pulled"), "What there is from that offset on.")
    pull_answer["200"]["content"][RECORDS] = {
        "schema": {"type": "string", "format": "binary"},
    }
    pull_answer["200"]["headers"] = {
        name: {"schema": {"type": "string"}, "description": "With raw records only."}
        for name in (
            "Tidemark-Status",
            "Tidemark-Next-Offset",
            "Tidemark-Min-Offset",
            "Tidemark-Max-Offset",
            "Tidemark-Count",
        )
    }
    boundary = {"type": "string", "enum": ["lower", "upper"], "default": "lower"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidemark",
            "version": version,
            "description": "A durable message broker. Bodies are msgpack (default) or JSON; an "
            "answer is in the encoding that Accept names, else in the request's, else JSON.",
        },
        "paths": {
            "/v1/openapi.json": {
                "get": {
                    "operationId": "openapi",
                    "summary": "This document",
                    "responses": {
                        "200": {
                            "description": "OpenAPI 3.1.",
                            "content": {JSON: {"schema": {"type": "object"}}},
                        }
                    },
                }
            },
            "/v1/topics": {
                "get": _call("listTopics", "All topics", _ok(_ref("Topics"), "By name."), (503,))
            },
            "/v1/topics/{topic}": topic_calls,
            "/v1/topics/{topic}/messages": message_calls,
            "/v1/topics/{topic}/queues/{queue}/messages": {
                "get": _call(
                    "pull",
                    "Messages of one queue from an offset on, waiting for them if asked",
                    pull_answer,
                    (403, 404, 503),
                    parameters=pull,
                    description="Decoded answers keep RocketMQ's bounds (32 messages, 256 KiB); "
                    f"with Accept: {RECORDS} only max and max_bytes bound the answer.",
                )
            },
            "/v1/topics/{topic}/queues/{queue}/offset": {
                "get": _call(
                    "offsetByTime",
                    "Queue offset of a time",
                    _ok(
                        _ref("Offset"),
                        "lower: first message at or after; upper: last at or before.",
                    ),
                    (403, 404, 503),
                    parameters=(
                        topic,
                        queue,
                        {
                            **_parameter(
                                "timestamp_ms", "query", i64, "Store time, ms since 1970."
                            ),
                            "required": True,
                        },
                        _parameter("boundary", "query", boundary, "Which side of the time."),
                    ),
                )
            },
            "/v1/messages/{message_id}": {
                "get": _call(
                    "getMessage",
                    "One message by its offset id",
                    _ok(_ref("Message"), "The message."),
                    (404, 503),
                    parameters=(
                        _parameter(
                            "message_id",
                            "path",
                            {
                                "type": "string",
                                "pattern": "^([0-9A-Fa-f]{16}|[0-9A-Fa-f]{40})"
                                "[0-7][0-9A-Fa-f]{15}$",
                            },
                            "As a send or a pull gave it.",
                        ),
                    ),
                )
            },
        },
        "components": {"schemas": _schemas(rules)},
    }
