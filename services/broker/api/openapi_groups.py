"""OpenAPI schemas of groups, members, fetch, commits and reset.

``api_document`` merges them; the bounds come from the modules that check them.
"""

from __future__ import annotations

from typing import Any, Final

from services.broker.api.encodings import JSON, MSGPACK, RECORDS
from services.broker.api.openapi_schemas import (
    HALF_NAMED,
    NEXT_NAME,
    POLL_AFTER_MS,
    Schema,
    integer,
    list_parameters,
    object_of,
    or_null,
    parameter,
    ref,
)
from services.broker.fields import I64_MAX
from services.broker.groups.configs import CHANGES, RETRY_MAX_LIMIT, TIME_MS_MAX
from services.broker.groups.requests import (
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_DEFAULT,
    FETCH_MAX,
    FETCH_WAIT_MS_MAX,
    I32_MAX,
    INCARNATION_SIZE_MAX,
    QUEUES_PER_GROUP_MAX,
    SESSION_MS_DEFAULT,
    SESSION_MS_MAX,
    SESSION_MS_MIN,
    SUBSCRIPTIONS_MAX,
    CommitLevel,
)
from services.broker.limits import QUEUES_MAX

_NUMBER: Final = integer(0, I64_MAX)
_TEXT: Final[Schema] = {"type": "string"}
_FLAG: Final[Schema] = {"type": "boolean"}
_NAME: Final[Schema] = {
    "type": "string",
    "pattern": "^[%|a-zA-Z0-9_-]+$",
    "minLength": 1,
    "maxLength": 127,
    "example": "billing",
}
_QUEUE_NUMBER: Final = integer(0, I32_MAX)
_QUEUE: Final[Schema] = {
    "type": "array",
    "prefixItems": [_NAME, _QUEUE_NUMBER],
    "minItems": 2,
    "maxItems": 2,
    "items": False,
    "description": "[topic, queue]",
}
_QUEUE_OUT: Final[Schema] = {
    "type": "array",
    "minItems": 2,
    "maxItems": 2,
    "description": "[topic, queue]",
}
_POSITION: Final[Schema] = object_of(
    {"topic": _NAME, "queue": _QUEUE_NUMBER, "offset": _NUMBER},
    ["topic", "queue", "offset"],
    additionalProperties=False,
)
_INCARNATION: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": INCARNATION_SIZE_MAX,
}
_GENERATION: Final = integer(0, I64_MAX, "Of the assignment that the member knows.")
_START: Final[Schema] = {
    "description": "Where the group begins in a topic that it meets: at the first or the last "
    "message, or at the first one stored at or after a time in milliseconds.",
    "oneOf": [{"type": "string", "enum": ["first", "last"]}, integer(0, TIME_MS_MAX)],
}
_CONFIG: Final[dict[str, Schema]] = {
    "order": {
        **_FLAG,
        "description": "A queue's next messages are handed out only after those before them are "
        "committed.",
    },
    "broadcast": {
        **_FLAG,
        "description": "Every member gets every message and keeps its own positions.",
    },
    "start": _START,
    "retry_max": integer(0, RETRY_MAX_LIMIT, "Send-backs of a message until it is a dead letter."),
    "retry_queues": integer(1, QUEUES_MAX, "Queues of the retry topic when it is made."),
    "lag_objective_ms": or_null(integer(1, TIME_MS_MAX, "How old an unread message may be.")),
    "consume_enabled": {**_FLAG, "description": "false: no member can join or get messages."},
}
assert _CONFIG.keys() == CHANGES
_DESCRIBED: Final[dict[str, Schema]] = {
    "group": _TEXT,
    **{name: {**schema, "description": schema["description"]} for name, schema in _CONFIG.items()},
    # A file of RocketMQ may hold any number.
    "retry_max": integer(-I32_MAX - 1, I32_MAX),
    "retry_queues": integer(-I32_MAX - 1, I32_MAX),
}
_FETCHED: Final[dict[str, Schema]] = {
    "topic": _TEXT,
    "queue": _NUMBER,
    "status": {**_TEXT, "description": "As of a pull."},
    "from_offset": _NUMBER,
    "next_offset": integer(
        0, I64_MAX, "Where the member's next batch begins; what to commit when all is handled."
    ),
    "min_offset": _NUMBER,
    "max_offset": _NUMBER,
}

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "GroupConfig": object_of(_CONFIG, [], additionalProperties=False),
    "Group": object_of(_DESCRIBED, list(_DESCRIBED)),
    "Groups": object_of(
        {
            "groups": {
                "type": "array",
                "items": object_of(
                    {
                        **_DESCRIBED,
                        "members": _NUMBER,
                        "state": {**_TEXT, "enum": ["empty", "stable", "rebalancing"]},
                    },
                    [*_DESCRIBED, "members", "state"],
                ),
            },
            "next": NEXT_NAME,
        },
        ["groups", "next"],
    ),
    "Join": object_of(
        {
            "subscriptions": {
                "type": "array",
                "minItems": 1,
                "maxItems": SUBSCRIPTIONS_MAX,
                "items": object_of(
                    {
                        "topic": _NAME,
                        "tags": {
                            "type": ["string", "null"],
                            "example": "new || paid",
                            "description": "Only messages with one of these tags; * for all.",
                        },
                    },
                    ["topic"],
                    additionalProperties=False,
                ),
                "description": "Each topic once.",
            },
            "session_ms": or_null(
                integer(
                    SESSION_MS_MIN,
                    SESSION_MS_MAX,
                    "The member has died when it is silent for so long.",
                    default=SESSION_MS_DEFAULT,
                )
            ),
            "holding": {
                "type": ["array", "null"],
                "items": _QUEUE,
                "maxItems": QUEUES_PER_GROUP_MAX,
                "description": "Queues that the member works on. One that was taken from it "
                "waits for a heartbeat without it here. Of a member that joins: what it had, if "
                "its session would still run. Default: what is assigned to it.",
            },
            "generation": or_null(
                {
                    **_GENERATION,
                    "description": "With it this is a heartbeat, and 404 if the member is gone. "
                    "Without it the member joins: what it got and did not commit comes again.",
                }
            ),
            "incarnation": or_null(
                {
                    **_INCARNATION,
                    "description": "Which program speaks. A join with another one fences the "
                    "program that had the name: its heartbeats are answered `member-fenced`.",
                }
            ),
        },
        ["subscriptions"],
        additionalProperties=False,
    ),
    "Joined": object_of(
        {
            "generation": _NUMBER,
            "assignment": {"type": "array", "items": _QUEUE_OUT},
            "kept": {
                "type": "array",
                "items": _QUEUE_OUT,
                "description": "Queues of the assignment that the member named in holding, if no "
                "other member had and no reset moved them since the broker started. The member "
                "goes on where it is: the last commits before the start may be lost.",
            },
            "session_ms": _NUMBER,
            "order": _FLAG,
            "broadcast": _FLAG,
            "retry_max": integer(-I32_MAX - 1, I32_MAX),
        },
        ["generation", "assignment", "kept", "session_ms", "order", "broadcast", "retry_max"],
    ),
    "Fetch": object_of(
        {
            "generation": or_null(_GENERATION),
            "max": or_null(integer(1, FETCH_MAX, "Messages at most.", default=FETCH_DEFAULT)),
            "max_bytes": or_null(
                integer(
                    1,
                    FETCH_BYTES_MAX,
                    "Record bytes, about; one message always fits.",
                    default=FETCH_BYTES_DEFAULT,
                )
            ),
            "wait_ms": or_null(
                integer(0, FETCH_WAIT_MS_MAX, "Hold the call while there is nothing.", default=0)
            ),
            "positions": {
                "type": ["array", "null"],
                "items": _POSITION,
                "maxItems": QUEUES_PER_GROUP_MAX,
                "description": "Where the member goes on in these queues; each once.",
            },
            "paused": {
                "type": ["array", "null"],
                "items": _QUEUE,
                "maxItems": QUEUES_PER_GROUP_MAX,
                "description": "Queues of which this fetch, and nothing later, brings nothing.",
            },
            "sequence": or_null(
                integer(
                    0,
                    I64_MAX,
                    "Number of this fetch, larger with each fetch of a member. A fetch that "
                    "arrives after one with a larger number was given up by its sender: it moves "
                    "no position and is answered with nothing.",
                )
            ),
        },
        [],
        additionalProperties=False,
    ),
    "Fetched": object_of(
        {
            "generation": _NUMBER,
            "queues": {
                "type": "array",
                "items": object_of(
                    {**_FETCHED, "messages": {"type": "array", "items": ref("Message")}},
                    [*_FETCHED, "messages"],
                ),
            },
            "poll_after_ms": POLL_AFTER_MS,
        },
        ["generation", "queues"],
    ),
    "Commit": object_of(
        {
            "member": or_null({**_NAME, "description": "Needed while the group has members."}),
            "generation": or_null(
                {**_GENERATION, "description": "Goes with member, and member with it."}
            ),
            "offsets": {
                "type": "array",
                "items": _POSITION,
                "maxItems": QUEUES_PER_GROUP_MAX,
                "description": "The offset behind the last message handled, of each queue once. "
                "A member's below what is committed changes nothing: a reset goes back.",
            },
            "ack": {
                "type": ["string", "null"],
                "enum": [*(str(level) for level in CommitLevel), None],
                "description": "accepted: served at once, on disk within about 100 ms.",
            },
        },
        ["offsets"],
        additionalProperties=False,
        **{"not": {"anyOf": HALF_NAMED}},
    ),
    "Committed": object_of({"level": {**_TEXT, "enum": list(map(str, CommitLevel))}}, ["level"]),
    "Offsets": object_of(
        {
            "offsets": {
                "type": "array",
                "items": object_of(
                    {"topic": _TEXT, "queue": _NUMBER, "offset": _NUMBER},
                    ["topic", "queue", "offset"],
                ),
            }
        },
        ["offsets"],
    ),
    "Reset": object_of(
        {
            "topic": _NAME,
            "queue": or_null(integer(0, I32_MAX, "Default: all of the topic.")),
            "to": {
                "oneOf": [
                    {"type": "string", "enum": ["first", "last"]},
                    object_of(
                        {"timestamp_ms": integer(0, TIME_MS_MAX)},
                        ["timestamp_ms"],
                        additionalProperties=False,
                    ),
                    object_of({"offset": _NUMBER}, ["offset"], additionalProperties=False),
                ],
                "description": "An offset below the first message means the first message.",
            },
            "dry_run": {"type": ["boolean", "null"], "description": "Say only what would move."},
        },
        ["topic", "to"],
        additionalProperties=False,
    ),
    "ResetDone": object_of(
        {
            "queues": {
                "type": "array",
                "items": object_of(
                    {
                        "queue": _NUMBER,
                        "from": or_null(integer(0, I64_MAX, "null: there was no offset.")),
                        "to": _NUMBER,
                    },
                    ["queue", "from", "to"],
                ),
            },
            "dry_run": _FLAG,
        },
        ["queues", "dry_run"],
    ),
}

