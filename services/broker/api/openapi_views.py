"""OpenAPI schemas of the view of a group. Pure; ``openapi`` merges them."""

from __future__ import annotations

from typing import Any, Final

from services.broker.api.encodings import JSON, MSGPACK
from services.broker.api.openapi_schemas import Schema, integer, object_of, or_null, ref
from services.broker.fields import I64_MAX
from services.broker.groups.lag import Reason

_COUNT: Final = integer(0, I64_MAX)
_UNKNOWN: Final = "null if it is not known: `reasons` says why"
_LAG: Final[Schema] = {
    "messages": or_null(integer(0, I64_MAX, f"Messages not read; {_UNKNOWN}.")),
    "bytes": or_null(integer(0, I64_MAX, f"Bytes of their records; {_UNKNOWN}.")),
    "seconds": {
        "type": ["number", "null"],
        "minimum": 0,
        "description": f"Age of the oldest of them by its store time, 0 without any; {_UNKNOWN}.",
    },
    "lost": integer(0, I64_MAX, "Messages that expired before the group read them."),
    "ahead": integer(0, I64_MAX, "How far commits lie beyond the end of their queues."),
    "in_flight": or_null(integer(0, I64_MAX, "Handed to members and not committed.")),
    "expiring_messages": or_null(
        integer(0, I64_MAX, "Unread messages that the next deletion of a log file would take.")
    ),
    "reasons": {
        "type": "object",
        "additionalProperties": {"type": "string", "enum": [str(reason) for reason in Reason]},
        "description": "Of each field that is null: why.",
    },
}
_PATH_NAME: Final[Schema] = {
    "type": "string",
    "pattern": "^[%|a-zA-Z0-9_-]+$",
    "minLength": 1,
    "maxLength": 127,
    "example": "billing",
}
_ERRORS: Final = {
    400: "The name is none; `detail` says the rule.",
    404: "No such group; `detail` says which there are.",
    503: "The node does not serve now; the same call may succeed later.",
}

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "Lag": object_of(_LAG, list(_LAG)),
    "LagTotal": object_of(
        {
            **_LAG,
            "queues": integer(0, I64_MAX, "How many there are."),
            "unknown_queues": integer(0, I64_MAX, "Of which the lag is unknown: in no sum."),
            "lagging_queues": integer(0, I64_MAX, "Older than the group's objective."),
        },
        [*_LAG, "queues", "unknown_queues", "lagging_queues"],
    ),
    "GroupQueue": object_of(
        {
            "queue": _COUNT,
            "member": {"type": ["string", "null"], "description": "Who reads it now."},
            "committed": or_null(integer(0, I64_MAX, "Next message to read after a restart.")),
            "min_offset": or_null(_COUNT),
            "max_offset": or_null(_COUNT),
            **_LAG,
        },
        ["queue", "member", "committed", "min_offset", "max_offset", *_LAG],
    ),
    "GroupTopic": object_of(
        {
            "topic": {"type": "string"},
            "kind": {"type": "string", "enum": ["main", "retry"]},
            "subscribed": {"type": "boolean", "description": "A member reads it now."},
            "lag": ref("LagTotal"),
            "queues": {"type": "array", "items": ref("GroupQueue")},
        },
        ["topic", "kind", "subscribed", "lag", "queues"],
    ),
    "GroupMember": object_of(
        {
            "member": {"type": "string"},
            "subscriptions": {
                "type": "array",
                "items": object_of(
                    {"topic": {"type": "string"}, "tags": {"type": "string"}}, ["topic", "tags"]
                ),
            },
            "assignment": {
                "type": "array",
                "items": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 2,
                    "description": "[topic, queue]",
                },
            },
            "session_ms": integer(0, I64_MAX, "Gone after so long without a heartbeat."),
            "last_seen_ms": integer(0, I64_MAX, "Since its last heartbeat."),
        },
        ["member", "subscriptions", "assignment", "session_ms", "last_seen_ms"],
    ),
    "GroupView": object_of(
        {
            "group": {"type": "string"},
            "state": {"type": "string", "enum": ["empty", "stable", "rebalancing"]},
            "generation": or_null(integer(0, I64_MAX, "Of the assignment; null without members.")),
            "at_ms": integer(0, I64_MAX, "The node's clock at this look."),
            "order": {"type": "boolean"},
            "broadcast": {"type": "boolean"},
            "start": {"description": "first, last, or a time in milliseconds."},
            "retry_max": _COUNT,
            "retry_queues": _COUNT,
            "lag_objective_ms": or_null(_COUNT),
            "consume_enabled": {"type": "boolean"},
            "members": {"type": "array", "items": ref("GroupMember")},
            "lag": ref("LagTotal"),
            "topics": {"type": "array", "items": ref("GroupTopic")},
        },
        ["group", "state", "generation", "at_ms", "members", "lag", "topics"],
    ),
}

PATHS: Final[dict[str, dict[str, Any]]] = {
    "/v1/groups/{group}": {
        "get": {
            "operationId": "getGroup",
            "summary": "One group: members, and lag per queue in messages, bytes and seconds",
            "parameters": [
                {
                    "name": "group",
                    "in": "path",
                    "required": True,
                    "description": "The group's name.",
                    "schema": _PATH_NAME,
                }
            ],
            "responses": {
                "200": {
                    "description": "The group. What is not known is null, with a reason.",
                    "content": {
                        JSON: {"schema": ref("GroupView")},
                        MSGPACK: {"schema": ref("GroupView")},
                    },
                },
                **{
                    str(status): {
                        "description": text,
                        "content": {
                            JSON: {"schema": ref("Error")},
                            MSGPACK: {"schema": ref("Error")},
                        },
                    }
                    for status, text in _ERRORS.items()
                },
            },
        }
    }
}
