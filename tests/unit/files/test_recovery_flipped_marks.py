"""One flipped bit in derived data neither makes a valid log seem damaged, nor hides damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.next_start import OTHER_BOOT, again, fill
from tests.support.small_store import BOOT, SmallStore
from tests.support.small_store import small as small
from tidemark.errors import CorruptRecord
from tidemark.formats.checkpoint import (
    SLOT_SIZE,
    Slot,
    check_of,
    check_slot,
    damaged_slots,
    fits,
    proven,
)
from tidemark.offsets import UNIT_SIZE

MARKS = (Slot.FLUSHED, Slot.WRITTEN, Slot.CONFIRM, Slot.DISPATCHED_DURABLE, Slot.MIN)


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def closed(small: SmallStore, *, durable: bool = True) -> SmallStore:
    """Some messages in two queues, dispatched; durable: so that recovery need not walk them."""
    fill(small, 12)
    for _ in range(3):
        small.put("idle", body=b"y" * 40)
    fill(small, 2)
    small.dispatch(durable=durable)
    small.close()
    return small


@pytest.mark.parametrize("queue", ["orders", "idle"])
def test_any_bit_of_a_last_unit(small: SmallStore, queue: str) -> None:
    """39 of 96 flips stopped a node for a valid log; only a cut healed it."""
    closed(small)
    path = small.queue_file(queue, 0, 0)
    content = path.read_bytes()
    last = len(content.rstrip(b"\0")) // UNIT_SIZE
    for bit in range(last * UNIT_SIZE * 8, (last * UNIT_SIZE + 12) * 8):
        flip(path, bit)
        boot = (BOOT, OTHER_BOOT)[bit % 2]
        page = small.store.checkpoint_path.read_bytes()
        for clean in (True, False):
            found = again(small, boot=boot, clean=clean)
            assert (found.end, found.cut) == (small.end, None), (bit, clean)
            small.store.checkpoint_path.write_bytes(page)
        small.store.checkpoint_path.unlink()  # without it, too
        assert again(small, boot=boot).end == small.end, bit
        small.store.checkpoint_path.write_bytes(page)
        flip(path, bit)


@pytest.mark.parametrize("slot", MARKS)
def test_any_bit_of_a_mark(small: SmallStore, slot: Slot) -> None:
    closed(small)
    page = small.store.checkpoint_path.read_bytes()
    for bit in range(64):
        flip(small.store.checkpoint_path, slot * 64 + bit)
        found = again(small, boot=(BOOT, OTHER_BOOT)[bit % 2])
        assert (found.end, found.cut, found.min_offset) == (small.end, None, 0), bit
        small.store.checkpoint_path.write_bytes(page)


@pytest.mark.parametrize("slot", [Slot.FLUSHED, Slot.WRITTEN, Slot.REPUT_GENERATION])
def test_lost_records_are_named_though_a_mark_is_damaged(small: SmallStore, slot: Slot) -> None:
    """Units prove it if the page cannot."""
    closed(small, durable=False)
    last = small.end - 300
    flip(small.store.checkpoint_path, slot * 64 + 9)
    small.overwrite(last, bytes(300))
    with pytest.raises(CorruptRecord):
        again(small, boot=OTHER_BOOT)


def test_a_damaged_unit_does_not_make_others_count_as_proof(small: SmallStore) -> None:
    closed(small)
    path = small.queue_file("idle", 0, 0)
    flip(path, (2 * UNIT_SIZE + 4) * 8)
    small.store.checkpoint_path.unlink()
    small.overwrite(small.end - 200, b"y")
    with pytest.raises(CorruptRecord, match="consume queue points to"):
        again(small, boot=OTHER_BOOT)


class TestChecks:
    def test_a_check_covers_the_value_and_the_one_before(self) -> None:
        check = check_of(Slot.FLUSHED, 700, 300)
        assert fits(Slot.FLUSHED, 700, check)
        assert fits(Slot.FLUSHED, 300, check), "killed between the two stores"
        assert not fits(Slot.FLUSHED, 701, check)
        assert not fits(Slot.WRITTEN, 700, check), "a page whose slots were shifted"

    def test_a_page_without_checks_is_trusted(self) -> None:
        page = {int(Slot.FLUSHED): 700}
        assert proven(Slot.FLUSHED, lambda number: page.get(number, 0)) == 700
        page[check_slot(Slot.MAGIC_AND_FORMAT)] = check_of(Slot.MAGIC_AND_FORMAT, 1, 0)
        assert proven(Slot.FLUSHED, lambda number: page.get(number, 0)) == 0
        assert damaged_slots(lambda number: page.get(number, 0)) == [Slot.FLUSHED]

    def test_every_check_has_a_slot_of_its_own_in_the_sector_of_its_value(self) -> None:
        checks = {check_slot(slot) for slot in Slot}
        assert len(checks) == len(Slot)
        assert not checks & {int(slot) for slot in Slot}
        for slot in Slot:
            assert slot * SLOT_SIZE // 512 == check_slot(slot) * SLOT_SIZE // 512

    def test_a_value_published_between_two_reads_is_used(self, small: SmallStore) -> None:
        small.positions.publish(Slot.FLUSHED, 700)
        slots = small.positions._slots
        reads = 0

        def at(number: int) -> int:
            nonlocal reads
            value = slots[number]
            reads += 1
            if number == Slot.FLUSHED and reads < 6:
                for more in (1, 2):
                    small.positions.publish(Slot.FLUSHED, value + more)
            return value

        assert proven(Slot.FLUSHED, at) > 700


def test_exchanged_files_of_two_queues_do_not_exchange_their_numbers(small: SmallStore) -> None:
    """Their lengths add up to the right sum: queue offsets of acknowledged messages were used
    again, and the messages were never read again."""
    for topic in ("idle", "idle", "busy", "busy", "busy"):
        small.put(topic)
    closed(small)
    before = again(small)
    assert before.dispatched_trusted
    one, other = small.queue_file("busy", 0, 0), small.queue_file("idle", 0, 0)
    content = one.read_bytes(), other.read_bytes()
    one.write_bytes(content[1])
    other.write_bytes(content[0])
    found = again(small)
    assert not found.dispatched_trusted
    assert found.next_queue_offsets == before.next_queue_offsets
