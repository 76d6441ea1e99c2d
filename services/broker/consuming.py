"""Builds and runs the consumer side of a broker: groups, retries, delays, retention, lag.

It is built when the state has been replayed. All of its background components append, so they start
when the start record is appended; they end with the node. ``serving`` has opened the log, the
queues and the topics before this step; after it ``components`` passes the components to the calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Final, NamedTuple

from services.broker.api.messages import record_properties_size_max
from services.broker.config import BrokerConfig
from services.broker.delay.build import make_delayed
from services.broker.delay.delayed import CarryResult
from services.broker.groups.commit_times import CommitTimes
from services.broker.groups.configs import GroupConfigs
from services.broker.groups.consumer_groups import ConsumerGroups
from services.broker.groups.dead_letters import BYTES_AT_ONCE, DeadLetters
from services.broker.groups.lag_inputs import LagInputs
from services.broker.groups.offsets import Offsets
from services.broker.groups.queue_stats import QueueStats
from services.broker.groups.redrive import Redrive
from services.broker.groups.repeated_nacks import RepeatedNacks
from services.broker.groups.send_back import SendBack
from services.broker.groups.stored_messages import StoredMessages
from services.broker.groups.topic_stats import TopicStats
from services.broker.groups.trace import Tracer
from services.broker.groups.views import GroupViews
from services.broker.log.append import Append
from services.broker.log.durability_barrier import DurabilityBarrier
from services.broker.log.log_times import LogTimes
from services.broker.log.preallocator import Preallocator
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.metrics import BrokerMetrics
from services.broker.read.pull import Puller
from services.broker.read.query import Queries
from services.broker.read.topic_views import TopicViews
from services.broker.retention.deletion import Deletion
from services.broker.retention.expiry import Expiry
from services.broker.retention.keeper import Retention
from services.broker.state.state_log import StateLog
from services.broker.state.topics import Topics
from shared.files.commit_log import CommitLogReader
from shared.files.commit_log_appender import CommitLogAppender
from shared.files.consume_queue import ConsumeQueues
from shared.files.index import IndexReader
from shared.files.mapped_file_queue import MappedFileQueue
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from shared.runtime.clock import utc_offset_s
from shared.runtime.health import Health
from shared.state.state import BrokerState
from tidemark.clock import Clock
from tidemark.errors import CorruptRecord, DamagedFile, NotServing, StoreError
from tidemark.formats.checkpoint import Slot
from tidemark.formats.hosts import Host
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

Runner = Callable[[], Coroutine[None, None, None]]
"""A component that runs until the node stops."""


class Foundation(NamedTuple):
    """The components on which the consumer side is built."""

    config: BrokerConfig
    clock: Clock
    metrics: BrokerMetrics
    store_host: Host
    health: Health
    directory: StoreDir
    positions: Positions
    state: BrokerState
    """The served state; each part of it has one owner."""
    state_log: StateLog
    appender: CommitLogAppender
    preallocator: Preallocator
    append: Append
    lasting: DurabilityBarrier
    queue_offsets: QueueOffsets
    topics: Topics
    views: TopicViews
    puller: Puller
    queries: Queries
    index_reader: IndexReader
    queues: ConsumeQueues
    reader: CommitLogReader
    dispatched: Callable[[], PhysicalOffset]
    confirmed: Callable[[], PhysicalOffset]
    lasts_to: Callable[[], PhysicalOffset]
    """Returns the offset up to which no crash and, in a group, no failover loses records."""
    flushed: Callable[[], PhysicalOffset]
    """Returns the flushed offset."""
    end: Callable[[], PhysicalOffset]
    """Returns the end of the log."""
    log_times: Callable[[], LogTimes | None]
    """Samples the store times of the log's stages."""
    ring_reput: Callable[[], object]
    epoch: int | None
    """Epoch of this node as master; None: it is standalone or a slave."""
    appends: bool
    """Whether this node appends; False on a slave."""
    master_from: Callable[[], int | None]
    """Returns the start of the master's log on a slave; None: not known."""


class _NothingWaits:
    """Replaces the delayed messages on a slave, where the master handles them."""

    def pending_below(self, physical_offset: PhysicalOffset) -> bool:
        """Return False: this node has no delayed messages to copy forward."""
        return False

    async def carry_below(self, physical_offset: PhysicalOffset) -> CarryResult:
        """Do nothing."""
        return CarryResult(0, 0)


