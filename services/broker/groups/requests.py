"""Parses requests about groups: decoded bodies in, checked requests out. Pure.

The first mistake is raised, with its field, before anything is changed.
Step before: ``encodings`` decoded the bytes. Step after: ``coordinator`` and ``commits``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from services.broker.fields import (
    I64_MAX,
    check_name,
    known_fields,
    one_of,
    shown,
    string,
    table,
    whole_number,
)
from services.broker.log.queue_offsets import Queue
from shared.state.records import Start
from tidemark.errors import BadRequest

I32_MAX: Final = (1 << 31) - 1
TIME_MS_MAX: Final = 1 << 53
"""Largest integer that a JSON number holds exactly."""
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

JOIN_FIELDS: Final = frozenset(
    {"subscriptions", "session_ms", "holding", "generation", "incarnation"}
)
INCARNATION_SIZE_MAX: Final = 64
FETCH_FIELDS: Final = frozenset(
    {"generation", "max", "max_bytes", "wait_ms", "positions", "paused", "sequence"}
)
POSITION_FIELDS: Final = frozenset({"topic", "queue", "offset"})
COMMIT_FIELDS: Final = frozenset({"member", "generation", "offsets", "ack"})
RESET_FIELDS: Final = frozenset({"topic", "to", "queue", "dry_run"})


class Subscribed(NamedTuple):
    """One topic that a member subscribes to."""

    topic: str
    tags: str
    """Tag expression, ``*`` for all."""


class JoinRequest(NamedTuple):
    """A checked join or heartbeat."""

    subscriptions: Sequence[Subscribed]
    session_ms: int
    holding: Collection[Queue] | None
    generation: int | None
    incarnation: str | None = None
    """Id of the program that uses the member's name; None: it sends none."""


class FetchRequest(NamedTuple):
    """A checked fetch."""

    generation: int | None
    count_max: int
    bytes_max: int
    wait_ms: int
    positions: list[tuple[Queue, int]]
    paused: frozenset[Queue] = frozenset()
    """Queues that the member does not want to read now."""
    sequence: int | None = None
    """Sequence number of the fetch, counted by the member; None: the member does not count them."""


class CommitLevel(StrEnum):
    """Durability that the response to a commit promises."""

    ACCEPTED = "accepted"
    """Served; a SIGKILL of the broker within the next 100 ms may lose it."""
    DISK = "disk"


class CommitRequest(NamedTuple):
    """A checked commit."""

    member: str | None
    generation: int | None
    moves: Mapping[Queue, int]
    level: CommitLevel


class ToOffset(NamedTuple):
    """Reset to this queue offset, or to the nearest one that exists."""

    offset: int


class ResetRequest(NamedTuple):
    """A checked reset."""

    topic: str
    queue: int | None
    to: Start | ToOffset
    dry_run: bool


def parse_join(value: object) -> JoinRequest:
    """Parse a join or a heartbeat. Raises BadRequest, BadName; tags are checked with the topics."""
    fields = known_fields(table(value, "the request body"), JOIN_FIELDS, "")
    given = _list(fields.get("subscriptions"), "subscriptions", SUBSCRIPTIONS_MAX)
    if not given:
        raise BadRequest(
            "subscriptions is empty: a member takes at least one topic.", field="subscriptions"
        )
    subscriptions = [_subscription(each, f"subscriptions[{i}]") for i, each in enumerate(given)]
    if len({each.topic for each in subscriptions}) < len(subscriptions):
        raise BadRequest(
            "subscriptions names a topic twice.",
            "Write all tags of a topic in one expression: a || b.",
            field="subscriptions",
        )
    holding = fields.get("holding")
    return JoinRequest(
        subscriptions,
        _number(fields, "session_ms", SESSION_MS_DEFAULT, SESSION_MS_MIN, SESSION_MS_MAX),
        None if holding is None else _queues(holding, "holding"),
        _generation(fields),
        parse_incarnation(fields.get("incarnation")),
    )


def parse_incarnation(value: object) -> str | None:
    """Parse the id of the calling program. Raises BadRequest."""
    if value is None:
        return None
    given = string(value, "incarnation")
    if not 1 <= len(given) <= INCARNATION_SIZE_MAX:
        raise BadRequest(
            f"incarnation has {len(given)} characters, 1 to {INCARNATION_SIZE_MAX} are allowed.",
            field="incarnation",
            limit=INCARNATION_SIZE_MAX,
        )
    return given


