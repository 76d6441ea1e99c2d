"""The log's files while a node appends: are they still there, in their size, the same ones?

A file that somebody removes or moves stays readable through its mapping, and writable through its
descriptor: everything goes well until the process ends, and all of it is gone then. ``log_writer``
asks before each acknowledgement for the files that it has just synced; this asks for all of them, a
few times a minute. Blocks: call it in a thread.
"""

from __future__ import annotations

from shared.files.log_writer import log_file_replaced
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tidemark.errors import LogFileReplaced
from tidemark.formats.checkpoint import Slot
from tidemark.formats.filenames import offset_name


class LogWatch:
    """Remembers which file each name led to in the present serving epoch. One thread uses it."""

    def __init__(self, store: StoreDir, positions: Positions) -> None:
        self._store = store
        self._positions = positions
        self._epoch = 0
        self._inodes: dict[int, int] = {}

    def fault(self, epoch: int) -> LogFileReplaced | None:
        """What is wrong with a file between MIN and FLUSHED; None if nothing is.

        epoch: under which this node appends. Files may differ between two epochs: a slave whose
        log is cut to its master's has removed files and made them anew.
        """
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
                    continue  # retention has removed it meanwhile: MIN moves before the name goes
                return log_file_replaced(path, flushed)
            inodes[start] = inode
        self._inodes = inodes
        return None
