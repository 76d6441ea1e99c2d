"""Effects on the disk, run in order by two threads, each answered by its event."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.ha.core.effects import (
    CheckLog,
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
from services.ha.core.events import Copied, CopyFault, Done, Event, Failed
from services.ha.shell import replica_disk
from services.ha.shell.replica_disk import ReplicaDisk
from services.ha.shell.replica_files import Promise, ResyncIntent
from services.ha.wire.record_assembler import BadBytes
from shared.files.os_disk import OsDisk
from shared.files.store_dir import LockByte
from tests.support.replica_store import FILE, MASTER, MasterLog, log_of, open_replica
from tests.support.small_store import SmallStore
from tidemark.formats.checkpoint import NodeRole, Slot
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset

LOG = MasterLog(40, seed=6)
TABLE = (EpochStart(Epoch(1), PhysicalOffset(0)),)


class Replica:
    """A replica's disk and its answers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = OsDisk()
        self.held, self.found = open_replica(self.disk, root)
        self.events: list[Event] = []
        self.changed = threading.Condition()
        self.crashes: list[BaseException] = []
        self.work = ReplicaDisk(self.held, self.take, self.crashes.append)

    def take(self, event: Event) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def wait_for(self, is_it: Callable[[Event], bool]) -> Event:
        with self.changed:
            assert self.changed.wait_for(lambda: any(map(is_it, self.events)), 10), self.events
            return next(event for event in self.events if is_it(event))

    def answer(self, token: int) -> Done | Failed:
        event = self.wait_for(
            lambda event: isinstance(event, (Done, Failed)) and event.token == token
        )
        assert isinstance(event, (Done, Failed))
        return event

    def copy(self, start: int, end: int) -> None:
        for at in range(start, end, 3000):
            self.work.carry_out(Copy(at, LOG.data[at : min(end, at + 3000)], first=at == start))


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    replica = Replica(tmp_path / "store")
    replica.work.start()
    yield replica
    replica.work.close()
    replica.held.close()
    assert not replica.crashes


def test_bytes_are_synced_and_reported_once_no_more_of_them_wait(replica: Replica) -> None:
    replica.work.carry_out(PersistTable(1, TABLE))
    middle = LOG.borders[20]
    replica.copy(0, middle)
    replica.wait_for(lambda event: event == Copied(middle, middle))
    replica.copy(middle, LOG.end)
    replica.wait_for(lambda event: event == Copied(LOG.end, LOG.end))


def test_a_follower_promises_writes_its_table_copies_and_settles(replica: Replica) -> None:
    work = replica.work
    work.carry_out(PersistPromise(1, 4, 3, 2))
    work.carry_out(PersistTable(2, TABLE))
    replica.copy(0, LOG.end)
    work.carry_out(Settle(3))
    work.carry_out(PersistConfirm(LOG.borders[4]))
    assert replica.answer(1) == Done(1)
    assert replica.answer(2) == Done(2)
    assert replica.answer(3) == Done(3, LOG.end, LOG.end)
    # Everything that was copied was reported before the answer to Settle.
    reported = [event for event in replica.events if isinstance(event, (Copied, Done))]
    assert reported.index(Copied(LOG.end, LOG.end)) < reported.index(Done(3, LOG.end, LOG.end))
    work.close()
    replica.held.close()
    _, found = open_replica(replica.disk, replica.root)
    assert (found.promised, found.seen_epoch, found.seen_version) == (4, 3, 2)
    assert (found.table, found.end, found.confirm) == (TABLE, LOG.end, LOG.borders[4])


def test_a_store_that_was_alone_says_which_volume_it_is_before_a_lease_names_it(
    tmp_path: Path,
) -> None:
    # 1. A store that was alone founds a group, and the lease names its volume. 2. ha is killed
    #    before the first promise. 3. The next start made another incarnation: the set had a member
    #    that did not exist any more, and no node could take the lease.
    root = tmp_path / "store"
    alone = SmallStore(root, MASTER)
    alone.put()
    alone.flush()
    alone.appender.close(clean=True)
    alone.close()
    replica = Replica(root)
    assert replica.held.files.identity() is None, "it may be opened alone until then"
    replica.work.start()
    replica.work.carry_out(Settle(1))
    assert isinstance(replica.answer(1), Done)
    replica.work.close()
    replica.held.close()
    _, again = open_replica(replica.disk, root)
    assert again.incarnation == replica.found.incarnation


