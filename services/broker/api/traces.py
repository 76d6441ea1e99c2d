"""Log lines of traced requests: those with the header ``Tidemark-Trace``.

Each step of a traced request's messages is one log line: appended, answered, delivered, committed,
sent back. Reput and ha receive the location of the messages and log their own steps. A line
contains no bodies and no properties except the unique id. Traced requests per second and messages
per line are limited. A header with an invalid trace id is ignored, because a mistake in a
diagnostic header must not make a request fail.

``send``, ``http_api`` and the calls of groups receive the header before this step; after it
the lines are in the log (docs/logs.md).
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from services.broker.read.unpacking import pulled_messages
from services.broker.send.send_result import SendResult
from shared.files.pull import PullResult
from shared.runtime import traced_ranges
from shared.runtime.rate_limited_logger import RateLimitedLogger
from shared.runtime.traced_ranges import TracedRange
from tidemark.clock import Clock
from tidemark.errors import CorruptRecord, DamagedFile, TidemarkError
from tidemark.formats import record

log = logging.getLogger(__name__)

HEADER: Final = "Tidemark-Trace"
TRACED_PER_S: Final = 50
"""Limit of traced requests per second; further requests are served without a trace."""
MESSAGES_NAMED_MAX: Final = 32
"""Messages listed in one line; the field ``count`` holds the total."""
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Trace:
    """One traced request."""

    __slots__ = ("_on_appended", "trace")

    def __init__(self, trace: str, on_appended: Callable[[TracedRange], None]) -> None:
        self.trace = trace
        self._on_appended = on_appended

    def appended(self, topic: str, sent: SendResult, start: int, end: int) -> None:
        """Log that the messages are appended at [start, end), not flushed yet; notify reput, ha."""
        log.info(
            "messages were appended",
            extra={
                "event": "trace-appended",
                "trace": self.trace,
                "topic": topic,
                "start_offset": start,
                "end_offset": end,
                **_named(sent.results()),
            },
        )
        self._on_appended(TracedRange(self.trace, start, end))

    def answered(self, topic: str, sent: SendResult) -> None:
        """Log that the level is reached and the send is answered."""
        log.info(
            "a send was answered",
            extra={
                "event": "trace-answered",
                "trace": self.trace,
                "topic": topic,
                "ack_level": sent.level.value,
                "copies": sent.copies,
                **_named(sent.results()),
            },
        )

    def refused(self, topic: str, error: TidemarkError) -> None:
        """Log that the send is answered with an error; for ack-timeout the messages are stored."""
        results: Sequence[Mapping[str, Any]] = error.facts.get("results") or ()
        log.info(
            "a send was answered with an error",
            extra={
                "event": "trace-refused",
                "trace": self.trace,
                "topic": topic,
                "code": error.code,
                **_named(results),
            },
        )

    def delivered(self, topic: str, queue: int, result: PullResult, group: str = "") -> None:
        """Log that a pull or fetch returns messages of a queue."""
        log.info(
            "messages were handed out",
            extra={
                "event": "trace-delivered",
                "trace": self.trace,
                "topic": topic,
                "queue": queue,
                "group": group,
                "next_queue_offset": int(result.next_offset),
                "count": result.message_count,
                "messages": _handed_out(result),
            },
        )

    def committed(self, group: str, moves: Mapping[tuple[str, int], int], level: str) -> None:
        """Log that a group committed these queue offsets."""
        named = itertools.islice(sorted(moves.items()), MESSAGES_NAMED_MAX)
        log.info(
            "queue offsets were committed",
            extra={
                "event": "trace-committed",
                "trace": self.trace,
                "group": group,
                "ack_level": level,
                "count": len(moves),
                "queues": [
                    {"topic": topic, "queue": queue, "queue_offset": offset}
                    for (topic, queue), offset in named
                ],
            },
        )

    def sent_back(self, group: str, which: object, answer: Mapping[str, Any]) -> None:
        """Log a nack: the message is delivered again or becomes a dead letter.

        which: the message's id or location, as the caller gave it.
        """
        log.info(
            "a message was sent back",
            extra={
                "event": "trace-sent-back",
                "trace": self.trace,
                "group": group,
                "which": which,
                "answer": dict(answer),
            },
        )


class Traces:
    """Decides which requests are traced. For the event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limited_log = RateLimitedLogger(clock.monotonic)
        self._second = -1
        self._in_second = 0
        self._ring: Callable[[str, bytes], object] | None = None

    def connect(self, ring: Callable[[str, bytes], object]) -> None:
        """Send the ranges of traced requests with ring, which takes a service and a note."""
        self._ring = ring

    def of(self, headers: Mapping[str, str]) -> Trace | None:
        """Return the trace of the request; None if it is not traced."""
        given = headers.get(HEADER)
        return None if given is None else self._begin(given)

    def _begin(self, given: str) -> Trace | None:
        if _ID.fullmatch(given) is None:
            # The given text is not logged, because it may contain anything.
            self._limited_log.say(
                "ignored",
                "trace-ignored",
                "a trace id has 1 to 64 characters of A-Z, a-z, 0-9, dot, underscore and hyphen; "
                "another one is passed over",
                size_bytes=len(given),
            )
            return None
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._in_second = second, 0
        self._in_second += 1
        if self._in_second > TRACED_PER_S:
            self._limited_log.say(
                "limit",
                "trace-limit",
                "more requests want to be traced than are; the others are served without",
                trace=given,
                traced_per_s=TRACED_PER_S,
            )
            return None
        return Trace(given, self._notify)

    def _notify(self, traced: TracedRange) -> None:
        """Send the range of a traced request to reput and ha."""
        if self._ring is not None:
            note = traced_ranges.encode(traced)
            for service in ("reput", "ha"):
                self._ring(service, note)


def _named(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the log fields of a send's messages."""
    all_of_them = list(results)
    return {"count": len(all_of_them), "messages": all_of_them[:MESSAGES_NAMED_MAX]}


def _handed_out(result: PullResult) -> list[dict[str, Any]]:
    """Return ids and locations of the first messages of an answer, up to the first damage."""
    found: list[dict[str, Any]] = []
    try:
        messages = pulled_messages(result, lambda _: record.SHAPE_ONLY)
        for _, stored, _ in itertools.islice(messages, MESSAGES_NAMED_MAX):
            if isinstance(stored, CorruptRecord):
                break
            found.append(
                {
                    "message_id": stored.message_id,
                    "unique_id": stored.unique_id,
                    "queue_offset": int(stored.queue_offset),
                    "physical_offset": int(stored.physical_offset),
                }
            )
    except DamagedFile:
        return found  # the handler that answers reports the damage
    return found
