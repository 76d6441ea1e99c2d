"""Ranges that RocketMQ wrote into our store are known without the checkpoint, and after a crash."""

from __future__ import annotations

import pytest

from shared.files.commit_log import CommitLogReader
from shared.files.foreign_ranges import recorded_ranges
from shared.files.log_walk import LogFiles
from shared.files.positions import Positions
from shared.files.recovery import Recovered, recover
from shared.files.store_dir import StoreDir
from shared.state import records
from shared.state.records import STATE_TOPIC, ForeignRange, ForeignRecord
from shared.state.state import BrokerState
from tests.support.small_store import BOOT, CONFIG, SmallStore
from tests.support.small_store import small as small
from tidemark.cli.offline import LogEnd, OfflineStore
from tidemark.errors import CorruptRecord
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import PhysicalOffset

FLAG_AT = 16
"""Of a record: covered by the record CRC, not by the body's."""


def carry_a_crc_along(small: SmallStore, at: int) -> None:
    """As RocketMQ does: a new record with the properties of another, its CRC among them."""
    small.overwrite(at + FLAG_AT, b"\0\0\0\7")


def put_foreign(small: SmallStore, start: int, end: int) -> None:
    record = ForeignRecord(0, ForeignRange(start, end))
    small.put(STATE_TOPIC, body=records.encode(record))


def again(small: SmallStore) -> Recovered:
    """Recover the log, as the next start does."""
    store = StoreDir(small.store.disk, small.store.root, CONFIG)
    store.open_or_create()
    positions = Positions.open(store.disk, store.checkpoint_path)
    try:
        return recover(store, positions, boot_id=BOOT)
    finally:
        positions.close()


def test_a_lost_checkpoint_does_not_make_rocketmqs_records_corrupt(small: SmallStore) -> None:
    small.put()
    start = small.end
    foreign = small.put()
    small.put(body=b"x" * 900)
    end = small.end
    put_foreign(small, start, end)
    while small.end < 2 * small.store.config.commit_log_file_size:
        small.put(body=b"y" * 300)
    carry_a_crc_along(small, foreign.physical_offset)
    small.flush()
    whole = small.end
    small.close()
    small.store.checkpoint_path.unlink()
    with OfflineStore(small.store.root, CONFIG) as offline:
        *_, last = offline.windows()
        assert isinstance(last, LogEnd)
        assert last.end == whole
    assert again(small).end == whole
    positions = Positions.open(small.store.disk, small.store.checkpoint_path)
    assert (positions.get(Slot.FOREIGN_FROM), positions.get(Slot.FOREIGN_UNTIL)) == (start, end)
    reader = CommitLogReader(small.store, positions)
    assert reader.record(PhysicalOffset(foreign.physical_offset), whole) is not None
    reader.close()
    positions.close()


def test_a_record_of_ours_is_judged_beside_them(small: SmallStore) -> None:
    damaged = small.put()
    start = small.end
    small.put()
    put_foreign(small, start, small.end)
    carry_a_crc_along(small, damaged.physical_offset)
    state_record = small.put(STATE_TOPIC, body=BrokerState().snapshot_records(small.end, 400)[0])
    small.flush()
    small.close()
    assert state_record.physical_offset > damaged.physical_offset
    small.store.checkpoint_path.unlink()
    with pytest.raises(CorruptRecord) as refused:
        again(small)
    assert refused.value.at == damaged.physical_offset


@pytest.mark.parametrize("keyed", [True, False])
def test_records_of_a_killed_rocketmq_are_kept_if_its_files_show_that_it_had_the_store(
    small: SmallStore, *, keyed: bool
) -> None:
    # Killed, it leaves an abort file as we do; but a JSON file that it wrote lacks our key.
    small.put()
    small.flush()
    ours = small.end
    foreign = small.put()
    small.put()
    carry_a_crc_along(small, foreign.physical_offset)
    small.appender.flush()
    whole = small.end
    small.positions.publish(Slot.WRITTEN, ours)
    small.positions.publish(Slot.FLUSHED, ours)
    small.close()
    small.store.mark_running(1)
    key = ',"tidemark":{"epoch":0}' if keyed else ""
    (small.store.config_dir / "consumerOffset.json").write_text('{"offsetTable":{}' + key + "}")
    found = again(small)
    assert found.end == (ours if keyed else whole)
    assert (found.cut is not None) == keyed


def test_every_range_is_returned_once_from_records_and_snapshots(small: SmallStore) -> None:
    first = small.end
    put_foreign(small, 5, 9)
    state = BrokerState()
    for start in (5, 20, 30):
        state.apply(ForeignRecord(0, ForeignRange(start, start + 4)))
    for body in state.snapshot_records(0, 1000, foreign_from=10):
        small.put(STATE_TOPIC, body=body)
    small.put(STATE_TOPIC, body=b"\xc1 of a later version")
    put_foreign(small, 40, 50)
    small.flush()
    config = small.store.config
    files = LogFiles(small.store.disk, small.store.commit_log_dir, config.commit_log_file_size)
    assert recorded_ranges(files, first) == [(5, 9), (20, 24), (30, 34), (40, 50)]
    assert recorded_ranges(files, 1 << 40) == []
    files.close()
