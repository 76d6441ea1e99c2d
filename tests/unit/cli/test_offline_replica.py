"""What the offline tools report of the end of a replica's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.files.os_disk import OsDisk
from shared.files.store_config import GROUP_MARKER, config_of
from shared.files.valid_end import Verdict
from shared.state.records import STATE_TOPIC
from shared.state.state import BrokerState
from tests.support.small_store import CONFIG, SmallStore
from tidemark.cli.offline import LogEnd, OfflineStore
from tidemark.formats.checkpoint import Slot


@pytest.mark.parametrize("grouped", [False, True])
def test_the_durable_mark_of_a_master_does_not_hold_on_a_slave(
    tmp_path: Path, *, grouped: bool
) -> None:
    # 1. The master syncs a record, and a later state record says so. 2. The slave writes both.
    # 3. The power fails: the slave keeps the second, and only a part of the first.
    small = SmallStore(tmp_path / "store")
    small.store.mark_running()
    small.put()
    small.flush()
    synced = small.end
    torn = small.put(body=b"x" * 500)
    small.put(STATE_TOPIC, body=BrokerState().snapshot_records(small.end, 400)[0])
    small.appender.flush()
    for slot in (Slot.WRITTEN, Slot.FLUSHED):
        small.positions.publish(slot, synced)
    small.overwrite(torn.physical_offset + 100, bytes(300))
    small.close()
    root = small.store.root
    if grouped:
        (root / GROUP_MARKER).parent.mkdir()
        (root / GROUP_MARKER).write_text("n1")
    with OfflineStore(root, config_of(OsDisk(), root, CONFIG)) as offline:
        *_, last = offline.windows()
    assert isinstance(last, LogEnd)
    assert last.end == torn.physical_offset
    assert last.decision.verdict is (Verdict.TORN_TAIL if grouped else Verdict.CORRUPTION)
