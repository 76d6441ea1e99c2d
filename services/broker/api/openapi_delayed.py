"""OpenAPI schemas of delayed messages. Pure; ``openapi`` merges them."""

from __future__ import annotations

from typing import Any, Final

from services.broker.api.encodings import JSON, MSGPACK
from services.broker.api.openapi_schemas import Schema, integer, object_of, or_null, ref
from services.broker.fields import I64_MAX
from tidemark.formats.produce_wire import UNIQUE_ID_SIZE_MAX

LIST_MAX: Final = 1024
LIST_DEFAULT: Final = 100
_TOPIC: Final[Schema] = {
    "name": "topic",
    "in": "query",
    "required": False,
    "description": "Only messages for this topic.",
    "schema": {
        "type": "string",
        "pattern": "^[%|a-zA-Z0-9_-]+$",
        "minLength": 1,
        "maxLength": 127,
    },
}
_MESSAGE: Final[dict[str, Schema]] = {
    "unique_id": {"type": ["string", "null"], "description": "What it is cancelled by."},
    "message_id": {"type": "string", "description": "Offset id of the record that waits."},
    "topic": {"type": "string", "description": "The topic it is for."},
    "queue": integer(0, I64_MAX),
    "deliver_at_ms": integer(0, I64_MAX, "When it is due, ms since 1970."),
    "delay_level": or_null(integer(1, I64_MAX, "null: for any time.")),
    "store_timestamp_ms": integer(0, I64_MAX),
    "size": integer(0, I64_MAX, "Bytes of the record that waits."),
}
_PAGE: Final[dict[str, Schema]] = {
    "messages": {"type": "array", "items": ref("DelayedMessage")},
    "pending": or_null(
        integer(0, I64_MAX, "All that wait, whatever their topic; null: not counted yet.")
    ),
    "next": {
        "type": ["string", "null"],
        "description": "after of the next page; null: this was the last. A page of one "
        "topic may be empty and have a next one.",
    },
}
_CANCELLED: Final[dict[str, Schema]] = {
    "cancelled": integer(1, I64_MAX, "Messages of that id that waited."),
    "unique_id": {"type": "string"},
    "deliver_at_ms": {"type": "array", "items": integer(0, I64_MAX)},
}

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "DelayedMessage": object_of(_MESSAGE, list(_MESSAGE)),
    "DelayedMessages": object_of(_PAGE, list(_PAGE)),
    "CancelledMessages": object_of(_CANCELLED, list(_CANCELLED)),
}


def _answers(schema: str, description: str, errors: dict[int, str]) -> dict[str, Any]:
    bodies = {"200": (schema, description), **{str(n): ("Error", e) for n, e in errors.items()}}
    return {
        status: {
            "description": text,
            "content": {JSON: {"schema": ref(name)}, MSGPACK: {"schema": ref(name)}},
        }
        for status, (name, text) in bodies.items()
    }


PATHS: Final[dict[str, dict[str, Any]]] = {
    "/v1/delayed": {
        "get": {
            "operationId": "listDelayed",
            "summary": "Messages that wait for their time, next due first",
            "parameters": [
                _TOPIC,
                {
                    "name": "max",
                    "in": "query",
                    "required": False,
                    "description": "Messages of one page.",
                    "schema": integer(1, LIST_MAX, default=LIST_DEFAULT),
                },
                {
                    "name": "after",
                    "in": "query",
                    "required": False,
                    "description": "next of the page before.",
                    "schema": {"type": "string", "pattern": "^[0-9]{1,18}-[0-9]{1,9}-[0-9]{1,18}$"},
                },
            ],
            "responses": _answers(
                "DelayedMessages",
                "Some of what waits.",
                {
                    400: "A parameter is wrong; `detail` names it.",
                    503: "The node does not serve now; the same call may succeed later.",
                },
            ),
        }
    },
    "/v1/delayed/{unique_id}": {
        "delete": {
            "operationId": "cancelDelayed",
            "summary": "Cancel what waits under a unique id; durable when it is answered",
            "parameters": [
                {
                    "name": "unique_id",
                    "in": "path",
                    "required": True,
                    "description": "As the send gave it, or was given it.",
                    "schema": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": UNIQUE_ID_SIZE_MAX,
                        "pattern": "^[A-Za-z0-9_.:-]+$",
                    },
                },
                _TOPIC,
                {
                    "name": "retry",
                    "in": "query",
                    "description": "true: the call was made before, and its answer was lost. If "
                    "none waits, those that were cancelled and are not due yet are counted.",
                    "schema": {"type": "string", "enum": ["false", "true"], "default": "false"},
                },
            ],
            "responses": _answers(
                "CancelledMessages",
                "It will never be delivered.",
                {
                    400: "A parameter is wrong; `detail` names it.",
                    404: "No message of that id waits: delivered, cancelled, or never delayed.",
                    503: "The node does not serve now, or is at a bound.",
                    507: "The disk is full or read-only. Nothing was changed.",
                },
            ),
        }
    },
}
