"""Clean stop of a node: the last process to stop removes the ``abort`` marker.

``abort`` is removed only if every process stopped in order and everything that may be visible is
dispatched and on disk. Otherwise the next start recovers as after a kill, which costs only time.
This is the last step of every service; by then, the service has synced its files.
"""

from __future__ import annotations

import logging
from typing import Final

from shared.files.deleted_queues import drop_deleted_queues
from shared.files.disk import RecordLock
from shared.files.positions import Positions
from shared.files.store_dir import LockByte, StoreDir
from tidemark.errors import DiskFull, ReadOnlyDisk, StoreError, StoreLocked
from tidemark.formats.checkpoint import Slot

log = logging.getLogger(__name__)

ALONE: Final = (LockByte.APPEND, LockByte.BROKER, LockByte.REPUT)


def mark_clean_if_last(
    directory: StoreDir, positions: Positions, *, must_have_stopped: tuple[Slot, ...] = ()
) -> None:
    """Remove ``abort`` if no other process uses the store and no work is left. Blocks.
    must_have_stopped: slots of process ids that are 0 if their owners stopped in order. The caller
    has released its own locks and cleared its own process id."""
    get = positions.get
    grouped = directory.config.visible_after == "confirmed"
    held: list[RecordLock] = []
    try:
        # All locks: a process that starts meanwhile would create the marker that is removed here.
        for role in (*ALONE, LockByte.HA) if grouped else ALONE:
            held.append(directory.lock(role))
        dispatched = get(Slot.DISPATCHED_DURABLE)
        if (
            get(Slot.REPUT_GENERATION) == get(Slot.GENERATION) != 0
            and get(Slot.WRITTEN) == get(Slot.FLUSHED)
            and dispatched == get(directory.config.confirm_slot)
            and not any(get(slot) for slot in must_have_stopped)
        ):
            drop_deleted_queues(directory, positions)
            positions.sync()
            directory.mark_clean()
            log.info("stopped clean", extra={"event": "clean"})
    except (StoreLocked, DiskFull, ReadOnlyDisk):
        return  # another process still runs and will remove the marker, or the marker stays
    except (OSError, StoreError) as error:
        log.error(
            "the store is not marked as stopped in order; the next start recovers it",
            extra={"event": "not-clean", "detail": str(error)},
        )
    finally:
        for lock in held:
            lock.release()
