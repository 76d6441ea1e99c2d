"""The end of a node: whoever stops last says that nothing was left to do.

``abort`` goes only if every process stopped in order and everything that may be seen is dispatched
and on disk; else the next start recovers as after a kill, which costs time only. The last step of
every service; before it the service has synced what it wrote.
"""

from __future__ import annotations

import logging
from typing import Final

from shared.files.deleted_queues import drop_deleted_queues
from shared.files.disk import RecordLock
from shared.files.positions import Positions
from shared.files.store_dir import Role, StoreDir
from tidemark.errors import DiskFull, ReadOnlyDisk, StoreError, StoreLocked
from tidemark.formats.checkpoint import Slot

log = logging.getLogger(__name__)

ALONE: Final = (Role.APPEND, Role.BROKER, Role.REPUT)


def mark_clean_if_last(
    directory: StoreDir, positions: Positions, *, must_have_stopped: tuple[Slot, ...] = ()
) -> None:
    """Remove ``abort`` if nobody else uses the store and nothing is left to do. Blocks.

    must_have_stopped: slots of process ids that are 0 if their owners stopped in order. The
    caller has given its own locks back, and its process id.
    """
    get = positions.get
    grouped = directory.config.visible_after == "confirmed"
    held: list[RecordLock] = []
    try:
        # All of them: a process that starts meanwhile would make the marker that is removed here.
        for role in (*ALONE, Role.HA) if grouped else ALONE:
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
        return  # another still runs and will do it, or the marker stays
    except (OSError, StoreError) as error:
        log.error(
            "the store is not marked as stopped in order; the next start recovers it",
            extra={"event": "not-clean", "detail": str(error)},
        )
    finally:
        for lock in held:
            lock.release()