def test_effects_given_before_the_start_are_carried_out_by_it(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "store")
    replica.copy(0, LOG.end)
    replica.work.carry_out(Settle(1))
    replica.work.start()
    assert replica.answer(1) == Done(1, LOG.end, LOG.end)
    replica.work.close()


def test_the_append_lock_is_given_to_the_broker_and_taken_back(replica: Replica) -> None:
    work, held = replica.work, replica.held
    replica.copy(0, LOG.borders[9])
    work.carry_out(ReleaseAppendLock(1))
    end = LOG.borders[8]  # a whole record; the incomplete one is dropped
    assert replica.answer(1) == Done(1, end, end)
    broker = held.directory.lock(LockByte.APPEND)
    generation = held.positions.get(Slot.GENERATION)
    work.carry_out(Settle(2))
    assert replica.answer(2) == Done(2, end, end)
    work.carry_out(TakeAppendLock(3))
    work.carry_out(Settle(4))
    # The log waits for the broker; promises do not.
    work.carry_out(PersistPromise(5, 9, 9, 9))
    assert replica.answer(5) == Done(5)
    assert not any(isinstance(event, Done) and event.token in (3, 4) for event in replica.events)
    broker.release()
    assert replica.answer(3) == Done(3, end, end)
    assert replica.answer(4) == Done(4, end, end)
    assert held.positions.get(Slot.GENERATION) == generation + 1
    replica.copy(end, LOG.end)
    work.carry_out(TakeAppendLock(6))  # it is here already
    assert replica.answer(6) == Done(6, LOG.end, LOG.end)


def test_damage_that_a_recovery_meets_is_kept_for_the_next_start(replica: Replica) -> None:
    # The next recovery began behind it, because reput had written its mark meanwhile.
    work, end, at = replica.work, LOG.borders[8], LOG.borders[7]
    replica.copy(0, end)
    replica.held.positions.publish(Slot.CONFIRM, end)
    work.carry_out(ReleaseAppendLock(1))
    replica.answer(1)
    with (replica.root / "commitlog" / f"{at - at % FILE:020}").open("r+b") as file:
        file.seek(at % FILE + 100)
        byte = file.read(1)[0] ^ 1
        file.seek(at % FILE + 100)
        file.write(bytes([byte]))
    work.carry_out(TakeAppendLock(2))
    failed = replica.wait_for(lambda event: isinstance(event, Failed))
    assert isinstance(failed, Failed)
    assert failed.code == "corrupt-record"
    kept = replica.held.files.damage()
    assert kept is not None
    assert (kept.at, kept.detail) == (at, failed.detail)


def test_a_stop_ends_the_wait_for_the_append_lock(replica: Replica) -> None:
    replica.work.carry_out(ReleaseAppendLock(1))
    replica.answer(1)
    broker = replica.held.directory.lock(LockByte.APPEND)
    replica.work.carry_out(TakeAppendLock(2))
    replica.work.close()
    broker.release()
    assert not any(isinstance(event, Done) and event.token == 2 for event in replica.events)


def test_a_cut_goes_on_with_the_other_history(replica: Replica) -> None:
    point = LOG.borders[20]
    replica.copy(0, LOG.end)
    replica.work.carry_out(Cut(1, point, TABLE))
    assert replica.answer(1) == Done(1, point, point)
    assert log_of(replica.disk, LOG.end, replica.root) == LOG.data[:point].ljust(LOG.end, b"\0")
    replica.copy(point, LOG.end)
    replica.work.carry_out(Settle(2))
    assert replica.answer(2) == Done(2, LOG.end, LOG.end)
    assert log_of(replica.disk, LOG.end, replica.root) == LOG.data


def test_a_cut_below_what_was_confirmed_just_before_is_refused(replica: Replica) -> None:
    replica.copy(0, LOG.end)
    # Given before the cut, to the other thread: the cut waits for it.
    replica.work.carry_out(PersistConfirm(LOG.borders[30]))
    replica.work.carry_out(Cut(1, LOG.borders[20], TABLE))
    answer = replica.answer(1)
    assert isinstance(answer, Failed)
    assert answer.code == "halted-replica"
    assert log_of(replica.disk, LOG.end, replica.root) == LOG.data


