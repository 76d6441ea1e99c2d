"""Administrative calls for groups: create, list, show, reset, delete. See also ``subscription``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, NamedTuple

from tidemark import errors
from tidemark.client.connection import Connection
from tidemark.client.lists import listed
from tidemark.client.paths import path
from tidemark.client.queue_names import NUMBERS, Queue, QueueName, QueueNames
from tidemark.client.times import as_ms

Start = Literal["first", "last"] | int | datetime
"""``first``, ``last``, or a time: milliseconds or a datetime with time zone."""


class Group(NamedTuple):
    """A group and its settings."""

    name: str
    order: bool
    broadcast: bool
    start: str | int
    """Where the group starts in a new topic: ``first``, ``last`` or milliseconds."""
    retry_max: int
    lag_objective_ms: int | None
    state: str | None
    """``empty``, ``stable`` or ``rebalancing``; None if the answer does not contain it."""
    members: int | None
    settings: dict[str, Any]
    """All fields of the broker's answer."""


class Lag(NamedTuple):
    """The lag of a group. A field is None if unknown; ``reasons`` maps its name to the reason."""

    messages: int | None
    bytes: int | None
    seconds: float | None
    """Age of the oldest unread message by its store time."""
    expiring_messages: int | None
    """Unread messages that the next deletion of a log file would take."""
    in_flight: int | None
    """Messages delivered to members and not committed."""
    lost: int
    """Messages that were deleted before the group read them."""
    ahead: int
    """How far the committed offset is beyond the end; if above 0, the other fields are unknown."""
    reasons: dict[str, str]


class QueueLag(NamedTuple):
    """The state of a group in one queue."""

    topic: str
    queue: QueueName
    member: str | None
    """Owner of the queue; None if it is unassigned."""
    committed: int | None
    min_offset: int | None
    max_offset: int | None
    lag: Lag


class GroupMember(NamedTuple):
    """A member of a group as the broker reports it."""

    name: str
    assignment: list[Queue]
    subscriptions: dict[str, str]
    session_ms: int
    last_seen_ms: int
    """Time since its last heartbeat."""


class GroupDetail(NamedTuple):
    """A group with members and lag from one snapshot."""

    group: Group
    generation: int | None
    members: list[GroupMember]
    lag: Lag
    """Lag of all queues together."""
    queues: list[QueueLag]
    facts: dict[str, Any]
    """The whole answer."""


class QueueReset(NamedTuple):
    """The change of one queue's offset by a reset or its dry run."""

    queue: QueueName
    from_offset: int | None
    to_offset: int


