"""Checks confirmed records for damage in small steps: always on a slave, on a master on request.

Old records of a slave are not read, and recovery begins at the last durable mark. Without the check
a bit that the disk lost would be found when the node is master and a consumer reads it. Each pass
compares the CRCs of every record from the start of the log to the confirm offset. Damage halts the
replica: the healthy members continue, and an operator has it copied anew.

Only confirmed bytes are checked: a cut never touches them. A resync does, under the same lock. Step
before: the log is open here. Step after: the replica gets the fault, and halts.
"""

from __future__ import annotations

import threading
from typing import Final

from services.ha.wire.record_assembler import BadBytes, RecordAssembler
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tidemark.formats.checkpoint import Slot
from tidemark.formats.filenames import offset_name

CHUNK_SIZE: Final = 1 << 20


class LogCheck:
    """Checks the log, one pass after the other. For one thread."""

    def __init__(self, store: StoreDir, positions: Positions, changing: threading.Lock) -> None:
        """changing: held while the store is emptied."""
        self._store, self._positions, self._changing = store, positions, changing
        self._records = RecordAssembler(store.config.commit_log_file_size)
        self._end = 0
        self._suspect: int | None = None
        self._until: int | None = None
        """The pass ends after the record that holds this offset; None: at its end."""
        self.passes = 0
        """Passes since the start."""

    def begin(self, at: int | None = None) -> bool:
        """Begin a pass from the start of the log to the confirm offset; return whether there is a
        record.

        at: check only the file that holds this offset, up to its record; a file begins with a
        record. Nothing is checked if that record is not known to be confirmed.
        """
        get = self._positions.get
        self._end = min(get(Slot.CONFIRM), get(Slot.FLUSHED))
        start = 0 if at is None else at - at % self._store.config.commit_log_file_size
        self._records.begin(max(get(Slot.MIN), start))
        self._suspect, self._until = None, at
        # Otherwise: 1. The power fails, and the page is an older one. 2. A pass up to its confirm
        # offset ends before the record in which an earlier start found damage. 3. The log is
        # reported as undamaged.
        return self._end > max(self._records.received, at or 0)

    def step(self) -> bool:
        """Check the next MiB; return False once the pass is over. Raises BadBytes, OSError."""
        with self._changing:
            get, records = self._positions.get, self._records
            if get(Slot.CONFIRM) < self._end:  # emptied: the old bytes are gone
                self._end = 0
            if records.received < get(Slot.MIN):  # retention removed them meanwhile
                records.begin(get(Slot.MIN))
            if self._until is not None and records.received - records.pending_size > self._until:
                self.passes += 1
                return False
            if records.received >= self._end:
                return self._over()
            data = self._read(records.received)
            if data is None:  # removed between the two loads: MIN shows it the next time
                return True
            try:
                for _ in records.take(data):
                    pass
            except BadBytes as error:
                self._judge(error)
            return True

    def _over(self) -> bool:
        waiting = self._records.pending_size
        if waiting and self._end:
            at = self._records.received - waiting
            raise BadBytes(at, f"it goes on past {self._end}, where records end")
        self.passes += 1
        return False

    def _judge(self, error: BadBytes) -> None:
        get = self._positions.get
        if get(Slot.FOREIGN_FROM) <= error.at < get(Slot.FOREIGN_UNTIL):
            # Where RocketMQ wrote, a record CRC may be a copy of another record's.
            self._records.begin(get(Slot.FOREIGN_UNTIL))
        elif self._suspect == error.at:
            raise error
        else:  # once more: another core may see the confirm offset before the bytes
            self._suspect = error.at
            self._records.begin(error.at)

    def _read(self, at: int) -> bytes | None:
        """Return the next bytes of the log, at most to the end of the pass; None if they are
        removed."""
        file_size = self._store.config.commit_log_file_size
        start = at - at % file_size
        size = min(CHUNK_SIZE, self._end - at, start + file_size - at)
        try:
            path = self._store.commit_log_dir / offset_name(start)
            file = self._store.disk.open(path, writable=False)
        except FileNotFoundError:
            if start < self._positions.get(Slot.MIN):
                return None
            raise BadBytes(at, f"the file {offset_name(start)} is missing") from None
        try:
            return file.pread(size, at - start)
        finally:
            file.close()
