"""Members of a group: join, heartbeat, leave, fetch. Pure.

Step before: ``parsing`` checked a body. Step after: ``coordinator``.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType, field

from services.broker.schema.calls import CHANGING, READING, WITH_BODY, Call
from services.broker.schema.messages import Message
from services.broker.schema.offsets import (
    Positions,
    Queues,
    check_once,
)
from services.broker.schema.values import (
    I32,
    UTF8_PATTERN,
    Answer,
    Count,
    Name,
    PollAfterMs,
    Query,
    Request,
    ShownQueue,
    Text,
)
from tidemark.errors import BadRequest

SUBSCRIPTIONS_MAX: Final = 256
"""Topics of one member."""
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

Generation = Annotated[Count, Meta(description="The generation that the member knows.")]

Incarnation = Annotated[
    str, Meta(min_length=1, max_length=INCARNATION_SIZE_MAX, pattern=UTF8_PATTERN)
]


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
            description="The member expires after this long without a heartbeat.",
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
            description="With it, the call is a heartbeat, answered 404 if the member is gone. "
            "Without it, the member joins: uncommitted messages are delivered again.",
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
    """The state of a member after a join: its session and its queues."""

    generation: Count
    assignment: list[ShownQueue]
    kept: Annotated[
        list[ShownQueue],
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


class Fetch(Request, frozen=True):
    """One long poll over all queues of a member."""

    generation: Generation | None = None
    count_max: Annotated[
        int, Meta(ge=1, le=FETCH_MAX, description="Maximum number of messages.")
    ] = field(name="max", default=FETCH_DEFAULT)
    bytes_max: Annotated[
        int,
        Meta(ge=1, le=FETCH_BYTES_MAX, description="Rough limit; one message always fits."),
    ] = field(name="max_bytes", default=FETCH_BYTES_DEFAULT)
    wait_ms: Annotated[
        int, Meta(ge=0, le=FETCH_WAIT_MS_MAX, description="Hold the call while there is nothing.")
    ] = 0
    positions: Annotated[
        Positions, Meta(description="Where the member continues in these queues; each queue once.")
    ] = field(default_factory=list)
    paused: Annotated[
        Queues, Meta(description="Queues from which this fetch, but no later one, returns nothing.")
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
        check_once(self.positions, "positions")


class FetchedQueue(Answer, frozen=True):
    """Messages of one queue in the answer to a fetch."""

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
    """Messages of one fetch, by queue."""

    generation: Count
    queues: list[FetchedQueue]
    poll_after_ms: PollAfterMs | UnsetType = UNSET


CALLS: Final = (
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
)  # fmt: skip
