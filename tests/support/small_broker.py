"""The parts of a broker over a real small store, without processes, loop parts or waits.

Appended records are flushed at once; ``dispatch`` is reput's step, run by the test. Time stands
still until the test moves it. For tests of groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from services.broker.config import BrokerConfig
from services.broker.groups.configs import GroupConfigs, GroupsLog
from services.broker.groups.counters import GroupCounters
from services.broker.groups.offsets import Offsets, OffsetsLog
from services.broker.groups.stored_messages import StoredMessages
from services.broker.log.append import Append, Appended
from services.broker.log.flusher import Flusher
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.metrics import BrokerMetrics
from services.broker.read.pull import Puller
from services.broker.read.query import Queries
from services.broker.read.topic_views import TopicViews
from services.broker.state.topics import Topics
from services.reput.dispatcher import Dispatcher
from shared.files.commit_log import CommitLogAppender, CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.files.index import IndexReader
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.recovery import recover
from shared.files.store_config import StoreConfig
from shared.files.store_dir import StoreDir
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.state.records import STATE_QUEUE, STATE_TOPIC
from shared.state.state import BrokerState
from tests.support.log_contexts import log_context_of
from tidemark.errors import FileNotReady, NotServing
from tidemark.formats import batch, delay, inner_batch, properties, record
from tidemark.formats.batch import WireMessage
from tidemark.formats.checkpoint import Slot
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.hosts import Host
from tidemark.formats.record import Record
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset

HOST: Final = Host(b"\x7f\0\0\1", 10911)
BORN: Final = Host(b"\x0a\0\0\7", 4711)
FIRST_MS: Final = 1_700_000_000_000
BOOT: Final = (7, 9)
LEVELS_MS: Final = (1000, 5000, 10_000, 30_000)
CONFIG: Final = StoreConfig(
    commit_log_file_size=1 << 18,
    consume_queue_file_size=2000,
    index_slots=50,
    index_entries=400,
    delay_levels="1s 5s 10s 30s",
)


class _Clock(SystemClock):
    """Wall time is the broker's."""

    def __init__(self, broker: SmallBroker) -> None:
        self._broker = broker

    def wall_ms(self) -> int:
        return self._broker.now_ms


