"""Looks for damage in what is confirmed, a little at a time, as long as this node is a slave; also
of a master, where a reader or a slave met damage.

Nobody reads old records of a slave, and recovery begins at the last durable mark: a bit that the
disk lost would be found when the node is master and a consumer asks. Once a pass every record's
CRCs are compared, from the log's start to the confirm offset. Damage halts the replica: the members
that are sound go on, and an operator has it copied anew.

Only confirmed bytes are looked at: a cut never touches them. A resync does, under the same lock.
Step before: the log is open here. Step after: the replica is told, and says HALTED.
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
    """One pass after the other. For one thread."""

    def __init__(self, store: StoreDir, positions: Positions, changing: threading.Lock) -> None:
        """changing: held by whoever empties the store."""
        self._store, self._positions, self._changing = store, positions, changing
        self._records = RecordAssembler(store.config.commit_log_file_size)
        self._end = 0
        self._suspect: int | None = None
        self._until: int | None = None
        """The pass is over behind the record that holds this offset; None: at its end."""
        self.passes = 0
        """Since the start."""

    def begin(self, at: int | None = None) -> bool:
        """Begin a pass, from the log's start to what is confirmed now; whether that is anything.

        at: only the file that holds this offset, up to the record there: a file begins with one.
        Nothing, if the record there is not known to be confirmed.
        """
        get = self._positions.get
        self._end = min(get(Slot.CONFIRM), get(Slot.FLUSHED))
        start = 0 if at is None else at - at % self._store.config.commit_log_file_size
        self._records.begin(max(get(Slot.MIN), start))
        self._suspect, self._until = None, at
        # 1. The power goes, and the page is an older one. 2. A pass up to its confirm offset ends
        # before the record in which an earlier start found damage. 3. The log is called sound.
        return self._end > max(self._records.received, at or 0)

    def step(self) -> bool:
        """Check the next MiB; False once the pass is over. Raises BadBytes, OSError."""
        with self._changing:
            get, records = self._positions.get, self._records
            if get(Slot.CONFIRM) < self._end:  # emptied: nothing of before is here
                self._end = 0
            if records.received < get(Slot.MIN):  # expired meanwhile
                records.begin(get(Slot.MIN))
            if self._until is not None and records.received - records.pending_size > self._until:
                self.passes += 1
                return False
            if records.received >= self._end:
                return self._over()
            data = self._read(records.received)
            if data is None:  # expired between the two looks: MIN tells the next time
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
        else:  # once more: a processor may show the confirm offset before the bytes
            self._suspect = error.at
            self._records.begin(error.at)

    def _read(self, at: int) -> bytes | None:
        """The next bytes of the log, at most to the end of the pass; None if they are gone."""
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
