"""Groups and their members: configuration, join, leave, fetch, commit, reset. Pure.

Step before: ``parsing`` checked a body. Step after: ``coordinator``, ``commits``, ``configs``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import UNSET, Meta, UnsetType, field, structs

from services.broker.limits import QUEUES_MAX
from services.broker.schema.calls import CHANGING, READING, WITH_BODY, Call
from services.broker.schema.messages import Message
from services.broker.schema.values import (
    HALF_NAMED,
    I32,
    TIME_MS_MAX,
    UTF8_PATTERN,
    Answer,
    Count,
    ListQuery,
    Name,
    Next,
    PollAfterMs,
    Query,
    Queue,
    QueueNumber,
    Request,
    Text,
    TimeMs,
)
from tidemark.errors import BadRequest

SUBSCRIPTIONS_MAX: Final = 256
"""Topics of one member."""
QUEUES_PER_GROUP_MAX: Final = 16_384
"""Queues of the topics that a group subscribes to: a rebalance goes through all of them."""
SESSION_MS_MIN: Final = 1_000
"""A shorter session could expire during a pause of the garbage collector."""
SESSION_MS_MAX: Final = 600_000
SESSION_MS_DEFAULT: Final = 30_000
FETCH_MAX: Final = 8192
"""Messages of one fetch."""
FETCH_DEFAULT: Final = 1024
FETCH_BYTES_MAX: Final = 32 << 20
FETCH_BYTES_DEFAULT: Final = 4 << 20
FETCH_WAIT_MS_MAX: Final = 30_000
"""Shorter than the idle time-outs of common proxies."""
INCARNATION_SIZE_MAX: Final = 64
RETRY_MAX_LIMIT: Final = 1000

Start = Annotated[
    Literal["first", "last"] | TimeMs,
    Meta(
        description="Where the group begins in a topic without an offset of it: at the first or "
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
Generation = Annotated[Count, Meta(description="Of the assignment that the member knows.")]
Incarnation = Annotated[
    str, Meta(min_length=1, max_length=INCARNATION_SIZE_MAX, pattern=UTF8_PATTERN)
]
Queues = Annotated[frozenset[Queue], Meta(max_length=QUEUES_PER_GROUP_MAX)]


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


class Subscription(Request, frozen=True):
    """One topic that a member subscribes to."""

    topic: Name
    tags: Annotated[
        Text,
        Meta(
            description="Only messages with one of these tags; * for all.",
            examples=["new || paid"],
        ),
    ] = "*"


class Join(Request, frozen=True):
    """A join or a heartbeat."""

    subscriptions: Annotated[
        list[Subscription],
        Meta(min_length=1, max_length=SUBSCRIPTIONS_MAX, description="Each topic once."),
    ]
    session_ms: Annotated[
        int,
        Meta(
            ge=SESSION_MS_MIN,
            le=SESSION_MS_MAX,
            description="The member expires after so long without a heartbeat.",
        ),
    ] = SESSION_MS_DEFAULT
    holding: Annotated[
        Queues | None,
        Meta(
            description="Queues that the member works on. One that was taken from it waits for a "
            "heartbeat without it here. Of a member that joins: what it had, if its session would "
            "still run. Default: what is assigned to it.",
        ),
    ] = None
    generation: Annotated[
        Count | None,
        Meta(
            description="With it this is a heartbeat, and 404 if the member is gone. Without it "
            "the member joins: what it got and did not commit comes again.",
        ),
    ] = None
    incarnation: Annotated[
        Incarnation | None,
        Meta(
            description="Id of the program that uses the member's name. A join with another one "
            "fences the program that had the name: its heartbeats are answered `member-fenced`.",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise BadRequest if a topic is named twice."""
        if len({each.topic for each in self.subscriptions}) < len(self.subscriptions):
            raise BadRequest(
                "subscriptions names a topic twice.",
                "Write all tags of a topic in one expression: a || b.",
                field="subscriptions",
            )


class Joined(Answer, frozen=True):
    """What a member has."""

    generation: Count
    assignment: list[Queue]
    kept: Annotated[
        list[Queue],
        Meta(
            description="Queues of the assignment that the member named in holding, if no other "
            "member had and no reset moved them since the broker started. The member goes on "
            "where it is: the last commits before the start may be lost."
        ),
    ]
    session_ms: Count
    order: bool
    broadcast: bool
    retry_max: I32