_ERRORS: Final = {
    400: "A field or name is missing, of the wrong type or out of range; `detail` names it.",
    403: "The group is switched off, or the topic's permissions do not allow it.",
    404: "No such group, member, topic or queue; `code` says which.",
    408: "The request did not arrive in time.",
    409: "Not with the group's members as they are now; `code` says why.",
    413: "Too large; `limit` is the bound.",
    415: "Content type or content encoding not understood.",
    503: "The node does not serve now, or is at a bound; the same call may succeed later.",
    507: "The disk is full or read-only; the same call may succeed later.",
}


def _parameter(name: str, description: str) -> Schema:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": _NAME,
    }


_GROUP: Final = _parameter("group", "The group's name.")
_MEMBER: Final = _parameter("member", "The member's name; the member chooses it.")


def _call(
    name: str,
    summary: str,
    answer: tuple[str, str] | None,
    errors: tuple[int, ...],
    *,
    parameters: tuple[Schema, ...] = (_GROUP,),
    body: str | None = None,
    body_required: bool = True,
    description: str = "",
    raw: bool = False,
) -> Schema:
    """Return one operation. answer: schema and description; None: 204. All can fail with 400,
    405."""
    if answer is None:
        done: Schema = {"204": {"description": "It is done."}}
    else:
        content = {kind: {"schema": ref(answer[0])} for kind in (JSON, MSGPACK)}
        if raw:
            content[RECORDS] = {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "description": "A big-endian 32-bit size, a msgpack map of that size as in "
                    "the other encodings but with `size` in place of `messages`, then the "
                    "records of its queues: of each `size` bytes.",
                }
            }
        done = {"200": {"description": answer[1], "content": content}}
    error_content = {kind: {"schema": ref("Error")} for kind in (JSON, MSGPACK)}
    call: Schema = {
        "operationId": name,
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            **done,
            **{
                str(status): {"description": _ERRORS[status], "content": error_content}
                for status in sorted({400, *errors})
            },
        },
    }
    if not parameters:
        del call["parameters"]
    if description:
        call["description"] = description
    if body is not None:
        call["requestBody"] = {
            "required": body_required,
            "content": {JSON: {"schema": ref(body)}},
        }
    return call


