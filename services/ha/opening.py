"""The store as ha holds it: its lock bytes, the page, and what recovery found there.

1. Byte 3 of ``lock``: one ha per volume.
2. The page is fenced: whatever grant the broker had ends.
3. Byte 0, as soon as the broker has given it back.
4. What a cut or a resync left unfinished is finished.
5. The log is recovered; what is found is on disk.
6. Table and marks are compared with it.

Step before: configuration. Step after: ``replica.Replica`` begins with what was found.
"""

from __future__ import annotations

from collections.abc import Callable

from services.ha.replica_files import ReplicaFiles
from services.ha.setup import Found, Setup
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tidemark.clock import Clock


class HeldStore:
    """One store, with ha's byte locked by this process."""

    directory: StoreDir
    positions: Positions
    files: ReplicaFiles

    @classmethod
    def open(cls, directory: StoreDir, setup: Setup, clock: Clock) -> HeldStore:
        """Lock byte 3, open the page, fence, say who holds it. Blocks.

        Raises StoreLocked, GroupStore (the volume is of another node or group), DiskFull, …
        """
        raise NotImplementedError

    def recover(
        self,
        *,
        boot_id: tuple[int, int],
        progress: Callable[[int, int], None],
        stopping: Callable[[], bool],
    ) -> Found | None:
        """Take byte 0, finish what was begun, recover. Blocks; None if stopping before the end.

        Damage is not raised: it is in ``Found.halted``. Raises DiskFull, ReadOnlyDisk.
        """
        raise NotImplementedError

    def crc_before(self, end: int, size: int) -> int | None:
        """CRC-32 of the log's bytes [end − size, end); None if they are not all there."""
        raise NotImplementedError

    def stopped_clean(self) -> None:
        """Give all locks back, and remove ``abort`` if this is the last process and all is done."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the locks back and unmap."""
        raise NotImplementedError
