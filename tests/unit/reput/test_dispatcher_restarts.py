"""Restarts of dispatch: after a kill, with lost or damaged files, after a failed sync."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from services.reput.dispatched_mark import DispatchedMark
from services.reput.resume import IndexMode, QueueMode
from tests.support.sim_disk import LOSE_ALL, SimDisk
from tests.support.small_dispatch import (
    dispatch_all,
    dispatched,
    dispatcher_of,
    expected_units,
    fill,
    index_files,
    queue_files,
    units,
)
from tests.support.small_store import BOOT, CONFIG, SmallStore
from tests.support.small_store import small as small
from tidemark.errors import FlushFailed
from tidemark.formats.checkpoint import Slot
from tidemark.formats.queue_unit import Unit, decode, encode


@pytest.mark.parametrize("killed_after", range(0, 12))
@pytest.mark.parametrize("synced", [False, True])
def test_a_kill_after_any_step_and_a_restart_give_the_same_files(
    small: SmallStore, killed_after: int, synced: bool
) -> None:
    fill(small)
    whole = dispatcher_of(small)
    dispatch_all(whole)
    expected_queues, expected_index = queue_files(small), index_files(small)
    shutil.rmtree(small.store.consume_queues_dir / "orders")
    shutil.rmtree(small.store.consume_queues_dir / "bills")
    for path in small.store.index_dir.iterdir():
        path.unlink()
    for slot in (Slot.DISPATCHED, Slot.REPUT_GENERATION, Slot.REPUT_BOOT_ID_LOW):
        small.positions.publish(slot, 0)

    killed = dispatcher_of(small)
    for number in range(killed_after):
        killed.step(700)
        if synced and number == killed_after // 2:
            killed.sync()
    before = small.positions.get(Slot.DISPATCHED)
    again = dispatcher_of(small)
    assert small.positions.get(Slot.DISPATCHED) == before
    dispatch_all(again)
    assert queue_files(small) == expected_queues
    assert index_files(small) == expected_index
    again.sync()
    assert small.positions.get(Slot.RESUME_UNITS) == 60
    assert small.positions.get(Slot.RESUME_INDEX_ENTRIES) == 120


def synced_store(small: SmallStore) -> tuple[dict[str, bytes], list[bytes]]:
    fill(small)
    dispatcher = dispatched(small)
    dispatcher.sync()
    return queue_files(small), index_files(small)


def test_a_restart_with_nothing_to_do_does_nothing(small: SmallStore) -> None:
    synced_store(small)
    dispatcher = dispatcher_of(small)
    assert dispatcher.decision is not None
    assert dispatcher.decision.queue_mode is QueueMode.CONTINUE
    assert dispatcher.decision.index_mode is IndexMode.CONTINUE
    assert dispatcher.step() == 0
    assert not dispatcher.is_catching_up


def test_a_pass_that_ends_within_a_filler_ends_behind_it(small: SmallStore) -> None:
    # The reput of a slave that was being resynced once stopped permanently: the confirm offset may
    # be within the filler of a file whose rest has not been received yet.
    expected, index = synced_store(small)
    shutil.rmtree(small.store.consume_queues_dir / "orders")
    end = small.positions.get(Slot.FLUSHED)
    small.positions.publish(Slot.FLUSHED, CONFIG.commit_log_file_size - 1)
    dispatcher = dispatched(small)
    assert dispatcher.is_catching_up
    small.positions.publish(Slot.FLUSHED, end)
    dispatch_all(dispatcher)
    assert not dispatcher.is_catching_up
    assert dispatcher.position == small.end
    assert queue_files(small) == expected
    assert index_files(small) == index


@pytest.mark.parametrize(
    "what", ["orders", "orders/1", "bills/0/00000000000000000200", "orders/0/0" + "0" * 19]
)
def test_a_missing_queue_or_file_comes_back_byte_for_byte(small: SmallStore, what: str) -> None:
    expected, index = synced_store(small)
    path = small.store.consume_queues_dir / what
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    dispatcher = dispatcher_of(small)
    assert dispatcher.decision is not None
    assert dispatcher.decision.queue_mode is QueueMode.REBUILD
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == 0
    dispatch_all(dispatcher)
    assert queue_files(small) == expected
    assert index_files(small) == index
    dispatcher.sync()
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == small.end


def test_a_short_queue_file_and_a_damaged_unit_are_made_good(small: SmallStore) -> None:
    expected, _ = synced_store(small)
    small.queue_file("orders", 0, 0).write_bytes(b"short")
    dispatcher = dispatched(small)
    assert queue_files(small) == expected
    dispatcher.sync()
    small.put_unit("bills", 0, 3, Unit(1, 2, 3))
    dispatcher = dispatched(small)
    assert queue_files(small) == expected


def test_exchanged_files_of_two_queues_are_made_again(small: SmallStore) -> None:
    """Their lengths add up to the right sum, so both were trusted: one queue ended early."""
    fill(small, 12)
    for topic in ("idle", "idle", "busy", "busy", "busy"):
        small.put(topic)
    small.flush()
    expected = dispatched(small)
    expected.sync()
    before = queue_files(small)
    one, other = small.queue_file("busy", 0, 0), small.queue_file("idle", 0, 0)
    content = one.read_bytes(), other.read_bytes()
    one.write_bytes(content[1])
    other.write_bytes(content[0])
    again = dispatcher_of(small)
    assert again.decision is not None
    assert again.decision.queue_mode is QueueMode.REBUILD
    dispatch_all(again)
    assert queue_files(small) == before


def test_a_missing_index_file_is_made_again_while_queues_stay_readable(small: SmallStore) -> None:
    queues, expected = synced_store(small)
    sorted(small.store.index_dir.iterdir())[1].unlink()
    dispatcher = dispatcher_of(small)
    assert dispatcher.decision is not None
    assert dispatcher.decision.index_mode is IndexMode.REBUILD
    assert small.positions.get(Slot.DISPATCHED) == small.end
    dispatch_all(dispatcher)
    assert (queue_files(small), index_files(small)) == (queues, expected)


@pytest.mark.parametrize("power_cut", [False, True])
def test_an_index_that_points_between_records_is_made_again_and_dispatch_goes_on(
    small: SmallStore, power_cut: bool
) -> None:
    """Dispatch once reported permanently that the log was damaged there."""
    fill(small, 40)
    dispatcher = dispatched(small)
    dispatcher.sync()
    synced = small.end
    fill(small, 3)
    dispatch_all(dispatcher)
    expected, index = queue_files(small), index_files(small)
    last = max(unit.physical_offset for *_, unit in small.units if unit.end <= synced)
    for path in small.store.index_dir.iterdir():
        content = bytearray(path.read_bytes())
        if power_cut:
            content[31] ^= 1  # the last byte of the header's end offset
        else:
            content = content.replace(last.to_bytes(8, "big"), (last ^ 1).to_bytes(8, "big"))
        path.write_bytes(content)
    small.positions.publish(Slot.GENERATION, small.positions.get(Slot.GENERATION) + 1)
    boot = BOOT
    if power_cut:
        boot = (BOOT[0], 77)
        small.positions.publish(Slot.BOOT_ID_LOW, 77)
    again = dispatcher_of(small, boot)
    assert small.positions.get(Slot.INDEX_BEHIND) == 1
    dispatch_all(again)
    assert small.positions.get(Slot.INDEX_BEHIND) == 0
    assert (queue_files(small), index_files(small)) == (expected, index)


def test_after_a_power_cut_unsynced_units_are_cut_and_rebuilt(small: SmallStore) -> None:
    fill(small, 40)
    dispatcher = dispatched(small)
    dispatcher.sync()
    synced = small.end
    fill(small, 30)
    dispatch_all(dispatcher)
    expected, index = queue_files(small), index_files(small)
    # This approximates a power cut without a simulated disk: another boot, another recovery.
    small.positions.publish(Slot.BOOT_ID_LOW, 77)
    small.positions.publish(Slot.GENERATION, small.positions.get(Slot.GENERATION) + 1)
    again = dispatcher_of(small, (BOOT[0], 77))
    assert again.decision is not None
    assert again.decision.index_mode is IndexMode.REOPEN
    assert small.positions.get(Slot.DISPATCHED) == synced
    assert small.positions.get(Slot.INDEX_BEHIND) == 1, "it has less than DISPATCHED covers"
    assert {key for key, raw in units(small).items() if decode(raw).end > synced} == set()
    dispatch_all(again)
    assert small.positions.get(Slot.INDEX_BEHIND) == 0
    assert (queue_files(small), index_files(small)) == (expected, index)


def test_a_lost_checkpoint_costs_a_walk_and_nothing_else(small: SmallStore) -> None:
    expected, index = synced_store(small)
    for slot in Slot:
        if 192 <= slot < 256:
            small.positions.publish(slot, 0)
    dispatcher = dispatcher_of(small)
    assert dispatcher.decision is not None
    assert dispatcher.decision.queue_mode is QueueMode.ADOPT
    dispatch_all(dispatcher)
    assert (queue_files(small), index_files(small)) == (expected, index)
    dispatcher.sync()
    assert small.positions.get(Slot.RESUME_UNITS) == 60


def test_units_beyond_the_end_of_the_log_go_when_a_store_is_adopted(small: SmallStore) -> None:
    fill(small, 20)
    small.dispatch()
    small.put_unit("bills", 0, 40, Unit(small.end, 100, 0))
    small.put_unit("bills", 0, 7, Unit(small.end, 100, 0))
    for slot in (Slot.DISPATCHED, Slot.REPUT_GENERATION):
        small.positions.publish(slot, 0)
    dispatched(small)
    assert units(small) == expected_units(small)


def test_another_recovery_is_adopted_unless_it_cut_dispatched_records(small: SmallStore) -> None:
    fill(small, 20)
    dispatcher = dispatched(small)
    publish, get = small.positions.publish, small.positions.get
    publish(Slot.GENERATION, get(Slot.GENERATION) + 1)
    assert dispatcher.adopt_generation()
    assert get(Slot.REPUT_GENERATION) == get(Slot.GENERATION)
    publish(Slot.GENERATION, get(Slot.GENERATION) + 1)
    shorter = small.units[11][3].physical_offset
    publish(Slot.FLUSHED, shorter)
    assert not dispatcher.adopt_generation()
    dispatcher.resume()
    assert get(Slot.DISPATCHED) <= shorter
    dispatch_all(dispatcher)
    assert len(units(small)) == 11


def test_after_a_failed_sync_the_next_start_trusts_only_the_disk(
    small: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small, 20)
    dispatcher = dispatched(small)
    dispatcher.sync()
    fill(small, 10)
    dispatch_all(dispatcher)

    def fails(descriptor: int) -> None:
        raise OSError(5, "input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("os.fdatasync", fails)
        with pytest.raises(FlushFailed, match="fdatasync of "):
            dispatcher.sync()
    durable = small.positions.get(Slot.DISPATCHED_DURABLE)
    again = dispatcher_of(small)
    assert small.positions.get(Slot.DISPATCHED) == durable
    assert again.decision is not None
    assert again.decision.index_mode is IndexMode.REOPEN
    dispatch_all(again)
    assert units(small) == expected_units(small)


@pytest.mark.parametrize(
    ("synced_before", "killed_at_once"),
    # If the queues were never synced and the process is killed at once, they are trusted like those
    # of RocketMQ.
    [(False, False), (True, False), (True, True)],
)
def test_all_files_of_a_failed_sync_are_correct_after_the_next(
    synced_before: bool, killed_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files of a failed sync must be written again by the next sync.

    1. The sync of several files fails, and the kernel marks their pages clean. 2. Only the first
       file was rewritten, or the process was killed before. 3. The next start found equal units and
       did not write them. 4. Its sync succeeded and was trusted. 5. A power cut lost the units.
    """
    disk = SimDisk(3)
    disk.write_back_chance = 0
    small = SmallStore(Path("/store"), replace(CONFIG, index_enabled=False), disk=disk)
    dispatcher = dispatcher_of(small)
    if synced_before:
        for queue in range(3):
            small.put("orders", queue)
        small.flush()
        dispatch_all(dispatcher)
        dispatcher.sync()
    for number in range(12):
        small.put("orders", number % 3)
    small.flush()
    dispatch_all(dispatcher)
    disk.failing_sync = lambda path: "consumequeue" in path.parts
    if killed_at_once:
        monkeypatch.setattr(DispatchedMark, "_write_over_itself", lambda *_: None)
    with pytest.raises(FlushFailed, match="2 others failed as well") as caught:
        dispatcher.sync()
    assert caught.value.paths == [small.queue_file("orders", queue, 0) for queue in range(3)]
    disk.failing_sync = lambda path: False

    again = dispatcher_of(small)
    dispatch_all(again)
    again.sync()
    assert small.positions.get(Slot.DISPATCHED_DURABLE) == small.end
    files = dict(disk.power_cut(loss=LOSE_ALL).files())
    for topic, queue, number, unit in small.units:
        stored = files[small.queue_file(topic, queue, number * 20 // 200 * 200)]
        assert stored[number * 20 % 200 :][:20] == encode(unit)