class SmallBroker:
    """A store with the parts that serve it. ``close`` it."""

    def __init__(self, root: Path, *, auto_create_groups: bool = True) -> None:
        self.store = StoreDir(OsDisk(), root, CONFIG)
        self.store.open_or_create()
        self.positions = Positions.open(self.store.disk, self.store.checkpoint_path)
        self.appender = CommitLogAppender(self.store, self.positions, ahead=1)
        self.appender.start_at(recover(self.store, self.positions, boot_id=BOOT).end)
        self.reader = CommitLogReader(self.store, self.positions)
        self.queues = ConsumeQueues(self.store, self.reader)
        self.index = IndexReader(self.store, self.reader)
        self.queue_offsets = QueueOffsets({})
        self.now_ms = FIRST_MS
        self.is_stopping = self.lacks_file = False
        self.own: list[bool] = []
        """Of every append: whether it goes on while sends are refused."""
        self.state = BrokerState()
        self.topics = Topics(self.state, self, self.queue_offsets, flushed=lambda: 0)
        self.offsets = Offsets(self.state, cast(OffsetsLog, self), flushed=lambda: 0)
        self.configs = GroupConfigs(
            self.state,
            cast(GroupsLog, self),
            self.topics,
            self.offsets,
            flushed=lambda: 0,
            auto_create=auto_create_groups,
        )
        views = TopicViews(
            self.topics,
            self.queues,
            self.reader,
            self.dispatched,
            clock=_Clock(self),
            auto_create=False,
            queues_default=4,
        )
        self.registry = Registry("broker")
        self.counters = GroupCounters(self.registry)
        puller = Puller(
            log_context_of(
                queues=self.queues,
                reader=self.reader,
                clock=_Clock(self),
                metrics=BrokerMetrics(Registry("broker")),
                dispatched=self.dispatched,
                end=lambda: self.appender.appended,
                unit_checks=None,
                config=BrokerConfig(held_pulls_max=1),
            ),
            self.queue_offsets,
            floor=views.floor,
        )
        self.queries = Queries(
            self.reader,
            self.queues,
            self.index,
            self.dispatched,
            views.is_shown,
            SystemClock(),
        )
        self.messages = StoredMessages(self.queries, puller, views)
        self._dispatcher = Dispatcher(self.store, self.positions, self.reader, boot_id=BOOT)
        self._dispatcher.resume()
        self.positions.publish(Slot.REPUT_GENERATION, self.positions.get(Slot.GENERATION))

    def close(self) -> None:
        """Give files and mappings back."""
        self.index.close()
        self.queues.forget()
        self._dispatcher.close()
        self.reader.close()
        self.appender.close(clean=False)
        self.positions.close()

    # -- what parts are given --------------------------------------------------------------------

    @property
    def append_part(self) -> Append:
        """This object in the role of ``Append``."""
        return cast(Append, self)

    @property
    def records_size_max(self) -> int:
        """Bytes of records that a file of the log holds."""
        return CONFIG.commit_log_file_size - record.BLANK_SIZE

    @property
    def flusher_part(self) -> Flusher:
        """This object in the role of ``Flusher``."""
        return cast(Flusher, self)

    def dispatched(self) -> PhysicalOffset:
        """End of what may be seen."""
        return PhysicalOffset(self.positions.get(Slot.DISPATCHED))

    def append_now(self, runs: Sequence[Run], *, own: bool = False, room: int = 0) -> Appended:
        """As ``Append.append_now``; on disk on return."""
        if self.lacks_file:
            raise FileNotReady("planted")
        self.own.append(own)
        self.appender.prepare_next()
        numbered = self.queue_offsets.number(runs)
        placed = self.appender.append(runs, numbered.firsts, self.now_ms)
        self.queue_offsets.commit(numbered, self.appender.appended)
        self.appender.flush()
        return Appended(numbered.firsts, *placed, self.now_ms, self.appender.appended)

    async def append(self, runs: Sequence[Run], *, own: bool = False) -> Appended:
        """As ``Append.append``: a file that is not there comes while others run."""
        if self.lacks_file:
            await asyncio.sleep(0)
            self.lacks_file = False
        return self.append_now(runs, own=own)

    async def durable(self, end: PhysicalOffset, deadline: float = 0) -> bool:
        """As ``Flusher.durable``."""
        await asyncio.sleep(0)
        if self.is_stopping:
            raise NotServing("the node is stopping")
        return True

    async def append_state(self, body: bytes) -> PhysicalOffset:
        """As ``StateLog.append_state``."""
        return await self.append_soon(body)

    async def append_soon(self, body: bytes) -> PhysicalOffset:
        """As ``StateLog.append_soon``."""
        return (await self.append([self._state_run([body])], own=True)).end

    def append_offsets_now(self, bodies: Sequence[bytes]) -> PhysicalOffset:
        """As ``StateLog.append_offsets_now``."""
        return self.append_now([self._state_run(bodies)], own=True).end

    def _state_run(self, bodies: Sequence[bytes]) -> Run:
        entries = batch.encode(map(WireMessage, bodies))
        return Run(STATE_TOPIC, STATE_QUEUE, entries, len(bodies), HOST, HOST, self.now_ms)

    async def file_made(self) -> None:
        """As ``StateLog.file_made``."""

    # -- for tests -------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Reput's part, up to the end of the log."""
        while self._dispatcher.step(1 << 20):
            pass

    def send(
        self,
        topic: str,
        body: bytes = b"body",
        *,
        queue: int = 0,
        unique_id: str | None = "ID",
        pairs: Mapping[str, str] | None = None,
        reconsume_times: int = 0,
        flag: int = 0,
    ) -> Record:
        """Store one message and dispatch it; return the record. The topic's queues are made on the
        way."""
        named = {} if unique_id is None else {"UNIQ_KEY": unique_id}
        raw = properties.encode({**named, **(pairs or {})})
        entries = batch.encode([WireMessage(body, raw, flag)])
        run = Run(topic, queue, entries, 1, BORN, HOST, 77, reconsume_times=reconsume_times)
        appended = self.append_now([run])
        self.dispatch()
        return self.record(appended.start)

    def send_batch(
        self,
        topic: str,
        messages: Sequence[WireMessage],
        *,
        queue: int = 0,
        unique_id: str = "BATCH",
        keys: bytes | None = None,
    ) -> Record:
        """Store messages as one inner batch and dispatch it; return its record."""
        raw = inner_batch.encode_properties(unique_id, len(messages), tags=None, keys=keys)
        entries, count = batch.encode(messages), len(messages)
        run = Run(topic, queue, entries, count, BORN, HOST, 77, batch_properties=raw)
        appended = self.append_now([run])
        self.dispatch()
        return self.record(appended.start)

    def record(self, offset: int) -> Record:
        """The record that starts at a physical offset."""
        found = self.reader.record(PhysicalOffset(offset), self.appender.appended)
        assert found is not None
        return found

    def all(self, topic: str, queue: int = 0) -> list[Record]:
        """Every dispatched message of a queue."""
        reader = self.queues.get(topic, queue)
        found: list[Record] = []
        while units := reader.units(len(found), 1 << 10, self.dispatched()):
            found += [self.record(unit.physical_offset) for unit in units]
        return found

    def release(self) -> list[Record]:
        """Deliver everything that waits, as the delay service does when it is due."""
        waiting = [
            each for level in range(len(LEVELS_MS)) for each in self.all(SCHEDULE_TOPIC, level)
        ]
        gone = {
            (origin.level, origin.queue_offset)
            for (topic, queue), _ in self.queue_offsets.items()
            for each in self.all(topic, queue)
            if (origin := delay.origin_of(each.properties)) is not None
        }
        released: list[Record] = []
        for each in waiting:
            if (delay.level_of(each), each.queue_offset) in gone:
                continue
            due = delay.delivered(each, self.now_ms)
            assert due is not None
            entries = batch.encode([WireMessage(each.body, due.properties, each.flag)])
            run = Run(
                due.topic,
                due.queue_id,
                entries,
                1,
                each.born_host,
                HOST,
                each.born_timestamp_ms,
                each.sys_flag,
                each.reconsume_times,
            )
            released.append(self.record(self.append_now([run]).start))
        self.dispatch()
        return released
