"""Messages that a group could not handle: nack, dead letters, redrive, trace. Pure."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import UNSET, Meta, UnsetType, field

from services.broker.fields import I32_MAX
from services.broker.schema.calls import CHANGING, READING, Call
from services.broker.schema.messages import Message
from services.broker.schema.values import (
    HALF_NAMED,
    Answer,
    Count,
    MessageId,
    Name,
    Query,
    QueueNumber,
    Request,
    Text,
)
from tidemark.errors import BadRequest
from tidemark.formats.nack import NACK_ID_SIZE_MAX

DEAD_MAX: Final = 1000
DEAD_DEFAULT: Final = 100
REDRIVE_MAX: Final = 10_000
REDRIVE_DEFAULT: Final = 1000

_NULL: Final[dict[str, Any]] = {"type": "null"}
_PLACE: Final = ("topic", "queue", "queue_offset")


class Nack(Request, frozen=True):
    """The message is named by its id, or by where it was read."""

    rules: ClassVar[dict[str, Any]] = {
        "oneOf": [
            {
                "properties": {"message_id": {"type": "string"}, **dict.fromkeys(_PLACE, _NULL)},
                "required": ["message_id"],
            },
            {
                "properties": {
                    "message_id": _NULL,
                    "topic": {"type": "string"},
                    "queue": {"type": "integer"},
                    "queue_offset": {"type": "integer"},
                },
                "required": list(_PLACE),
            },
        ],
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
        },
    }

    message_id: MessageId | None = None
    topic: Name | None = None
    queue: QueueNumber | None = None
    queue_offset: Count | None = None
    delay_level: Annotated[
        int,
        Meta(
            ge=-I32_MAX,  # the store's levels decide: delay-out-of-range names them
            le=I32_MAX,
            description="How long until the next try: 0 for the next longer level, -1 for the "
            "dead letters at once, or one of the store's levels.",
        ),
    ] = 0
    member: Annotated[Name | None, Meta(description="Needed while the group has members.")] = None
    generation: Annotated[
        Count | None, Meta(description="Generation that the member knows; required with it.")
    ] = None
    without_member: Annotated[
        bool,
        Meta(
            description="The caller is a tool, and no member is working on the message. Not "
            "allowed with member."
        ),
    ] = False
    nack_id: Annotated[
        Annotated[Name, Meta(max_length=NACK_ID_SIZE_MAX)] | None,
        Meta(
            description="The caller's own id of this nack: repeated with it, it stores one copy.",
        ),
    ] = None
    retry: Annotated[
        bool,
        Meta(description="This nack may have been carried out before. Only with nack_id."),
    ] = False

    def __post_init__(self) -> None:
        """Raise BadRequest for fields that do not go together."""
        place = (self.topic, self.queue, self.queue_offset)
        if self.generation is not None and self.member is None:
            raise BadRequest("generation is allowed only together with member.", field="generation")
        if self.without_member and self.member is not None:
            raise BadRequest("give either member or without_member.", field="without_member")
        if self.retry and self.nack_id is None:
            raise BadRequest("retry is allowed only together with nack_id.", field="retry")
        if self.message_id is not None and place != (None, None, None):
            raise BadRequest(
                "give either message_id or topic, queue and queue_offset.", field="message_id"
            )
        if self.message_id is None and None in place:
            raise BadRequest(
                "the message is not named: give message_id, or topic, queue and queue_offset.",
                field="message_id",
            )


class SentBack(Answer, frozen=True):
    """Outcome of a nack."""

    status: Annotated[
        Literal["RETRY", "DEAD", "IGNORED"],
        Meta(
            description="IGNORED: the group's configuration, which RocketMQ wrote, has no retry "
            "queues, and nothing was stored."
        ),
    ]
    topic: Annotated[str | None, Meta(description="The retry or dead-letter topic.")]
    reconsume_times: Annotated[
        QueueNumber, Meta(description="How often the message was nacked, including this time.")
    ]
    delay_level: Annotated[QueueNumber, Meta(description="0 of a dead letter.")]
    deliver_at_ms: Annotated[Count | None, Meta(description="When the next try is due.")]
    message_id: str | None
    unique_id: str | None


class DeadQuery(Query, frozen=True):
    """The parameters of a list of dead letters."""

    from_offset: Annotated[Count, Meta(description="Letter to begin at.")] = 0
    count_max: Annotated[int, Meta(ge=1, le=DEAD_MAX, description="Letters of one page.")] = field(
        name="max", default=DEAD_DEFAULT
    )
    topic: Annotated[Name | None, Meta(description="Only those that came from this topic.")] = None


class DeadLetter(Answer, frozen=True):
    """One dead letter."""

    queue_offset: Annotated[Count, Meta(description="Its number in the dead-letter topic.")]
    message_id: str
    unique_id: str | None
    original_topic: Annotated[str, Meta(description="The topic that it was first sent to.")]
    original_message_id: Annotated[str | None, Meta(description="Of its first delivery.")]
    reconsume_times: QueueNumber
    dead_at_ms: Count
    born_timestamp_ms: int
    tags: str | None
    keys: list[str]
    size: Annotated[QueueNumber, Meta(description="Bytes of its record.")]
    redriven: Annotated[
        bool | None, Meta(description="Sent again; null where the store keeps no index.")
    ]


class DeadLetters(Answer, frozen=True):
    """One page of dead letters."""

    messages: list[DeadLetter]
    next_offset: Annotated[Count, Meta(description="Where the next call goes on.")]
    min_offset: Count
    max_offset: Count
    done: bool


class Redrive(Request, frozen=True):
    """Which dead letters are sent again, and where to."""

    to: Annotated[
        Literal["topic", "group"],
        Meta(
            description="topic: as new messages of the topic that each came from. group: only to "
            "this group, by its retry topic."
        ),
    ] = "topic"
    topic: Annotated[Name | None, Meta(description="Only letters that came from there.")] = None
    key: Annotated[Text | None, Meta(description="Only letters with this key.")] = None
    begin_ms: Annotated[Count | None, Meta(description="Only those that died then or later.")] = (
        None
    )
    end_ms: Annotated[Count | None, Meta(description="Only those that died then or before.")] = None
    message_id: Annotated[
        Text | None,
        Meta(description="The letter's, its first delivery's, or its unique id."),
    ] = None
    from_offset: Annotated[Count, Meta(description="Letter to begin at.")] = 0
    matched_max: Annotated[
        int, Meta(ge=1, le=REDRIVE_MAX, description="Maximum number of matching letters.")
    ] = field(name="max", default=REDRIVE_DEFAULT)
    dry_run: Annotated[
        bool, Meta(description="true: return what would be done, and do nothing.")
    ] = False


class Refusal(Answer, frozen=True):
    """Letters that cannot be sent, by topic and cause."""

    topic: str
    code: str
    detail: str
    count: Count


class Redriven(Answer, frozen=True):
    """What a redrive did, or would do."""

    matched: Annotated[Count, Meta(description="Number of letters that match the filter.")]
    redriven: Annotated[Count, Meta(description="Sent again now.")]
    skipped: Annotated[Count, Meta(description="Sent again before, by an earlier call.")]
    refused: Annotated[Count, Meta(description="Cannot be sent; see `refusals`.")]
    refusals: list[Refusal]
    next_offset: Annotated[Count, Meta(description="Where the next call goes on.")]
    max_offset: Count
    done: bool
    dry_run: bool


TRACED_ID_SIZE_MAX: Final = 255
"""Producers choose their unique ids; an id in a path is bounded."""
TracedId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=TRACED_ID_SIZE_MAX,
        description="Of any record of the message; with topic: its unique id.",
    ),
]


class TraceQuery(Query, frozen=True):
    """The parameters of a trace."""

    topic: Annotated[Name | None, Meta(description="The topic that it was first sent to.")] = None
    queue_offset: Annotated[
        Count | None,
        Meta(
            description="Which message of a record that is an inner batch: all of them have its "
            "id. Default: the first. Not allowed with topic."
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise BadRequest for parameters that do not go together."""
        if self.topic is not None and self.queue_offset is not None:
            raise BadRequest("queue_offset is allowed only without topic.", field="queue_offset")


