"""Recovery refuses a log that lacks durable records: what counts as proof, and what does not."""

from __future__ import annotations

import random
from dataclasses import replace

import msgpack
import pytest

from shared.files.log_walk import STATE_TOPIC
from shared.files.store_dir import StoreConfig
from tests.support.next_start import FILE, OTHER_BOOT, again, fill, fill_to
from tests.support.small_store import BOOT, CONFIG, SmallStore
from tests.support.small_store import small as small
from tidemark.errors import CorruptRecord, StrayFile, WrongFileSize
from tidemark.formats.checkpoint import Slot


class TestCorruption:
    """A bad record below a durable mark: named, and not a byte changes."""

    def refused(
        self, small: SmallStore, *, boot: tuple[int, int] = BOOT, config: StoreConfig = CONFIG
    ) -> CorruptRecord:
        before = small.log_bytes()
        page = small.store.checkpoint_path.read_bytes()
        with pytest.raises(CorruptRecord) as refused:
            again(small, boot=boot, config=config)
        assert small.log_bytes() == before
        assert small.store.checkpoint_path.read_bytes() == page
        assert not small.store.cut_dir.exists()
        return refused.value

    def test_below_the_flushed_offset(self, small: SmallStore) -> None:
        units = fill(small, 12)
        small.flush()
        small.overwrite(units[4].physical_offset + 120, b"y")
        error = self.refused(small, boot=OTHER_BOOT)
        assert error.at == units[4].physical_offset
        assert "body crc" in str(error)
        assert f"flushed offset is {small.end}" in str(error)
        assert error.path == small.log_file()

    def test_a_log_that_is_shorter_than_what_was_flushed(self, small: SmallStore) -> None:
        units = fill(small, 12)
        small.flush()
        small.overwrite(units[11].physical_offset, bytes(units[11].size))
        assert self.refused(small).at == units[11].physical_offset

    def test_below_the_written_offset_while_the_page_cache_is_the_same(
        self, small: SmallStore
    ) -> None:
        fill(small, 3)
        small.flush()
        unflushed, *_ = fill(small, 3)
        small.overwrite(unflushed.physical_offset + 100, b"y")
        error = self.refused(small)
        assert error.at == unflushed.physical_offset
        assert "written in this boot" in str(error)
        assert again(small, boot=OTHER_BOOT).end == unflushed.physical_offset

    def test_below_the_end_of_a_record_that_a_queue_points_to(self, small: SmallStore) -> None:
        units = fill(small, 12)
        small.dispatch()
        small.positions.publish(Slot.FLUSHED, 0)  # an old page
        small.overwrite(units[4].physical_offset + 120, b"y")
        error = self.refused(small, boot=OTHER_BOOT)
        assert "consume queue points to" in str(error)

    @pytest.mark.parametrize("seed", range(5))
    def test_not_by_a_queue_file_full_of_garbage(self, small: SmallStore, seed: int) -> None:
        # Random bytes read as units "point" far behind the log's end. That once stopped a node with
        # a valid log for corruption, and advised to cut the log; the queue is rebuilt instead.
        fill(small, 12)
        small.dispatch(durable=True)
        path = small.queue_file("orders", 0, CONFIG.consume_queue_file_size)
        path.write_bytes(random.Random(seed).randbytes(path.stat().st_size))
        recovered = again(small, boot=OTHER_BOOT)
        assert recovered.end == small.end
        assert not recovered.dispatched_trusted

    def test_by_a_lone_unit_of_which_the_earlier_ones_never_reached_the_disk(
        self, small: SmallStore
    ) -> None:
        units = fill(small, 12)
        small.flush()
        small.positions.publish(Slot.FLUSHED, 0)
        small.positions.publish(Slot.REPUT_GENERATION, small.positions.get(Slot.GENERATION))
        small.put_unit("orders", 0, 0, units[0])
        small.put_unit("orders", 0, 7, units[7])
        small.put_unit("orders", 0, 11, units[8])
        small.overwrite(units[8].physical_offset + 120, b"y")
        assert self.refused(small, boot=OTHER_BOOT).at == units[8].physical_offset

    @pytest.mark.parametrize("why", ["visible when written", "not cut yet"])
    def test_units_prove_nothing_where_they_may_be_of_unflushed_records(
        self, small: SmallStore, why: str
    ) -> None:
        units = fill(small, 12)
        small.dispatch(flush=False)
        small.overwrite(units[4].physical_offset + 120, b"y")
        config = CONFIG
        if why == "not cut yet":
            small.positions.publish(Slot.REPUT_GENERATION, 99)
        else:
            config = StoreConfig(
                FILE,
                CONFIG.consume_queue_file_size,
                CONFIG.index_slots,
                CONFIG.index_entries,
                visible_after="written",
            )
        assert again(small, boot=OTHER_BOOT, config=config).end == units[4].physical_offset

    @pytest.mark.parametrize("shift", [0, 1])
    def test_by_a_state_record_behind_it_that_knew_of_a_larger_flushed_offset(
        self, small: SmallStore, shift: int
    ) -> None:
        fill(small, 3)
        bad = small.put(body=b"x" * 300)
        small.put(STATE_TOPIC, body=msgpack.packb({"v": 1, "flushed": bad.end - shift * bad.size}))
        fill(small, 20)
        small.overwrite(bad.physical_offset + 120, b"y")
        if shift:
            assert again(small, boot=OTHER_BOOT).end == bad.physical_offset
        else:
            error = self.refused(small, boot=OTHER_BOOT)
            assert error.at == bad.physical_offset
            assert "later state record" in str(error)

    @pytest.mark.parametrize(
        "body", [b"", b"\xc1", b"\x01", msgpack.packb({"flushed": True}), msgpack.packb([1])]
    )
    def test_other_bodies_of_state_records_are_no_proof(
        self, small: SmallStore, body: bytes
    ) -> None:
        bad = small.put(body=b"x" * 300)
        small.put(STATE_TOPIC, body=body)
        small.overwrite(bad.physical_offset + 120, b"y")
        assert again(small, boot=OTHER_BOOT).end == bad.physical_offset

    def test_below_the_confirm_offset(self, small: SmallStore) -> None:
        units = fill(small, 5)
        small.positions.publish(Slot.CONFIRM, units[3].end)
        small.overwrite(units[2].physical_offset + 120, b"y")
        config = replace(CONFIG, visible_after="confirmed")
        assert "confirm offset" in str(self.refused(small, boot=OTHER_BOOT, config=config))
        # In a standalone node no group confirms anything: the value of that slot is no proof.
        assert again(small, boot=OTHER_BOOT).end == units[2].physical_offset

    def test_a_missing_file_is_named(self, small: SmallStore) -> None:
        fill_to(small, 3 * FILE)
        small.flush()
        small.log_file(FILE).unlink()
        error = self.refused(small, boot=OTHER_BOOT)
        assert error.at == FILE
        assert f"{small.log_file(FILE).name} is missing" in str(error)

    def test_a_missing_last_file_is_named(self, small: SmallStore) -> None:
        fill_to(small, 2 * FILE)
        small.flush()
        small.appender.close(clean=True)
        small.log_file(2 * FILE).unlink()
        assert self.refused(small, boot=OTHER_BOOT).at == 2 * FILE

    def test_files_left_over_from_a_deletion_do_not_count(self, small: SmallStore) -> None:
        fill_to(small, 4 * FILE)
        small.flush()
        small.positions.publish(Slot.MIN, 2 * FILE)
        small.log_file(FILE).unlink()
        found = again(small)
        assert (found.end, found.min_offset) == (small.end, 2 * FILE)

    def test_a_short_file_and_a_foreign_one_are_named(self, small: SmallStore) -> None:
        fill(small, 5)
        small.flush()
        stranger = small.store.commit_log_dir / ".DS_Store"
        stranger.touch()
        with pytest.raises(StrayFile, match=r"DS_Store.*Move it"):
            again(small)
        stranger.unlink()
        path = small.log_file()
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(WrongFileSize, match=f"{FILE - 1} bytes.*{FILE}"):
            again(small)
