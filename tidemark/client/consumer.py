"""Reads messages: pull by queue offset, follow a queue, offset by time, query by id and key.

Reads are idempotent, so they are repeated through a broker's restart (``retries``). An empty pull
is an empty list, always; only a missing topic or queue is an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

from tidemark import errors
from tidemark.client.connection import RECORDS, Answer, Connection, path
from tidemark.client.messages import Message, PullResult, RawPull, decode_records
from tidemark.formats.record import UndecodableRecord

PULL_COUNT_MAX: Final = 1024
PULL_SIZE_MAX: Final = 4 << 20
FOLLOW_WAIT_MS: Final = 15_000


class Consumer:
    """The reading half of a client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def pull_raw(
        self,
        topic: str,
        queue: int,
        offset: int,
        *,
        max: int = PULL_COUNT_MAX,
        max_bytes: int = PULL_SIZE_MAX,
        tags: str | None = None,
        wait_ms: int = 0,
    ) -> RawPull:
        """Pull whole records, undecoded and unchecked: for tools that move many."""
        answer = await self._connection.call(
            "GET",
            path("topics", topic, "queues", queue, "messages"),
            query={
                "offset": offset,
                "max": max,
                "max_bytes": max_bytes,
                "tags": tags,
                "wait_ms": wait_ms or None,
            },
            idempotent=True,
            accept=RECORDS,
            wait_s=wait_ms / 1000,
        )
        return _raw_pull(answer)

    async def pull(
        self,
        topic: str,
        queue: int,
        offset: int,
        *,
        max: int = PULL_COUNT_MAX,
        max_bytes: int = PULL_SIZE_MAX,
        tags: str | None = None,
        wait_ms: int = 0,
    ) -> PullResult:
        """Pull up to ``max`` messages from queue offset ``offset`` on.

        tags: ``a || b`` or None for all. wait_ms: how long the broker holds the call while there is
        nothing. Every body is checked against its CRC; raises BrokenAnswer if one does not match.
        """
        raw = await self.pull_raw(
            topic, queue, offset, max=max, max_bytes=max_bytes, tags=tags, wait_ms=wait_ms
        )
        try:
            messages = decode_records(raw.records)
        except UndecodableRecord as error:
            raise errors.BrokenAnswer(f"{topic} queue {queue} at {offset}: {error}") from error
        if tags is not None and tags.strip() != "*":
            # The broker compares hashes of tags (docs/formats.md, section 11.4): collisions pass.
            wanted = {tag.strip() for tag in tags.split("||")}
            messages = [message for message in messages if message.tags in wanted]
        return PullResult(raw.status, raw.next_offset, raw.min_offset, raw.max_offset, messages)

    async def read(
        self,
        topic: str,
        queue: int,
        offset: int = 0,
        *,
        end: int | None = None,
        follow: bool = False,
        tags: str | None = None,
    ) -> AsyncGenerator[Message, None]:
        """Yield messages of one queue in order, from ``offset`` to ``end``.

        end: None takes the queue's end as of the first pull; follow: never ends, waits for more.
        Expired offsets are skipped: the first message may have a larger offset than asked for.
        """
        while follow or end is None or offset < end:
            pulled = await self.pull(
                topic, queue, offset, tags=tags, wait_ms=FOLLOW_WAIT_MS if follow else 0
            )
            if end is None and not follow:
                end = pulled.max_offset
            for message in pulled.messages:
                if end is None or message.queue_offset < end:
                    yield message
            if not follow and pulled.next_offset <= offset:
                return  # at the end, or beyond it: nothing more will come from here
            offset = pulled.next_offset

    async def offset_by_time(
        self, topic: str, queue: int, timestamp_ms: int, *, boundary: str = "lower"
    ) -> int:
        """Queue offset for a store time: the first message at or after it, within the queue."""
        answer = await self._connection.call(
            "GET",
            path("topics", topic, "queues", queue, "offset"),
            query={"timestamp_ms": timestamp_ms, "boundary": boundary},
            idempotent=True,
        )
        offset = answer.map().get("offset")
        if not isinstance(offset, int):
            raise errors.BrokenAnswer("the answer to an offset by time has no number `offset`")
        return offset

    async def message_by_id(self, message_id: str) -> Message:
        """The message with this offset id; raises UnknownMessage."""
        answer = await self._connection.call("GET", path("messages", message_id), idempotent=True)
        return _message(answer.map())

    async def message_by_unique_id(self, topic: str, unique_id: str) -> Message:
        """The newest message with this unique id; raises UnknownMessage."""
        found = await self._query(topic, {"unique_id": unique_id})
        if not found:
            raise errors.UnknownMessage(
                f"no message of topic {topic} has the unique id {unique_id}.",
                "Check the topic; a message is found once it is dispatched and until it expires.",
            )
        return found[-1]

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        max: int = 32,
    ) -> list[Message]:
        """Messages with this key stored in [begin_ms, end_ms], oldest first, at most ``max``."""
        return await self._query(
            topic, {"key": key, "begin_ms": begin_ms, "end_ms": end_ms, "max": max}
        )

    async def _query(self, topic: str, query: dict[str, object]) -> list[Message]:
        answer = await self._connection.call(
            "GET", path("topics", topic, "messages"), query=query, idempotent=True
        )
        found = answer.map().get("messages")
        if not isinstance(found, list):
            raise errors.BrokenAnswer("the answer to a query has no list `messages`")
        return [_message(wire) for wire in found]


def _raw_pull(answer: Answer) -> RawPull:
    return RawPull(
        status=answer.headers.get("Tidemark-Status", ""),
        next_offset=answer.number("Tidemark-Next-Offset"),
        min_offset=answer.number("Tidemark-Min-Offset"),
        max_offset=answer.number("Tidemark-Max-Offset"),
        records=memoryview(answer.body),
    )


def _message(wire: dict[str, Any]) -> Message:
    try:
        return Message.from_wire(wire)
    except (KeyError, TypeError) as error:
        raise errors.BrokenAnswer(f"a message in the answer lacks {error}") from error
