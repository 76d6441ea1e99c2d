"""OpenAPI schemas of nack, dead letters, redrive and trace. Pure; ``openapi`` merges them."""

from __future__ import annotations

from typing import Any, Final

from services.broker.api.encodings import JSON
from services.broker.api.openapi_schemas import (
    HALF_NAMED,
    NULL,
    Schema,
    bodies,
    integer,
    object_of,
    or_null,
    parameter,
    ref,
)
from services.broker.fields import I64_MAX

I32_MAX: Final = (1 << 31) - 1
_NUMBER: Final = integer(0, I64_MAX)
_TEXT: Final[Schema] = {"type": "string"}
_TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
_BOOL_OR_NULL: Final[Schema] = {"type": ["boolean", "null"]}
_NAME: Final[Schema] = {
    "type": "string",
    "pattern": "^[%|a-zA-Z0-9_-]+$",
    "minLength": 1,
    "maxLength": 127,
    "example": "billing",
}
_TOPIC: Final[Schema] = {
    "type": "string",
    "pattern": "^((%RETRY%|%DLQ%)[%|a-zA-Z0-9_-]{1,248}|[%|a-zA-Z0-9_-]{1,127})$",
    "example": "orders",
}
_MESSAGE_ID: Final[Schema] = {
    "type": "string",
    "pattern": "^([0-9A-Fa-f]{16}|[0-9A-Fa-f]{40})[0-7][0-9A-Fa-f]{15}$",
    "description": "As a send or a fetch gave it.",
}
_PLACE: Final = ["topic", "queue", "queue_offset"]
_ERRORS: Final = {
    400: "A field or name is missing, of the wrong type or out of range; `detail` names it.",
    403: "The topic's permissions do not allow it.",
    404: "No such group, member, topic, queue or message; `code` says which.",
    408: "The request did not arrive in time.",
    409: "Not for this group, member or store as it is now; `code` says why.",
    413: "Too large; `limit` is the bound.",
    415: "Content type or content encoding not understood.",
    503: "The node does not serve now, or is at a bound; the same call may succeed later.",
    504: "Stored, and the node stopped before it was on disk: the outcome is unknown.",
    507: "The disk is full or read-only; the same call may succeed later.",
}

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "Nack": object_of(
        {
            "message_id": or_null(_MESSAGE_ID),
            "topic": or_null(_TOPIC),
            "queue": or_null(integer(0, I32_MAX)),
            "queue_offset": or_null(_NUMBER),
            "delay_level": or_null(
                integer(
                    -1,
                    I32_MAX,
                    "How long until the next try: 0 for the next longer level, -1 for the dead "
                    "letters at once, or one of the store's levels.",
                )
            ),
            "member": or_null(
                {**_NAME, "description": "Who asks. Needed while the group has members."}
            ),
            "generation": or_null(
                integer(0, I64_MAX, "That the member knows. Goes with member, and member with it.")
            ),
            "without_member": {
                "type": ["boolean", "null"],
                "description": "A tool asks, for a message that no member has in hand; not "
                "together with member.",
            },
            "nack_id": {
                "type": ["string", "null"],
                "minLength": 1,
                "maxLength": 64,
                "description": "The caller's own id of this nack: repeated with it, it stores one "
                "copy.",
            },
            "retry": {
                "type": ["boolean", "null"],
                "description": "This nack may have been carried out before. Goes with nack_id.",
            },
        },
        [],
        additionalProperties=False,
        description="The message is named by its id, or by where it was read.",
        oneOf=[
            {
                "properties": {"message_id": {"type": "string"}, **dict.fromkeys(_PLACE, NULL)},
                "required": ["message_id"],
            },
            {
                "properties": {
                    "message_id": NULL,
                    "topic": {"type": "string"},
                    "queue": {"type": "integer"},
                    "queue_offset": {"type": "integer"},
                },
                "required": _PLACE,
            },
        ],
        **{
            "not": {
                "anyOf": [
                    *HALF_NAMED,
                    {
                        "properties": {
                            "member": {"type": "string"},
                            "without_member": {"const": True},
                        },
                        "required": ["member", "without_member"],
                    },
                ]
            }
        },
    ),
    "SentBack": object_of(
        {
            "status": {
                "type": "string",
                "enum": ["RETRY", "DEAD", "IGNORED"],
                "description": "IGNORED: the group's configuration, which RocketMQ wrote, has no "
                "retry queues, and nothing was stored.",
            },
            "topic": {**_TEXT_OR_NULL, "description": "The retry or dead-letter topic."},
            "reconsume_times": integer(0, I32_MAX, "How often it has come back, this included."),
            "delay_level": integer(0, I32_MAX, "0 of a dead letter."),
            "deliver_at_ms": or_null(integer(0, I64_MAX, "When the next try is due.")),
            "message_id": _TEXT_OR_NULL,
            "unique_id": _TEXT_OR_NULL,
        },
        [
            "status", "topic", "reconsume_times", "delay_level", "deliver_at_ms", "message_id",
            "unique_id",
        ],
    ),
    "DeadLetter": object_of(
        {
            "queue_offset": integer(0, I64_MAX, "Its number in the dead-letter topic."),
            "message_id": _TEXT,
            "unique_id": _TEXT_OR_NULL,
            "original_topic": {**_TEXT, "description": "That it was first sent to."},
            "original_message_id": {**_TEXT_OR_NULL, "description": "Of its first delivery."},
            "reconsume_times": integer(0, I32_MAX),
            "dead_at_ms": _NUMBER,
            "born_timestamp_ms": {"type": "integer"},
            "tags": _TEXT_OR_NULL,
            "keys": {"type": "array", "items": _TEXT},
            "size": integer(0, I32_MAX, "Bytes of its record."),
            "redriven": {
                **_BOOL_OR_NULL,
                "description": "Sent again; null where the store keeps no index.",
            },
        },
        [
            "queue_offset", "message_id", "unique_id", "original_topic", "original_message_id",
            "reconsume_times", "dead_at_ms", "born_timestamp_ms", "tags", "keys", "size",
            "redriven",
        ],
    ),
    "DeadLetters": object_of(
        {
            "messages": {"type": "array", "items": ref("DeadLetter")},
            "next_offset": integer(0, I64_MAX, "Where the next call goes on."),
            "min_offset": _NUMBER,
            "max_offset": _NUMBER,
            "done": {"type": "boolean"},
        },
        ["messages", "next_offset", "min_offset", "max_offset", "done"],
    ),
    "Redrive": object_of(
        {
            "to": {
                "type": ["string", "null"],
                "enum": ["topic", "group", None],
                "description": "topic: as new messages of the topic that each came from. group: "
                "only to this group, by its retry topic. Default: topic.",
            },
            "topic": or_null({**_NAME, "description": "Only letters that came from there."}),
            "key": or_null({**_TEXT, "description": "Only letters with this key."}),
            "begin_ms": or_null(integer(0, I64_MAX, "Only those that died then or later.")),
            "end_ms": or_null(integer(0, I64_MAX, "Only those that died then or before.")),
            "message_id": or_null(
                {**_TEXT, "description": "The letter's, its first delivery's, or its unique id."}
            ),
            "from_offset": or_null(integer(0, I64_MAX, "Letter to begin at; default: the oldest.")),
            "max": or_null(integer(1, 10_000, "Letters that match, at most; default 1000.")),
            "dry_run": {**_BOOL_OR_NULL, "description": "true: only say what would be done."},
        },
        [],
        additionalProperties=False,
    ),
    "Redriven": object_of(
        {
            "matched": integer(0, I64_MAX, "Letters looked at that the filter takes."),
            "redriven": integer(0, I64_MAX, "Sent again now."),
            "skipped": integer(0, I64_MAX, "Sent again before, by an earlier call."),
            "refused": integer(0, I64_MAX, "Cannot be sent; see `refusals`."),
            "refusals": {
                "type": "array",
                "items": object_of(
                    {"topic": _TEXT, "code": _TEXT, "detail": _TEXT, "count": _NUMBER},
                    ["topic", "code", "detail", "count"],
                ),
            },
            "next_offset": integer(0, I64_MAX, "Where the next call goes on."),
            "max_offset": _NUMBER,
            "done": {"type": "boolean"},
            "dry_run": {"type": "boolean"},
        },
        [
            "matched", "redriven", "skipped", "refused", "refusals", "next_offset", "max_offset",
            "done", "dry_run",
        ],
    ),
    "TraceEvent": object_of(
        {
            "what": {
                "type": "string",
                "enum": [
                    "produced", "delayed", "released", "cancelled", "flushed", "dispatched",
                    "delivered", "committed", "retried", "dead", "redriven",
                ],
            },
            "at_ms": or_null(integer(0, I64_MAX, "null: unknown; see `reason`.")),
            "reason": {
                "type": "string",
                "enum": ["not_recorded", "expired", "commit_not_found"],
            },
        },
        ["what", "at_ms"],
        description="More fields give place, member and duration.",
    ),
    "Trace": object_of(
        {
            "message": ref("Message"),
            "unique_id": _TEXT_OR_NULL,
            "complete": {
                "type": "boolean",
                "description": "Whether every record of the message was found that there is.",
            },
            "groups_left_out": _NUMBER,
            "events": {"type": "array", "items": ref("TraceEvent")},
        },
        ["message", "unique_id", "complete", "groups_left_out", "events"],
    ),
}  # fmt: skip


