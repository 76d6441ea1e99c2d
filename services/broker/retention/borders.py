"""Min offsets of queues if the log began at a given physical offset: the effect of a deletion.

It opens its own queue files. Serving readers cache the present min offset, and would return a later
one too early. Step before: ``deletion`` and ``expiry`` call it. Step after: ``losses`` counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from shared.files.queue_files import COPIED_MAX, QueueFiles
from shared.files.queue_math import EVERYTHING, is_filler
from shared.files.store_dir import StoreDir
from tidemark.offsets import Queue


def borders(store: StoreDir, queues: Iterable[Queue], physical: int) -> dict[Queue, int]:
    """Return the min offset of each queue in a log that begins at physical. Blocks; any thread.
    Exact if everything below physical is dispatched. A queue without files begins at 0."""
    return {queue: border(store, queue, physical) for queue in queues}


def border(store: StoreDir, queue: Queue, physical: int) -> int:
    """Return the min offset of one queue in a log that begins at physical."""
    directory = store.queue_directory(*queue)
    with closing(QueueFiles(store.disk, directory, copied_max=COPIED_MAX)) as files:
        end = files.count(EVERYTHING)
        last = files.unit(end - 1)
        next_offset = files.next_offset(end)
        if last is None:
            return next_offset
        if is_filler(last.physical_offset, last.size) or last.physical_offset < physical:
            return next_offset
        found = files.first_at(physical)
        if found is None:  # reput has just removed the file
            files.refresh()
            found = files.first_at(physical)
        offset = None if found is None else files.offset_of(found)
        return next_offset if offset is None else offset
