"""Delayed messages: list and cancel. Pure."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from services.broker.fields import I64_MAX
from services.broker.schema.calls import Call
from services.broker.schema.values import Answer, Count, Name, Query

LIST_MAX: Final = 1024
LIST_DEFAULT: Final = 100

OnlyTopic = Annotated[Name | None, Meta(description="Only messages for this topic.")]


class DelayedQuery(Query, frozen=True):
    """The parameters of a list of delayed messages."""

    topic: OnlyTopic = None
    count_max: Annotated[int, Meta(ge=1, le=LIST_MAX, description="Messages of one page.")] = field(
        name="max", default=LIST_DEFAULT
    )
    after: Annotated[
        Annotated[
            str,
            Meta(
                pattern=r"^[0-9]{1,18}-[0-9]{1,9}-[0-9]{1,18}\Z",
                title="the next of an earlier answer",
            ),
        ]
        | None,
        Meta(description="`next` of the page before."),
    ] = None


class DelayedMessage(Answer, frozen=True):
    """One message that waits for its time."""

    unique_id: Annotated[
        str | None, Meta(description="The id with which the message can be cancelled.")
    ]
    message_id: Annotated[str, Meta(description="Offset id of the record that waits.")]
    topic: Annotated[str, Meta(description="The topic it is for.")]
    queue: Count
    deliver_at_ms: Annotated[Count, Meta(description="When it is due, ms since 1970.")]
    delay_level: Annotated[
        Annotated[int, Meta(ge=1, le=I64_MAX)] | None, Meta(description="null: for any time.")
    ]
    store_timestamp_ms: Count
    size: Annotated[Count, Meta(description="Bytes of the record that waits.")]


class DelayedMessages(Answer, frozen=True):
    """One page of delayed messages."""

    messages: list[DelayedMessage]
    pending: Annotated[
        Count | None,
        Meta(description="Number of waiting messages of all topics; null: not counted yet."),
    ]
    next: Annotated[
        str | None,
        Meta(
            description="`after` of the next page; null: this was the last. A page of one topic "
            "may be empty and have a next one."
        ),
    ]


class CancelQuery(Query, frozen=True):
    """The parameters of a cancellation."""

    topic: OnlyTopic = None
    retry: Annotated[
        Literal["false", "true"],
        Meta(
            description="true: the call was made before, and its answer was lost. If none waits, "
            "those that were cancelled and are not due yet are counted."
        ),
    ] = "false"


class CancelledMessages(Answer, frozen=True):
    """The messages of a unique id that will never be delivered."""

    cancelled: Annotated[
        int, Meta(ge=1, le=I64_MAX, description="Number of waiting messages with that id.")
    ]
    unique_id: str
    deliver_at_ms: list[Count]


CALLS: Final = (
    Call(
        "listDelayed", "GET", "/v1/delayed", "Messages that wait for their time, next due first",
        DelayedMessages, "Some of the waiting messages.", (503,), query=DelayedQuery,
    ),
    Call(
        "cancelDelayed", "DELETE", "/v1/delayed/{unique_id}",
        "Cancel the messages that wait under a unique id; durable once answered",
        CancelledMessages, "It will never be delivered.", (404, 503, 507), query=CancelQuery,
    ),
)  # fmt: skip
