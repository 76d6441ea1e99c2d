"""Recovers the volume when ha starts: the state RECOVERING (docs/replication.md).

1. Byte 3 of ``lock`` is taken: one ha per volume.
2. The page is fenced: a grant of the broker ends.
3. Byte 0 is taken as soon as the broker has released it.
4. A cut or a resync that was not finished is finished.
5. The log is recovered; everything found is on disk.
6. Table and marks are compared with it, and the place of known damage is read again.

Damage does not end the process: the replica reports HALTED with the reason, and an operator can
order a resync. Step before: configuration. Step after: ``replica.Replica`` begins with the result.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from services.ha.core.recovered_table import contradiction, without_bytes_dropped
from services.ha.core.setup import Found, Halt
from services.ha.shell import cutting, resync
from services.ha.shell.lock_bytes import Stopping
from services.ha.shell.locked_store import LockedStore
from services.ha.shell.log_check import LogCheck
from services.ha.shell.replica_files import (
    INCARNATION_DIGITS,
    CutIntent,
    Damage,
    Promise,
    ResyncIntent,
)
from services.ha.wire.record_assembler import BadBytes
from shared.files.log_walk import LogFiles, Progress
from tidemark.errors import (
    CorruptRecord,
    DamagedFile,
    HaltedReplica,
    StrayFile,
    WrongFileSize,
)
from tidemark.formats import record
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart
from tidemark.formats.record import Checks, Kind

log = logging.getLogger(__name__)

Value = TypeVar("Value")
DAMAGES: Final = (CorruptRecord, DamagedFile, StrayFile, WrongFileSize)
NO_INCARNATION: Final = "0" * 32
"""Of a volume with a damaged identity: a member of no group."""
NOTHING: Final = Promise(promised=0, seen_epoch=0, seen_version=0)


class ReplicaStore(LockedStore):
    """A locked store, and its recovery when ha starts."""

    def recover(
        self,
        *,
        boot_id: tuple[int, int],
        progress: Callable[[int, int], None],
        stopping: Callable[[], bool],
    ) -> Found | None:
        """Take the append lock, finish what was begun, recover. Blocks; None if stopping first.

        boot_id: (high, low) of this boot of the machine. progress: called with bytes done and total
        bytes. Damage is not raised: it is in ``Found.halted``. Raises DiskFull, ReadOnlyDisk,
        OSError.
        """
        self.boot_id = boot_id
        try:
            self.take_append_lock(stopping)
            return self._found(progress, stopping)
        except Stopping:
            return None

    def _found(self, progress: Progress, stopping: Callable[[], bool]) -> Found:
        faults: list[Halt] = []
        self.files.make_durable()
        try:
            self.identity = self.files.identity()
            self._finish_intent(stopping)
            recovered = self.recover_log(progress, stopping)
        except DAMAGES as error:
            faults.append(Halt(error.code, error.detail))
            end, first_offset = self._published_ends()
        else:
            end, first_offset = recovered.end, recovered.min_offset
        promise = self._read(self.files.promise, faults)
        confirm = max(self._read(self.files.confirm, faults) or 0, self.published_confirm)
        table = without_bytes_dropped(self._read(self.files.table, faults) or (), end)
        known = self._read(self.files.damage, faults)
        if not faults:
            fault = self._fault(table, first_offset, end, confirm, known)
            if fault is not None:
                faults.append(Halt(HaltedReplica.code, fault))
        damage = "" if known is None or faults else self._known_damage(known, stopping)
        if not faults:
            self._settle(table, new=promise is None and end > first_offset)
        self.is_halted = bool(faults)
        kept = NOTHING if promise is None else promise
        return Found(
            incarnation=NO_INCARNATION if self.identity is None else self.identity.incarnation,
            # An epoch with bytes here was promised, even if the file with the promise is lost.
            promised=max(kept.promised, table[-1].epoch if table else 0),
            seen_epoch=kept.seen_epoch,
            seen_version=kept.seen_version,
            table=table,
            first_offset=first_offset,
            end=end,
            confirm=confirm,
            initialised=promise is not None,
            holds_records=end > first_offset,
            halted=_joined(faults),
            damage=damage,
        )

    def _known_damage(self, known: Damage, stopping: Callable[[], bool]) -> str:
        """Return the damage that an earlier start found, if it is still there; else empty.

        Recovery begins at the last durable mark and does not see it. Raises Stopping.
        """
        check = LogCheck(self.directory, self.positions, threading.Lock())
        try:
            looked = more = check.begin(known.at)
            while more:
                if stopping():
                    raise Stopping
                more = check.step()
        except (BadBytes, OSError):
            return known.detail
        # An older page, or an empty one, does not show what is confirmed: nothing was checked.
        if not looked and known.at >= self.positions.get(Slot.MIN):
            return known.detail
        self.files.remove_damage()
        log.info(
            "the log is sound where an earlier start found damage",
            extra={"event": "log-sound", "offset": known.at},
        )
        return ""

    def _fault(
        self,
        table: tuple[EpochStart, ...],
        first_offset: int,
        end: int,
        confirm: int,
        known: Damage | None,
    ) -> str | None:
        """Return how the log contradicts the table or the confirmed offset; None if it does not.
        known: damage that an earlier start found. The damaged record may be the first of an epoch.
        That is no contradiction, and if no other node has the log, this one must serve."""
        if end < confirm:
            return f"the log ends at {end}, below {confirm}, which was confirmed"
        log_files = self._log_files()
        try:
            return contradiction(
                table,
                first_offset=first_offset,
                end=end,
                is_border=lambda offset: (
                    (known is not None and offset == known.at) or _is_border(log_files, offset)
                ),
            )
        finally:
            log_files.close()

    def _settle(self, table: tuple[EpochStart, ...], *, new: bool) -> None:
        """Write the table and identity that fit the log. new: records that belong to no group
        yet."""
        if table != self.files.table():
            # Otherwise: 1. An entry without bytes stays. 2. Bytes of an older epoch are copied past
            # its start. 3. The next start takes them for that entry's.
            self.files.write_table(table)
        if self.identity is None:
            self.identity = self.new_identity(secrets.token_hex(INCARNATION_DIGITS // 2))
            # A store that was alone stays so until it founds a group or an operator adopts it: with
            # an identity it could not be opened alone again.
            self._identity_is_owed = new
            if not new:
                self.files.write_identity(self.identity)

    def _finish_intent(self, stopping: Callable[[], bool]) -> None:
        """Finish what the last start began. Raises DamagedFile, Stopping."""
        intent = self.files.intent()
        match intent:
            case CutIntent():
                cutting.finish(self.directory, self.positions, self.files, intent)
            case ResyncIntent():
                self.identity = self.new_identity(intent.incarnation)
                resync.finish(
                    self.directory, self.positions, self.files, intent, self.identity, stopping
                )
            case None:
                return
        log.warning(
            "a cut or a resync that was not finished is finished now",
            extra={"event": "intent-finished", "intent": str(intent)},
        )

    def _published_ends(self) -> tuple[int, int]:
        """Return end and start of a log that could not be recovered, as far as the page has
        them."""
        return self.positions.get(Slot.FLUSHED), self.positions.get(Slot.MIN)

    def _log_files(self) -> LogFiles:
        directory = self.directory
        return LogFiles(
            directory.disk, directory.commit_log_dir, directory.config.commit_log_file_size
        )

    @staticmethod
    def _read(read: Callable[[], Value], faults: list[Halt]) -> Value | None:
        try:
            return read()
        except DamagedFile as error:
            faults.append(Halt(error.code, error.detail))
            return None


def _is_border(files: LogFiles, offset: int) -> bool:
    """Return whether a record or a filler begins at offset."""
    start = files.start_of(offset)
    if start not in files.starts:
        return False
    checks = Checks(body_crc=False, record_crc=False)
    found = record.validate(files.view(start), offset - start, at=offset, checks=checks)
    return found.kind in (Kind.VALID, Kind.BLANK)


def _joined(faults: list[Halt]) -> Halt | None:
    """Return all faults as one, under the code of the first; None if there are none."""
    if not faults:
        return None
    first, *others = dict.fromkeys(faults)
    return Halt(first.code, "; ".join([first.detail, *map(str, others)]))
