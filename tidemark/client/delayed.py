"""Messages that wait for their time: see them, cancel them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, NamedTuple

from tidemark import errors
from tidemark.client.connection import Connection
from tidemark.client.paths import path

PAGE_COUNT: Final = 100


class DelayedMessage(NamedTuple):
    """A message that is stored and not delivered yet."""

    unique_id: str
    message_id: str
    """Of the waiting record; its delivered copy has another."""
    topic: str
    """That it will be delivered to."""
    queue: int
    deliver_at_ms: int
    delay_level: int | None
    """None: it was sent with a time of its own."""
    store_timestamp_ms: int
    size: int


class DelayedPage(NamedTuple):
    """Some of the messages that wait, soonest first."""

    messages: list[DelayedMessage]
    pending: int | None
    """How many wait in all."""
    next: object | None
    """What the next call takes as ``after``; None: that was all."""


class Delayed:
    """The calls for delayed messages."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(
        self, topic: str | None = None, *, max: int = PAGE_COUNT, after: object | None = None
    ) -> DelayedPage:
        """Messages that wait, of one topic or of all. after: ``next`` of the page before."""
        answer = await self._connection.call(
            "GET",
            path("delayed"),
            query={"topic": topic, "max": max, "after": after},
            idempotent=True,
        )
        wire = answer.map()
        try:
            return DelayedPage(
                [_delayed(each) for each in wire["messages"]], wire["pending"], wire["next"]
            )
        except (KeyError, TypeError) as error:
            raise errors.BrokenAnswer(f"a delayed message in the answer lacks {error}") from error

    async def iterate(self, topic: str | None = None) -> AsyncGenerator[DelayedMessage, None]:
        """All messages that wait, page by page."""
        after: object | None = None
        while True:
            page = await self.list(topic, after=after)
            for message in page.messages:
                yield message
            if page.next is None:
                return
            after = page.next

    async def cancel(self, topic: str, unique_id: str) -> int:
        """Never deliver these; return how many. Raises UnknownDelayed if none waits.

        Repeated by itself when the answer is lost: then what the first try cancelled counts. Raises
        Unreachable if that cannot be told any more, because its time has come meanwhile.
        """
        answer = await self._connection.call(
            "DELETE",
            path("delayed", unique_id),
            query={"topic": topic},
            query_again={"retry": "true"},
            idempotent=True,
        )
        cancelled = answer.map().get("cancelled")
        if not isinstance(cancelled, int):
            raise errors.BrokenAnswer("the answer to a cancellation has no number `cancelled`")
        return cancelled


def _delayed(wire: Mapping[str, Any]) -> DelayedMessage:
    return DelayedMessage(**{name: wire[name] for name in DelayedMessage._fields})
