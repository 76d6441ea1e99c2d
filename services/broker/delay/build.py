"""Composition of the parts that handle delayed messages; ``consuming`` calls it after replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.broker.delay.delay_queues import DelayQueues
from services.broker.delay.delayed import DelayedMessages
from services.broker.delay.delivery import Delivery
from services.broker.delay.level_queues import LevelQueues
from services.broker.delay.slices import Slices
from services.broker.delay.timer_queue import TimerQueue
from services.broker.delay.waiting import Waiting
from services.broker.log.append import Append
from services.broker.log.log_context import LogContext
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.send.batches import Batches
from services.broker.state.state_log import StateLog
from services.broker.state.topics import Topics
from services.broker.state.wheel_files import WheelFiles
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.files.index import IndexReader
from shared.runtime.clock import boot_id
from shared.state.state import BrokerState
from tidemark.errors import StoreError
from tidemark.offsets import PhysicalOffset

FILE: Final = "timer/pending.db"
"""Path of the sorted file in the store."""


def make_delayed(
    log_context: LogContext,
    append: Append,
    state_log: StateLog,
    offsets: QueueOffsets,
    topics: Topics,
    *,
    state: BrokerState,
    on_fault: Callable[[StoreError | None], None],
) -> DelayedMessages:
    """Return the delayed messages of one store; delivery has not begun.
    state: the served state, for the topics. on_fault: called with the error that stops delivery,
    and with None when delivery continues."""
    directory, clock = log_context.store.directory, log_context.clock
    # The event loop and the delay thread need separate readers.
    log_reader = CommitLogReader(directory, log_context.positions)
    queues = ConsumeQueues(directory, log_reader)
    delays_ms = directory.config.delay_levels_ms

    def is_gone(topic: str, stored_at: PhysicalOffset) -> bool:
        # This applies even if the topic was created again. Otherwise: 1. Messages of a group wait
        # for a retry. 2. The group and its retry topic are deleted. 3. A consumer that still runs
        # joins, which creates both again. 4. The new group gets messages that the old group failed
        # to handle.
        if topic in state.deleted and topic not in state.topics:
            return True
        return stored_at < state.deleted_below.get(topic, 0)

    waiting = Waiting(
        log_reader,
        queues,
        LevelQueues(log_reader, queues, delays_ms),
        TimerQueue(directory.root / FILE, boot_id(), log_reader, queues, clock),
        Slices(
            log_reader,
            file_size=directory.config.commit_log_file_size,
            topic_is_gone=is_gone,
        ),
        IndexReader(directory, log_reader),
        WheelFiles(directory.disk, directory.root, directory.config_dir, clock),
    )
    delay_queues = DelayQueues(log_context, offsets)
    batches = Batches(log_context, topics)
    delivery = Delivery(
        waiting, delay_queues, log_context, append, state_log, batches, on_fault=on_fault
    )
    return DelayedMessages(delivery, waiting, delay_queues, log_context)