class LeaveQuery(Query, frozen=True):
    """The parameters of a leave."""

    incarnation: Annotated[
        Incarnation | None, Meta(description="Leave only if the member has this incarnation.")
    ] = None


class Position(Request, frozen=True):
    """A queue and an offset in it."""

    topic: Name
    queue: QueueNumber
    offset: Count

    @property
    def place(self) -> tuple[str, int]:
        """Topic and number of the queue."""
        return self.topic, self.queue


Positions = Annotated[list[Position], Meta(max_length=QUEUES_PER_GROUP_MAX)]


class Fetch(Request, frozen=True):
    """One long poll over all queues of a member."""

    generation: Generation | None = None
    count_max: Annotated[int, Meta(ge=1, le=FETCH_MAX, description="Messages at most.")] = field(
        name="max", default=FETCH_DEFAULT
    )
    bytes_max: Annotated[
        int,
        Meta(ge=1, le=FETCH_BYTES_MAX, description="Record bytes, about; one message always fits."),
    ] = field(name="max_bytes", default=FETCH_BYTES_DEFAULT)
    wait_ms: Annotated[
        int, Meta(ge=0, le=FETCH_WAIT_MS_MAX, description="Hold the call while there is nothing.")
    ] = 0
    positions: Annotated[
        Positions, Meta(description="Where the member goes on in these queues; each once.")
    ] = field(default_factory=list)
    paused: Annotated[
        Queues, Meta(description="Queues of which this fetch, and nothing later, returns nothing.")
    ] = frozenset()
    sequence: Annotated[
        Count | None,
        Meta(
            description="Number of this fetch, larger with each fetch of a member. A fetch that "
            "arrives after one with a larger number was given up by its sender: it moves no "
            "position and is answered with nothing.",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise BadRequest if a queue is named twice."""
        _check_once(self.positions, "positions")


class FetchedQueue(Answer, frozen=True):
    """What a fetch found in one queue."""

    topic: str
    queue: Count
    status: Annotated[str, Meta(description="As of a pull.")]
    from_offset: Count
    next_offset: Annotated[
        Count,
        Meta(
            description="Where the member's next batch begins; what to commit when all is handled."
        ),
    ]
    min_offset: Count
    max_offset: Count
    messages: list[Message]


class Fetched(Answer, frozen=True):
    """What was found."""

    generation: Count
    queues: list[FetchedQueue]
    poll_after_ms: PollAfterMs | UnsetType = UNSET


class CommitLevel(StrEnum):
    """Durability that the response to a commit promises."""

    ACCEPTED = "accepted"
    """Served; a SIGKILL of the broker within the next 100 ms may lose it."""
    DISK = "disk"


class Commit(Request, frozen=True):
    """How far queues are handled."""

    rules: ClassVar[dict[str, Any]] = {"not": {"anyOf": HALF_NAMED}}

    offsets: Annotated[
        Positions,
        Meta(
            description="The offset behind the last message handled, of each queue once. A "
            "member's below what is committed changes nothing: a reset goes back.",
        ),
    ]
    member: Annotated[Name | None, Meta(description="Needed while the group has members.")] = None
    generation: Annotated[
        Generation | None, Meta(description="Goes with member, and member with it.")
    ] = None
    ack: Annotated[
        CommitLevel, Meta(description="accepted: served at once, on disk within about 100 ms.")
    ] = CommitLevel.ACCEPTED

    def __post_init__(self) -> None:
        """Raise BadRequest if a queue is named twice."""
        _check_once(self.offsets, "offsets")

    @property
    def moves(self) -> dict[tuple[str, int], int]:
        """The offset of each queue."""
        return {(each.topic, each.queue): each.offset for each in self.offsets}


class Committed(Answer, frozen=True):
    """The durability that was reached."""

    level: CommitLevel


class CommittedOffset(Answer, frozen=True):
    """The committed offset of one queue."""

    topic: str
    queue: Count
    offset: Count


class Offsets(Answer, frozen=True):
    """All committed offsets of a group."""

    offsets: list[CommittedOffset]


class ResetPlace(Request, frozen=True):
    """A time or an offset."""

    rules: ClassVar[dict[str, Any]] = {
        "oneOf": [{"required": ["timestamp_ms"]}, {"required": ["offset"]}]
    }

    timestamp_ms: TimeMs | UnsetType = UNSET
    offset: Count | UnsetType = UNSET


class Reset(Request, frozen=True):
    """Where to move a group in one topic."""

    topic: Name
    to: Annotated[
        Literal["first", "last"] | ResetPlace,
        Meta(description="An offset below the first message means the first message."),
    ]
    queue: Annotated[QueueNumber | None, Meta(description="Default: all of the topic.")] = None
    dry_run: Annotated[bool, Meta(description="Return what would move, and move nothing.")] = False

    def __post_init__(self) -> None:
        """Raise BadRequest unless ``to`` is one place."""
        to = self.to
        if isinstance(to, ResetPlace) and (to.timestamp_ms is UNSET) == (to.offset is UNSET):
            raise BadRequest(
                'to must be "first", "last", {"timestamp_ms": …} or {"offset": …}.', field="to"
            )


class MovedQueue(Answer, frozen=True, rename={"from_offset": "from", "to_offset": "to"}):
    """One queue that a reset moved, or would move."""

    queue: Count
    from_offset: Annotated[Count | None, Meta(description="null: there was no offset.")]
    to_offset: Count


class ResetDone(Answer, frozen=True):
    """What moved, or would."""

    queues: list[MovedQueue]
    dry_run: bool


def _check_once(positions: list[Position], at: str) -> None:
    if len({(each.topic, each.queue) for each in positions}) == len(positions):
        return
    seen = set()
    for index, each in enumerate(positions):
        if each.place in seen:
            raise BadRequest(f"{at}[{index}]: the queue is named twice.", field=f"{at}[{index}]")
        seen.add(each.place)


CALLS: Final = (
    Call(
        "listGroups", "GET", "/v1/groups", "Groups by name, one page of all",
        Groups, "The groups.", (503,), query=ListQuery,
    ),
    Call(
        "putGroup", "PUT", "/v1/groups/{group}", "Create a group, or change it",
        Group, "The group as it is now; the same call may be repeated.", (409, *CHANGING),
        body=GroupConfig, body_required=False,
        description="What is not named stays as it is. While the group has members, `order` and "
        "`broadcast` cannot change.",
    ),
    Call(
        "deleteGroup", "DELETE", "/v1/groups/{group}",
        "Delete a group with its offsets; it must have no members",
        None, "It is done.", (404, 409, 503, 507),
    ),
    Call(
        "joinGroup", "POST", "/v1/groups/{group}/members/{member}",
        "Join a group, stay in it, or take other topics",
        Joined, "What the member has.", (403, 404, 409, *CHANGING), body=Join,
        description="To be repeated well within `session_ms`. The retry topic's queues are "
        "assigned, too.",
    ),
    Call(
        "leaveGroup", "DELETE", "/v1/groups/{group}/members/{member}",
        "Leave a group; the member's queues are free at once",
        None, "It is done.", READING, query=LeaveQuery,
    ),
    Call(
        "fetch", "POST", "/v1/groups/{group}/members/{member}/fetch",
        "Messages of all queues of a member, in one long poll",
        Fetched, "What was found; `queues` is empty if nothing was in time.",
        (403, 404, 409, *WITH_BODY), body=Fetch, body_required=False, traced=True,
        description="Returns at once when the generation changes. A later fetch of the same "
        "member ends an earlier one.",
        records="A big-endian 32-bit size, a msgpack map of that size as in the other encodings "
        "but with `size` in place of `messages`, then the records of its queues: of each `size` "
        "bytes.",
    ),
    Call(
        "commit", "POST", "/v1/groups/{group}/offsets",
        "Commit how far queues are handled: all of them or none",
        Committed, "The level reached.", (403, 404, 409, *CHANGING), body=Commit, traced=True,
    ),
    Call(
        "getOffsets", "GET", "/v1/groups/{group}/offsets", "All committed offsets of a group",
        Offsets, "The offsets.", READING,
    ),
    Call(
        "resetGroup", "POST", "/v1/groups/{group}/reset",
        "Move a group without members to other messages of a topic",
        ResetDone, "What moved, or would.", (403, 404, 409, *CHANGING), body=Reset,
    ),
)  # fmt: skip