def test_a_resync_empties_and_copies_from_the_masters_first_byte(replica: Replica) -> None:
    replica.work.carry_out(PersistPromise(1, 4, 3, 2))
    replica.copy(0, LOG.end)
    replica.work.carry_out(PersistConfirm(LOG.end))
    replica.work.carry_out(Resync(2, 20, FILE, "too-old"))
    answer = replica.answer(2)
    assert isinstance(answer, Done)
    assert (answer.end, answer.durable) == (FILE, FILE)
    assert answer.incarnation not in ("", replica.found.incarnation)
    assert replica.held.positions.get(Slot.ROLE) == NodeRole.VOID
    assert replica.held.files.confirm() == 0
    replica.copy(FILE, LOG.end)
    replica.work.carry_out(Settle(3))
    assert replica.answer(3) == Done(3, LOG.end, LOG.end)
    replica.work.close()
    replica.held.close()
    _, found = open_replica(replica.disk, replica.root)
    assert (found.first_offset, found.end, found.promised) == (FILE, LOG.end, 4)
    assert found.incarnation == answer.incarnation


def test_a_resync_is_intended_before_broker_and_reput_have_ended(replica: Replica) -> None:
    others = [replica.held.directory.lock(role) for role in (LockByte.BROKER, LockByte.REPUT)]
    replica.copy(0, LOG.end)
    replica.work.carry_out(Resync(1, 10, 0, "operator"))
    assert replica.answer(10) == Done(10)
    assert isinstance(replica.held.files.intent(), ResyncIntent)
    assert not any(isinstance(event, Done) and event.token == 1 for event in replica.events)
    for other in others:
        other.release()
    assert isinstance(replica.answer(1), Done)
    assert replica.held.files.intent() is None


def test_a_halted_replica_touches_no_log_until_it_is_resynced(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "store")
    replica.held.files.write_confirm(LOG.end)
    replica.held.write_promise(Promise(1, 1, 1))
    replica.held.close()
    replica = Replica(tmp_path / "store")
    assert replica.found.halted is not None
    replica.work.start()
    replica.copy(0, LOG.end)
    fault = replica.wait_for(lambda event: isinstance(event, CopyFault))
    assert isinstance(fault, CopyFault)
    assert fault.code == "not-serving"
    replica.work.carry_out(Resync(1, 10, 0, "operator"))
    assert isinstance(replica.answer(1), Done)
    replica.copy(0, LOG.end)
    replica.work.carry_out(Settle(2))
    assert replica.answer(2) == Done(2, LOG.end, LOG.end)
    replica.work.close()
    replica.held.close()


def test_what_cannot_be_written_is_answered_by_name(replica: Replica) -> None:
    replica.work.carry_out(Settle(9))
    replica.answer(9)  # the log is open
    stray = replica.root / "commitlog" / "stray"
    stray.write_bytes(b"x")
    replica.work.carry_out(Cut(1, 0, ()))
    answer = replica.answer(1)
    assert isinstance(answer, Failed)
    assert answer.code == "stray-file"


def test_a_bug_in_a_thread_is_reported_and_ends_it(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "store")

    def broken(event: Event) -> None:
        raise RuntimeError("in the callback")

    work = ReplicaDisk(replica.held, broken, replica.crashes.append)
    work.start()
    work.carry_out(PersistPromise(1, 1, 1, 1))
    work.carry_out(Cut(2, 0, ()))  # does not wait forever for the thread that ended
    work.close()
    assert [str(crash) for crash in replica.crashes] == ["in the callback"]
    replica.held.close()


def test_damage_below_the_confirm_offset_is_found_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_disk, "CHECK_INTERVAL_S", 0.001)
    monkeypatch.setattr(replica_disk, "CHECK_EMPTY_INTERVAL_S", 0.001)
    replica = Replica(tmp_path / "store")
    replica.work.start()
    replica.copy(0, LOG.end)
    replica.work.carry_out(Settle(1))
    replica.answer(1)
    path = replica.root / "commitlog" / f"{FILE:020}"
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    replica.held.positions.publish(Slot.CONFIRM, LOG.end)
    fault = replica.wait_for(lambda event: isinstance(event, CopyFault))
    assert isinstance(fault, CopyFault)
    assert (fault.code, fault.end) == ("corrupt-record", LOG.end)
    assert "while confirmed records were checked" in fault.detail
    kept = replica.held.files.damage()
    assert kept is not None
    assert kept.detail == fault.detail
    assert FILE <= kept.at <= FILE + 2000
    replica.work.close()
    assert not replica.crashes


