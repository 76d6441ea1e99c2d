"""Runs the replica's effects on its own disk, each in a thread and answered by an event.

There are two threads, so that a promise does not wait for the log: one for promise and confirm
offset, one for the log, its lock byte and its epoch table. Each runs its effects in order; a cut
and a resync also wait for earlier effects of the other thread. The log's thread may wait long for
byte 0, which a stopped broker keeps; promises are written meanwhile. A third thread checks the log
for damage.

Step before: the replica decides. Step after: its event comes back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from services.ha.core.effects import (
    CheckLog,
    Copy,
    Cut,
    DiskEffect,
    PersistConfirm,
    PersistPromise,
    PersistTable,
    ReleaseAppendLock,
    Resync,
    Settle,
    TakeAppendLock,
)
from services.ha.core.events import CopyFault, Done, Event, Failed
from services.ha.shell.copied_log import CopiedLog
from services.ha.shell.lock_bytes import Stopping
from services.ha.shell.log_check import LogCheck
from services.ha.shell.replica_files import Damage, Promise
from services.ha.shell.replica_store import ReplicaStore
from services.ha.shell.worker import Worker
from services.ha.wire.record_assembler import BadBytes
from tidemark.errors import CorruptRecord, FlushFailed, StoreError
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1 / 16
"""Interval between two MiB of the check: 16 MiB a second, at most two hundredths of a core."""
CHECK_PASS_INTERVAL_S: Final = 86_400.0
CHECK_EMPTY_INTERVAL_S: Final = 60.0
"""Interval while nothing is confirmed."""
SUSPECT_INTERVAL_S: Final = 0.01
"""Interval between two MiB of a file with reported damage: 1 GiB takes at least ten seconds."""
SUSPECTED_MAX: Final = 64


class ReplicaDisk:
    """Runs ``DiskEffect``s of one replica."""

    def __init__(
        self,
        held: ReplicaStore,
        report: Callable[[Event], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        """held: the store, opened and recovered, with the append lock held. report: called with the
        events. crashed: called with an error that ended a thread and answers no effect: the process
        must end. Both are called in threads of this object."""
        self._held, self._report = held, report
        self._copied = CopiedLog(held.directory, held.positions, report)
        self._files = Worker("ha's files", crashed)
        self._log = Worker("ha's log", crashed, first=self._begin, rest=self._copied.sync)
        self._changing = threading.Lock()
        self._check, self._check_near = (
            LogCheck(held.directory, held.positions, self._changing) for _ in range(2)
        )
        self._checking = threading.Thread(target=self._check_all, name="check", daemon=True)
        self._crashed = crashed
        self._stop = threading.Event()
        self._suspected: deque[int] = deque(maxlen=SUSPECTED_MAX)
        """Offsets around which the log is to be checked."""
        self._wake = threading.Event()
        """Set when the check has work, or is to end."""
        self._confirm_fault = ""
        self._emptied = 0
        """Number of resyncs: each begins another log."""

    def start(self) -> None:
        """Start the threads. Effects may be given before."""
        self._files.start()
        self._log.start()
        self._checking.start()

    def carry_out(self, effect: DiskEffect) -> None:
        """Run an effect after all earlier ones; return at once."""
        match effect:
            case Copy():
                self._log.put(lambda: self._copied.copy(effect))
            case CheckLog(at):
                self._suspected.append(at)
                self._wake.set()
            case PersistConfirm(confirm):
                self._files.put(lambda: self._persist_confirm(confirm))
            case PersistPromise(token):
                self._files.put(lambda: self._answer(token, lambda: self._persist_promise(effect)))
            case PersistTable(token, entries):
                self._log.put(lambda: self._answer(token, lambda: self._persist(token, entries)))
            case Settle(token):
                self._log.put(lambda: self._answer(token, lambda: self._settle(token)))
            case TakeAppendLock(token):
                self._log.put(lambda: self._answer(token, lambda: self._take(token)))
            case ReleaseAppendLock(token):
                self._log.put(lambda: self._answer(token, lambda: self._release(token)))
            case Cut(token):
                self._log.put_behind(
                    self._files, lambda: self._answer(token, lambda: self._cut(effect))
                )
            case Resync(token):
                self._log.put_behind(
                    self._files, lambda: self._answer(token, lambda: self._resync(effect))
                )

    def close(self) -> None:
        """End all threads; writes under way are finished. Blocks."""
        self._stop.set()
        self._wake.set()
        self._files.close()
        self._log.close()
        self._copied.close()
        if self._checking.ident is not None:
            self._checking.join()

    def _answer(self, token: int, carry_out: Callable[[], Done]) -> None:
        try:
            done: Event = carry_out()
        except Stopping:
            return
        except StoreError as error:
            done = Failed(token, error.code, error.detail)
        except OSError as error:
            done = Failed(token, FlushFailed.code, str(error))
        self._report(done)

    # -- the files ------------------------------------------------------------------------------

    def _persist_promise(self, effect: PersistPromise) -> Done:
        self._held.write_promise(Promise(effect.promised, effect.seen_epoch, effect.seen_version))
        return Done(effect.token)

    def _persist_confirm(self, confirm: int) -> None:
        """Write the confirm offset. A failure does no harm: the older, lower offset stays on disk,
        and the next one follows soon."""
        try:
            self._held.files.write_confirm(confirm)
        except (StoreError, OSError) as error:
            if not self._confirm_fault:
                log.warning(
                    "the confirm offset cannot be written; it is tried again and again",
                    extra={"event": "confirm-waits", "detail": str(error)},
                )
            self._confirm_fault = str(error)
            return
        self._confirm_fault = ""

    # -- the log --------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._held.is_halted:
            self._open(self._held.positions.get(Slot.WRITTEN))

    def _persist(self, token: int, entries: tuple[EpochStart, ...]) -> Done:
        self._held.files.write_table(entries)
        self._held.publish_log_epoch(entries)
        return Done(token)

    def _settle(self, token: int) -> Done:
        self._held.write_owed_identity()
        if not self._copied.is_open:  # the broker appends, or the log is halted
            return Done(token, *self._published())
        settled = self._copied.settle()
        return Done(token, settled.end, settled.durable)

    def _take(self, token: int) -> Done:
        if self._copied.is_open:
            return self._settle(token)
        self._held.take_append_lock(self._stopping)
        return self._recover(token)

    def _release(self, token: int) -> Done:
        done = self._settle(token)
        self._copied.close()
        self._held.release_append_lock()
        return done

    def _cut(self, effect: Cut) -> Done:
        self._copied.close()
        cut = self._held.cut(effect.point, effect.table)
        log.warning(
            "the log was cut where it parts from the master's",
            extra={
                "event": "log-cut",
                "end_offset": cut.end,
                "size_bytes": cut.size,
                "path": None if cut.kept is None else str(cut.kept),
            },
        )
        return self._recover(effect.token)

    def _resync(self, effect: Resync) -> Done:
        self._copied.close()
        log.warning(
            "the store is being emptied",
            extra={
                "event": "resync-began",
                "first_offset": effect.first_offset,
                "reason": effect.reason,
            },
        )

        def intended() -> None:
            self._report(Done(effect.intended))

        with self._changing:
            incarnation = self._held.resync(effect.first_offset, self._stopping, intended)
            self._emptied += 1
        return self._recover(effect.token)._replace(incarnation=incarnation)

    def _recover(self, token: int) -> Done:
        """Find the end of the log and continue there. The append lock is held, the log closed."""
        try:
            end = self._held.recover_log(lambda done, total: None, self._stopping).end
        except CorruptRecord as error:
            # A subclass concerns a whole file, and damage above the confirm offset may rightly be
            # cut off: in both cases the next recovery finds it again.
            held = self._held
            confirm = max(held.files.confirm(), held.published_confirm)
            if error.code == CorruptRecord.code and error.facts["at"] < confirm:
                # The mark at which the next recovery begins may be behind it by then.
                with self._changing:
                    self._keep(Damage(error.facts["at"], error.detail))
            raise
        self._open(end)
        return Done(token, end, end)

    def _open(self, end: int) -> None:
        self._held.publish_log_epoch(self._held.files.table())
        self._copied.open(end)

    def _published(self) -> tuple[int, int]:
        get = self._held.positions.get
        durable = get(Slot.FLUSHED)  # loaded first: WRITTEN is never below it
        return max(get(Slot.WRITTEN), durable), durable

    def _stopping(self) -> bool:
        return self._stop.is_set()

    # -- the check ------------------------------------------------------------------------------

    def _check_all(self) -> None:
        """Run pass after pass while the log is open here; after damage, once it is another log.

        Files with reported damage are checked before the next MiB of a pass.
        """
        pause_s, in_pass = CHECK_INTERVAL_S, False
        damaged: int | None = None
        try:
            while not self._wait(pause_s):
                if damaged == self._emptied:
                    self._suspected.clear()
                    pause_s = CHECK_EMPTY_INTERVAL_S
                    continue
                of_log = self._emptied
                try:
                    if self._suspected:
                        self._check_around(self._suspected.popleft())
                        pause_s = CHECK_INTERVAL_S
                        continue
                    if not self._copied.is_open:
                        continue
                    if not in_pass and not self._check.begin():
                        pause_s = CHECK_EMPTY_INTERVAL_S
                        continue
                    in_pass = self._check.step()
                except BadBytes as error:
                    detail = f"{error}; found while confirmed records were checked"
                    self._report_damage(Damage(error.at, detail), of_log)
                    damaged, in_pass = of_log, False
                pause_s = CHECK_INTERVAL_S if in_pass else CHECK_PASS_INTERVAL_S
        except Exception as error:  # noqa: BLE001 - whatever it is ends the process
            self._crashed(error)

    def _report_damage(self, damage: Damage, of_log: int) -> None:
        """Report damage, and write it for the next start, which recovers only the end of the log
        and would campaign again. Damage of a log that was emptied meanwhile is dropped: it would
        halt the new member."""
        with self._changing:
            if of_log != self._emptied:
                return
            self._keep(damage)
            self._report(CopyFault(CorruptRecord.code, damage.detail, self._published()[0]))

    def _keep(self, damage: Damage) -> None:
        try:
            self._held.files.write_damage(damage)
        except (StoreError, OSError) as error:
            log.warning(
                "where the log is damaged cannot be written: the next start does not know it",
                extra={"event": "damage-not-kept", "detail": str(error)},
            )

    def _check_around(self, at: int) -> None:
        """Check the log around reported damage. Raises BadBytes if it is damaged."""
        # A separate check: the one of the whole log would restart after each report.
        more = self._check_near.begin(at)
        looked = more
        while more and not self._stop.wait(SUSPECT_INTERVAL_S):
            more = self._check_near.step()
        if not looked:
            return
        log.info(
            "the log is sound where a reader or a slave met damage",
            extra={"event": "log-sound", "offset": at},
        )

    def _wait(self, seconds: float) -> bool:
        """Wait for that time or for work; return True if all is over."""
        if not self._suspected:
            self._wake.wait(seconds)
        self._wake.clear()
        return self._stop.is_set()