def parse_fetch(value: object) -> FetchRequest:
    """Parse a fetch. Raises BadRequest, BadName."""
    fields = known_fields(table(value, "the request body"), FETCH_FIELDS, "")
    return FetchRequest(
        _generation(fields),
        _number(fields, "max", FETCH_DEFAULT, 1, FETCH_MAX),
        _number(fields, "max_bytes", FETCH_BYTES_DEFAULT, 1, FETCH_BYTES_MAX),
        _number(fields, "wait_ms", 0, 0, FETCH_WAIT_MS_MAX),
        list(_offsets(fields.get("positions") or [], "positions").items()),
        _queues(fields.get("paused") or [], "paused"),
        None
        if (sequence := fields.get("sequence")) is None
        else whole_number(sequence, "sequence", 0, I64_MAX),
    )


def parse_commit(value: object) -> CommitRequest:
    """Parse a commit. Raises BadRequest, BadName."""
    fields = known_fields(table(value, "the request body"), COMMIT_FIELDS, "")
    member, ack = fields.get("member"), fields.get("ack")
    return CommitRequest(
        None if member is None else check_name(string(member, "member"), "member"),
        _generation(fields),
        _offsets(fields.get("offsets"), "offsets"),
        CommitLevel.ACCEPTED
        if ack is None
        else CommitLevel(one_of(ack, "ack", [str(level) for level in CommitLevel])),
    )


def parse_reset(value: object) -> ResetRequest:
    """Parse a reset. Raises BadRequest, BadName."""
    fields = known_fields(table(value, "the request body"), RESET_FIELDS, "")
    dry_run = fields.get("dry_run")
    if dry_run is not None and not isinstance(dry_run, bool):
        raise BadRequest(f"dry_run must be true or false, not {shown(dry_run)}.", field="dry_run")
    queue = fields.get("queue")
    return ResetRequest(
        check_name(string(fields.get("topic"), "topic")),
        None if queue is None else whole_number(queue, "queue", 0, I32_MAX),
        _to(fields.get("to")),
        bool(dry_run),
    )


def _to(value: object) -> Start | ToOffset:
    if value == "first":
        return "first"
    if value == "last":
        return "last"
    if isinstance(value, dict) and len(value) == 1:
        if "timestamp_ms" in value:
            return whole_number(value["timestamp_ms"], "to.timestamp_ms", 0, TIME_MS_MAX)
        if "offset" in value:
            return ToOffset(whole_number(value["offset"], "to.offset", 0, I64_MAX))
    raise BadRequest(
        'to must be "first", "last", {"timestamp_ms": …} or {"offset": …}, not '
        + f"{shown(value)}.",
        field="to",
    )


def _subscription(value: object, at: str) -> Subscribed:
    fields = known_fields(table(value, at), {"topic", "tags"}, at + ".")
    tags = fields.get("tags")
    return Subscribed(
        check_name(string(fields.get("topic"), f"{at}.topic")),
        "*" if tags is None else string(tags, f"{at}.tags"),
    )


def _offsets(value: object, at: str) -> dict[Queue, int]:
    """Parse a list of maps of topic, queue and offset, each queue once."""
    found: dict[Queue, int] = {}
    for index, each in enumerate(_list(value, at, QUEUES_PER_GROUP_MAX)):
        where = f"{at}[{index}]"
        fields = known_fields(table(each, where), POSITION_FIELDS, where + ".")
        queue = (
            check_name(string(fields.get("topic"), f"{where}.topic")),
            whole_number(fields.get("queue"), f"{where}.queue", 0, I32_MAX),
        )
        if queue in found:
            raise BadRequest(f"{where}: the queue is named twice.", field=where)
        found[queue] = whole_number(fields.get("offset"), f"{where}.offset", 0, I64_MAX)
    return found


def _queues(value: object, at: str) -> frozenset[Queue]:
    """Parse a list of queues."""
    return frozenset(
        _queue(each, f"{at}[{i}]") for i, each in enumerate(_list(value, at, QUEUES_PER_GROUP_MAX))
    )


def _queue(value: object, at: str) -> Queue:
    """Parse a queue: a list of a topic and a number."""
    if not isinstance(value, list) or len(value) != 2:
        raise BadRequest(f"{at} must be [topic, queue], not {shown(value)}.", field=at)
    return (
        check_name(string(value[0], f"{at}[0]")),
        whole_number(value[1], f"{at}[1]", 0, I32_MAX),
    )


def _list(value: object, at: str, count_max: int) -> list[object]:
    if not isinstance(value, list):
        raise BadRequest(f"{at} must be a list, not {shown(value)}.", field=at)
    if len(value) > count_max:
        raise BadRequest(
            f"{at} has {len(value)} members, {count_max} are allowed.", field=at, limit=count_max
        )
    return value


def _generation(fields: Mapping[str, object]) -> int | None:
    value = fields.get("generation")
    return None if value is None else whole_number(value, "generation", 0, I64_MAX)


def _number(fields: Mapping[str, object], name: str, default: int, low: int, high: int) -> int:
    value = fields.get(name)
    return default if value is None else whole_number(value, name, low, high)
