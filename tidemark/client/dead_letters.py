"""Dead letters of a group: messages that failed too often. See them, send them again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from tidemark import errors
from tidemark.client.connection import Connection
from tidemark.client.paths import path
from tidemark.client.times import as_ms

PAGE_COUNT: Final = 100
REDRIVE_COUNT: Final = 1000
To = Literal["topic", "group"]
"""Where redriven letters go: to their topic, for all groups, or back to their group alone."""


class DeadLetter(NamedTuple):
    """One dead letter. Its body is ``message_by_id``'s to give."""

    queue_offset: int
    """Its number in the dead-letter topic."""
    message_id: str
    unique_id: str | None
    original_topic: str
    original_message_id: str | None
    reconsume_times: int
    dead_at_ms: int
    redriven: bool | None
    """Whether it was sent again; None where the store keeps no index to know it by."""
    facts: dict[str, Any]
    """All that the broker says of it."""


class DeadLetterPage(NamedTuple):
    """Some dead letters, oldest first."""

    messages: list[DeadLetter]
    next_offset: int
    """Where the next call goes on."""
    max_offset: int
    done: bool
    """Whether that was all."""


class Redriven(NamedTuple):
    """What one redrive did, or would do."""

    matched: int
    redriven: int
    skipped: int
    """Sent again before, by an earlier call."""
    refused: int
    """Cannot be sent; ``facts["refusals"]`` says why."""
    next_offset: int
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
        """Dead letters of a group. topic: only those that were sent to it."""
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

    async def iterate(
        self, group: str, *, topic: str | None = None
    ) -> AsyncGenerator[DeadLetter, None]:
        """All dead letters of a group, page by page."""
        offset, done = 0, False
        while not done:
            page = await self.list(group, from_offset=offset, topic=topic)
            for letter in page.messages:
                yield letter
            done = page.done or page.next_offset <= offset
            offset = page.next_offset

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
        """Send up to ``max`` matching dead letters again, each of them once however often asked.

        to: ``topic``, as new messages for all who read it, or ``group``, for this group alone.
        begin, end: when they died. Call again with ``from_offset=next_offset`` until ``done``.
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
