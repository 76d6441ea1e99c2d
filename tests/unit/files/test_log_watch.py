"""A log file that is replaced under an epoch is detected; one that a slave rewrote is no fault."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from shared.files.log_watch import LogWatch
from tests.support.next_start import FILE, fill, fill_to
from tests.support.small_store import SmallStore
from tests.support.small_store import small as small
from tidemark.errors import LogFileReplaced
from tidemark.formats.checkpoint import Slot


@pytest.fixture
def watch(small: SmallStore) -> LogWatch:
    fill_to(small, 2 * FILE)
    fill(small, 1)
    small.flush()
    watch = LogWatch(small.store, small.positions)
    assert watch.fault(4) is None
    return watch


def remove(small: SmallStore) -> None:
    small.log_file(FILE).unlink()


def copy(small: SmallStore) -> None:
    path = small.log_file(FILE)
    shutil.copy(path, small.store.root / "copy")
    (small.store.root / "copy").rename(path)


def grow(small: SmallStore) -> None:
    with small.log_file(FILE).open("ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize("change", [remove, copy, grow])
def test_a_changed_file_is_named(
    small: SmallStore, watch: LogWatch, change: Callable[[SmallStore], None]
) -> None:
    change(small)
    fault = watch.fault(4)
    assert isinstance(fault, LogFileReplaced)
    assert fault.path == small.log_file(FILE)


def test_files_that_were_made_anew_between_two_epochs_are_no_fault(
    small: SmallStore, watch: LogWatch
) -> None:
    # 1. Master in epoch 4; 2. a slave, whose log is cut over a file's border and copied again;
    # 3. master in epoch 6. The broker ended and the next node took over.
    copy(small)
    assert watch.fault(6) is None
    copy(small)
    assert isinstance(watch.fault(6), LogFileReplaced)


def test_a_missing_file_of_a_slaves_confirmed_log_is_found(
    small: SmallStore, watch: LogWatch
) -> None:
    small.positions.publish(Slot.CONFIRM, small.end)
    assert watch.missing() is None
    copy(small)
    assert watch.missing() is None, "ha may have made it anew"
    remove(small)
    assert watch.missing() == FILE
    small.positions.publish(Slot.MIN, 2 * FILE)
    assert watch.missing() is None, "retention has removed it"
    small.positions.publish(Slot.MIN, 0)
    small.positions.publish(Slot.CONFIRM, FILE)
    assert watch.missing() is None, "it was not confirmed"
