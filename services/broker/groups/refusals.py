"""Errors for callers that are not or no longer members, or whose group is disabled. Pure."""

from __future__ import annotations

from shared.state.records import GroupConfig
from tidemark.errors import (
    ConsumeDisabled,
    MemberFenced,
    MemberRequired,
    NotAssigned,
    StaleGeneration,
    UnknownMember,
)
from tidemark.offsets import Queue


def check_enabled(config: GroupConfig) -> None:
    """Raise ConsumeDisabled if the group is disabled."""
    if not config.consume_enabled:
        raise ConsumeDisabled(
            f"group {config.name!r} is switched off: its members get nothing.",
            f'PUT /v1/groups/{config.name} with "consume_enabled": true switches it on.',
            group=config.name,
        )


def unknown_member(group: str, member: str) -> UnknownMember:
    """Return the error for a member that the group does not have."""
    return UnknownMember(
        f"group {group!r} has no member {member!r}: it never joined, has left, or was silent for "
        "its whole session.",
        "Join again: POST the same without a generation.",
        group=group,
        member=member,
    )


def member_fenced(group: str, member: str) -> MemberFenced:
    """Return the error for a program whose member name was taken over by another one."""
    return MemberFenced(
        f"another program has meanwhile joined group {group!r} as member {member!r}. It has "
        "the member's queues; calls of this program are refused.",
        "Give each program a member name of its own, or none.",
        group=group,
        member=member,
    )


def member_required(group: str, count: int) -> MemberRequired:
    """Return the error for a caller without a member name in a group that has count members."""
    return MemberRequired(
        f"group {group!r} has members ({count}): only they may do this. Nothing was changed.",
        "Name member and generation, or stop the consumers first.",
        group=group,
        members=count,
    )


def half_named(group: str) -> MemberRequired:
    """Return the error for a member name without a generation, or a generation without a name."""
    return MemberRequired(
        "a member names both itself and its generation. Nothing was changed.",
        "The answer to a heartbeat has the generation.",
        group=group,
    )


def stale_generation(group: str, generation: int | None, current: int | None) -> StaleGeneration:
    """Return the error for a generation that is not the current one; current None: no members."""
    now = "it has no members now" if current is None else f"it is {current} now"
    return StaleGeneration(
        f"generation {generation} of group {group!r} is over: {now}. Nothing was changed.",
        "Send a heartbeat: its answer has the generation and the queues.",
        group=group,
        generation=generation,
        current=current,
    )


def not_assigned(group: str, member: str, queue: Queue) -> NotAssigned:
    """Return the error for a queue that is not assigned to the member."""
    topic, number = queue
    return NotAssigned(
        f"queue {number} of topic {topic!r} is not assigned to member {member!r} of group "
        f"{group!r}. Nothing was changed.",
        "Send a heartbeat: its answer has the queues.",
        group=group,
        member=member,
        topic=topic,
        queue=number,
    )
