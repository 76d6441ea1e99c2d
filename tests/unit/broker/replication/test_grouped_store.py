"""The store of a node of a group: what its broker recovers was written by ha meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from services.broker.replication.grouped_store import GroupedStore
from services.broker.watch import Watch
from shared.files.os_disk import OsDisk
from shared.files.store_dir import StoreDir
from shared.runtime.clock import SystemClock, boot_id
from shared.runtime.health import Health
from tests.support.small_store import CONFIG, SmallStore
from tidemark.errors import RestartNeeded
from tidemark.formats.checkpoint import NodeRole, Slot

STORE = dataclasses.replace(CONFIG, visible_after="confirmed")


def test_a_clean_stop_does_not_vouch_for_later_writes_of_ha(tmp_path: Path) -> None:
    # 1. All processes of a node stop in order, and a broker starts. 2. ha copies, and a power cut
    # loses the disk's last pages: a tail is torn. 3. To a recovery that trusts the clean stop that
    # is damage, and the node never becomes the master again.
    small = SmallStore(tmp_path, STORE)
    for _ in range(3):
        small.put()
    small.flush()
    end = small.end
    small.appender.close(clean=True)
    small.store.mark_clean()
    store = GroupedStore._open(StoreDir(OsDisk(), tmp_path, STORE), OsDisk(), SystemClock())
    small.overwrite(end, b"\0\0\0\x64torn")
    small.positions.publish(Slot.WRITTEN, end + 8)
    assert store.take_append_lock()
    recovered = store.recover_for_term(lambda done, total: None)
    assert recovered.end == end
    assert recovered.cut is not None
    store.close()


def test_a_store_that_was_being_emptied_at_a_power_cut_is_released(tmp_path: Path) -> None:
    # 1. The power fails while ha empties the store. 2. In the next boot the broker starts first. 3.
    # ha goes on emptying: it waits for the broker's byte before it publishes its boot.
    small = SmallStore(tmp_path, STORE)
    small.appender.close(clean=True)
    small.positions.publish(Slot.ROLE, NodeRole.RESYNC)
    store = GroupedStore._open(StoreDir(OsDisk(), tmp_path, STORE), OsDisk(), SystemClock())
    assert not store.ha_has_spoken
    with pytest.raises(RestartNeeded, match="emptied"):
        store.check_not_emptied()
    store.close()


# 1. Senders ask for level disk, and a slave of the in-sync set is slow; 2. reput has dispatched all
# that is confirmed, and the log grows past the limit; 3. the readiness reason sent the operator to
# reput, which has nothing to do.
@pytest.mark.parametrize(
    ("confirmed", "dispatched", "names"),
    [(1000, 1000, "tidemark cluster status"), (5000, 1000, "reput's /ready")],
)
def test_the_reason_for_refused_sends_names_what_dispatch_waits_for(
    tmp_path: Path, confirmed: int, dispatched: int, names: str
) -> None:
    small = SmallStore(tmp_path, STORE)
    small.appender.close(clean=True)
    store = GroupedStore._open(StoreDir(OsDisk(), tmp_path, STORE), OsDisk(), SystemClock())
    for slot, value in zip((Slot.HA_BOOT_ID_HIGH, Slot.HA_BOOT_ID_LOW), boot_id(), strict=True):
        store.positions.publish(slot, value)
    store.positions.publish(Slot.REPUT_GENERATION, store.positions.get(Slot.GENERATION))
    store.positions.publish(Slot.FLUSHED, 5000)
    store.positions.publish(Slot.CONFIRM, confirmed)
    store.positions.publish(Slot.DISPATCHED, dispatched)
    health = Health(SystemClock())
    health.enter("serving")
    Watch(store, health, asyncio.Event(), 3000)._judge_dispatch()
    (reason,) = health.reasons
    assert reason.code == "dispatch-behind"
    assert names in reason.detail
    store.close()
