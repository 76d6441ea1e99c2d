"""Builds all serving components on an open log, once the state can be read.

Step before: ``replication`` has recovered the log, or follows it. Step after: it runs the
components.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from services.broker.api.components import Components
from services.broker.consuming import Consuming, Core
from services.broker.log.append import Append
from services.broker.log.log_context import LogContext
from services.broker.metrics import BrokerMetrics
from services.broker.opening import Opening
from services.broker.read.components import ReadComponents
from services.broker.read.pull import Puller
from services.broker.read.query import Queries
from services.broker.read.topic_views import TopicViews
from services.broker.send.deduplicator import Deduplicator
from services.broker.send.sender import Sender
from services.broker.send.stored_ids import StoredIds
from services.broker.state.config_files import ConfigFiles
from services.broker.state.drain import Drain
from services.broker.state.state_log import StateLog
from services.broker.state.state_replay import expired_queues, next_offsets, replay
from services.broker.state.topics import StoredQueues, Topics
from shared.files.index import IndexReader
from shared.files.store_dir import StoreDir
from shared.state.records import STATE_QUEUE, STATE_TOPIC, ForeignRange
from shared.state.state import BrokerState
from tidemark.formats.checkpoint import Slot
from tidemark.formats.delay import TIMER_TOPIC
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.telemetry import TELEMETRY_TOPIC
from tidemark.offsets import QueueOffset


class BuiltComponents(NamedTuple):
    """The components that are built on the replayed state."""

    components: Components
    core: Core
    consuming: Consuming
    config_files: ConfigFiles
    opening: Opening


async def build(log_context: LogContext, metrics: BrokerMetrics) -> BuiltComponents:
    """Replay the state and build the components on it. Raises CorruptRecord, DamagedFile."""
    recovered, dispatched = log_context.store.recovered, log_context.dispatched()
    known = recovered.next_queue_offsets
    # If not everything is dispatched, the queue may be too short: the disk refuses new units.
    is_whole = dispatched >= recovered.end
    next_offset = known.get((STATE_TOPIC, STATE_QUEUE), 0) if is_whole else 0
    state = await asyncio.to_thread(
        replay, log_context.queues, log_context.reader, dispatched, int(next_offset)
    )
    return build_with(log_context, metrics, state, known)


def build_with(
    log_context: LogContext,
    metrics: BrokerMetrics,
    state: BrokerState,
    known: Mapping[tuple[str, int], QueueOffset],
) -> BuiltComponents:
    """Build the components on a state, which they take ownership of.

    known: next queue offsets from log and queues. It may be called twice, because the components
    do nothing before they are run.
    """
    config, store, clock = log_context.config, log_context.store, log_context.clock
    offsets = next_offsets(known, state)
    state_log = StateLog(
        state.copy(),
        offsets,
        clock,
        log_context.host,
        flushed=log_context.flushed,
        durable_end=log_context.durable_end,
        file_size=config.store.commit_log_file_size,
        log_start=lambda: log_context.reader.min_offset,
    )
    topics = Topics(
        state,
        state_log,
        offsets,
        flushed=log_context.flushed,
        stored=StoredQueues(
            {*store.directory.queues(), *known},
            expired_queues(known, state),
            _batch_topics(store.directory),
        ),
        auto_create_queues=config.auto_create_queues if config.auto_create_topics else None,
        always={
            STATE_TOPIC: 1,
            SCHEDULE_TOPIC: len(config.store.delay_levels_ms),
            TIMER_TOPIC: 1,
            TELEMETRY_TOPIC: 1,
        },
        on_change=lambda topic: topic_changed(topic),
    )
    views = TopicViews(
        topics,
        log_context.queues,
        log_context.reader,
        log_context.dispatched,
        clock=clock,
        auto_create=config.auto_create_topics,
        queues_default=config.auto_create_queues,
    )
    puller = Puller(log_context, offsets, floor=views.floor)
    append = Append(log_context, offsets, state_log, puller.long_polls)
    state_log.connect(append, log_context.durability)
    index = IndexReader(store.directory, log_context.reader)
    queries = Queries(
        log_context.reader,
        log_context.queues,
        index,
        log_context.dispatched,
        views.is_shown,
        clock,
    )
    read = ReadComponents(views, puller, queries, index)
    core = Core(log_context, metrics, state, state_log, offsets, topics, append, read)
    consuming = Consuming(core, on_group_change=lambda: config_files.groups_changed())
    config_files = ConfigFiles(
        store.directory,
        state,
        topics,
        consuming.offsets,
        state_log.delay_now if log_context.appends else (lambda: state.delay),
        clock,
        flushed=log_context.durable_end if log_context.appends else log_context.dispatched,
        epoch=log_context.epoch,
    )

    def topic_changed(topic: str) -> None:
        config_files.topics_changed()
        views.changed(topic)
        consuming.groups.coordinator.topic_changed(topic)

    opening = Opening(
        state,
        state_log,
        config_files,
        topics,
        consuming.offsets,
        flushed=log_context.flushed,
        foreign=_foreign_range(log_context),
        epoch=log_context.epoch,
    )
    deduplicator = Deduplicator(
        Sender(log_context, append, topics),
        StoredIds(log_context, index if config.store.index_enabled else None),
    )
    components = Components(
        deduplicator,
        read,
        consuming.groups,
        consuming.delayed,
        consuming.retention,
        Drain(state, state_log, clock, log_context.flushed, lambda: views.changed(None)),
    )
    return BuiltComponents(components, core, consuming, config_files, opening)


def _foreign_range(log_context: LogContext) -> ForeignRange | None:
    """Return the range of the log that RocketMQ wrote, according to recovery; None: none."""
    slots = (Slot.FOREIGN_FROM, Slot.FOREIGN_UNTIL)
    start, end = (log_context.positions.get(slot) for slot in slots)
    return ForeignRange(start, end) if end else None


def _batch_topics(directory: StoreDir) -> frozenset[str]:
    """Return the topics that have batch queues in the store."""
    entries = directory.disk.list_directory(directory.batch_queues_dir)
    return frozenset(entry.name for entry in entries if entry.is_directory)