class Groups:
    """The administrative calls for groups. Raises UnknownGroup if the group does not exist."""

    def __init__(self, connection: Connection, names: QueueNames = NUMBERS) -> None:
        self._connection, self._names = connection, names

    async def create(
        self,
        group: str,
        *,
        order: bool | None = None,
        broadcast: bool | None = None,
        start: Start | None = None,
        retry_max: int | None = None,
        lag_objective_ms: int | None = None,
    ) -> Group:
        """Create a group, or change the given settings of an existing one."""
        settings = group_settings(
            order=order,
            broadcast=broadcast,
            start=start,
            retry_max=retry_max,
            lag_objective_ms=lag_objective_ms,
        )
        answer = await self._connection.call(
            "PUT", path("groups", group), body=settings, idempotent=True
        )
        return _group({"group": group, **answer.map()})

    async def get(self, group: str) -> GroupDetail:
        """One group with its members and its lag."""
        wire = (await self._connection.call("GET", path("groups", group), idempotent=True)).map()
        try:
            self._name_queues(wire)
            return GroupDetail(
                _group(wire),
                wire["generation"],
                [_member(each) for each in wire["members"]],
                lag_of(wire["lag"]),
                [
                    _queue(topic["topic"], each)
                    for topic in wire["topics"]
                    for each in topic["queues"]
                ],
                wire,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise errors.BrokenAnswer(f"a group in the answer lacks {error}") from error

    def _name_queues(self, wire: Mapping[str, Any]) -> None:
        """Replace queue numbers by names in the answer that describes a group."""
        if self._names is NUMBERS:
            return
        for topic in wire["topics"]:
            for each in topic["queues"]:
                each["queue"] = self._names.name(each["queue"])
        for member in wire["members"]:
            member["assignment"] = [
                (topic, self._names.name(queue)) for topic, queue in member["assignment"]
            ]

    async def delete(self, group: str) -> None:
        """Delete a group and its offsets. Raises GroupInUse while it has members."""
        await self._connection.call(
            "DELETE", path("groups", group), done_before=errors.UnknownGroup, idempotent=True
        )

    async def offsets(self, group: str) -> dict[Queue, int]:
        """Return the committed offset, i.e. the next one to read, per (topic, queue)."""
        answer = await self._connection.call(
            "GET", path("groups", group) + "/offsets", idempotent=True
        )
        try:
            return {
                (each["topic"], self._names.name(each["queue"])): each["offset"]
                for each in answer.map()["offsets"]
            }
        except (KeyError, TypeError) as error:
            raise errors.BrokenAnswer(f"an offset in the answer lacks {error}") from error

    async def reset(
        self,
        group: str,
        topic: str,
        *,
        to: Start | None = None,
        offset: int | None = None,
        queue: QueueName | None = None,
        dry_run: bool = False,
    ) -> list[QueueReset]:
        """Set the group's offsets in a topic; give either ``to`` or ``offset``.

        to: ``first``, ``last``, or a time, which means the first message stored at or after it.
        queue: None for all. dry_run: only return what would be done. Raises GroupInUse while the
        group has members.
        """
        if (to is None) == (offset is None):
            raise ValueError("a reset needs exactly one of `to` and `offset`")
        target: object
        if to is None:
            target = {"offset": offset}
        elif isinstance(to, str):
            target = to
        else:
            target = {"timestamp_ms": as_ms(to, "to")}
        body: dict[str, object] = {"topic": topic, "to": target, "dry_run": dry_run}
        if queue is not None:
            body["queue"] = self._names.number(queue)
        answer = await self._connection.call(
            "POST", path("groups", group) + "/reset", body=body, idempotent=True
        )
        try:
            return [
                QueueReset(self._names.name(each["queue"]), each["from"], each["to"])
                for each in answer.map()["queues"]
            ]
        except (KeyError, TypeError) as error:
            raise errors.BrokenAnswer(f"the answer to a reset lacks {error}") from error

    async def list(self) -> list[Group]:
        """All groups, sorted by name."""
        found = [_group(wire) async for wire in listed(self._connection, "groups")]
        return sorted(found, key=lambda group: group.name)


def group_settings(
    *,
    order: bool | None = None,
    broadcast: bool | None = None,
    start: Start | None = None,
    retry_max: int | None = None,
    lag_objective_ms: int | None = None,
) -> dict[str, object]:
    """Build the body that configures a group; settings that are None are not changed."""
    given: dict[str, object] = {
        "order": order,
        "broadcast": broadcast,
        "start": start if start is None or isinstance(start, str) else as_ms(start, "start"),
        "retry_max": retry_max,
        "lag_objective_ms": lag_objective_ms,
    }
    return {name: value for name, value in given.items() if value is not None}


def _group(wire: Mapping[str, Any]) -> Group:
    try:
        members = wire.get("members")
        return Group(
            name=wire["group"],
            order=wire["order"],
            broadcast=wire["broadcast"],
            start=wire["start"],
            retry_max=wire["retry_max"],
            lag_objective_ms=wire["lag_objective_ms"],
            state=wire.get("state"),
            members=len(members) if isinstance(members, list) else members,
            settings=dict(wire),
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise errors.BrokenAnswer(f"a group in the answer lacks {error}") from error


def _member(wire: Mapping[str, Any]) -> GroupMember:
    return GroupMember(
        wire["member"],
        [(topic, queue) for topic, queue in wire["assignment"]],
        {each["topic"]: each["tags"] for each in wire["subscriptions"]},
        wire["session_ms"],
        wire["last_seen_ms"],
    )


def _queue(topic: str, wire: Mapping[str, Any]) -> QueueLag:
    return QueueLag(
        topic,
        wire["queue"],
        wire["member"],
        wire["committed"],
        wire["min_offset"],
        wire["max_offset"],
        lag_of(wire),
    )


def lag_of(wire: Mapping[str, Any]) -> Lag:
    """Parse a lag in the form of the API. Raises KeyError."""
    return Lag(
        wire["messages"],
        wire["bytes"],
        wire["seconds"],
        wire["expiring_messages"],
        wire["in_flight"],
        wire["lost"],
        wire["ahead"],
        dict(wire["reasons"]),
    )
