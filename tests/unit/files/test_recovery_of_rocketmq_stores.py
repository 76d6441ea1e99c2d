"""Recovery of stores of RocketMQ: cut or refused by how they were closed and by who wrote them."""

from __future__ import annotations

import pytest

from shared.files.commit_log import CommitLogReader
from shared.files.os_disk import OsDisk
from shared.files.positions import Positions
from shared.files.store_dir import StoreDir
from tests.support.next_start import FILE, KEY, OTHER_BOOT, again, fill, fill_to
from tests.support.small_store import CONFIG, SmallStore
from tests.support.small_store import small as small
from tidemark.errors import CorruptRecord
from tidemark.formats.checkpoint import Slot
from tidemark.formats.queue_unit import Unit
from tidemark.offsets import PhysicalOffset


class TestRocketmqStores:
    def foreign(self, small: SmallStore, *, clean: bool) -> None:
        """Give the store the files that RocketMQ leaves."""
        small.dispatch()
        small.close()
        (small.store.root / "tidemark.json").unlink()
        page = bytearray(4096)
        for slot in (0, 1):
            page[slot * 8 : slot * 8 + 8] = small.now_ms.to_bytes(8, "big")
        small.store.checkpoint_path.write_bytes(page)
        if clean:
            small.store.mark_clean()
        else:
            small.store.abort_path.touch()

    def test_a_killed_one_is_cut_whatever_its_queues_have(self, small: SmallStore) -> None:
        units = fill(small, 24)
        self.foreign(small, clean=False)
        small.overwrite(units[22].physical_offset, bytes(2 * units[22].size))
        small.overwrite(units[22].physical_offset, b"torn")
        for _ in range(2):  # the second start finds units that reput has not cut yet
            found = again(small, boot=OTHER_BOOT, clean=None)
            assert found.end == units[22].physical_offset
            assert found.next_queue_offsets == {KEY: 22}

    def test_a_closed_one_must_have_all_records_of_its_queues(self, small: SmallStore) -> None:
        units = fill(small, 24)
        self.foreign(small, clean=True)
        small.overwrite(units[22].physical_offset + 120, b"y")
        with pytest.raises(CorruptRecord, match="consume queue points to") as refused:
            again(small, clean=None)
        assert refused.value.at == units[22].physical_offset

    def test_units_left_behind_an_earlier_cut_of_rocketmqs_are_no_proof(
        self, small: SmallStore
    ) -> None:
        fill(small, 24)
        small.put_unit("old", 0, 3, Unit(small.end, 400, 0))
        self.foreign(small, clean=True)
        assert again(small, clean=None).end == small.end

    def test_a_missing_file_in_the_middle_is_named_though_it_was_killed(
        self, small: SmallStore
    ) -> None:
        fill_to(small, 3 * FILE)
        self.foreign(small, clean=False)
        page = bytearray(4096)
        small.store.checkpoint_path.write_bytes(page)
        small.log_file(FILE).unlink()
        with pytest.raises(CorruptRecord, match="is missing or empty, and later files hold"):
            again(small, clean=None)

    def test_a_record_crc_that_rocketmq_copied_is_not_checked(self, small: SmallStore) -> None:
        unit = fill(small, 3)[1]
        self.foreign(small, clean=True)
        # As its retry path does: new fields in front of the property bytes of the first record.
        small.overwrite(unit.physical_offset + 16, b"\0\0\0\7")
        assert again(small, clean=None).end == small.end

    def test_the_range_is_recorded_for_the_next_start_and_for_readers(
        self, small: SmallStore
    ) -> None:
        """After a kill right after the adoption, the next start walks the same records, which
        nothing else marks as RocketMQ's."""
        unit = fill(small, 3)[1]
        self.foreign(small, clean=True)
        small.overwrite(unit.physical_offset + 16, b"\0\0\0\7")
        again(small, clean=None)
        assert again(small, clean=False).end == small.end
        positions = Positions.open(OsDisk(), small.store.checkpoint_path)
        reader = CommitLogReader(small.store, positions)
        offset = PhysicalOffset(unit.physical_offset)
        found = reader.record(offset, small.end)
        assert found is not None
        assert found.flag == 7
        assert not reader.checks_at(0).record_crc
        assert reader.checks_at(small.end).record_crc, "what we append from here on is judged"
        reader.close()
        positions.close()

    def test_a_range_that_rocketmq_wrote_is_recorded_and_our_records_are_still_checked(
        self, small: SmallStore
    ) -> None:
        units = fill(small, 3)
        small.flush()
        ours = small.end
        small.put()
        for slot in (Slot.WRITTEN, Slot.FLUSHED):
            small.positions.publish(slot, ours)
        small.close()
        small.store.mark_clean()
        # It rewrites its JSON files when it stops; records behind our end alone are no evidence: a
        # page that was restored from an old copy has some, too.
        (small.store.config_dir / "topics.json").write_text('{"topicConfigTable": {}}')
        assert again(small, clean=None).end == small.end
        for _ in range(2):
            positions = Positions.open(OsDisk(), small.store.checkpoint_path)
            assert positions.get(Slot.FOREIGN_FROM) == ours
            assert positions.get(Slot.FOREIGN_UNTIL) == small.end
            positions.close()
            again(small, clean=True)  # a clean stop with nothing new adds nothing to it
        small.overwrite(units[1].physical_offset + 16, b"\0\0\0\7")
        with pytest.raises(CorruptRecord) as refused:
            again(small, clean=False)
        assert refused.value.at == units[1].physical_offset

    def test_after_adoption_it_is_ours(self, small: SmallStore) -> None:
        fill(small, 3)
        self.foreign(small, clean=True)
        again(small, clean=None)
        store = StoreDir(OsDisk(), small.store.root, CONFIG)
        store.open_or_create()
        assert not store.is_foreign
