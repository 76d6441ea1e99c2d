"""The OpenAPI document of the API: every call, parameter, answer and error. Pure.

It is written by hand because people read it. ``tests/processes/test_openapi.py`` compares it with
the running server in both directions: allowed requests are accepted, and forbidden requests are
refused with a documented answer.
"""

from __future__ import annotations

from typing import Final

from services.broker.api.encodings import JSON, RECORDS
from services.broker.api.messages import I32_MAX, Rules
from services.broker.api.openapi_schemas import (
    Schema,
    bodies,
    integer,
    list_parameters,
    parameter,
    ref,
    schemas,
)
from services.broker.fields import I64_MAX
from services.broker.limits import (
    DECODED_BYTES_MAX,
    PULL_BYTES_MAX,
    PULL_MAX,
    QUERY_MAX,
    WAIT_MS_MAX,
)

PULL_PARAMETERS: Final = frozenset({"offset", "max", "max_bytes", "tags", "wait_ms"})
OFFSET_PARAMETERS: Final = frozenset({"timestamp_ms", "boundary"})
QUERY_PARAMETERS: Final = frozenset({"unique_id", "key", "begin_ms", "end_ms", "max", "before"})


_NAME: Final[Schema] = {
    "type": "string",
    "pattern": "^[%|a-zA-Z0-9_-]+$",
    "minLength": 1,
    "maxLength": 127,
    "example": "orders",
}
READ_FROM: Final = "Tidemark-Read-From"
"""Header of a read: with ANYWHERE a slave may answer, which may lag behind the master."""
ANYWHERE: Final = "any"
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
    504: "Stored, but the level was not reached in time, or the disk failed meanwhile: the outcome "
    "is unknown. See `results`.",
    507: f"The disk is full or read-only: `path`, free bytes and limit are given. {_RETRIABLE}",
}


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
    """Return one operation. Every call has the answers 400 and 405."""
    call: Schema = {
        "operationId": name,
        "summary": summary,
        "responses": {
            **answer,
            **{
                str(status): {
                    "description": _ERRORS[status],
                    "content": bodies(ref("Error")),
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
        # Only JSON is described: the msgpack body is the same map with bytes in `body`.
        call["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return call


def _ok(schema: Schema, description: str) -> Schema:
    return {"200": {"description": description, "content": bodies(schema)}}


def document(*, version: str, rules: Rules, request_size_max: int) -> Schema:
    """Return the document without the fragments of other modules."""
    topic = parameter("topic", "path", _NAME, "The topic's name.")
    queue = parameter("queue", "path", integer(0, I32_MAX), "Queue number, from 0.")
    i64 = integer(-I64_MAX - 1, I64_MAX)
    pull = (
        topic,
        queue,
        {
            **parameter("offset", "query", i64, "Queue offset of the first message wanted."),
            "required": True,
        },
        parameter(
            "max",
            "query",
            integer(0, PULL_MAX, default=32),
            "At most so many messages, but one at least.",
        ),
        parameter(
            "max_bytes",
            "query",
            integer(1, PULL_BYTES_MAX),
            "Record bytes at most; of "
            f"decoded messages never more than {DECODED_BYTES_MAX}, or one larger one.",
        ),
        parameter(
            "tags",
            "query",
            {"type": "string", "example": "new || paid"},
            "Only messages with one of these tags; * for all.",
        ),
        parameter(
            "wait_ms",
            "query",
            integer(0, WAIT_MS_MAX, default=0),
            "Hold the call while there is none.",
        ),
    )
    time = integer(0, I64_MAX)
    topic_calls = {
        "get": _call(
            "getTopic",
            "One topic with the range of every queue",
            _ok(ref("Topic"), "The topic."),
            (404, 503),
            parameters=(topic,),
        ),
        "put": _call(
            "putTopic",
            "Make a topic, or give it more queues",
            _ok(ref("Topic"), "The topic as it is now; the same call may be repeated."),
            (408, 413, 415, 503, 507),
            parameters=(topic,),
            body=ref("NewTopic"),
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
            _ok(ref("Sent"), "Stored, at the level named."),
            (403, 404, 408, 413, 415, 503, 504, 507),
            parameters=(topic,),
            body=ref("Send"),
            description="Messages without queue and sharding_key share one queue, picked in turn. "
            f"A request body has at most {request_size_max} bytes.",
        ),
        "get": _call(
            "find",
            "Messages by unique id or by key",
            _ok(
                ref("Messages"),
                "What was found, oldest first; may be empty. There may be more while next is "
                "not null.",
            ),
            (404, 503),
            parameters=(
                topic,
                parameter("unique_id", "query", {"type": "string"}, "Either this or key."),
                parameter("key", "query", {"type": "string"}, "A business key, or a unique id."),
                parameter("begin_ms", "query", time, "Stored at or after; with key only."),
                parameter("end_ms", "query", time, "Stored at or before; with key only."),
                parameter("max", "query", integer(1, QUERY_MAX, default=32), "The newest ones."),
                parameter(
                    "before",
                    "query",
                    {"type": "string"},
                    "`next` of an earlier answer to the same question: go on with older ones.",
                ),
            ),
        ),
    }
    pull_answer = _ok(ref("Pulled"), "What there is from that offset on.")
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
            "Tidemark-Poll-After-Ms",
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
                "get": _call(
                    "listTopics",
                    "Topics by name, one page of all",
                    _ok(ref("Topics"), "By name."),
                    (503,),
                    parameters=list_parameters("topics"),
                )
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
                        ref("Offset"),
                        "lower: first message at or after; upper: last at or before.",
                    ),
                    (403, 404, 503),
                    parameters=(
                        topic,
                        queue,
                        {
                            **parameter("timestamp_ms", "query", i64, "Store time, ms since 1970."),
                            "required": True,
                        },
                        parameter("boundary", "query", boundary, "Which side of the time."),
                    ),
                )
            },
            "/v1/messages/{message_id}": {
                "get": _call(
                    "getMessage",
                    "One message by its offset id",
                    _ok(ref("Message"), "The message."),
                    (404, 503),
                    parameters=(
                        parameter(
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
        "components": {"schemas": schemas(rules)},
    }
