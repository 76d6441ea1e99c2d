"""The trace of one message: every step that the node can still reconstruct."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidemark import errors
from tidemark.client.connection import Connection
from tidemark.client.paths import path


class TraceEvent(NamedTuple):
    """One step of a message."""

    what: str
    """``produced``, ``delayed``, ``delivered``, ``committed``, ``retried``, ``dead`` and others."""
    at_ms: int | None
    """None if the time is not known; then ``reason`` says why."""
    reason: str | None
    facts: dict[str, Any]
    """Details of the step, such as queue, member and group."""


class Trace(NamedTuple):
    """A message and its steps, oldest first."""

    message: dict[str, Any]
    events: list[TraceEvent]
    complete: bool | None
    """Whether every existing record of the message was found."""
    facts: dict[str, Any]
    """The whole answer."""


async def trace(
    connection: Connection, message_id: str, topic: str | None, queue_offset: int | None
) -> Trace:
    """Fetch the trace of a message. Raises UnknownMessage.

    topic: if the id is a unique id. queue_offset: which message of a batch queue's record.
    """
    answer = await connection.call(
        "GET",
        path("messages", message_id, "trace"),
        query={"topic": topic, "queue_offset": queue_offset},
        idempotent=True,
    )
    wire = answer.map()
    try:
        events = [
            TraceEvent(
                each["what"],
                each["at_ms"],
                each.get("reason"),
                {name: value for name, value in each.items() if name not in TraceEvent._fields},
            )
            for each in wire["events"]
        ]
        return Trace(wire["message"], events, wire.get("complete"), wire)
    except (AttributeError, KeyError, TypeError) as error:
        raise errors.BrokenAnswer(f"a trace in the answer lacks {error}") from error
