"""The lease in a directory: compare-and-set, however long a writer is stopped between two steps."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from services.ha.core.effects import LeaseCreate, LeaseGet, LeasePut
from services.ha.core.events import LeaseOutcome
from services.ha.lease import directory
from services.ha.lease.directory import VERSIONS_KEPT, DirectoryLease, DirectoryObject
from services.ha.lease.interface import Outcome, carry_out
from services.ha.lease.texts import UnreadableLease, size_with_all
from services.ha.lease.value import Holder, Lease, Member, Stored
from tests.support.lease_contract import FREE, HOLDER, LeaseContract
from tidemark.offsets import Epoch

NAME = "tidemark-g0"


def found(outcome: Outcome) -> Stored:
    assert outcome.outcome in (LeaseOutcome.FOUND, LeaseOutcome.APPLIED), outcome
    assert outcome.stored is not None
    return outcome.stored


def advance(lease: DirectoryObject, times: int) -> Stored:
    """Renew it `times` times, by another writer than the one under test."""
    stored = found(lease.get())
    for renewed in range(times):
        stored = found(lease.put(stored.lease._replace(renewed=renewed), stored))
    return stored


@pytest.fixture
def made(tmp_path: Path) -> DirectoryObject:
    lease = DirectoryObject(tmp_path, NAME)
    assert lease.get().outcome is LeaseOutcome.ABSENT
    assert lease.create(FREE).outcome is LeaseOutcome.APPLIED
    return lease


@pytest.fixture
async def lease(tmp_path: Path) -> AsyncIterator[DirectoryLease]:
    store = DirectoryLease(tmp_path, NAME)
    yield store
    await store.close()


class TestContract(LeaseContract):
    """Of the object ``lease``."""


def test_only_one_creates_the_object(made: DirectoryObject, tmp_path: Path) -> None:
    first = found(made.get())
    other = DirectoryObject(tmp_path, NAME)
    assert other.create(FREE._replace(epoch=Epoch(9))) == Outcome(LeaseOutcome.CONFLICT)
    assert found(made.get()) == first
    assert [entry.name for entry in tmp_path.iterdir()] == [NAME]


def test_old_versions_do_not_pile_up(made: DirectoryObject, tmp_path: Path) -> None:
    advance(made, 100)
    assert len(list((tmp_path / NAME).iterdir())) == VERSIONS_KEPT + 1  # and the link uid


def test_what_a_killed_writer_left_to_remove_is_removed_a_piece_at_a_time(
    made: DirectoryObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(DirectoryObject, "_remove_old", lambda *_, **__: None)
        advance(made, 50)
    monkeypatch.setattr(directory, "REMOVED_MAX", 5)
    for kept in (47, 43, 39):
        advance(made, 1)
        assert len(list((tmp_path / NAME).iterdir())) == kept + 1
    advance(made, 20)
    assert len(list((tmp_path / NAME).iterdir())) == VERSIONS_KEPT + 1


@pytest.mark.parametrize("written_meanwhile", range(3 * VERSIONS_KEPT))
def test_a_writer_stopped_before_its_link_is_refused_however_late_it_goes_on(
    made: DirectoryObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_meanwhile: int
) -> None:
    # After VERSIONS_KEPT writes of others the name that it makes is free again.
    base = advance(made, 3)
    others = DirectoryObject(tmp_path, NAME)
    make_link = Path.symlink_to

    def stopped(path: Path, text: str) -> None:
        monkeypatch.setattr(Path, "symlink_to", make_link)
        advance(others, written_meanwhile)
        make_link(path, text)

    monkeypatch.setattr(Path, "symlink_to", stopped)
    late = made.put(FREE._replace(epoch=Epoch(99)), base)
    if not written_meanwhile:
        assert late.outcome is LeaseOutcome.APPLIED
        return
    assert late == Outcome(LeaseOutcome.CONFLICT)
    assert found(others.get()).lease.epoch == 1
    assert found(advance_once := others.put(FREE, found(others.get()))) == advance_once.stored


@pytest.mark.parametrize("written_meanwhile", range(3 * VERSIONS_KEPT))
def test_a_writer_stopped_after_its_link_never_claims_what_it_does_not_know(
    made: DirectoryObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_meanwhile: int
) -> None:
    base = advance(made, 3)
    others = DirectoryObject(tmp_path, NAME)
    make_link = Path.symlink_to

    def stopped(path: Path, text: str) -> None:
        monkeypatch.setattr(Path, "symlink_to", make_link)
        make_link(path, text)
        advance(others, written_meanwhile)

    monkeypatch.setattr(Path, "symlink_to", stopped)
    late = made.put(FREE._replace(epoch=Epoch(99)), base)
    # It was applied. The answer "refused" is allowed when others have gone far beyond: the process
    # then reads, and finds a version that moved.
    overtaken = written_meanwhile >= VERSIONS_KEPT - 1
    assert late.outcome is (LeaseOutcome.CONFLICT if overtaken else LeaseOutcome.APPLIED)
    assert found(others.get()).lease.epoch == 99
    advance(others, 2)


@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("written_meanwhile", [1, 2, VERSIONS_KEPT, 5 * VERSIONS_KEPT])
def test_a_reader_stopped_between_any_two_reads_returns_what_was_the_newest_meanwhile(
    made: DirectoryObject,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    written_meanwhile: int,
) -> None:
    before = advance(made, 3)
    others = DirectoryObject(tmp_path, NAME)
    reads = itertools.count()
    newest = [before]
    look = directory._target

    def stopped(path: Path) -> str | None:
        if next(reads) == step:
            with monkeypatch.context() as going_on:
                going_on.setattr(directory, "_target", look)
                newest.append(advance(others, written_meanwhile))
        return look(path)

    monkeypatch.setattr(directory, "_target", stopped)
    assert found(made.get()) in newest


def test_a_listing_that_misses_names_does_not_hide_the_newest(
    made: DirectoryObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Names made or removed while a directory is listed may be missing in the listing.
    newest = advance(made, 5)
    for listed in ([1], [3], [5], [2, 4]):
        monkeypatch.setattr(DirectoryObject, "_numbers", lambda *_, listed=listed: listed)
        assert found(made.get()) == newest


def test_a_late_link_that_is_listed_alone_is_not_taken_for_the_newest(
    made: DirectoryObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1. A writer reads 3 and is stopped. 2. Versions up to 24 are written, and 4 is removed. 3. The
    #    writer makes 4 and is stopped before it removes it again. 4. A listing shows only 4.
    base = advance(made, 2)
    newest = advance(made, 21)
    late = Lease(HOLDER, Epoch(99), (), 1, 1, ())
    text, _ = directory._encoded(late, 4, previous=base.version)
    (tmp_path / NAME / f"4.{base.uid}").symlink_to(text)
    list_names = DirectoryObject._numbers
    listings = itertools.chain([[4], [4]], itertools.repeat(None))
    monkeypatch.setattr(
        DirectoryObject,
        "_numbers",
        lambda self, uid: next(listings) or list_names(self, uid),
    )
    assert found(made.get()) == newest


def test_a_late_writer_to_a_deleted_object_adds_nothing_to_the_next_one(
    made: DirectoryObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = advance(made, 3)
    others = DirectoryObject(tmp_path, NAME)
    make_link = Path.symlink_to

    def stopped(path: Path, text: str) -> None:
        monkeypatch.setattr(Path, "symlink_to", make_link)
        shutil.rmtree(tmp_path / NAME)
        others.create(FREE._replace(epoch=Epoch(5)))
        advance(others, 3)
        make_link(path, text)

    monkeypatch.setattr(Path, "symlink_to", stopped)
    assert made.put(FREE._replace(epoch=Epoch(99)), base) == Outcome(LeaseOutcome.CONFLICT)
    assert advance(others, 30).lease.epoch == 5
    assert made.put(FREE, base) == Outcome(LeaseOutcome.CONFLICT)


def test_a_deleted_object_is_absent_and_revived_by_no_write(
    made: DirectoryObject, tmp_path: Path
) -> None:
    base = found(made.get())
    shutil.rmtree(tmp_path / NAME)
    assert made.get() == Outcome(LeaseOutcome.ABSENT)
    assert made.put(FREE, base) == Outcome(LeaseOutcome.ABSENT)
    assert made.get() == Outcome(LeaseOutcome.ABSENT)


def test_a_directory_that_is_not_there_is_not_an_absent_lease(tmp_path: Path) -> None:
    lease = DirectoryObject(tmp_path / "not-mounted", NAME)
    with pytest.raises(FileNotFoundError):
        lease.get()
    with pytest.raises(FileNotFoundError):
        lease.create(FREE)


def test_an_object_half_removed_or_damaged_is_neither_found_nor_absent(
    made: DirectoryObject, tmp_path: Path
) -> None:
    advance(made, 2)
    uid = found(made.get()).uid
    newest = tmp_path / NAME / f"3.{uid}"
    for target in ("not json", "[]", '{"holder":"x"}'):
        newest.unlink()
        newest.symlink_to(target)
        with pytest.raises(UnreadableLease):
            made.get()
    newest.unlink()
    newest.touch()
    with pytest.raises(UnreadableLease, match="not a symbolic link"):
        made.get()
    newest.unlink()
    (tmp_path / NAME / "uid").unlink()
    with pytest.raises(UnreadableLease, match="being removed, or damaged"):
        made.get()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "permission denied; let the user of ha write there"),
        (errno.ENOSPC, "no space left on device; make room on its disk"),
        (errno.EROFS, "read-only file system; mount it so that it can be written"),
        (errno.EIO, "input/output error; check its disk"),
    ],
)
async def test_a_directory_that_fails_is_named_with_what_to_do(
    made: DirectoryObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    found(made.get())

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/link")

    monkeypatch.setattr(os, "readlink", refuse)
    store = DirectoryLease(tmp_path, NAME)
    assert (await store.get()).reason == f"the lease directory {tmp_path}: {words}"
    await store.close()


async def test_a_link_that_cannot_be_read_is_named_with_what_to_do(
    made: DirectoryObject, tmp_path: Path
) -> None:
    base = advance(made, 2)
    strange = tmp_path / NAME / f"4.{base.uid}"
    strange.symlink_to("not json")
    store = DirectoryLease(tmp_path, NAME)
    reason = (await store.get()).reason
    assert reason.startswith(f"{strange}: its content is not JSON. A living master replaces it")
    assert reason.endswith("put its text back or remove it")
    await store.close()


@pytest.mark.parametrize("healed", ["put back", "removed", "put back as an older version"])
@pytest.mark.parametrize("damage", ["not json", "[]", None])
def test_a_newest_link_that_was_unreadable_for_a_while_does_not_wedge_the_lease(
    made: DirectoryObject, tmp_path: Path, healed: str, damage: str | None
) -> None:
    # 1. The newest link, 4, cannot be read. 2. Its holder writes link 5, and cannot compare 4 with
    #    its base. 3. Link 4 is removed, or replaced by another text: once, 5 proved nothing then,
    #    and no read, write or command of an operator could continue from there.
    older = advance(made, 2)
    base = found(made.put(FREE._replace(holder=HOLDER), older))
    newest = tmp_path / NAME / f"4.{base.uid}"
    text = os.readlink(newest)  # noqa: PTH115 - a text
    newest.unlink()
    if damage is None:
        newest.touch()
    else:
        newest.symlink_to(damage)
    renewed = found(made.put(base.lease._replace(renewed=7), base))
    others = DirectoryObject(tmp_path, NAME)
    assert found(others.get()) == renewed
    newest.unlink()
    if healed == "put back":
        newest.symlink_to(text)
    elif healed != "removed":
        newest.symlink_to(os.readlink(tmp_path / NAME / f"3.{base.uid}"))  # noqa: PTH115
    assert found(others.get()) == renewed
    assert found(others.put(renewed.lease._replace(renewed=8), renewed)).lease.renewed == 8
    assert advance(made, 20).lease.holder == HOLDER
    assert len(list((tmp_path / NAME).iterdir())) == VERSIONS_KEPT + 1


def test_a_newest_link_on_a_bad_block_does_not_wedge_the_lease(
    made: DirectoryObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its holder wrote link 5, could not compare 4 with its base, and neither read nor wrote again.
    older = advance(made, 2)
    base = found(made.put(FREE._replace(holder=HOLDER), older))
    bad, readlink = tmp_path / NAME / f"4.{base.uid}", os.readlink

    def read(path: Path) -> str:
        if path == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return readlink(path)

    monkeypatch.setattr(os, "readlink", read)
    others = DirectoryObject(tmp_path, NAME)
    with pytest.raises(UnreadableLease, match=r"/4\..*: Input/output error\. A living master"):
        others.get()
    renewed = found(made.put(base.lease._replace(renewed=7), base))
    assert found(others.get()) == renewed
    assert advance(made, 20).lease.holder == HOLDER
    assert not os.path.lexists(bad)


@pytest.mark.parametrize("number", [errno.EIO, errno.EUCLEAN, errno.EBADMSG])
def test_a_link_whose_inode_is_on_a_bad_block_is_left_where_it_is(
    made: DirectoryObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    # It can be neither read nor removed. Each write after it was made, and reported as failed.
    base = advance(made, 3)
    bad = tmp_path / NAME / f"4.{base.uid}"

    def failing(call: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def called(path: Path) -> Any:
            if path == bad:
                raise OSError(number, os.strerror(number), str(path))
            return call(path)

        return called

    monkeypatch.setattr(os, "readlink", failing(os.readlink))
    monkeypatch.setattr(os, "unlink", failing(os.unlink))
    monkeypatch.setattr(directory, "REMOVED_MAX", 4)
    newest = found(made.put(FREE._replace(holder=HOLDER, renewed=7), base))
    assert found(DirectoryObject(tmp_path, NAME).get()) == newest
    newest = advance(made, 20)
    assert newest.lease.holder == HOLDER
    assert found(DirectoryObject(tmp_path, NAME).get()) == newest
    assert os.path.lexists(bad)
    # The bad one, and the link `uid`.
    assert len(list((tmp_path / NAME).iterdir())) == VERSIONS_KEPT + 2


def test_a_newest_link_that_is_unreadable_is_the_newest_until_it_is_gone(
    made: DirectoryObject, tmp_path: Path
) -> None:
    # It may be another node's acquisition: no process writes behind a version that it has not read.
    base = advance(made, 2)
    strange = tmp_path / NAME / f"4.{base.uid}"
    strange.symlink_to("not json")
    with pytest.raises(UnreadableLease):
        made.get()
    assert made.put(FREE._replace(epoch=Epoch(9)), base) == Outcome(LeaseOutcome.CONFLICT)
    assert not os.path.lexists(tmp_path / NAME / f"5.{base.uid}")
    strange.unlink()
    assert found(made.get()) == base
    assert found(made.put(FREE._replace(epoch=Epoch(9)), base)).lease.epoch == 9


def test_a_late_writer_behind_a_damaged_link_does_not_succeed(
    made: DirectoryObject, tmp_path: Path
) -> None:
    base = advance(made, 3)
    newest = advance(made, 30)
    (tmp_path / NAME / f"4.{base.uid}").symlink_to("not json")
    with pytest.raises(UnreadableLease):
        made.put(FREE._replace(epoch=Epoch(99)), base)
    assert found(made.get()) == newest


def test_what_counts_is_on_disk_before_it_is_reported_and_a_renewal_does_not_wait(
    made: DirectoryObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(directory, "_sync_directory", synced.append)
    advance(made, 5)
    assert synced == []
    found(made.put(FREE._replace(epoch=Epoch(2)), found(made.get())))
    assert synced == [tmp_path / NAME]
    # Another process may have made the link, or the object, and died before its sync: the reader
    # does it.
    reader = DirectoryObject(tmp_path, NAME)
    reader.get()
    reader.get()
    assert synced == [tmp_path / NAME, tmp_path / NAME, tmp_path]


async def test_requests_are_answered_by_number_and_errors_are_unknown(tmp_path: Path) -> None:
    store = DirectoryLease(tmp_path, NAME)
    assert (await carry_out(store, LeaseGet(1), 5000)).outcome is LeaseOutcome.ABSENT
    created = await carry_out(store, LeaseCreate(2, FREE), 5000)
    assert (created.request, created.outcome) == (2, LeaseOutcome.APPLIED)
    assert created.stored is not None
    written = await carry_out(store, LeasePut(3, FREE._replace(renewed=1), created.stored), 5000)
    assert written.outcome is LeaseOutcome.APPLIED
    assert await store.announce("master") == ""
    gone = DirectoryLease(tmp_path / "gone", NAME)
    answer = await carry_out(gone, LeaseGet(4), 5000)
    assert answer.outcome is LeaseOutcome.UNKNOWN
    assert answer.reason == (
        f"the lease directory {tmp_path / 'gone'}: no such file or directory; "
        "mount it, or make it, at the path in `cluster.lease_dir`"
    )
    await store.close()
    await gone.close()


async def test_a_request_that_takes_too_long_is_unknown_and_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryLease(tmp_path, NAME)
    go_on = asyncio.Event()
    loop = asyncio.get_running_loop()
    get = DirectoryObject.get

    def slow(lease: DirectoryObject) -> Outcome:
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        return get(lease)

    monkeypatch.setattr(DirectoryObject, "get", slow)
    answer = await carry_out(store, LeaseGet(1), 20)
    assert (answer.outcome, answer.reason) == (LeaseOutcome.UNKNOWN, "no answer within 20 ms")
    go_on.set()
    assert (await carry_out(store, LeaseGet(2), 5000)).outcome is LeaseOutcome.ABSENT
    await store.close()


def test_a_lease_of_the_reckoned_size_fits_a_link(tmp_path: Path) -> None:
    assert directory.size_max(tmp_path / "none") == directory.LINK_SIZE_LEAST
    size_max = directory.size_max(tmp_path)
    assert list(tmp_path.iterdir()) == []
    name = "n" * 63
    lease = FREE._replace(
        holder=Holder(name, "1f" * 16, "0123456789abcdef"),
        in_sync=(Member(name, "1f" * 16),),
        replicas=(name,),
        handover_to=name,
        paused=True,
        renewed=(1 << 63) - 1,
        in_sync_version=(1 << 31),
    )
    made = DirectoryObject(tmp_path, NAME)
    stored = found(made.create(lease))
    (link,) = (tmp_path / NAME).glob("1.*")
    assert len(str(link.readlink())) <= size_with_all(lease)
    rest = size_max - size_with_all(lease) - len('"masterAddr":"",')
    longest = lease._replace(master_address="h" * rest)
    assert size_with_all(longest) == size_max
    found(made.put(longest, stored))
