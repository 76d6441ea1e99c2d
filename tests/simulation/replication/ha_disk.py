"""ha's threads for its disk: one for promise and confirm offset, one for log, byte 0 and epoch
table, one that syncs what is copied.

Each carries out what the replica gave it in order, step by step, and reports as events. A kill
between two steps leaves what the steps before did. Follows ``services.ha.replica_disk`` and
``copied_log``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from services.ha.effects import (
    CheckLog,
    Copy,
    Cut,
    DiskEffect,
    FileEffect,
    LogEffect,
    PersistConfirm,
    PersistPromise,
    PersistTable,
    ReleaseAppendLock,
    Resync,
    Settle,
    TakeAppendLock,
)
from services.ha.events import Copied, CopyFault, Done, Event, Failed
from tests.simulation.replication import records
from tests.simulation.replication.history import History, Violation
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.process import Actor, Process, Steps
from tidemark.formats.checkpoint import Slot

NO_ROOM = "disk-full"


class HaDisk:
    """The disk of one start of ha."""

    def __init__(
        self, machine: Machine, process: Process, history: History, report: Callable[[Event], None]
    ) -> None:
        self._machine, self._process, self._history = machine, process, history
        self._report = report
        self._files: deque[FileEffect] = deque()
        self._log: deque[LogEffect] = deque()
        self._half = bytearray()
        """A record of which only the beginning has come."""
        self._broken = False
        """Bytes were refused: nothing is taken up to the next stretch."""
        self._is_copying = True
        """Byte 0 is held here."""
        self._syncing = False
        self._files_thread: Actor | None = None
        self._log_thread: Actor | None = None
        self._sync_thread: Actor | None = None

    def start(self) -> None:
        """Begin; byte 0 is held and the log recovered."""
        self._files_thread = self._process.start("files", self._run_files())
        self._log_thread = self._process.start("log", self._run_log())
        self._sync_thread = self._process.start("sync", self._run_syncs())

    def carry_out(self, effect: DiskEffect) -> None:
        """Have it carried out behind all that its thread was given before."""
        if isinstance(effect, PersistPromise | PersistConfirm):
            self._files.append(effect)
            thread = self._files_thread
        elif isinstance(effect, CheckLog):
            raise Violation(f"{self._machine.name} takes its log for damaged; no disk lies here")
        else:
            self._log.append(effect)
            thread = self._log_thread
        if thread is not None:
            thread.wake()

    # -- files -----------------------------------------------------------------------------

    def _run_files(self) -> Steps:
        while True:
            while self._files:
                yield from self._write(self._files[0])
                self._files.popleft()
            yield 1_000_000

    def _write(self, effect: FileEffect) -> Steps:
        machine, volume = self._machine, self._machine.volume
        yield -machine.disk_delay_us()
        if machine.is_full:
            if isinstance(effect, PersistPromise):
                self._report(Failed(effect.token, NO_ROOM, "the promise was not written"))
            return
        match effect:
            case PersistPromise(_, promised, seen_epoch, seen_version):
                self._history.promised(machine, promised)
                if promised < volume.files.promised:
                    raise Violation(
                        f"{machine.name} goes back from promise {volume.files.promised} "
                        f"to {promised}"
                    )
                volume.write(
                    volume.files._replace(
                        promised=promised,
                        seen_epoch=seen_epoch,
                        seen_version=seen_version,
                        initialised=True,
                    )
                )
            case PersistConfirm(confirm):
                volume.write(volume.files._replace(confirm=confirm))
                self._history.check_own_confirm(machine)
        yield 0
        volume.files_synced()
        yield 0
        if isinstance(effect, PersistPromise):
            self._report(Done(effect.token))

    # -- log -------------------------------------------------------------------------------

    def _run_log(self) -> Steps:
        while True:
            while self._log:
                effect = self._log.popleft()
                if isinstance(effect, Copy):
                    yield from self._copy(effect)
                elif self._machine.is_full and isinstance(effect, PersistTable | Cut | Resync):
                    yield -self._machine.disk_delay_us()
                    self._report(Failed(effect.token, NO_ROOM, "nothing was written"))
                else:
                    yield from self._answer(effect)
            yield 1_000_000

    def _answer(
        self, effect: Settle | PersistTable | TakeAppendLock | ReleaseAppendLock | Cut | Resync
    ) -> Steps:
        volume = self._machine.volume
        match effect:
            case Settle():
                if self._is_copying:
                    yield from self._settle()
            case PersistTable(_, entries):
                yield -self._machine.disk_delay_us()
                volume.write(volume.files._replace(table=entries))
                yield 0
                volume.files_synced()
                yield 0
            case TakeAppendLock():
                if self._is_copying:
                    yield from self._settle()
                else:
                    yield from self.take_byte_0()
                    self._is_copying = True
            case ReleaseAppendLock():
                yield from self._settle()
                self._is_copying = False
                self._machine.release_lock(0, self._process)
                yield 0
            case Cut():
                yield from self._wait_for_files()
                yield from self._settle()
                yield from cut(self._machine, self._history, effect)
                yield from self._publish_end()
            case Resync():
                yield from self._wait_for_files()
                yield from self._resync()
        self._done(effect.token, self._machine.volume.incarnation)

    def _wait_for_files(self) -> Steps:
        """A cut and a resync come behind what the other thread was given before."""
        while self._files:
            yield -500

    def _done(self, token: int, incarnation: str) -> None:
        volume = self._machine.volume
        self._report(Done(token, volume.end, volume.durable, incarnation))

    def take_byte_0(self) -> Steps:
        """Wait for the append lock, recover, say so."""
        machine = self._machine
        while not machine.take_lock(0, self._process):
            yield -2_000
        yield -machine.disk_delay_us()
        machine.volume.recover()
        yield from self._publish_end()
        page = machine.page
        page.publish(Slot.GENERATION, page.get(Slot.GENERATION) + 1)
        yield 0

    def _copy(self, effect: Copy) -> Steps:
        """Append what is whole; the sync is another thread's."""
        volume = self._machine.volume
        if effect.first:
            self._half.clear()
            self._broken = False
        if self._broken:
            return
        if self._machine.is_full or not self._is_copying:
            self._broken = True
            code = NO_ROOM if self._is_copying else "not-serving"
            self._report(CopyFault(code, "nothing was written", volume.end))
            return
        if effect.offset != volume.end + len(self._half):
            self._broken = True
            detail = f"bytes at {effect.offset}, the log ends at {volume.end}"
            self._report(CopyFault("corrupt-record", detail, volume.end))
            return
        must_have_the_log(self._machine, "copies into it")
        self._half += effect.data
        whole = records.whole_size(self._half)
        volume.append(self._half[:whole])
        del self._half[:whole]
        yield 0
        self._machine.page.publish(Slot.WRITTEN, volume.end)
        yield 0
        if self._sync_thread is not None:
            self._sync_thread.wake()

    def _run_syncs(self) -> Steps:
        """One fdatasync after the other while there is something to sync; each is reported."""
        machine, volume = self._machine, self._machine.volume
        while True:
            end = volume.end
            if self._is_copying and volume.durable < end:
                self._syncing = True
                # More bytes than a file of ha/ has, so now and then later than one that came after.
                yield -machine.disk_delay_us() * machine.timeline.random.choice((1, 1, 4))
                volume.synced(end)
                yield 0
                machine.page.publish(Slot.FLUSHED, end)
                yield 0
                self._syncing = False
                self._report(Copied(volume.end, end))
            yield 500_000

    def _settle(self) -> Steps:
        """Drop half a record, sync what is there."""
        machine, volume = self._machine, self._machine.volume
        while self._syncing:
            yield -200
        self._half.clear()
        if volume.durable < volume.end:
            yield -machine.disk_delay_us()
            volume.synced(volume.end)
        machine.page.publish(Slot.FLUSHED, volume.end)
        yield 0

    def _publish_end(self) -> Steps:
        machine = self._machine
        for slot in (Slot.WRITTEN, Slot.FLUSHED):
            machine.page.publish(slot, machine.volume.end)
            yield 0

    def _resync(self) -> Steps:
        """In place: broker and reput end first, then the store is emptied."""
        machine = self._machine
        yield from self._settle()
        while not (machine.take_lock(1, self._process) and machine.take_lock(2, self._process)):
            yield -5_000
        yield -machine.disk_delay_us()
        machine.volume.empty()
        self._half.clear()
        for slot in (Slot.DISPATCHED, Slot.DISPATCHED_DURABLE, Slot.CONFIRM):
            machine.page.publish(slot, 0)
        yield from self._publish_end()
        machine.release_lock(1, self._process)
        machine.release_lock(2, self._process)
        yield 0


