"""Dead letters of a group, which are messages that failed too often: list and redrive them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from tidemark import errors
from tidemark.client.connection import Connection
from tidemark.client.paths import path
from tidemark.client.times import as_ms

PAGE_COUNT: Final = 100
REDRIVE_COUNT: Final = 1000
To = Literal["topic", "group"]
"""Target of redriven letters: their topic, for all groups, or only the group that failed."""
LetterOffset: TypeAlias = int | str
"""Offset of a dead letter; in a cluster with its broker group, as ``g0/120``."""


class DeadLetter(NamedTuple):
    """One dead letter without its body; get that with ``message_by_id``."""

    queue_offset: int
    """Queue offset in the dead-letter topic."""
    message_id: str
    unique_id: str | None
    original_topic: str
    original_message_id: str | None
    reconsume_times: int
    dead_at_ms: int
    redriven: bool | None
    """Whether it was sent again; None if the store has no index to find that out."""
    facts: dict[str, Any]
    """All fields of the broker's answer."""


class DeadLetterPage(NamedTuple):
    """A page of dead letters, oldest first."""

    messages: list[DeadLetter]
    next_offset: LetterOffset
    """Start offset of the next page."""
    max_offset: int
    done: bool
    """Whether this is the last page."""


class Redriven(NamedTuple):
    """Result of one redrive or of its dry run."""

    matched: int
    redriven: int
    skipped: int
    """Letters that an earlier call sent again."""
    refused: int
    """Letters that cannot be sent; ``facts["refusals"]`` has the reasons."""
    next_offset: LetterOffset
    max_offset: int
    done: bool
    facts: dict[str, Any]


class DeadLetters:
    """The calls for dead letters."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(
        self, group: str, *, from_offset: int = 0, max: int = PAGE_COUNT, topic: str | None = None
    ) -> DeadLetterPage:
        """One page of a group's dead letters. topic: only those of this original topic."""
        answer = await self._connection.call(
            "GET",
            path("groups", group) + "/dead",
            query={"from_offset": from_offset, "max": max, "topic": topic},
            idempotent=True,
        )
        wire = answer.map()
        try:
            return DeadLetterPage(
                [_letter(each) for each in wire["messages"]],
                wire["next_offset"],
                wire["max_offset"],
                wire["done"],
            )
        except (KeyError, TypeError) as error:
            raise errors.BrokenAnswer(f"a dead letter in the answer lacks {error}") from error

    async def redrive(
        self,
        group: str,
        *,
        to: To = "topic",
        topic: str | None = None,
        key: str | None = None,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        message_id: str | None = None,
        from_offset: int | None = None,
        max: int = REDRIVE_COUNT,
        dry_run: bool = False,
    ) -> Redriven:
        """Send up to ``max`` matching dead letters again; each is sent once even if repeated.

        to: ``topic`` sends new messages to all groups of the topic, ``group`` to this group alone.
        begin, end: range of the time of death. Call again with ``from_offset=next_offset`` until
        ``done``.
        """
        given: dict[str, object] = {
            "to": to,
            "topic": topic,
            "key": key,
            "begin_ms": None if begin is None else as_ms(begin, "begin"),
            "end_ms": None if end is None else as_ms(end, "end"),
            "message_id": message_id,
            "from_offset": from_offset,
            "max": max,
            "dry_run": dry_run,
        }
        answer = await self._connection.call(
            "POST",
            path("groups", group) + "/redrive",
            body={name: value for name, value in given.items() if value is not None},
            idempotent=True,
        )
        wire = answer.map()
        try:
            counts = {name: wire[name] for name in Redriven._fields if name != "facts"}
        except KeyError as error:
            raise errors.BrokenAnswer(f"the answer to a redrive lacks {error}") from error
        return Redriven(**counts, facts=wire)


def _letter(wire: Mapping[str, Any]) -> DeadLetter:
    named = {name: wire[name] for name in DeadLetter._fields if name != "facts"}
    return DeadLetter(**named, facts=dict(wire))
