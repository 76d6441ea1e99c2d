"""``--once``: dispatch a stopped store to its end, sync, and return. No event loop, no ports.

Locks byte 2 of ``lock`` only, so that an offline tool may hold the others meanwhile. The log is
dispatched up to its published end. If the checkpoint is missing or was written only by RocketMQ,
dispatch ends at the first byte that is not a record; the next recovery decides what that means.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from services.reput.config import ReputConfig
from services.reput.dispatcher import Dispatcher
from services.reput.open_store import OpenStore
from shared.files.log_walk import LogFiles, walk
from shared.files.os_disk import OsDisk
from tidemark.formats.checkpoint import REGION_MAGIC, Slot
from tidemark.offsets import PhysicalOffset

log = logging.getLogger(__name__)

PROGRESS_BYTES: Final = 256 << 20
NEVER: Final = 2**63 - 1


def run_once(config: ReputConfig, progress: Callable[[int, int], None] | None = None) -> None:
    """Dispatch everything up to the log's end and make it durable.
    progress: called with (bytes done, bytes in total). Raises CorruptRecord, QueueGap, DiskFull,
    StrayFile or WrongFileSize; records dispatched before remain."""
    store = OpenStore.open(config, OsDisk())
    try:
        if store.positions.get(Slot.MAGIC_AND_FORMAT) != REGION_MAGIC:
            end = _end_of_log(store)
            store.dispatcher.end_at(end)
        decision = store.dispatcher.resume()
        log.info(
            "resuming dispatch at %d: %s",
            store.dispatcher.position,
            decision.reason,
            extra={
                "event": "resumed",
                "position_offset": store.dispatcher.position,
                "end_offset": store.dispatcher.end,
                "queues": decision.queue_mode.value,
                "index": decision.index_mode.value,
            },
        )
        _dispatch(store.dispatcher, config, progress or (lambda done, total: None))
        store.positions.sync()
        log.info(
            "everything is dispatched",
            extra={
                "event": "dispatched",
                "dispatched_offset": store.dispatcher.dispatched,
                "records": store.dispatcher.records_count,
                "index_entries": store.dispatcher.index_entries_count,
            },
        )
        store.positions.claim(Slot.REPUT_PID, 0)
    finally:
        store.close()


def _end_of_log(store: OpenStore) -> int:
    """Return the end of the gapless sequence of records from the log's first byte on."""
    directory = store.directory
    files = LogFiles(
        directory.disk, directory.commit_log_dir, directory.config.commit_log_file_size
    )
    try:
        if not files.starts:
            return 0
        # RocketMQ copies the record CRC property like any other property: check the body's CRC.
        found = walk(
            files,
            PhysicalOffset(files.starts[0]),
            unjudged=[(0, NEVER)],
            unproven_from=NEVER,
            progress=lambda done, total: None,
        )
    finally:
        files.close()
    log.warning(
        "the end of the log was never published; its last record ends at %d",
        found.end,
        extra={"event": "end-found", "end_offset": found.end, "reason": found.reason},
    )
    return found.end


def _dispatch(
    dispatcher: Dispatcher, config: ReputConfig, progress: Callable[[int, int], None]
) -> None:
    start = synced = reported = dispatcher.position
    while dispatcher.step(config.step_size):
        if dispatcher.position - synced >= config.sync_bytes:
            dispatcher.sync()
            synced = dispatcher.position
        if dispatcher.position - reported >= PROGRESS_BYTES:
            reported = dispatcher.position
            progress(reported - start, dispatcher.end - start)
    dispatcher.sync()
    progress(dispatcher.position - start, dispatcher.end - start)
