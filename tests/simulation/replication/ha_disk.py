"""ha's two threads for its disk: one for ``ha/`` and the epoch table, one for the log and byte 0.

Each carries out what the replica gave it in order, step by step, and reports as events. A kill
between two steps leaves what the steps before did. Follows ``services.ha.replica_disk``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from services.ha.effects import (
    Copy,
    Cut,
    PersistConfirm,
    PersistPromise,
    PersistTable,
    ReleaseAppendLock,
    Resync,
    Settle,
    TakeAppendLock,
)
from services.ha.events import Copied, CopyFault, Done, Event
from tests.simulation.replication import records
from tests.simulation.replication.history import History, Violation
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.process import Actor, Process, Steps
from tidemark.formats.checkpoint import Slot

DiskEffect = (
    Copy
    | Settle
    | PersistPromise
    | PersistTable
    | PersistConfirm
    | TakeAppendLock
    | ReleaseAppendLock
    | Cut
    | Resync
)
FileEffect = PersistPromise | PersistTable | PersistConfirm
LogEffect = Copy | Settle | TakeAppendLock | ReleaseAppendLock | Cut | Resync
SYNC_AFTER_COPIES = 8


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
        self._files_thread: Actor | None = None
        self._log_thread: Actor | None = None

    def start(self) -> None:
        """Begin both threads."""
        self._files_thread = self._process.start("files", self._run_files())
        self._log_thread = self._process.start("log", self._run_log())

    def carry_out(self, effect: DiskEffect) -> None:
        """Have it carried out behind all that its thread was given before."""
        if isinstance(effect, PersistPromise | PersistTable | PersistConfirm):
            self._files.append(effect)
            thread = self._files_thread
        else:
            self._log.append(effect)
            thread = self._log_thread
        if thread is not None:
            thread.wake()

    # -- files -----------------------------------------------------------------------------

    def _run_files(self) -> Steps:
        while True:
            while self._files:
                yield from self._write(self._files.popleft())
            yield 1_000_000

    def _write(self, effect: FileEffect) -> Steps:
        machine, volume = self._machine, self._machine.volume
        yield -machine.disk_delay_us()
        match effect:
            case PersistPromise(token, promised, seen_epoch, seen_version):
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
            case PersistTable(token, entries):
                volume.write(volume.files._replace(table=entries))
            case PersistConfirm(confirm):
                volume.write(volume.files._replace(confirm=confirm))
                self._history.check_own_confirm(machine)
        yield 0
        volume.files_synced()
        yield 0
        if not isinstance(effect, PersistConfirm):
            self._report(Done(token))

    # -- log -------------------------------------------------------------------------------

    def _run_log(self) -> Steps:
        while True:
            while self._log:
                effect = self._log.popleft()
                match effect:
                    case Copy():
                        yield from self._copy(effect)
                    case Settle(token):
                        yield from self._sync()
                        self._half.clear()
                        self._done(token)
                    case TakeAppendLock(token):
                        yield from self.take_byte_0()
                        self._done(token)
                    case ReleaseAppendLock(token):
                        self._machine.release_lock(0, self._process)
                        yield 0
                        self._report(Done(token))
                    case Cut(token):
                        yield from cut(self._machine, self._history, effect)
                        yield from self._publish_end()
                        self._done(token)
                    case Resync():
                        yield from self._resync(effect)
            yield 1_000_000

    def _done(self, token: int) -> None:
        volume = self._machine.volume
        self._report(Done(token, volume.end, volume.durable))

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
        """Append whole records, as many copies as wait here, then one sync."""
        volume = self._machine.volume
        copied: Copy | None = effect
        for _ in range(SYNC_AFTER_COPIES):
            assert copied is not None
            if copied.first:
                self._half.clear()
            if copied.offset != volume.end + len(self._half):
                self._report(
                    CopyFault("copy-gap", f"{copied.offset} is not {volume.end}", volume.end)
                )
                return
            self._half += copied.data
            whole = records.whole_size(self._half)
            volume.append(self._half[:whole])
            del self._half[:whole]
            yield 0
            if not self._log or not isinstance(self._log[0], Copy):
                break
            copied = self._log.popleft()  # type: ignore[assignment]
        yield from self._sync()
        self._report(Copied(volume.end, volume.durable))

    def _sync(self) -> Steps:
        machine = self._machine
        machine.page.publish(Slot.WRITTEN, machine.volume.end)
        yield 0
        end = machine.volume.end
        yield -machine.disk_delay_us()
        machine.volume.synced(end)
        machine.page.publish(Slot.FLUSHED, machine.volume.durable)
        yield 0

    def _publish_end(self) -> Steps:
        machine = self._machine
        for slot in (Slot.WRITTEN, Slot.FLUSHED):
            machine.page.publish(slot, machine.volume.end)
            yield 0

    def _resync(self, effect: Resync) -> Steps:
        """In place: broker and reput end first, then the store is emptied."""
        machine = self._machine
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
        volume = machine.volume
        self._report(Done(effect.token, volume.end, volume.durable, volume.incarnation))


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
