"""Groups over a store of a few kilobytes: everything is real but the state's log and the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

from services.broker.config import BrokerConfig
from services.broker.groups.configs import GroupConfigs
from services.broker.groups.consumer_groups import ConsumerGroups
from services.broker.groups.fetch import Fetched
from services.broker.groups.joining import BOUNDS, Bounds, Joined
from services.broker.groups.offsets import Offsets
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.metrics import BrokerMetrics
from services.broker.read.pull import Puller
from services.broker.read.topic_views import TopicViews
from services.broker.schema.members import Fetch, Join, Subscription
from services.broker.schema.offsets import Commit, CommitLevel, Position, Reset, ResetPlace
from services.broker.state.topics import Topics
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.files.store_dir import StoreConfig
from shared.metrics.registry import Registry
from shared.state.records import GroupConfig, GroupRecord, TopicConfig, TopicRecord
from shared.state.state import BrokerState
from tests.support.log_contexts import log_context_of
from tests.support.small_store import SmallStore
from tests.support.still_clock import StillClock
from tidemark.formats import record
from tidemark.formats.batch import WireMessage
from tidemark.offsets import PhysicalOffset, Queue, QueueOffset

GROUP = "billing"
SESSION_MS = 10_000
CONFIG = StoreConfig(
    commit_log_file_size=1 << 20, consume_queue_file_size=20_000, index_slots=20, index_entries=30
)


class StateLog:
    """Takes every record; all of it is durable at once."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def append_state(self, body: bytes) -> PhysicalOffset:
        return await self.append_soon(body)

    async def append_soon(self, body: bytes) -> PhysicalOffset:
        self.bodies.append(body)
        return PhysicalOffset(len(self.bodies))

    def append_offsets_now(self, bodies: Sequence[bytes]) -> PhysicalOffset:
        self.bodies += bodies
        return PhysicalOffset(len(self.bodies))

    async def file_made(self) -> None:
        raise AssertionError("there is always room")

    async def durable(self, end: PhysicalOffset) -> None:
        assert end <= len(self.bodies)