def must_have_the_log(machine: Machine, what: str) -> None:
    """Raise Violation if a broker has it: only the holder of byte 0 writes to the log."""
    if machine.appending_epoch is not None:
        raise Violation(
            f"the broker of {machine.name} has the log for epoch {machine.appending_epoch}, and "
            f"ha {what}"
        )


def cut(machine: Machine, history: History, effect: Cut) -> Steps:
    """Intent, zeros, table, intent gone: a start that finds the intent begins behind the first."""
    volume = machine.volume
    yield -machine.disk_delay_us()
    volume.write(volume.files._replace(intent=effect))
    yield 0
    volume.files_synced()
    yield 0
    yield from finish_cut(machine, history, effect)


def finish_cut(machine: Machine, history: History, effect: Cut) -> Steps:
    """The steps of a cut that a start repeats."""
    volume = machine.volume
    must_have_the_log(machine, "cuts it")
    history.check_equal_histories()
    volume.cut(effect.point)
    history.check_own_confirm(machine)
    history.check_members(f"when {machine.name} cut at {effect.point}")
    yield -machine.disk_delay_us()
    volume.cut_synced()
    yield 0
    volume.write(volume.files._replace(table=effect.table))
    yield 0
    volume.files_synced()
    yield 0
    volume.write(volume.files._replace(intent=None))
    yield 0
    volume.files_synced()
    yield 0
