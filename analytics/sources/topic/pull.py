"""Calls to the broker for a read of a topic: blocking, each repeated within a limit.

The client library does the work: it follows the master and repeats failed calls. Step before:
``offsets`` plans what to read. Step after: ``reader`` makes columns.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from analytics.errors import AnalyticsError
from analytics.sources.topic.offsets import Ranges
from analytics.sources.topic.options import TopicOptions
from tidemark.client.client import connect
from tidemark.client.consumer import PULL_COUNT_MAX, PULL_SIZE_MAX
from tidemark.client.messages import RawPull
from tidemark.errors import TidemarkError

WAIT_MS: Final = 500
"""How long the broker holds a call that finds a queue shorter than planned."""


class TopicUnreadable(AnalyticsError):
    """The broker did not return planned messages."""

    code, title, retriable = "topic-unreadable", "Messages of a topic cannot be read", True

    def __init__(
        self, topic: str, reason: str, *, queue: int | None = None, offset: int = 0
    ) -> None:
        where = "" if queue is None else f", queue {queue}, queue offset {offset}"
        super().__init__(
            f"topic {topic}{where}: {reason}. Nothing was skipped; the same read can be repeated.",
            "Check with `tidemark topic show` that a master serves the topic and has these "
            "offsets; raise retry_seconds if a failover takes longer.",
            topic=topic,
            queue=queue,
            queue_offset=offset,
        )


class TopicClient:
    """A connection for one read; use it with ``with``, in one thread that runs no event loop."""

    def __init__(self, options: TopicOptions) -> None:
        self._topic = options.topic
        self._retry_s = options.retry_seconds
        self._client = connect(options.urls, retry_for_s=options.retry_seconds)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.run(self._client.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._runner.run(self._client.__aexit__(kind, error, trace))
        finally:
            self._runner.close()

    def ranges(self, queues: frozenset[int] | None) -> Ranges:
        """Min and max offset of each queue now. Raises TopicUnreadable, including for unknown
        queues."""
        try:
            topic = self._runner.run(self._client.topic(self._topic))
        except TidemarkError as error:
            raise TopicUnreadable(self._topic, str(error)) from error
        found = {
            each.queue: (each.min_offset, each.max_offset)
            for each in topic.ranges
            if isinstance(each.queue, int)
        }
        if len(found) < len(topic.ranges):
            raise TopicUnreadable(
                self._topic, "it is in a cluster of broker groups, which this source cannot read"
            )
        if queues is None:
            return found
        if missing := sorted(queues - found.keys()):
            raise TopicUnreadable(
                self._topic, f"it has no queue {', '.join(map(str, missing))}, of {len(found)}"
            )
        return {queue: found[queue] for queue in sorted(queues)}

    def pull(self, queue: int, offset: int, count: int) -> RawPull:
        """Return some messages from offset on, or the reason why there are none.

        Raises TopicUnreadable if the queue ends at or before offset until the time limit. The
        offset existed when the read was planned, so messages are late or lost and must not be
        skipped.
        """
        try:
            return self._runner.run(self._pull(queue, offset, count))
        except TidemarkError as error:
            if isinstance(error, TopicUnreadable):
                raise
            raise TopicUnreadable(self._topic, str(error), queue=queue, offset=offset) from error

    async def _pull(self, queue: int, offset: int, count: int) -> RawPull:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_s
        wait_ms = 0
        while True:
            pulled = await self._client.pull_raw(
                self._topic,
                queue,
                offset,
                max=min(count, PULL_COUNT_MAX),
                max_bytes=PULL_SIZE_MAX,
                wait_ms=wait_ms,
            )
            if len(pulled.records) or pulled.next_offset > offset:
                return pulled
            if loop.time() >= deadline:
                reason = f"the queue ends at {pulled.max_offset} ({pulled.status}), and went on "
                raise TopicUnreadable(
                    self._topic,
                    reason + f"when the read was planned; waited {self._retry_s:g} s",
                    queue=queue,
                    offset=offset,
                )
            if wait_ms:
                # The broker holds a pull only at the end of its queue. If the queue ends before the
                # offset, it answers at once.
                await asyncio.sleep(WAIT_MS / 1000 / 5)
            wait_ms = WAIT_MS