class Rig:
    """A topic ``orders`` of four queues, and the parts that serve its consumers."""

    def __init__(self, root: Path, *, bounds: Bounds = BOUNDS) -> None:
        self.small = SmallStore(root, CONFIG)
        self.clock = StillClock(1000, wall_ahead_ms=1_700_000_000_000)
        self.log = StateLog()
        self.state = BrokerState()
        self.state.apply(TopicRecord(0, TopicConfig("orders", 4, 4)))
        self.registry = Registry("broker")
        self.metrics = BrokerMetrics(self.registry)
        self.reader = CommitLogReader(self.small.store, self.small.positions)
        self.queues = ConsumeQueues(self.small.store, self.reader)
        self.next_offsets = QueueOffsets({})
        self.dispatched = PhysicalOffset(0)
        self.topics = Topics(
            self.state, self.log, self.next_offsets, flushed=lambda: 0, on_change=self._changed
        )
        self.views = TopicViews(
            self.topics,
            self.queues,
            self.reader,
            lambda: self.dispatched,
            auto_create=False,
            queues_default=4,
            clock=self.clock,
        )
        self.puller = Puller(
            log_context_of(
                queues=self.queues,
                reader=self.reader,
                clock=self.clock,
                metrics=self.metrics,
                dispatched=lambda: self.dispatched,
                end=lambda: self.small.end,
                unit_checks=None,
                config=BrokerConfig(held_pulls_max=10),
            ),
            self.next_offsets,
            floor=self.views.floor,
        )
        self.offsets = Offsets(self.state, self.log, flushed=lambda: 0)
        self.configs = GroupConfigs(
            self.state, self.log, self.topics, self.offsets, flushed=lambda: 0
        )
        self.start_count = 2
        self.bounds = bounds
        self.start()
        self.writer: asyncio.Task[None] | None = None
        """Write offsets, once a caller may wait for that."""

    def start(self) -> None:
        """Restart the broker: it knows what is committed, and no member."""
        self.start_count += 1
        count = self.start_count
        self.groups = ConsumerGroups.make(
            self.configs,
            self.offsets,
            self.topics,
            self.views,
            self.puller,
            self.metrics.groups,
            self.clock,
            start_count=lambda: count,
            bounds=self.bounds,
        )
        self.coordinator, self.commits = self.groups

    def _changed(self, topic: str) -> None:
        self.coordinator.topic_changed(topic)

    def close(self) -> None:
        self.queues.forget()
        self.reader.close()
        self.small.close()

    def group(self, **fields: object) -> None:
        """Make the group with these fields of its configuration."""
        config = GroupConfig(GROUP)._replace(**fields)  # type: ignore[arg-type]
        self.state.apply(GroupRecord(0, config))

    # -- messages ------------------------------------------------------------------------------

    def append(
        self, count: int, queue: int = 0, *, tags: str | None = None, topic: str = "orders"
    ) -> None:
        """Messages that no consumer may see yet."""
        for _ in range(count):
            self.small.put(topic, queue, tags=tags, body=b"x" * 10)
            following = self.next_offsets.next_of((topic, queue)) + 1
            self.next_offsets.raise_to((topic, queue), QueueOffset(following))
        self.small.flush()
        self.puller.long_polls.appended([(topic, queue)], self.small.end)

    def dispatch(self) -> None:
        """Let consumers see what was appended."""
        self.small.dispatch()
        self.dispatched = self.small.end
        self.puller.long_polls.dispatched_to(self.dispatched)

    def put(
        self, count: int, queue: int = 0, *, tags: str | None = None, topic: str = "orders"
    ) -> None:
        """Append messages that consumers see at once."""
        self.append(count, queue, tags=tags, topic=topic)
        self.dispatch()

    def put_batch(
        self, messages: Sequence[bytes | WireMessage], queue: int = 0, *, tags: str | None = None
    ) -> None:
        """Append an inner batch to ``orders`` that consumers see at once."""
        key = ("orders", queue)
        self.small.put_batch(messages, *key, tags=tags)
        following = self.next_offsets.next_of(key) + len(messages)
        self.next_offsets.raise_to(key, QueueOffset(following))
        self.small.flush()
        self.puller.long_polls.appended([key], self.small.end)
        self.dispatch()

    def look(self) -> None:
        """What the background part does ten times a second."""
        self.coordinator._live.check()

    # -- calls ---------------------------------------------------------------------------------

    async def join(
        self,
        member: str = "m1",
        *,
        tags: str = "*",
        topic: str = "orders",
        generation: int | None = None,
        holding: set[Queue] | None = None,
        session_ms: int = SESSION_MS,
        incarnation: str | None = None,
    ) -> Joined:
        request = Join(
            [Subscription(topic, tags)],
            session_ms,
            None if holding is None else frozenset(holding),
            generation,
            incarnation,
        )
        if self.writer is None:
            self.writer = asyncio.create_task(self.offsets.run(asyncio.Event()))
        return await self.coordinator.join(GROUP, member, request)

    async def fetch(
        self,
        member: str = "m1",
        *,
        generation: int | None = None,
        count_max: int = 100,
        bytes_max: int = 1 << 20,
        wait_ms: int = 0,
        positions: Sequence[tuple[Queue, int]] = (),
        paused: Collection[Queue] = (),
        sequence: int | None = None,
        is_gone: bool = False,
        check_reads: Callable[[], None] = lambda: None,
        divides_batches: bool = False,
    ) -> Fetched:
        request = Fetch(
            generation,
            count_max,
            bytes_max,
            wait_ms,
            [Position(*queue, offset) for queue, offset in positions],
            frozenset(paused),
            sequence,
        )
        return await self.coordinator.fetch(
            GROUP,
            member,
            request,
            lambda: is_gone,
            check_reads,
            divides_batches=divides_batches,
        )

    async def commit(
        self,
        moves: dict[Queue, int],
        *,
        member: str | None = "m1",
        generation: int | None = None,
        level: CommitLevel = CommitLevel.ACCEPTED,
    ) -> CommitLevel:
        if member is not None and generation is None:
            generation = self.coordinator.generation(GROUP)
        offsets = [Position(*queue, offset) for queue, offset in moves.items()]
        return await self.commits.commit(GROUP, Commit(offsets, member, generation, level))

    async def reset(
        self,
        to: Literal["first", "last"] | ResetPlace,
        *,
        queue: int | None = None,
        dry_run: bool = False,
        topic: str = "orders",
    ) -> list[tuple[int, int | None, int]]:
        if self.writer is None:
            self.writer = asyncio.create_task(self.offsets.run(asyncio.Event()))
        resets = await self.commits.reset(GROUP, Reset(topic, to, queue, dry_run))
        return [(each.queue, each.from_offset, each.to_offset) for each in resets]

    def committed(self, queue: int = 0, topic: str = "orders") -> int | None:
        return self.offsets.get(GROUP, topic, queue)


def got(fetched: Fetched) -> dict[int, list[int]]:
    """Queue → queue offsets of the messages of ``orders`` in an answer, in their order."""
    found: dict[int, list[int]] = {}
    for piece in fetched.pieces:
        numbers = [int(record.decode(data).queue_offset) for _, _, data in piece.result.records()]
        assert piece.queue[1] not in found, "a queue comes once in an answer"
        found[piece.queue[1]] = numbers
    return found