def _call(
    name: str,
    summary: str,
    result: str,
    errors: tuple[int, ...],
    parameters: list[Schema],
    body: str | None = None,
    *,
    body_required: bool = True,
) -> Schema:
    call: Schema = {
        "operationId": name,
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": summary + ".", "content": bodies(ref(result))},
            **{
                str(status): {
                    "description": _ERRORS[status],
                    "content": bodies(ref("Error")),
                }
                for status in errors
            },
        },
    }
    if body is not None:
        content = {JSON: {"schema": ref(body)}}
        call["requestBody"] = {"required": body_required, "content": content}
    return call


_GROUP: Final = parameter("group", "path", _NAME, "The group's name.")
_STORING: Final = (400, 403, 404, 408, 409, 413, 415, 503, 504, 507)

PATHS: Final[dict[str, dict[str, Any]]] = {
    "/v1/groups/{group}/nack": {
        "post": _call(
            "nack",
            "Send a message back for another try, or to the dead letters",
            "SentBack",
            _STORING,
            [_GROUP],
            "Nack",
        )
    },
    "/v1/groups/{group}/dead": {
        "get": _call(
            "deadLetters",
            "Dead letters of a group, oldest first",
            "DeadLetters",
            (400, 404, 503),
            [
                _GROUP,
                parameter("from_offset", "query", _NUMBER, "Letter to begin at."),
                parameter("max", "query", integer(1, 1000, default=100), "At most so many."),
                parameter("topic", "query", _NAME, "Only those that came from this topic."),
            ],
        )
    },
    "/v1/groups/{group}/redrive": {
        "post": _call(
            "redrive",
            "Send dead letters again, each of them once",
            "Redriven",
            _STORING,
            [_GROUP],
            "Redrive",
            body_required=False,
        )
    },
    "/v1/messages/{message_id}/trace": {
        "get": _call(
            "traceMessage",
            "What became of a message, from its sender to the last commit",
            "Trace",
            (400, 404, 503),
            [
                parameter(
                    "message_id",
                    "path",
                    {"type": "string", "minLength": 1, "maxLength": 255},
                    "Of any record of the message; with topic: its unique id.",
                ),
                parameter("topic", "query", _NAME, "The topic that it was first sent to."),
            ],
        )
    },
}
