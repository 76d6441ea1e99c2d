"""The view of one group: members, and lag per queue, topic and group. Pure."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from services.broker.schema.calls import READING, Call
from services.broker.schema.groups import Group, State
from services.broker.schema.values import Answer, Count, ShownQueue

_UNKNOWN: Final = "null if it is not known: `reasons` gives the cause"
Reason = Literal[
    "never_committed", "broadcasting", "ahead", "not_dispatched", "unknown_topic",
    "too_many_unread", "unreadable", "clock_behind", "not_tracked",
]  # fmt: skip


class Lag(Answer, frozen=True):
    """Unread messages."""

    messages: Annotated[Count | None, Meta(description=f"Messages not read; {_UNKNOWN}.")]
    bytes: Annotated[Count | None, Meta(description=f"Bytes of their records; {_UNKNOWN}.")]
    seconds: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(
            description=f"Age of the oldest of them by its store time, 0 without any; {_UNKNOWN}."
        ),
    ]
    lost: Annotated[Count, Meta(description="Messages that expired before the group read them.")]
    ahead: Annotated[Count, Meta(description="How far commits lie beyond the end of their queues.")]
    in_flight: Annotated[Count | None, Meta(description="Handed to members and not committed.")]
    expiring_messages: Annotated[
        Count | None,
        Meta(description="Unread messages that the next deletion of a log file would take."),
    ]
    reasons: Annotated[dict[str, Reason], Meta(description="Cause of each field that is null.")]


class LagTotal(Lag, frozen=True):
    """The lag of several queues."""

    queues: Annotated[Count, Meta(description="Number of queues.")]
    unknown_queues: Annotated[
        Count, Meta(description="Queues with an unknown lag: they are in no sum.")
    ]
    lagging_queues: Annotated[
        Count, Meta(description="Queues whose oldest message is older than the objective.")
    ]


class GroupQueue(Lag, frozen=True):
    """One queue of a group."""

    queue: Count
    member: Annotated[str | None, Meta(description="Its present reader.")]
    committed: Annotated[Count | None, Meta(description="Next message to read after a restart.")]
    min_offset: Count | None
    max_offset: Count | None


class GroupTopic(Answer, frozen=True):
    """One topic of a group."""

    topic: str
    kind: Literal["main", "retry"]
    subscribed: Annotated[bool, Meta(description="A member reads it now.")]
    lag: LagTotal
    queues: list[GroupQueue]


class MemberSubscription(Answer, frozen=True):
    """One topic that a member subscribes to."""

    topic: str
    tags: str


class GroupMember(Answer, frozen=True):
    """One member."""

    member: str
    subscriptions: list[MemberSubscription]
    assignment: list[ShownQueue]
    session_ms: Annotated[Count, Meta(description="Expires after this long without a heartbeat.")]
    last_seen_ms: Annotated[Count, Meta(description="Time since its last heartbeat.")]


class GroupView(Group, frozen=True):
    """One group: configuration, members and lag."""

    state: State
    generation: Annotated[
        Count | None, Meta(description="Generation of the assignment; null without members.")
    ]
    at_ms: Annotated[Count, Meta(description="The node's clock at this view.")]
    members: list[GroupMember]
    lag: LagTotal
    topics: list[GroupTopic]


CALLS: Final = (
    Call(
        "getGroup", "GET", "/v1/groups/{group}",
        "One group: members, and lag per queue in messages, bytes and seconds",
        GroupView, "The group. What is not known is null, with a reason.", READING,
    ),
)  # fmt: skip
