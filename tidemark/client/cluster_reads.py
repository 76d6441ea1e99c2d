"""Reads without a group in a cluster; with one broker, they are its own (``consumer``).

Calls for a queue go to its broker group. A message is searched in all broker groups.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime

from tidemark import errors
from tidemark.client.broker_group import BrokerGroup
from tidemark.client.checks import NOTHING_SENT, parse_queue
from tidemark.client.cluster import Cluster
from tidemark.client.consumer import PULL_COUNT_MAX, PULL_SIZE_MAX
from tidemark.client.fan_out import answered, asked_all
from tidemark.client.messages import Message, PullResult, RawPull
from tidemark.client.queue_names import QueueName
from tidemark.client.trace import Trace, trace


class ClusterReads:
    """The calls of a client that read one queue, or messages by id or key.

    queue: a number; in a cluster a name such as ``g0/3``, or a number if one broker group has the
    topic.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def _at(self, topic: str, queue: QueueName) -> BrokerGroup:
        """Return the broker group that has a queue. Raises BadRequest, UnknownBrokerGroup."""
        alone = await self._cluster.only()
        if alone is not None and not isinstance(queue, str):
            return alone
        if isinstance(queue, str):
            (found,) = await self._cluster.groups(topic, among=[parse_queue(queue)[0]])
            return found
        groups = await self._cluster.groups(topic)
        if len(groups) > 1:
            raise errors.BadRequest(
                f"queue is {queue}, and {len(groups)} broker groups have topic {topic}. "
                f"{NOTHING_SENT}",
                f"Write for example {groups[0].names.name(queue)}.",
                field="queue",
            )
        return groups[0]

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
        at = await self._at(topic, queue)
        return await at.pull_raw(
            topic, queue, offset, max=max, max_bytes=max_bytes, tags=tags, wait_ms=wait_ms
        )

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
        at = await self._at(topic, queue)
        return await at.pull(
            topic, queue, offset, max=max, max_bytes=max_bytes, tags=tags, wait_ms=wait_ms
        )

    async def read(
        self,
        topic: str,
        queue: QueueName,
        offset: int = 0,
        *,
        end: int | None = None,
        follow: bool = False,
        tags: str | None = None,
    ) -> AsyncGenerator[Message, None]:
        """All messages of one queue, in order: ``async for message in mq.read("orders", 0)``.

        end: None reads up to the end of the queue at the first pull. Messages stored just before
        may not be dispatched to the queue yet. follow: waits for new messages forever. Expired
        offsets are skipped: the first message may have a larger offset than asked for. The next
        pull runs while the caller processes the messages of the last one.
        """
        batches = self.batches(topic, queue, offset, end=end, follow=follow, tags=tags)
        async with aclosing(batches):
            async for messages in batches:
                for message in messages:
                    yield message

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
        """Like ``read``, but yields the messages of each pull as one list; lists are not empty.

        The next pull runs while the caller processes the last list. Its error is raised when its
        result is due. It is cancelled when the caller stops.
        """
        at = await self._at(topic, queue)
        batches = at.batches(topic, queue, offset, end=end, follow=follow, tags=tags)
        async with aclosing(batches):
            async for messages in batches:
                yield messages

    async def offset_by_time(
        self, topic: str, queue: QueueName, timestamp_ms: int, *, boundary: str = "lower"
    ) -> int:
        """Queue offset of the first message stored at or after a time; ``upper``: of the last.

        It is within the queue's range.
        """
        at = await self._at(topic, queue)
        return await at.offset_by_time(topic, queue, timestamp_ms, boundary=boundary)

    async def message_by_id(self, message_id: str, *, queue_offset: int | None = None) -> Message:
        """Return the message with this offset message id. Raises UnknownMessage.

        queue_offset: which message of a batch queue's record; all of them have its id. None: the
        first.
        """
        found, _ = await asked_all(
            await self._cluster.groups(),
            lambda at: at.message_by_id(message_id, queue_offset=queue_offset),
            absent=errors.RequestError,
        )
        return next(iter(found.values()))

    async def message_by_unique_id(self, topic: str, unique_id: str) -> Message:
        """Return the newest message of a topic with this unique id. Raises UnknownMessage.

        A message that is found is returned although some broker groups have failed: sends with one
        unique id are repeated at one broker group only.
        """
        found, _ = await asked_all(
            await self._cluster.groups(topic),
            lambda at: at.message_by_unique_id(topic, unique_id),
            absent=errors.UnknownMessage,
        )
        return max(found.values(), key=lambda message: message.store_timestamp_ms)

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
        none. Raises PartialFailure with the messages of the other broker groups.
        """
        found, failure = await asked_all(
            await self._cluster.groups(topic),
            lambda at: at.messages_by_key(topic, key, begin=begin, end=end, max=max),
        )
        if "" in found:
            return found[""]
        messages = [message for each in found.values() for message in each]
        messages = sorted(messages, key=lambda message: message.store_timestamp_ms)[-max:]
        return answered(messages, failure)

    async def trace(
        self, message_id: str, *, topic: str | None = None, queue_offset: int | None = None
    ) -> Trace:
        """Return every recorded step of a message. Raises UnknownMessage.

        topic: required if ``message_id`` is a unique id; otherwise queue_offset says which message
        of a batch queue's record it is.
        """
        found, _ = await asked_all(
            await self._cluster.groups(topic),
            lambda at: trace(at.connection, message_id, topic, queue_offset),
            absent=errors.RequestError,
        )
        return next(iter(found.values()))