class TraceEvent(Answer, frozen=True):
    """Further fields give place, member and duration."""

    what: Literal[
        "produced", "delayed", "released", "cancelled", "flushed", "dispatched", "delivered",
        "committed", "retried", "dead", "redriven",
    ]  # fmt: skip
    at_ms: Annotated[Count | None, Meta(description="null: unknown; see `reason`.")]
    reason: Literal["not_recorded", "expired", "commit_not_found"] | UnsetType = UNSET


class Trace(Answer, frozen=True):
    """The events of a message, from its send on."""

    message: Message
    unique_id: str | None
    complete: Annotated[
        bool, Meta(description="Whether every record of the message that exists was found.")
    ]
    groups_left_out: Count
    events: list[TraceEvent]


_STORING: Final = (403, 404, 409, *CHANGING, 504)

CALLS: Final = (
    Call(
        "nack", "POST", "/v1/groups/{group}/nack",
        "Send a message back for another try, or to the dead letters",
        SentBack, "The message is sent back.", _STORING, body=Nack, traced=True,
    ),
    Call(
        "deadLetters", "GET", "/v1/groups/{group}/dead", "Dead letters of a group, oldest first",
        DeadLetters, "The letters.", READING, query=DeadQuery,
    ),
    Call(
        "redrive", "POST", "/v1/groups/{group}/redrive",
        "Send dead letters again, each of them once",
        Redriven, "What was done.", _STORING, body=Redrive, body_required=False,
    ),
    Call(
        "traceMessage", "GET", "/v1/messages/{message_id}/trace",
        "The events of a message, from its send to the last commit",
        Trace, "Its events, oldest first.", READING, query=TraceQuery,
        path_types={"message_id": TracedId},
    ),
)  # fmt: skip
