"""Composition of the parts that handle delayed messages; ``serving`` calls it after replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from services.broker.delay.delayed import DelayedMessages
from services.broker.delay.delivery import Delivery
from services.broker.delay.level_queues import LevelQueues
from services.broker.delay.slices import Slices
from services.broker.delay.timer_queue import TimerQueue
from services.broker.delay.waiting import Ends, Waiting
from services.broker.log.append import Append
from services.broker.log.durability_barrier import DurabilityBarrier
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.state.state_log import StateLog
from services.broker.state.wheel_files import WheelFiles
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.files.index import IndexReader
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from shared.runtime.clock import boot_id
from shared.state.state import BrokerState
from tidemark.clock import Clock
from tidemark.errors import StoreError
from tidemark.formats.checkpoint import Slot
from tidemark.formats.delay import TIMER_LEVEL
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.offsets import PhysicalOffset

FILE: Final = "timer/pending.db"
"""Path of the sorted file in the store."""


def make_delayed(
    directory: StoreDir,
    positions: Positions,
    clock: Clock,
    append: Append,
    lasting: DurabilityBarrier,
    state_log: StateLog,
    offsets: QueueOffsets,
    *,
    state: BrokerState,
    dispatched: Callable[[], PhysicalOffset],
    flushed: Callable[[], PhysicalOffset],
    log_end: Callable[[], int],
    on_fault: Callable[[StoreError | None], None],
) -> DelayedMessages:
    """Return the delayed messages of one store, not started yet.

    state: as it is served, for the topics. dispatched: end of what consumers may see. flushed,
    log_end: end of what is on disk, and of what is appended. on_fault: called with the error that
    stops delivery, and with None when delivery goes on.
    """
    # Separate readers: those of the loop are not thread-safe.
    log_reader = CommitLogReader(directory, positions)
    queues = ConsumeQueues(directory, log_reader)
    delays_ms = directory.config.delay_levels_ms

    def is_gone(topic: str, stored_at: PhysicalOffset) -> bool:
        # Also if the topic was created again. Otherwise: 1. messages of a group wait for a retry;
        # 2. the group is deleted, and its retry topic; 3. a consumer that still runs joins, which
        # creates both anew; 4. the new group gets what the old one had failed on.
        if topic in state.deleted and topic not in state.topics:
            return True
        return stored_at < state.deleted_below.get(topic, 0)

    def levels() -> Sequence[int]:
        # Also levels that the present table lacks: what waits there is due all the same.
        used = {queue + 1 for (topic, queue), _ in offsets.items() if topic == SCHEDULE_TOPIC}
        return [TIMER_LEVEL, *sorted({*used, *range(1, len(delays_ms) + 1)})]

    def ends() -> Ends:
        return Ends(dispatched(), flushed())

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
    delivery = Delivery(
        waiting,
        append,
        lasting,
        state_log,
        clock,
        state=lambda: state_log.delay_now(),
        levels=levels,
        next_of=offsets.next_of,
        ends=ends,
        log_start=lambda: positions.get(Slot.MIN),
        log_end=log_end,
        on_fault=on_fault,
    )
    return DelayedMessages(
        delivery,
        waiting,
        clock,
        ends=ends,
        next_of=offsets.next_of,
        levels=levels,
        has_index=directory.config.index_enabled,
        index_is_whole=lambda: not positions.get(Slot.INDEX_BEHIND),
    )
