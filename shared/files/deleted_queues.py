"""Removes queue files of deleted topics at an orderly stop.

The queues of a deleted topic keep their numbering while the node runs; the topic's state record
also holds the numbers. RocketMQ serves every queue that it finds in consumequeue/ and
batchconsumequeue/, even if topics.json does not list its topic, so the deleted topic would exist
again. The caller must hold all locks of the store. Step before: every process has synced and
stopped. Step after: ``abort`` is removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from shared.files.positions import Positions
from shared.files.queue_files import QueueFiles
from shared.files.queue_math import EVERYTHING
from shared.files.store_dir import StoreDir
from shared.state.json_cache import TOPICS_FILE, JsonCache
from tidemark.errors import DamagedFile
from tidemark.formats.checkpoint import Slot, resume_check
from tidemark.formats.filenames import offset_name


class _Queue(NamedTuple):
    """A queue to remove."""

    directory: Path
    starts: tuple[int, ...]
    next: int
    """Number after its last unit; 0 without one."""
    first: int
    """Number at which its first file starts; 0 without a unit."""


def drop_deleted_queues(directory: StoreDir, positions: Positions) -> int:
    """Remove the queues of deleted topics; return their number. Blocks.

    A queue with a unit after its topic's deletion stays, because topics.json may be old. A kill in
    the middle leaves totals that differ from the files: the next start then rebuilds the queues.
    """
    get = positions.get
    units, entries = get(Slot.RESUME_UNITS), get(Slot.RESUME_INDEX_ENTRIES)
    durable = get(Slot.DISPATCHED_DURABLE)
    if get(Slot.RESUME_CHECK) != resume_check(durable, units, entries):
        return 0
    disk = directory.disk
    queues = list(_deleted(directory))
    for queue in queues:
        for start in reversed(queue.starts):
            disk.unlink(queue.directory / offset_name(start))
        disk.sync_directory(queue.directory)
        for path in (queue.directory, queue.directory.parent):
            with contextlib.suppress(OSError):  # other files are in it, or other queues
                disk.remove_directory(path)
    if not queues:
        return 0
    for path in {queue.directory.parent.parent for queue in queues}:
        disk.sync_directory(path)
    units -= sum(queue.next for queue in queues)
    positions.publish(Slot.RESUME_UNITS, units)
    positions.publish(
        Slot.RESUME_FIRSTS, get(Slot.RESUME_FIRSTS) - sum(queue.first for queue in queues)
    )
    positions.publish(Slot.RESUME_CHECK, resume_check(durable, units, entries))
    return len(queues)


def _deleted(directory: StoreDir) -> Iterator[_Queue]:
    try:
        table = JsonCache(directory.disk, directory.config_dir).read(TOPICS_FILE)
    except DamagedFile:
        return
    if table is None or table.covered is None:
        return  # the file is RocketMQ's
    gone = table.deleted.keys() - table.topics.keys()
    if not gone:
        return
    for topic, queue in directory.queues(gone):
        for place in directory.queue_directories(topic, queue):
            with closing(QueueFiles(directory.disk, place)) as files:
                end = files.count(EVERYTHING)
                next_offset = files.next_offset(end)
                starts = tuple(files.starts)
            first = starts[0] // place.unit_size if starts else 0
            if next_offset <= table.deleted[topic].get(queue, 0):
                yield _Queue(place.path, starts, *((end, first) if end > first else (0, 0)))
