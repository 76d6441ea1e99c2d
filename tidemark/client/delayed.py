"""Delayed messages that are not delivered yet: list and cancel them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tidemark import errors
from tidemark.client.connection import Connection
from tidemark.client.paths import path
from tidemark.client.queue_names import QueueName

PAGE_COUNT: Final = 100


class DelayedMessage(NamedTuple):
    """A message that is stored and not delivered yet."""

    unique_id: str
    message_id: str
    """Id of the waiting record; the delivered copy has another one."""
    topic: str
    """Topic to which it will be delivered."""
    queue: QueueName
    deliver_at_ms: int
    delay_level: int | None
    """None if the message was sent with its own delivery time."""
    store_timestamp_ms: int
    size: int


class DelayedPage(NamedTuple):
    """A page of waiting messages, soonest first."""

    messages: list[DelayedMessage]
    pending: int | None
    """Number of waiting messages of all topics; None if it is not known yet."""
    next: object | None
    """Argument ``after`` of the next call; None if this is the last page."""


class Delayed:
    """The calls for delayed messages."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list(
        self, topic: str | None = None, *, max: int = PAGE_COUNT, after: object | None = None
    ) -> DelayedPage:
        """One page of waiting messages of one topic or of all. after: ``next`` of the last page."""
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

    async def cancel(self, topic: str, unique_id: str) -> int:
        """Cancel the delivery of these messages; return their number.

        Raises UnknownDelayed if none waits. If the answer is lost, the call is repeated, and the
        messages that the first attempt cancelled count. Raises Unreachable if the outcome cannot be
        determined any more because the delivery time has passed meanwhile.
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
