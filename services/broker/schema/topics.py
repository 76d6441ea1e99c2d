"""Topics, and reads of their messages by offset, time, key and id. Pure.

Step before: ``parsing`` checked a body or query. Step after: ``topic_views``, ``pull``, ``query``.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType, field

from services.broker.fields import I64_MAX
from services.broker.limits import (
    DECODED_BYTES_MAX,
    PULL_BYTES_MAX,
    PULL_MAX,
    QUERY_MAX,
    QUEUES_LISTED_MAX,
    QUEUES_MAX,
    SHOWN_MS_MAX,
    WAIT_MS_MAX,
)
from services.broker.schema.calls import CHANGING, READING, Call
from services.broker.schema.messages import Message
from services.broker.schema.values import (
    Answer,
    Count,
    ListQuery,
    Next,
    PollAfterMs,
    Query,
    Request,
    Text,
)
from tidemark.errors import BadRequest

MESSAGES_DEFAULT: Final = 32
PERM_MAX: Final = 7

I64 = Annotated[int, Meta(ge=-I64_MAX - 1, le=I64_MAX)]
QueueType = Literal["simple", "batch"]


class NewTopic(Request, frozen=True):
    """Settings of a topic to create or change."""

    queues: Annotated[
        Annotated[int, Meta(ge=1, le=QUEUES_MAX)] | None,
        Meta(description="Number of queues. Default: as it is; of a new topic, as configured."),
    ] = None
    perm: Annotated[
        Annotated[int, Meta(ge=0, le=PERM_MAX)] | None,
        Meta(description="4 read, 2 write, 1 inherit, added. Default of a new topic: 6."),
    ] = None
    retention_ms: Annotated[
        Annotated[int, Meta(ge=0, le=SHOWN_MS_MAX)] | None,
        Meta(description="Time for which messages are shown; 0: no such limit."),
    ] = None
    queue_type: Annotated[
        QueueType | None,
        Meta(
            description="batch: messages of a request for one queue are stored as one record. "
            "Cannot be changed. Default: as it is; of a new topic, simple."
        ),
    ] = None


class QueueRange(Answer, frozen=True):
    """The offsets of one queue."""

    queue: int
    min_offset: int
    max_offset: int


class Topic(Answer, frozen=True):
    """One topic."""

    topic: str
    queues: Annotated[list[QueueRange], Meta(max_length=QUEUES_LISTED_MAX)]
    queue_count: Annotated[int, Meta(description="Number of all queues, listed or not.")]
    perm: int
    write_queues: Annotated[int, Meta(description="Queues that take new messages.")]
    system: Annotated[bool, Meta(description="A topic of the broker itself.")]
    retention_ms: Annotated[
        int | None, Meta(description="Time for which messages are shown; null: no own limit.")
    ]
    queue_type: QueueType


class ListedTopic(Answer, frozen=True):
    """A topic in a list."""

    topic: str
    queues: int
    perm: int
    queue_type: QueueType


class Topics(Answer, frozen=True):
    """One page of the topics."""

    topics: list[ListedTopic]
    next: Next


class PullQuery(Query, frozen=True):
    """The parameters of a pull."""

    offset: Annotated[I64, Meta(description="Queue offset of the first message wanted.")]
    count_max: Annotated[
        int, Meta(ge=0, le=PULL_MAX, description="Maximum number of messages; at least one.")
    ] = field(name="max", default=MESSAGES_DEFAULT)
    bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=PULL_BYTES_MAX,
            description="Record bytes at most; of decoded messages never more than "
            f"{DECODED_BYTES_MAX}, or one larger one.",
        ),
    ] = field(name="max_bytes", default=PULL_BYTES_MAX)
    tags: Annotated[
        Text | None,
        Meta(
            description="Only messages with one of these tags; * for all.",
            examples=["new || paid"],
        ),
    ] = None
    wait_ms: Annotated[
        int, Meta(ge=0, le=WAIT_MS_MAX, description="Hold the call while there is no message.")
    ] = 0


class Pulled(Answer, frozen=True):
    """Messages of one queue."""

    status: Annotated[
        str, Meta(description="RocketMQ's name of the outcome: FOUND, OFFSET_TOO_SMALL …")
    ]
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Message]
    poll_after_ms: PollAfterMs | UnsetType = UNSET


class OffsetQuery(Query, frozen=True):
    """The parameters of a search by time."""

    timestamp_ms: Annotated[I64, Meta(description="Store time, ms since 1970.")]
    boundary: Annotated[Literal["lower", "upper"], Meta(description="Which side of the time.")] = (
        "lower"
    )


class Offset(Answer, frozen=True):
    """The queue offset of a time."""

    offset: int
    min_offset: int
    max_offset: int


class MessageQuery(Query, frozen=True):
    """The parameters of a look-up by id."""

    queue_offset: Annotated[
        Count | None,
        Meta(
            description="Which message of a record that is an inner batch: all of them have its "
            "id. Default: the first."
        ),
    ] = None


class FindQuery(Query, frozen=True):
    """The parameters of a search by unique id or key: exactly one of them is given."""

    unique_id: Annotated[Text | None, Meta(description="Give either this or key.")] = None
    key: Annotated[Text | None, Meta(description="A business key, or a unique id.")] = None
    begin_ms: Annotated[Count | None, Meta(description="Stored at or after; with key only.")] = None
    end_ms: Annotated[Count | None, Meta(description="Stored at or before; with key only.")] = None
    count_max: Annotated[int, Meta(ge=1, le=QUERY_MAX, description="The newest ones.")] = field(
        name="max", default=MESSAGES_DEFAULT
    )
    before: Annotated[
        Text | None,
        Meta(description="`next` of an earlier answer to the same search: older messages."),
    ] = None

    def __post_init__(self) -> None:
        """Raise BadRequest for parameters that do not go together."""
        if (self.key is None) == (self.unique_id is None):
            raise BadRequest("give either key or unique_id.", field="key")
        if self.key is None and (self.begin_ms, self.end_ms) != (None, None):
            raise BadRequest("begin_ms and end_ms are allowed only with key.", field="begin_ms")

    @property
    def word(self) -> str:
        """The key or unique id."""
        return self.key if self.key is not None else self.unique_id or ""


class Messages(Answer, frozen=True):
    """Messages of a search, oldest first."""

    messages: list[Message]
    next: Annotated[
        str | None,
        Meta(
            description="`before` of a search for older messages; null: there are none. An answer "
            "may hold fewer messages than `max`, even none, and a next; or more, because an inner "
            "batch is not divided."
        ),
    ]


_TOPIC: Final = "/v1/topics/{topic}"
_QUEUE: Final = _TOPIC + "/queues/{queue}"

CALLS: Final = (
    Call(
        "listTopics", "GET", "/v1/topics", "Topics by name, one page of all",
        Topics, "By name.", (503,), query=ListQuery, on_slaves=True,
    ),
    Call(
        "getTopic", "GET", _TOPIC, "One topic with the range of every queue",
        Topic, "The topic.", READING, on_slaves=True,
    ),
    Call(
        "putTopic", "PUT", _TOPIC, "Create a topic, or change it",
        Topic, "The topic as it is now; the same call may be repeated.", (403, *CHANGING),
        body=NewTopic, body_required=False,
    ),
    Call(
        "deleteTopic", "DELETE", _TOPIC, "Delete a topic: its messages are no longer served",
        None, "It is deleted.", (404, 503, 507),
    ),
    Call(
        "find", "GET", _TOPIC + "/messages", "Messages by unique id or by key",
        Messages, "What was found, oldest first; may be empty. There may be more while next is "
        "not null.", READING, query=FindQuery, on_slaves=True,
    ),
    Call(
        "pull", "GET", _QUEUE + "/messages",
        "Messages of one queue from an offset on, waiting for them if asked",
        Pulled, "What there is from that offset on.", (403, *READING), query=PullQuery,
        description="Decoded answers keep RocketMQ's bounds (32 messages, 256 KiB); with raw "
        "records only max and max_bytes bound the answer.",
        records="The records as they are in the commit log; the other fields are headers.",
        on_slaves=True, traced=True,
    ),
    Call(
        "offsetByTime", "GET", _QUEUE + "/offset", "Queue offset of a time",
        Offset, "lower: first message at or after; upper: last at or before.", (403, *READING),
        query=OffsetQuery, on_slaves=True,
    ),
    Call(
        "getMessage", "GET", "/v1/messages/{message_id}", "One message by its offset id",
        Message, "The message.", READING, query=MessageQuery, on_slaves=True,
    ),
)  # fmt: skip
