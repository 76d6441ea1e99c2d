"""Groups: list, configuration, deletion. Pure.

Step before: ``parsing`` checked a body. Step after: ``configs``.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import UNSET, Meta, UnsetType, structs

from services.broker.limits import QUEUES_MAX
from services.broker.schema.calls import CHANGING, Call
from services.broker.schema.values import (
    I32,
    TIME_MS_MAX,
    Answer,
    Count,
    ListQuery,
    Next,
    Request,
    TimeMs,
)

RETRY_MAX_LIMIT: Final = 1000

Start = Annotated[
    Literal["first", "last"] | TimeMs,
    Meta(
        description="Where the group begins in a topic in which it has no offset: at the first or "
        "the last message, or at the first one stored at or after a time in milliseconds."
    ),
]

Order = Annotated[
    bool,
    Meta(
        description="A queue's next messages are handed out only after those before them are "
        "committed."
    ),
]

Broadcast = Annotated[
    bool, Meta(description="Every member gets every message and keeps its own positions.")
]

Objective = Annotated[
    int, Meta(ge=1, le=TIME_MS_MAX, description="Largest age of an unread message.")
]

ConsumeEnabled = Annotated[bool, Meta(description="false: no member can join or get messages.")]

State = Literal["empty", "stable", "rebalancing"]


class GroupConfig(Request, frozen=True):
    """Changes of a group's configuration; a field that is not given keeps its value."""

    null_is_absent: ClassVar[bool] = False  # null removes the objective

    order: Order | UnsetType = UNSET
    broadcast: Broadcast | UnsetType = UNSET
    start: Start | UnsetType = UNSET
    retry_max: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=RETRY_MAX_LIMIT,
                description="Redeliveries of a message until it is a dead letter.",
            ),
        ]
        | UnsetType
    ) = UNSET
    retry_queues: (
        Annotated[
            int,
            Meta(ge=1, le=QUEUES_MAX, description="Queues of the retry topic when it is created."),
        ]
        | UnsetType
    ) = UNSET
    lag_objective_ms: Objective | UnsetType | None = UNSET
    consume_enabled: ConsumeEnabled | UnsetType = UNSET

    def given(self) -> dict[str, Any]:
        """Return the fields that are given."""
        return {name: each for name, each in structs.asdict(self).items() if each is not UNSET}


class Group(Answer, frozen=True):
    """A group's configuration. A file of RocketMQ may hold any number of retries and queues."""

    group: str
    order: Order
    broadcast: Broadcast
    start: Start
    retry_max: I32
    retry_queues: I32
    lag_objective_ms: Objective | None
    consume_enabled: ConsumeEnabled


class ListedGroup(Group, frozen=True):
    """A group in a list."""

    members: Count
    state: State


class Groups(Answer, frozen=True):
    """One page of the groups."""

    groups: list[ListedGroup]
    next: Next


CALLS: Final = (
    Call(
        "listGroups", "GET", "/v1/groups", "Groups by name, one page of all",
        Groups, "The groups.", (503,), query=ListQuery,
    ),
    Call(
        "putGroup", "PUT", "/v1/groups/{group}", "Create a group, or change it",
        Group, "The group as it is now; the same call may be repeated.", (409, *CHANGING),
        body=GroupConfig, body_required=False,
        description="Fields that are left out keep their values. While the group has members, "
        "`order` and `broadcast` cannot change.",
    ),
    Call(
        "deleteGroup", "DELETE", "/v1/groups/{group}",
        "Delete a group with its offsets; it must have no members",
        None, "It is done.", (404, 409, 503, 507),
    ),
)  # fmt: skip
