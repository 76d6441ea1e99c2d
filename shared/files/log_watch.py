"""Checks while a node runs that the log's files still exist, unchanged in size and identity.

A file that was removed or moved stays readable through its mapping, and writable through its
descriptor. All seems well until the process ends, and then its data is lost. ``log_writer`` checks
the files that it has just synced before each acknowledgement; this module checks all files, a few
times a minute. On a slave it only checks that none is missing. It blocks: call it in a thread.
"""

from __future__ import annotations

from shared.files.log_writer import log_file_replaced
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tidemark.errors import LogFileReplaced
from tidemark.formats.checkpoint import Slot
from tidemark.formats.filenames import offset_name


class LogWatch:
    """Remembers each file name's inode in the present serving epoch. Used by one thread."""

    def __init__(self, store: StoreDir, positions: Positions) -> None:
        self._store = store
        self._positions = positions
        self._epoch = 0
        self._inodes: dict[int, int] = {}

    def fault(self, epoch: int) -> LogFileReplaced | None:
        """Return the fault of a file between MIN and FLUSHED; None if there is none.
        epoch: the epoch in which this node appends. Files may change between two epochs: a slave
        that truncates its log to its master's removes files and creates them again."""
        if epoch != self._epoch:
            self._epoch, self._inodes = epoch, {}
        store, get = self._store, self._positions.get
        size = store.config.commit_log_file_size
        flushed = get(Slot.FLUSHED)
        inodes: dict[int, int] = {}
        for start in range(get(Slot.MIN) // size * size, flushed, size):
            path = store.commit_log_dir / offset_name(start)
            facts = store.disk.stat(path)
            inode = -1 if facts is None or facts.size != size else facts.inode
            if inode < 0 or self._inodes.get(start, inode) != inode:
                if start < get(Slot.MIN):
                    continue  # retention has removed it: MIN moves before the name is removed
                return log_file_replaced(path, flushed)
            inodes[start] = inode
        self._inodes = inodes
        return None

    def missing(self) -> int | None:
        """Return the start of a missing file of the confirmed log on a slave; None if there is
        none. ha cuts and empties such a log itself: ask it to check before this is believed."""
        store, get = self._store, self._positions.get
        size = store.config.commit_log_file_size
        for start in range(get(Slot.MIN) // size * size, get(Slot.CONFIRM), size):
            facts = store.disk.stat(store.commit_log_dir / offset_name(start))
            if facts is None and get(Slot.MIN) < start + size and start < get(Slot.CONFIRM):
                return start
        return None