_BODY: Final = (408, 413, 415, 503)
_STATE: Final = (*_BODY, 507)

PATHS: Final[dict[str, dict[str, Any]]] = {
    "/v1/groups": {
        "get": _call(
            "listGroups",
            "Groups by name, one page of all",
            ("Groups", "The groups."),
            (503,),
            parameters=list_parameters("groups"),
        )
    },
    "/v1/groups/{group}": {
        "put": _call(
            "putGroup",
            "Make a group, or change it",
            ("Group", "The group as it is now; the same call may be repeated."),
            (409, *_STATE),
            body="GroupConfig",
            body_required=False,
            description="What is not named stays as it is. While the group has members, `order` "
            "and `broadcast` cannot change.",
        ),
        "delete": _call(
            "deleteGroup",
            "Delete a group with its offsets; it must have no members",
            None,
            (404, 409, 503, 507),
        ),
    },
    "/v1/groups/{group}/members/{member}": {
        "post": _call(
            "joinGroup",
            "Join a group, stay in it, or take other topics",
            ("Joined", "What the member has."),
            (403, 404, 409, *_STATE),
            parameters=(_GROUP, _MEMBER),
            body="Join",
            description="To be repeated well within `session_ms`. The retry topic's queues are "
            "assigned, too.",
        ),
        "delete": _call(
            "leaveGroup",
            "Leave a group; the member's queues are free at once",
            None,
            (404, 503),
            parameters=(
                _GROUP,
                _MEMBER,
                parameter("incarnation", "query", _INCARNATION, "Leave only if it is this one's."),
            ),
        ),
    },
    "/v1/groups/{group}/members/{member}/fetch": {
        "post": _call(
            "fetch",
            "Messages of all queues of a member, in one long poll",
            ("Fetched", "What was found; `queues` is empty if nothing was in time."),
            (403, 404, 409, *_BODY),
            parameters=(_GROUP, _MEMBER),
            body="Fetch",
            body_required=False,
            description="Returns at once when the generation changes. A later fetch of the same "
            "member ends an earlier one.",
            raw=True,
        )
    },
    "/v1/groups/{group}/offsets": {
        "post": _call(
            "commit",
            "Commit how far queues are handled: all of them or none",
            ("Committed", "The level reached."),
            (403, 404, 409, *_STATE),
            body="Commit",
        ),
        "get": _call(
            "getOffsets",
            "All committed offsets of a group",
            ("Offsets", "The offsets."),
            (404, 503),
        ),
    },
    "/v1/groups/{group}/reset": {
        "post": _call(
            "resetGroup",
            "Move a group without members to other messages of a topic",
            ("ResetDone", "What moved, or would."),
            (403, 404, 409, *_STATE),
            body="Reset",
        )
    },
}
