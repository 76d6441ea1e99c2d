"""Bytes of the log for slaves, borrowed from its mapping.

The replica decides which bytes; they are not copied before the socket takes them. A view stays
valid while it is held, even if retention removes the file meanwhile. Bytes below the published end
never change. A cut and a resync end with a recovery, after which the reader opens the files anew.
Step before: ``Stream``. Step after: ``link`` sends them after a frame's head.
"""

from __future__ import annotations

from shared.files.commit_log import CommitLogReader
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tidemark.errors import CorruptRecord, StoreError
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset


class LogViews:
    """Reads the log of this node by physical offset. On the loop only."""

    def __init__(self, store: StoreDir, positions: Positions) -> None:
        self._positions = positions
        self._reader = CommitLogReader(store, positions)

    def views(self, offset: int, size: int) -> list[memoryview] | None:
        """Return the bytes [offset, offset + size), file by file; None if some are missing.

        The views are borrowed and valid while held.
        """
        end = PhysicalOffset(self._positions.get(Slot.WRITTEN))
        if offset + size > end:
            return None
        found: list[memoryview] = []
        while size > 0:
            try:
                view = self._reader.window(PhysicalOffset(offset), end)[:size]
            except (CorruptRecord, StoreError):
                return None
            if not view:
                return None
            found.append(view)
            offset, size = offset + len(view), size - len(view)
        return found

    def close(self) -> None:
        """Unmap the files without a view that is still held."""
        self._reader.close()