NOTHING_WAITS: Final = _NothingWaits()


def _files_of(directory: StoreDir) -> MappedFileQueue:
    """Return the log's files on a node where the ha process appends."""
    return MappedFileQueue(
        directory.disk,
        directory.commit_log_dir,
        directory.config.commit_log_file_size,
        mapped_max=1,
        writable=True,
    )


class Consuming:
    """All components that serve consumers, except plain pulls."""

    def __init__(self, base: Foundation, *, on_group_change: Callable[[], None]) -> None:
        """on_group_change: called after a group was created, changed or deleted."""
        self.offsets = Offsets(base.state, base.state_log, flushed=base.flushed)
        base.state_log.offsets_now = self.offsets.now
        self.configs = GroupConfigs(
            base.state,
            base.state_log,
            base.topics,
            self.offsets,
            flushed=base.flushed,
            auto_create=base.config.auto_create_groups,
            on_change=on_group_change,
        )
        self.groups = ConsumerGroups.make(
            self.configs,
            self.offsets,
            base.topics,
            base.views,
            base.puller,
            base.metrics.groups,
            base.clock,
            start_count=lambda: base.state_log.start_count if base.epoch is None else base.epoch,
        )
        self._health = base.health
        self._unit_checks = base.puller.unit_checks
        self._delay_fault: str | None = None
        self._delivers_delayed = base.config.deliver_delayed
        self.delayed = make_delayed(
            base.directory,
            base.positions,
            base.clock,
            base.append,
            base.lasting,
            base.state_log,
            base.queue_offsets,
            state=base.state,
            dispatched=base.dispatched,
            flushed=base.lasts_to,
            log_end=base.end,
            on_fault=self._delay_stands_still,
        )
        self._add_retention(base)
        self._add_send_back(base)
        self._add_views(base)

    def _delay_stands_still(self, error: StoreError | None) -> None:
        if self._delay_fault is not None:
            self._health.clear_reason(self._delay_fault)
        self._delay_fault = None
        if error is not None:
            if self._unit_checks is not None:
                # Requests the repair of the unit. Delivery is retried and continues after it.
                self._unit_checks.may_heal(error)
            is_damage = isinstance(error, CorruptRecord | DamagedFile)
            detail = f"{error.detail} {error.advice}"
            if self._health.add_reason(error.code, detail, lasting=is_damage):
                # If the reason was set already, the component that set it also clears it.
                self._delay_fault = error.code

    def _add_retention(self, base: Foundation) -> None:
        config, coordinator = base.config, self.groups.coordinator
        # A slave neither copies delayed messages forward nor counts lost ones: the master does.
        delayed = self.delayed if base.appends else NOTHING_WAITS
        files = base.appender.files if base.appends else _files_of(base.directory)
        expiry = Expiry(
            base.directory,
            self.offsets,
            coordinator,
            shown_from=base.views.shown_from,
            hides=base.views.has_retention,
            on_skipped=base.metrics.groups.skipped if base.appends else lambda *_: None,
        )
        base.views.tell_hidden(expiry.hidden)

        def forget_names() -> None:
            base.queues.forget()
            base.index_reader.close()
            self.delayed.names_gone()

        self.retention = Retention(
            base.directory,
            base.positions,
            base.appender,
            base.preallocator,
            Deletion(
                base.directory,
                files,
                base.reader,
                base.positions,
                delayed,
                expiry,
                ring=base.ring_reput,
            ),
            expiry,
            base.clock,
            base.health,
            config.retention_policy,
            snapshot_start=lambda: (
                base.state_log.snapshot_start if base.appends else base.state.snapshot_at
            ),
            confirmed=base.confirmed,
            utc_offset_s=utc_offset_s,
            warn_ms=config.retention_warn_ms,
            has_hiding_topics=base.views.any_has_retention,
            on_names_gone=forget_names,
            log_files=None if base.appends else files,
            master_from=None if base.appends else base.master_from,
        )
        base.metrics.retention.show = (self.retention, base.reader, base.confirmed)

    def _add_send_back(self, base: Foundation) -> None:
        store = base.config.store
        index = base.index_reader if store.index_enabled else None
        levels_ms = store.delay_levels_ms
        room = record_properties_size_max(record_crc=store.record_crc)
        messages = StoredMessages(base.queries, base.puller, base.views)
        coordinator = self.groups.coordinator

        def index_is_whole() -> bool:
            return not base.positions.get(Slot.INDEX_BEHIND)

        self.send_back = SendBack(
            base.append,
            base.lasting,
            messages,
            base.topics,
            self.configs,
            coordinator,
            base.metrics.groups,
            RepeatedNacks(index, base.dispatched, base.clock, index_is_whole=index_is_whole),
            base.store_host,
            delay_levels_ms=levels_ms,
            properties_size_max=room,
            on_stored=base.metrics.sent_back,
        )
        self.redrive = Redrive(
            base.append,
            base.lasting,
            DeadLetters(
                messages,
                base.topics,
                index,
                base.dispatched,
                base.clock,
                index_is_whole=index_is_whole,
            ),
            base.topics,
            self.configs,
            base.store_host,
            properties_size_max=room,
            bytes_at_once=min(BYTES_AT_ONCE, store.commit_log_file_size // 4),
            on_stored=base.metrics.sent_back,
        )
        self.tracer = Tracer(
            messages,
            base.topics,
            index,
            self.offsets,
            coordinator,
            CommitTimes(base.queues, base.reader, base.dispatched),
            base.clock,
            delay_levels_ms=levels_ms,
            flushed=base.lasts_to,
            dispatched=base.dispatched,
        )

    def _add_views(self, base: Foundation) -> None:
        queue_stats = QueueStats(
            base.topics,
            base.queues,
            base.reader,
            next_of=base.queue_offsets.next_of,
            floor=base.views.floor,
            dispatched=base.dispatched,
        )
        coordinator = self.groups.coordinator
        self.views = GroupViews(
            self.configs,
            self.offsets,
            coordinator,
            queue_stats,
            base.clock,
            expiring=self.retention.expiring,
        )
        topic_stats = TopicStats(
            base.topics,
            base.queue_offsets,
            queue_stats,
            log_start=lambda: base.reader.min_offset,
            dispatched=base.dispatched,
        )
        watched = LagInputs(
            self.configs, self.offsets, coordinator, queue_stats, topic_stats, base.clock
        )
        # Only the master exports the groups' lag: with a slave's series it would count twice.
        base.metrics.lag_gauges.connect(base.log_times, watched if base.appends else None)
        base.metrics.registry.bounds.connect(
            lambda topic: base.topics.find(topic) is not None,
            lambda group: self.configs.find(group) is not None,
        )

    def runners(
        self, stop: asyncio.Event, opened: asyncio.Event, closed: asyncio.Future[bool]
    ) -> Mapping[str, Runner]:
        """Return the background components by name.

        opened: set when the start is recorded or the node stops. closed: done when the log accepts
        no more records; its result is True if the process ends.
        """
        parts: Mapping[str, Callable[[asyncio.Event], Coroutine[None, None, None]]] = {
            "offsets": self.offsets.run,
            "groups": self.groups.coordinator.run,
            "delayed": lambda stop: self._deliver(stop, closed),
            "retention": self.retention.run,
        }

        def after_opening(
            run: Callable[[asyncio.Event], Coroutine[None, None, None]],
        ) -> Runner:
            async def part() -> None:
                await opened.wait()
                await run(stop)

            return part

        return {name: after_opening(run) for name, run in parts.items()}

    async def _deliver(self, stop: asyncio.Event, closed: asyncio.Future[bool]) -> None:
        if self._delivers_delayed:
            self.delayed.begin()
        await self.delayed.run(stop, closed)

    async def finish(self) -> None:
        """Append the final delay progress and offsets; appending ends after this call."""
        try:
            await self.delayed.finish()
        except (StoreError, NotServing) as error:
            # The next start finds the delivered copies in the log; a RocketMQ broker would deliver
            # them again.
            log.warning(
                "how far delayed messages are delivered could not be recorded",
                extra={"event": "delay-not-told", "code": error.code},
            )
        # Offsets come last, so that commits of requests in progress are included.
        await self.offsets.finish()
