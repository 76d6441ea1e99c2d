"""Offsets of a group: commit, list, reset. Pure.

Step before: ``parsing`` checked a body. Step after: ``commits``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from services.broker.schema.calls import CHANGING, READING, Call
from services.broker.schema.values import (
    HALF_NAMED,
    Answer,
    Count,
    Name,
    Queue,
    QueueNumber,
    Request,
    TimeMs,
)
from tidemark.errors import BadRequest

QUEUES_PER_GROUP_MAX: Final = 16_384
"""Queues of the topics that a group subscribes to: a rebalance goes through all of them."""

Queues = Annotated[frozenset[Queue], Meta(max_length=QUEUES_PER_GROUP_MAX)]


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
            description="For each queue the offset after the last message handled. A member's "
            "offset below the committed one changes nothing; only a reset moves it back.",
        ),
    ]
    member: Annotated[Name | None, Meta(description="Needed while the group has members.")] = None
    generation: Annotated[
        Count | None, Meta(description="Required with member, and only allowed with it.")
    ] = None
    ack: Annotated[
        CommitLevel, Meta(description="accepted: served at once, on disk within about 100 ms.")
    ] = CommitLevel.ACCEPTED

    def __post_init__(self) -> None:
        """Raise BadRequest if a queue is named twice."""
        check_once(self.offsets, "offsets")

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
    queue: Annotated[QueueNumber | None, Meta(description="Default: all queues.")] = None
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
    """The offsets that a reset moved, or would move."""

    queues: list[MovedQueue]
    dry_run: bool


def check_once(positions: list[Position], at: str) -> None:
    """Raise BadRequest if a queue is named twice."""
    if len({(each.topic, each.queue) for each in positions}) == len(positions):
        return
    seen = set()
    for index, each in enumerate(positions):
        if each.place in seen:
            raise BadRequest(f"{at}[{index}]: the queue is named twice.", field=f"{at}[{index}]")
        seen.add(each.place)


CALLS: Final = (
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
