"""A log that lacks a file is refused by name; one whose beginning has expired is not."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from shared.files.log_start import read_log_start, write_log_start
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.recovery import recover
from shared.files.store_dir import StoreDir
from tests.support.next_start import FILE, OTHER_BOOT, again, fill, fill_to
from tests.support.small_store import BOOT, CONFIG, SmallStore
from tests.support.small_store import small as small
from tidemark.errors import LogFileReplaced, LogFilesMissing
from tidemark.formats.checkpoint import Slot

GROUPED = dataclasses.replace(CONFIG, visible_after="confirmed")


def filled(small: SmallStore, files: int = 3) -> int:
    """Make a log of some files, flushed and closed; return its end."""
    fill_to(small, files * FILE)
    fill(small, 2)
    small.flush()
    small.appender.close(clean=False)
    return small.end


def shorten(small: SmallStore, files: int) -> None:
    """Delete the first file as retention does, in its order."""
    first = small.positions.get(Slot.MIN)
    small.positions.publish(Slot.MIN, files * FILE)
    small.positions.sync()
    write_log_start(OsDisk(), small.store.log_start_path, files * FILE)
    for start in range(first, files * FILE, FILE):
        small.log_file(start).unlink()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["nothing", "checkpoint", "log-start"])
@pytest.mark.parametrize("boot", [BOOT, OTHER_BOOT])
def test_the_first_file_is_missing(
    small: SmallStore, lost: str, boot: tuple[int, int], *, clean: bool
) -> None:
    """A node went on serving without the messages of that file, ready, and silently."""
    filled(small)
    kept = small.log_file(0).read_bytes()
    small.log_file(0).unlink()
    if lost != "nothing":
        (small.store.root / lost).unlink()
    before = small.log_bytes()
    with pytest.raises(LogFilesMissing) as refused:
        again(small, boot=boot, clean=clean)
    assert (refused.value.at, refused.value.found) == (0, FILE)
    assert refused.value.path == small.log_file(0)
    assert f"--begin-at {FILE} --yes" in str(refused.value)
    assert small.log_bytes() == before
    small.log_file(0).write_bytes(kept)
    assert again(small, boot=boot, clean=clean).end == small.end


@pytest.mark.parametrize("lost", ["nothing", "checkpoint", "log-start", "both"])
def test_an_expired_beginning_is_not_missing(small: SmallStore, lost: str) -> None:
    fill_to(small, 3 * FILE)
    small.flush()
    shorten(small, 2)
    small.close()
    for name in ("checkpoint", "log-start"):
        if lost in (name, "both"):
            (small.store.root / name).unlink()
    found = again(small)
    assert (found.min_offset, found.end) == (2 * FILE, small.end)
    assert found.is_min_recorded == (lost != "both")
    assert again(small).is_min_recorded
    assert read_log_start(OsDisk(), small.store.log_start_path) == 2 * FILE


@pytest.mark.parametrize("old", ["checkpoint", "log-start"])
def test_an_old_copy_of_one_witness_does_not_call_a_sound_log_damaged(
    small: SmallStore, old: str
) -> None:
    fill_to(small, 3 * FILE)
    small.flush()
    copy = (small.store.root / old).read_bytes()
    shorten(small, 2)
    small.close()
    (small.store.root / old).write_bytes(copy)
    assert again(small).min_offset == 2 * FILE


def test_a_kill_between_the_minimum_and_the_name_leaves_the_file(small: SmallStore) -> None:
    fill_to(small, 3 * FILE)
    small.flush()
    small.positions.publish(Slot.MIN, FILE)
    small.positions.sync()
    write_log_start(OsDisk(), small.store.log_start_path, FILE)
    small.close()
    assert again(small).min_offset == 0
    small.log_file(0).unlink()
    with pytest.raises(LogFilesMissing):
        again(small)


@pytest.mark.parametrize("lost", ["nothing", "checkpoint", "log-start"])
def test_all_files_with_records_are_missing(small: SmallStore, lost: str) -> None:
    """Only preallocated files are left: an empty log that begins somewhere has the same files."""
    filled(small)
    ahead = small.end - small.end % FILE + FILE
    small.log_file(ahead).write_bytes(bytes(FILE))
    for start in range(0, ahead, FILE):
        small.log_file(start).unlink()
    if lost != "nothing":
        (small.store.root / lost).unlink()
    with pytest.raises(LogFilesMissing):
        again(small)


@pytest.mark.parametrize("shortened", [0, 1])
def test_all_files_are_missing(small: SmallStore, shortened: int) -> None:
    """The message named only `store repair`, whose cuts healed nothing."""
    fill_to(small, 3 * FILE)
    small.flush()
    if shortened:
        shorten(small, shortened)
    small.close()
    for path in small.store.commit_log_dir.glob("0*"):
        path.unlink()
    with pytest.raises(LogFilesMissing, match="`--begin-at` with which an empty log"):
        again(small)


def test_a_log_that_was_used_and_holds_no_record(small: SmallStore) -> None:
    """No witness is left; still, retention keeps the last file that has records."""
    fill_to(small, 2 * FILE)
    small.flush()
    shorten(small, 1)
    small.close()
    small.log_file(FILE).write_bytes(bytes(FILE))
    for name in ("checkpoint", "log-start"):
        (small.store.root / name).unlink()
    shutil.rmtree(small.store.consume_queues_dir)
    with pytest.raises(LogFilesMissing, match="holds no record"):
        again(small)


def test_a_file_between_two_others_is_missing_below_the_start_of_the_walk(
    small: SmallStore,
) -> None:
    fill_to(small, 4 * FILE)
    small.dispatch(durable=True)
    small.close()
    small.log_file(FILE).unlink()
    with pytest.raises(LogFilesMissing) as refused:
        again(small)
    assert (refused.value.at, refused.value.found) == (FILE, 2 * FILE)


def test_the_last_file_is_missing_below_the_start_of_the_walk(small: SmallStore) -> None:
    """The node made an empty file in its place and acknowledged messages into it."""
    filled(small)
    small.dispatch(durable=True)
    last = small.end - small.end % FILE
    small.log_file(last).unlink()
    with pytest.raises(LogFilesMissing, match="repair --cut-at") as refused:
        again(small, clean=True)
    assert (refused.value.at, refused.value.found) == (last, None)


def test_files_removed_by_rocketmq_are_not_missing(small: SmallStore) -> None:
    filled(small)
    small.log_file(0).unlink()
    (small.store.config_dir / "topics.json").write_text('{"topicConfigTable": {}}')
    assert again(small, clean=True).min_offset == FILE


def test_an_operator_can_accept_the_present_beginning_of_the_log(small: SmallStore) -> None:
    filled(small)
    small.log_file(0).unlink()
    store = StoreDir(OsDisk(), small.store.root, CONFIG)
    store.open_or_create()
    positions = Positions.open(store.disk, store.checkpoint_path)
    found = recover(store, positions, boot_id=BOOT, begin_at=FILE)
    positions.close()
    assert (found.min_offset, found.end) == (FILE, small.end)
    assert again(small).min_offset == FILE


class TestWhileUp:
    """No message is acked for a file that cannot be found again."""

    @pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
    def test_a_flush_of_a_file_without_its_name_fails_for_good(
        self, small: SmallStore, how: str
    ) -> None:
        fill(small, 2)
        small.flush()
        flushed = small.positions.get(Slot.FLUSHED)
        path = small.log_file(0)
        content = path.read_bytes()
        if how == "moved":
            path.rename(small.store.root / "elsewhere")
        else:
            path.unlink()
        if how == "replaced":
            path.write_bytes(content)
        fill(small, 1)
        for _ in range(2):
            with pytest.raises(LogFileReplaced, match=f"up to physical offset {flushed}"):
                small.appender.flush()
        assert small.positions.get(Slot.FLUSHED) == flushed


class TestBesideABroker:
    """In a group: ha of a slave recovers the store while the slave's broker deletes files."""

    def test_a_minimum_that_the_broker_has_published_is_not_taken_back(
        self, small: SmallStore
    ) -> None:
        # 1. The broker publishes the minimum. 2. ha starts, finds the old file, and took it for the
        # log's first. 3. The broker removes the file: every reader and the next start missed it.
        fill_to(small, 3 * FILE)
        small.flush()
        small.positions.publish(Slot.MIN, FILE)
        found = again(small, config=GROUPED)
        assert (found.min_offset, found.end) == (FILE, small.end)
        assert small.positions.get(Slot.MIN) == FILE
        shorten(small, 1)
        small.close()
        assert again(small, config=GROUPED).min_offset == FILE

    def test_a_minimum_that_moves_during_the_recovery_stays(self, small: SmallStore) -> None:
        # Recovery published what it had found at its beginning, and wrote that to log-start.
        fill_to(small, 4 * FILE)
        small.dispatch(durable=True)
        shorten(small, 1)

        def raise_minimum(done: int, total: int) -> None:
            if small.log_file(FILE).exists():
                shorten(small, 2)

        store = StoreDir(OsDisk(), small.store.root, GROUPED)
        small.store.mark_running()
        store.open_or_create()
        recover(store, small.positions, boot_id=BOOT, progress=raise_minimum)
        assert small.positions.get(Slot.MIN) == 2 * FILE
        assert read_log_start(OsDisk(), store.log_start_path) == 2 * FILE
        small.close()
        assert again(small, config=GROUPED).min_offset == 2 * FILE

    @pytest.mark.parametrize("lost", ["nothing", "checkpoint", "log-start"])
    def test_a_missing_first_file_is_damage_in_a_group_too(
        self, small: SmallStore, lost: str
    ) -> None:
        fill_to(small, 3 * FILE)
        small.flush()
        shorten(small, 1)
        small.close()
        if lost != "nothing":
            (small.store.root / lost).unlink()
        small.log_file(FILE).unlink()
        with pytest.raises(LogFilesMissing):
            again(small, config=GROUPED)

    def test_log_start_alone_hides_no_file(self, small: SmallStore) -> None:
        """It may be of the store before a resync; a resync makes the page anew."""
        fill_to(small, 3 * FILE)
        small.flush()
        small.close()
        write_log_start(OsDisk(), small.store.log_start_path, FILE)
        assert again(small, config=GROUPED).min_offset == 0
