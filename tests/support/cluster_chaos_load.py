"""Producers of the chaos of a cluster: they number what they send, and note what was acked.

A *stream* is a sequence of messages from one producer, each sent after the one before has been
answered: those of one sharding key, or messages without a key. A message is its stream and its
number. What is kept is one byte per message, and the instants at which the list of queues changed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import tidemark
from tests.support.group_chaos_member import NUMBER
from tidemark.client.messages import NewMessage, SendResult
from tidemark.client.queue_choice import GroupQueue, queue_of_key, writable_queues
from tidemark.errors import TidemarkError

BODY: Final = b"." * (100 - NUMBER.size)
SEND_COUNT_MAX: Final = 1000
"""Messages of one call, and so of one request: it is stored as a whole or not at all."""
UNANSWERED, ACKED = 0, 1
CHANGED: Final[tuple[GroupQueue, ...]] = ()
"""Stands for the list of queues of a call during which the list changed: the key was placed under
another one than that of the call's begin. Such a call has a list of its own."""


@dataclass(slots=True)
class Stream:
    """What one producer sent."""

    index: int
    key: str | None
    interval_s: float
    count: int
    """Messages of one call, unless it is late."""
    outcomes: bytearray = field(default_factory=bytearray)
    """For each message UNANSWERED (stored or not) or ACKED."""
    lists: list[tuple[int, tuple[GroupQueue, ...]]] = field(default_factory=list)
    """Lists of the queues that accept messages, each with the first message sent under it."""
    gap_s: float = 0.0
    """Longest time from one ack to the next."""

    def begin(self, queues: tuple[GroupQueue, ...]) -> None:
        """Note the list of queues under which the next message is sent."""
        if not self.lists or self.lists[-1][1] != queues:
            self.lists.append((len(self.outcomes), queues))

    def messages(self, count: int) -> list[NewMessage]:
        """Return the next messages."""
        first = len(self.outcomes)
        return [
            NewMessage(NUMBER.pack(self.index, number) + BODY, sharding_key=self.key)
            for number in range(first, first + count)
        ]

    def end(self, results: Sequence[SendResult]) -> None:
        """Note the acks of a call."""
        if self.key is not None:
            place = queue_of_key(self.lists[-1][1], self.key)
            if any((each.broker_group, each.queue) != place for each in results):
                self.lists.append((len(self.outcomes), CHANGED))
        self.outcomes += bytes([ACKED]) * len(results)


class Load:
    """All producers, over several clients."""

    def __init__(self, topic: str, rate: int, keys: int, plain: int) -> None:
        """keys, plain: streams with and without a key; each half has half of the rate."""
        self._topic = topic
        self.streams = [
            *_streams(range(keys), rate // 2, is_keyed=True),
            *_streams(range(keys, keys + plain), rate - rate // 2, is_keyed=False),
        ]
        self.failures: Counter[str] = Counter()
        """Calls that failed, by the code of their error."""
        self.gap_s = 0.0
        """Longest time without the ack of any message."""
        self.drained: tuple[str, float] | None = None
        """The drained broker group, and when that was answered on the monotonic clock."""
        self.took_s = 0.0
        """From the first message to the last answer."""
        self.may_end = False
        """Whether sends end at their time; before, they go on."""
        self.wrong: list[str] = []
        self._acked_at = time.monotonic()

    def is_seen(self, broker_group: str) -> bool:
        """Whether a producer has queues of a broker group."""
        lists = [each.lists[-1][1] for each in self.streams if each.lists]
        return any(each.broker_group == broker_group for queues in lists for each in queues)

    @property
    def sent(self) -> int:
        """Number of messages of all calls that have ended."""
        return sum(len(each.outcomes) for each in self.streams)

    @property
    def acked(self) -> int:
        return sum(each.outcomes.count(ACKED) for each in self.streams)

    async def run(self, clients: Sequence[tidemark.Client], until: float) -> None:
        """Send until a time of the monotonic clock and ``may_end``; wait for the last answers.

        clients: share the streams; they know the routes of the topic.
        """
        began = self._acked_at = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for stream in self.streams:
                mq = clients[stream.index % len(clients)]
                tasks.create_task(self._produce(mq, stream, until))
        self.took_s = time.monotonic() - began

    async def _produce(self, mq: tidemark.Client, stream: Stream, until: float) -> None:
        """Send at the rate of a stream. Calls that are late are made up for by larger ones."""
        acked_at = began = time.monotonic()
        due = began + stream.interval_s * (stream.index % 16) / 16
        while due < until or not self.may_end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            late = int((time.monotonic() - due) / stream.interval_s)
            calls = min(1 + late, SEND_COUNT_MAX // stream.count)
            if await self._send(mq, stream, calls * stream.count):
                stream.gap_s = max(stream.gap_s, time.monotonic() - acked_at)
                acked_at = time.monotonic()
            due += calls * stream.interval_s

    async def _send(self, mq: tidemark.Client, stream: Stream, count: int) -> bool:
        """Make one call; return whether it was acked."""
        began, drained = time.monotonic(), self.drained
        # No task runs between these two calls, so both use the same routes.
        stream.begin(writable_queues(await mq.routes(self._topic)))
        try:
            results = await mq.send_many(self._topic, stream.messages(count))
        except TidemarkError as error:
            stream.outcomes += bytes(count)
            self.failures[error.code] += 1
            return False
        stream.end(results)
        if drained is not None and any(each.broker_group == drained[0] for each in results):
            self.wrong.append(
                f"stream {stream.index}: a call {began - drained[1]:.2f} s after the answer that "
                f"{drained[0]} is drained was acked there"
            )
        now = time.monotonic()
        self.gap_s = max(self.gap_s, now - self._acked_at)
        self._acked_at = now
        return True


def _streams(indexes: range, rate: int, *, is_keyed: bool) -> list[Stream]:
    """Share a rate among streams: one call a second with a key, five without."""
    interval_s = 1.0 if is_keyed else 0.2
    count = max(1, round(rate * interval_s / len(indexes)))
    interval_s = count * len(indexes) / rate
    return [
        Stream(index, f"key-{index}" if is_keyed else None, interval_s, count) for index in indexes
    ]