def test_the_check_goes_on_behind_a_resync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_disk, "CHECK_INTERVAL_S", 0.001)
    monkeypatch.setattr(replica_disk, "CHECK_EMPTY_INTERVAL_S", 0.001)
    monkeypatch.setattr(replica_disk, "CHECK_PASS_INTERVAL_S", 0.001)
    replica = Replica(tmp_path / "store")
    replica.work.start()

    def faults() -> list[CopyFault]:
        return [event for event in replica.events if isinstance(event, CopyFault)]

    def damage(token: int) -> None:
        replica.copy(0, LOG.end)
        replica.work.carry_out(Settle(token))
        replica.answer(token)
        with (replica.root / "commitlog" / f"{FILE:020}").open("r+b") as file:
            file.seek(2000)
            old = file.read(1)
            file.seek(2000)
            file.write(bytes((old[0] ^ 1,)))
        replica.held.positions.publish(Slot.CONFIRM, LOG.end)

    for number in (1, 2):
        damage(number)
        replica.wait_for(lambda _, number=number: len(faults()) == number)  # type: ignore[misc]
        assert faults()[-1].code == "corrupt-record"
        replica.work.carry_out(Resync(10 + number, 20 + number, 0, "operator"))
        assert isinstance(replica.answer(10 + number), Done)
        assert replica.held.files.damage() is None, "of another log"
    assert len(faults()) == 2, "the same damage is reported once"
    replica.work.close()
    assert not replica.crashes
    replica.held.close()


def test_damage_of_a_log_that_was_emptied_meanwhile_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1. The check finds a bad record. 2. Before it reports it, the store is emptied by a command.
    #    3. The report then halted the new member, whose log is intact.
    monkeypatch.setattr(replica_disk, "CHECK_INTERVAL_S", 0.001)
    replica = Replica(tmp_path / "store")
    looked = threading.Event()

    def step() -> bool:
        if looked.is_set():
            return False
        replica.work.carry_out(Resync(2, 20, 0, "operator"))
        assert isinstance(replica.answer(2), Done)
        looked.set()
        raise BadBytes(100, "a CRC")

    monkeypatch.setattr(replica.work._check, "begin", lambda at=None: True)
    monkeypatch.setattr(replica.work._check, "step", step)
    replica.work.start()
    assert looked.wait(30)
    replica.work.close()  # the check has ended, and has reported everything
    assert not [event for event in replica.events if isinstance(event, CopyFault)]
    assert replica.held.files.damage() is None
    assert not replica.crashes
    replica.held.close()


def test_a_reported_place_is_checked_amid_a_pass_which_then_goes_on(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each report made the check of the whole log begin from its start: where reports kept coming,
    # it never came to its end.
    monkeypatch.setattr(replica_disk, "CHECK_INTERVAL_S", 0.001)
    replica.copy(0, LOG.end)
    replica.work.carry_out(Settle(1))
    replica.answer(1)
    replica.held.positions.publish(Slot.CONFIRM, LOG.end)
    begun, steps, near = [], threading.Semaphore(0), threading.Event()

    def begin(at: int | None = None) -> bool:
        begun.append(at)
        return True

    def step() -> bool:
        steps.release()
        return True

    def step_near() -> bool:
        near.set()
        return False

    monkeypatch.setattr(replica.work._check, "begin", begin)
    monkeypatch.setattr(replica.work._check, "step", step)
    monkeypatch.setattr(replica.work._check_near, "step", step_near)
    replica.work.carry_out(CheckLog(500))
    assert near.wait(10)
    for _ in range(2):
        assert steps.acquire(timeout=10)
    near.clear()
    replica.work.carry_out(CheckLog(500))
    assert near.wait(10)
    while steps.acquire(blocking=False):
        pass
    assert steps.acquire(timeout=10)
    assert begun == [None]
