"""Builds and runs the consumer side of a broker: groups, retries, delays, retention, lag.

It is built when the state has been replayed. All of its background components append, so they start
once the gate is open for sends; they end with the term. ``building`` has opened the log, the queues
and the topics before this step; after it ``components`` passes the components to the calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Final, NamedTuple

from services.broker.delay.build import make_delayed
from services.broker.delay.delayed import CarryResult
from services.broker.groups.commit_times import CommitTimes
from services.broker.groups.components import GroupComponents
from services.broker.groups.configs import GroupConfigs
from services.broker.groups.consumer_groups import ConsumerGroups
from services.broker.groups.copies import Copies
from services.broker.groups.dead_letters import BYTES_AT_ONCE, DeadLetters
from services.broker.groups.lag_inputs import LagInputs
from services.broker.groups.nacks import Nacks
from services.broker.groups.offsets import Offsets
from services.broker.groups.queue_stats import QueueStats
from services.broker.groups.redrive import Redrive
from services.broker.groups.repeated_nacks import RepeatedNacks
from services.broker.groups.stored_messages import StoredMessages
from services.broker.groups.topic_stats import TopicStats
from services.broker.groups.trace import GroupProgress, Tracer
from services.broker.groups.views import GroupViews
from services.broker.log.append import Append
from services.broker.log.log_context import LogContext
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.metrics import BrokerMetrics
from services.broker.read.components import ReadComponents
from services.broker.retention.deletion import Deletion
from services.broker.retention.expiry import Expiry
from services.broker.retention.keeper import Retention
from services.broker.send.batches import Batches
from services.broker.state.state_log import StateLog
from services.broker.state.topics import Topics
from services.broker.telemetry import TelemetryJournal
from shared.files.mapped_file_queue import MappedFileQueue
from shared.files.store_dir import StoreDir
from shared.runtime.clock import utc_offset_s
from shared.state.state import BrokerState
from tidemark.errors import CorruptRecord, DamagedFile, NotServing, StoreError
from tidemark.formats import properties
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

Runner = Callable[[], Coroutine[None, None, None]]
"""A component that runs until the node stops."""


class Core(NamedTuple):
    """The components on which the consumer side is built."""

    log: LogContext
    metrics: BrokerMetrics
    state: BrokerState
    """The served state; each part of it has one owner."""
    state_log: StateLog
    queue_offsets: QueueOffsets
    topics: Topics
    append: Append
    read: ReadComponents


class _NothingWaits:
    """Replaces the delayed messages on a slave, where the master handles them."""

    def pending_below(self, physical_offset: PhysicalOffset) -> bool:
        """Return False: this node has no delayed messages to copy forward."""
        return False

    async def carry_below(self, physical_offset: PhysicalOffset) -> CarryResult:
        """Append nothing: a slave has no delayed messages of its own."""
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

    def __init__(self, core: Core, *, on_group_change: Callable[[], None]) -> None:
        """on_group_change: called after a group was created, changed or deleted."""
        log_context, state_log = core.log, core.state_log
        self.offsets = Offsets(core.state, state_log, flushed=log_context.flushed)
        state_log.take_offsets_from(self.offsets.now)
        self._configs = GroupConfigs(
            core.state,
            state_log,
            core.topics,
            self.offsets,
            flushed=log_context.flushed,
            auto_create=log_context.config.auto_create_groups,
            on_change=on_group_change,
        )
        consumers = ConsumerGroups.make(
            self._configs,
            self.offsets,
            core.topics,
            core.read.topics,
            core.read.puller,
            core.metrics.groups,
            log_context.clock,
            start_count=lambda: log_context.epoch or state_log.start_count,
            broker_group=log_context.config.cluster.group,
        )
        self._coordinator = consumers.coordinator
        self._health = log_context.health
        self._unit_checks = log_context.unit_checks
        self._delay_fault: str | None = None
        self._delivers_delayed = log_context.config.deliver_delayed
        self.delayed = make_delayed(
            log_context,
            core.append,
            state_log,
            core.queue_offsets,
            core.topics,
            state=core.state,
            on_fault=self._delay_stands_still,
        )
        self.retention = self._make_retention(core)
        views = self._make_views(core)
        self.groups = self._make_groups(core, consumers, views)
        self._telemetry = TelemetryJournal(log_context, core.append, core.metrics)

    def _delay_stands_still(self, error: StoreError | None) -> None:
        if self._delay_fault is not None:
            self._health.clear_reason(self._delay_fault)
        self._delay_fault = None
        if error is not None:
            # Requests the repair of the unit. Delivery is retried and continues after it.
            self._unit_checks.may_heal(error)
            is_damage = isinstance(error, CorruptRecord | DamagedFile)
            detail = f"{error.detail} {error.advice}"
            if self._health.add_reason(error.code, detail, lasting=is_damage):
                # If the reason was set already, the component that set it also clears it.
                self._delay_fault = error.code

    def _make_retention(self, core: Core) -> Retention:
        log_context, topics = core.log, core.read.topics
        directory, appends = log_context.store.directory, log_context.appends
        # Only the master counts lost delayed messages, and appends the others again before their
        # log file is deleted.
        delayed = self.delayed if appends else NOTHING_WAITS
        expiry = Expiry(
            directory,
            self.offsets,
            self._coordinator,
            shown_from=topics.shown_from,
            hides=topics.has_retention,
            on_skipped=core.metrics.groups.skipped if appends else lambda *_: None,
        )
        topics.report_hidden_to(expiry.hidden)

        def forget_names() -> None:
            log_context.queues.forget()
            core.read.index_reader.close()
            self.delayed.names_gone()

        deletion = Deletion(
            directory,
            log_context.appender.files if appends else _files_of(directory),
            log_context.reader,
            log_context.positions,
            delayed,
            expiry,
            ring=log_context.ring_reput,
        )
        retention = Retention(
            log_context,
            deletion,
            expiry,
            snapshot_start=lambda: (
                core.state_log.snapshot_start if appends else core.state.snapshot_at
            ),
            utc_offset_s=utc_offset_s,
            has_hiding_topics=topics.any_has_retention,
            on_names_gone=forget_names,
        )
        core.metrics.retention.show(retention, log_context.reader, log_context.confirmed)
        return retention

    def _make_groups(
        self, core: Core, consumers: ConsumerGroups, views: GroupViews
    ) -> GroupComponents:
        log_context, topics, coordinator = core.log, core.topics, self._coordinator
        store, clock, dispatched = (
            log_context.config.store,
            log_context.clock,
            log_context.dispatched,
        )
        index = core.read.index_reader if store.index_enabled else None
        levels_ms = store.delay_levels_ms
        messages = StoredMessages(core.read.queries, core.read.puller, core.read.topics)
        index_is_whole = log_context.index_is_whole
        copies = Copies(
            core.append,
            log_context.durability,
            log_context.host,
            properties.size_max(record_crc=store.record_crc),
            on_stored=core.metrics.sent_back,
        )
        nacks = Nacks(
            copies,
            messages,
            topics,
            self._configs,
            coordinator,
            core.metrics.groups,
            RepeatedNacks(index, dispatched, clock, index_is_whole=index_is_whole),
            delay_levels_ms=levels_ms,
        )
        redrive = Redrive(
            copies,
            DeadLetters(messages, topics, index, dispatched, clock, index_is_whole=index_is_whole),
            topics,
            self._configs,
            Batches(log_context, topics),
            bytes_at_once=min(BYTES_AT_ONCE, store.commit_log_file_size // 4),
        )
        commit_times = CommitTimes(log_context.queues, log_context.reader, dispatched)
        tracer = Tracer(
            messages,
            topics,
            index,
            GroupProgress(self.offsets, coordinator, commit_times),
            clock,
            delay_levels_ms=levels_ms,
            flushed=log_context.durable_end,
            dispatched=dispatched,
        )
        return GroupComponents(
            self._configs, coordinator, consumers.commits, views, nacks, redrive, tracer
        )

    def _make_views(self, core: Core) -> GroupViews:
        log_context, topics, coordinator = core.log, core.topics, self._coordinator
        clock, dispatched = log_context.clock, log_context.dispatched
        queue_stats = QueueStats(
            topics,
            log_context.queues,
            log_context.reader,
            next_of=core.queue_offsets.next_of,
            floor=core.read.topics.floor,
            dispatched=dispatched,
        )
        topic_stats = TopicStats(
            topics,
            core.queue_offsets,
            queue_stats,
            log_start=lambda: log_context.reader.min_offset,
            dispatched=dispatched,
        )
        inputs = LagInputs(
            self._configs, self.offsets, coordinator, queue_stats, topic_stats, clock
        )
        # Only the master exports the groups' lag: with a slave's series it would count twice.
        core.metrics.lag_gauges.connect(
            log_context.log_sampler().times, inputs if log_context.appends else None
        )
        core.metrics.registry.bounds.connect(
            lambda topic: topics.find(topic) is not None,
            lambda group: self._configs.find(group) is not None,
        )
        return GroupViews(
            self._configs,
            self.offsets,
            coordinator,
            queue_stats,
            clock,
            expiring=self.retention.expiring,
        )

    def runners(
        self, stop: asyncio.Event, opened: asyncio.Event, closed: asyncio.Future[bool]
    ) -> Mapping[str, Runner]:
        """Return the background components by name.

        opened: set when the gate is open for sends, or the term ends. closed: done when the log
        accepts no more records; its result is True if the process ends.
        """
        parts: Mapping[str, Callable[[asyncio.Event], Coroutine[None, None, None]]] = {
            "offsets": self.offsets.run,
            "groups": self._coordinator.run,
            "delayed": lambda stop: self._deliver(stop, closed),
            "retention": self.retention.run,
            "telemetry": self._telemetry.run,
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
