"""Builds all serving components on an open log, once the state can be read.

``serving`` waits until the recovered log is dispatched before this step, and runs the components
after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from services.broker.api.components import Parts
from services.broker.consuming import Consuming, Foundation
from services.broker.log.append import Append
from services.broker.log.log_context import Ground
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.metrics import BrokerMetrics
from services.broker.opening import ALONE, Opening
from services.broker.read.pull import Puller
from services.broker.read.query import Queries
from services.broker.read.topic_views import TopicViews
from services.broker.send.deduplicator import Deduplicator
from services.broker.send.group_sends import GroupSends
from services.broker.send.sender import Sender
from services.broker.send.stored_ids import StoredIds
from services.broker.state.config_files import ConfigFiles
from services.broker.state.state_log import StateLog
from services.broker.state.state_replay import expired_queues, next_offsets, replay
from services.broker.state.topics import Topics
from shared.files.index import IndexReader
from shared.state.records import STATE_QUEUE, STATE_TOPIC, ForeignRange
from shared.state.state import BrokerState
from tidemark.formats.checkpoint import Slot
from tidemark.formats.delay import TIMER_TOPIC
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.offsets import QueueOffset


class Built(NamedTuple):
    """The components that are built on the replayed state."""

    parts: Parts
    append: Append
    consuming: Consuming
    state_log: StateLog
    config_files: ConfigFiles
    opening: Opening
    state: BrokerState
    """The served state."""
    queue_offsets: QueueOffsets


async def build(ground: Ground, metrics: BrokerMetrics) -> Built:
    """Replay the state and build the components on it. Raises CorruptRecord, DamagedFile."""
    recovered, dispatched = ground.store.recovered, ground.dispatched()
    known = recovered.next_queue_offsets
    # If not everything is dispatched, the queue may be too short: the disk refuses new units.
    is_whole = dispatched >= recovered.end
    next_offset = known.get((STATE_TOPIC, STATE_QUEUE), 0) if is_whole else 0
    state = await asyncio.to_thread(
        replay, ground.queues, ground.reader, dispatched, int(next_offset)
    )
    return build_with(ground, metrics, state, known)


def build_with(
    ground: Ground,
    metrics: BrokerMetrics,
    state: BrokerState,
    known: Mapping[tuple[str, int], QueueOffset],
) -> Built:
    """Build the components on a state, which they take ownership of.

    known: next queue offsets from log and queues. It may be called twice, because the components
    do nothing before they are run.
    """
    config, store, clock = ground.config, ground.store, ground.clock
    epoch = ALONE if ground.term is None else ground.term.epoch
    offsets = next_offsets(known, state)
    state_log = StateLog(
        state.copy(),
        offsets,
        clock,
        ground.host,
        flushed=ground.flushed,
        lasting=ground.lasts_to,
        file_size=config.store.commit_log_file_size,
        log_start=lambda: ground.reader.min_offset,
    )
    topics = Topics(
        state,
        state_log,
        offsets,
        flushed=ground.flushed,
        queues_in_store={*store.directory.queues(), *known},
        auto_create_queues=config.auto_create_queues if config.auto_create_topics else None,
        always={
            STATE_TOPIC: 1,
            SCHEDULE_TOPIC: len(config.store.delay_levels_ms),
            TIMER_TOPIC: 1,
        },
        expired=expired_queues(known, state),
        on_change=lambda topic: topic_changed(topic),
    )
    views = TopicViews(
        topics,
        ground.queues,
        ground.reader,
        ground.dispatched,
        clock=clock,
        auto_create=config.auto_create_topics,
        queues_default=config.auto_create_queues,
    )
    puller = Puller(
        ground.queues,
        ground.reader,
        offsets,
        clock,
        metrics,
        floor=views.floor,
        dispatched=ground.dispatched,
        written=ground.end,
        held_max=config.held_pulls_max,
        unit_checks=ground.unit_checks,
    )
    append = Append(ground, offsets, state_log, puller.held)
    state_log.connect(append, ground.lasting)
    index = IndexReader(store.directory, ground.reader)
    queries = Queries(ground.reader, ground.queues, index, ground.dispatched, views.is_shown, clock)
    sends = Deduplicator(
        Sender(ground, append, topics, group_sends(ground)),
        StoredIds(ground, index if config.store.index_enabled else None),
    )
    consuming = Consuming(
        Foundation(
            config,
            clock,
            metrics,
            ground.host,
            ground.health,
            store.directory,
            ground.positions,
            state,
            state_log,
            ground.appender,
            ground.files,
            append,
            ground.lasting,
            offsets,
            topics,
            views,
            puller,
            queries,
            index,
            ground.queues,
            ground.reader,
            dispatched=ground.dispatched,
            confirmed=ground.confirmed,
            lasts_to=ground.lasts_to,
            flushed=ground.flushed,
            end=ground.end,
            log_times=ground.log_look().times,
            ring_reput=ground.ring_reput,
            epoch=None if ground.term is None else ground.term.epoch,
            appends=ground.appends,
            master_from=ground.master_from,
        ),
        on_group_change=lambda: config_files.groups_changed(),
    )
    config_files = ConfigFiles(
        store.directory,
        state,
        topics,
        consuming.offsets,
        (lambda: state_log.delay_now()) if ground.appends else (lambda: state.delay),
        clock,
        flushed=ground.lasts_to if ground.appends else ground.dispatched,
        epoch=epoch,
    )

    def topic_changed(topic: str) -> None:
        config_files.topics_changed()
        consuming.groups.coordinator.topic_changed(topic)

    opening = Opening(
        state,
        state_log,
        config_files,
        topics,
        consuming.offsets,
        flushed=ground.flushed,
        foreign=_foreign_range(ground),
        epoch=epoch,
        on_recorded=None if ground.term is None else ground.epoch_recorded,
    )
    parts = Parts(
        sends,
        puller,
        queries,
        views,
        consuming.configs,
        consuming.groups,
        consuming.views,
        consuming.send_back,
        consuming.redrive,
        consuming.tracer,
        consuming.delayed,
        consuming.retention,
    )
    return Built(parts, append, consuming, state_log, config_files, opening, state, offsets)


def group_sends(ground: Ground) -> GroupSends | None:
    """Return the group's part of sends on a master; None on a standalone node or a slave."""
    if ground.term is None or ground.confirmer is None:
        return None
    return GroupSends(ground.term, ground.confirmer, ground.flushed)


def _foreign_range(ground: Ground) -> ForeignRange | None:
    """Return the range of the log that RocketMQ wrote, according to recovery; None: none."""
    slots = (Slot.FOREIGN_FROM, Slot.FOREIGN_UNTIL)
    start, end = (ground.positions.get(slot) for slot in slots)
    return ForeignRange(start, end) if end else None
