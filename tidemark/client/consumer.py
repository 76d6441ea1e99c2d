"""Reads messages: pull by queue offset, follow a queue, find an offset by time, query by id or key.

Reads are idempotent, so they are repeated through a broker's restart (``retries``). A slave may
answer them if the client allows that. An empty pull returns an empty list; only a missing topic or
queue is an error. An iteration over a queue prefetches exactly one pull.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Final

from tidemark import errors
from tidemark.client.answers import RECORDS, Answer
from tidemark.client.connection import Connection
from tidemark.client.messages import Message, PullResult, RawPull
from tidemark.client.paths import path
from tidemark.client.queue_names import NUMBERS, QueueName, QueueNames
from tidemark.client.received import at_or_after, decode_sound
from tidemark.client.tags import passing, wanted_tags
from tidemark.client.times import as_ms

PULL_COUNT_MAX: Final = 1024
PULL_SIZE_MAX: Final = 4 << 20
FOLLOW_WAIT_MS: Final = 15_000
POLL_AFTER: Final = "Tidemark-Poll-After-Ms"


class Consumer:
    """The calls to one broker group that read one queue, or messages by id or key."""

    def __init__(self, connection: Connection, names: QueueNames = NUMBERS) -> None:
        self.connection, self.names = connection, names

    async def pull_raw(
        self,
        topic: str,
        queue: QueueName,
        offset: int,
        *,
        max: int = PULL_COUNT_MAX,
        max_bytes: int = PULL_SIZE_MAX,
        tags: str | None = None,
        wait_ms: int = 0,
    ) -> RawPull:
        """Like ``pull``, but returns the stored records, neither decoded nor checked.

        A record of a batch queue holds several messages; the first may begin before ``offset``.
        """
        for _ in range(self.connection.readers):
            answer = await self.connection.call(
                "GET",
                path("topics", topic, "queues", self.names.number(queue), "messages"),
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
                is_plain_read=True,
            )
            pulled = _raw_pull(answer)
            if pulled.next_offset >= offset:
                break
            # This node's queue ends before the offset: another node was ahead of this one.
            self.connection.read_elsewhere()
        return pulled

    async def pull(
        self,
        topic: str,
        queue: QueueName,
        offset: int,
        *,
        max: int = PULL_COUNT_MAX,
        max_bytes: int = PULL_SIZE_MAX,
        tags: str | None = None,
        wait_ms: int = 0,
    ) -> PullResult:
        """Messages of one queue from ``offset`` on; an empty list if there are none.

        max: of a batch queue the last batch is returned whole. tags: ``a || b``, or None for all.
        wait_ms: how long the broker holds the call while there are no messages. The CRC of every
        body is checked. If a record is damaged, the messages before it are returned and
        ``next_offset`` points past them. If the first record is damaged, raises CorruptRecord, or
        BrokenAnswer if only the answer is.
        """
        raw = await self.pull_raw(
            topic, queue, offset, max=max, max_bytes=max_bytes, tags=tags, wait_ms=wait_ms
        )
        decoded, damage = decode_sound(raw.records, self.names)
        messages = at_or_after(decoded, offset)
        next_offset = raw.next_offset
        if damage is not None:
            if not messages:
                await check_records(
                    self.connection,
                    (topic, self.names.number(queue)),
                    offset,
                    raw.next_offset,
                    anywhere=True,
                )
                raise errors.BrokenAnswer(
                    f"{topic} queue {queue} at {offset}: {damage}"
                ) from damage
            next_offset = messages[-1].queue_offset + 1
        return PullResult(
            raw.status,
            next_offset,
            raw.min_offset,
            raw.max_offset,
            passing(messages, wanted_tags(tags)),
            raw.poll_after_ms,
        )

    async def batches(
        self,
        topic: str,
        queue: QueueName,
        offset: int = 0,
        *,
        end: int | None = None,
        follow: bool = False,
        tags: str | None = None,
    ) -> AsyncGenerator[list[Message], None]:
        """Yield the messages of each pull from ``offset`` on; lists are not empty.

        end, follow: see ``ClusterReads.read``. The next pull runs while the caller processes the
        last list. Its error is raised when its result is due. It is cancelled when the caller
        stops.
        """

        async def pull_after(at: int, after_ms: int | None) -> PullResult:
            if after_ms:
                await asyncio.sleep(after_ms / 1000)
            wait_ms = FOLLOW_WAIT_MS if follow else 0
            return await self.pull(topic, queue, at, tags=tags, wait_ms=wait_ms)

        def pull(at: int, after_ms: int | None = None) -> asyncio.Task[PullResult]:
            return asyncio.create_task(pull_after(at, after_ms))

        if end is not None and offset >= end and not follow:
            return
        ahead = pull(offset)
        try:
            while True:
                pulled = await ahead
                messages, is_last = pulled.messages, False
                if not follow:
                    end = pulled.max_offset if end is None else end
                    # At or beyond the end: no more messages will come.
                    is_last = pulled.next_offset <= offset or pulled.next_offset >= end
                if end is not None and messages and messages[-1].queue_offset >= end:
                    messages = [each for each in messages if each.queue_offset < end]
                offset = pulled.next_offset
                if not is_last:
                    ahead = pull(offset, pulled.poll_after_ms)
                    await asyncio.sleep(0)  # lets the request leave before the caller works
                if messages:
                    yield messages
                if is_last:
                    return
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def offset_by_time(
        self, topic: str, queue: QueueName, timestamp_ms: int, *, boundary: str = "lower"
    ) -> int:
        """Queue offset of the first message stored at or after a time; ``upper``: of the last.

        It is within the queue's range.
        """
        answer = await self.connection.call(
            "GET",
            path("topics", topic, "queues", self.names.number(queue), "offset"),
            query={"timestamp_ms": timestamp_ms, "boundary": boundary},
            idempotent=True,
            is_plain_read=True,
        )
        offset = answer.map().get("offset")
        if not isinstance(offset, int):
            raise errors.BrokenAnswer("the answer to an offset by time has no number `offset`")
        return offset

    async def message_by_id(self, message_id: str, *, queue_offset: int | None = None) -> Message:
        """Return the message with this offset message id. Raises UnknownMessage.

        queue_offset: which message of a batch queue's record; all of them have its id. None: the
        first.
        """
        answer = await self.connection.call(
            "GET",
            path("messages", message_id),
            query={"queue_offset": queue_offset},
            idempotent=True,
            is_plain_read=True,
        )
        return self.names.named([_message(answer.map())])[0]

    async def message_by_unique_id(self, topic: str, unique_id: str) -> Message:
        """Return the newest message of a topic with this unique id. Raises UnknownMessage."""
        found = await self._query(topic, {"unique_id": unique_id}, 1)
        if not found:
            raise errors.UnknownMessage(
                f"no message of topic {topic} has the unique id {unique_id}.",
                "Check the topic. A message is found once it is dispatched and until it expires.",
            )
        return found[-1]

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        max: int = 32,
    ) -> list[Message]:
        """Messages with this key stored in [begin, end], oldest first, at most ``max``.

        begin, end: datetimes with a time zone, or milliseconds. The list is empty if there are
        none.
        """
        query: dict[str, object] = {
            "key": key,
            "begin_ms": None if begin is None else as_ms(begin, "begin"),
            "end_ms": None if end is None else as_ms(end, "end"),
        }
        return await self._query(topic, query, max)

    async def _query(self, topic: str, query: dict[str, object], count_max: int) -> list[Message]:
        """Return the newest count_max messages.

        The broker bounds each answer by bytes and by entries scanned and returns where to continue.
        """
        messages: list[Message] = []
        before: object = None
        while True:
            left = count_max - len(messages)
            answer = await self.connection.call(
                "GET",
                path("topics", topic, "messages"),
                query={**query, "max": left, "before": before},
                idempotent=True,
                is_plain_read=True,
            )
            page = answer.map()
            found, before = page.get("messages"), page.get("next")
            if not isinstance(found, list):
                raise errors.BrokenAnswer("the answer to a query has no list `messages`")
            messages[:0] = self.names.named([_message(wire) for wire in found])
            if len(messages) >= count_max or before is None:
                return messages[-count_max:]  # the last batch may have brought more


async def check_records(
    connection: Connection, queue: tuple[str, int], start: int, end: int, *, anywhere: bool = False
) -> None:
    """Let the broker check the records of a queue in [start, end). Raises CorruptRecord.

    The broker checks only records that it decodes. Without this call: 1. a disk loses a bit; 2. all
    readers get the stored records and find the damage; 3. the broker stays ready, and the master of
    a group does not hand over. anywhere: a slave may have sent the records.
    """
    topic, number = queue
    while start < end:
        try:
            answer = await connection.call(
                "GET",
                path("topics", topic, "queues", number, "messages"),
                query={"offset": start},
                idempotent=True,
                is_plain_read=anywhere,
            )
        except errors.CorruptRecord as error:
            facts = {**error.facts, "topic": topic, "queue": number, "queue_offset": start}
            detail = f"{topic} queue {number} at {start}: {error.detail}"
            # Not CorruptRecord(...), which takes other arguments.
            errors.TidemarkError.__init__(error, detail, error.advice, **facts)
            raise
        after = answer.map().get("next_offset")
        if not isinstance(after, int) or after <= start:
            return
        start = after


def _raw_pull(answer: Answer) -> RawPull:
    return RawPull(
        status=answer.headers.get("Tidemark-Status", ""),
        next_offset=answer.number("Tidemark-Next-Offset"),
        min_offset=answer.number("Tidemark-Min-Offset"),
        max_offset=answer.number("Tidemark-Max-Offset"),
        records=memoryview(answer.body),
        poll_after_ms=answer.number(POLL_AFTER) if POLL_AFTER in answer.headers else None,
    )


def _message(wire: dict[str, Any]) -> Message:
    try:
        return Message.from_wire(wire)
    except (KeyError, TypeError) as error:
        raise errors.BrokenAnswer(f"a message in the answer lacks {error}") from error
