"""Table of epochs, offsets and alarms of a replica."""

from __future__ import annotations

import pytest

from services.ha.core.effects import Level, Note
from services.ha.core.events import NodeSnapshot
from services.ha.core.replica_context import REWORD_MS, TABLE_LONG, with_entry, without_gone
from tests.unit.ha.core.test_campaign import replica
from tidemark.formats.checkpoint import Trouble
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset


def entry(epoch: int, start: int) -> EpochStart:
    return EpochStart(Epoch(epoch), PhysicalOffset(start))


def test_a_term_that_wrote_nothing_loses_its_entry_to_the_next_one() -> None:
    table = (entry(1, 0), entry(2, 50))
    assert with_entry(table, entry(3, 50)) == (entry(1, 0), entry(3, 50))
    assert with_entry(table, entry(3, 60)) == (*table, entry(3, 60))
    assert with_entry((), entry(1, 0)) == (entry(1, 0),)


def test_a_long_table_loses_epochs_whose_bytes_are_gone() -> None:
    table = tuple(entry(n, 10 * n) for n in range(1, TABLE_LONG + 3))
    # The entry of epoch 2 still covers the first remaining byte, at 25.
    assert without_gone(table, 25)[0] == entry(2, 20)
    assert without_gone(table, 25)[-1] == table[-1]
    assert without_gone(table[:10], 85) == table[:10]


def test_the_checkpoint_is_what_is_confirmed_and_on_the_own_disk() -> None:
    context = replica()
    context.durable = 450
    context.note_confirm(480)
    assert context.confirm == 450
    context.note_confirm(420)
    assert context.confirm == 450


def test_an_alarm_is_said_once_and_cleared_once() -> None:
    context = replica()
    context.alarm("lease-missing", "There is no lease.")
    context.alarm("lease-missing", "There is no lease.")
    context.calm("lease-missing")
    context.calm("lease-missing")
    notes = [effect for effect in context.out.take() if isinstance(effect, Note)]
    assert [note.alarm for note in notes] == [True, False]


@pytest.mark.parametrize(
    ("broker", "reput", "damage", "trouble"),
    [
        (Trouble.NONE, Trouble.NONE, "", ""),
        (Trouble.NONE, Trouble.DISK_FULL, "", "disk_full"),
        (Trouble.STOPPING, Trouble.DISK_FULL, "", "stopping"),
        # A full disk hid damage, and a resync from this node was accepted.
        (Trouble.DISK_FULL, Trouble.DAMAGED, "", "damaged"),
        (Trouble.DISK_FULL, Trouble.NONE, "bad CRC at 500", "damaged"),
        (Trouble.NONE, Trouble.NONE, "bad CRC at 500", "damaged"),
    ],
)
def test_trouble_is_damage_or_else_brokers_or_reputs(
    broker: Trouble, reput: Trouble, damage: str, trouble: str
) -> None:
    context = replica()
    context.snapshot = NodeSnapshot(1, 0, 0, 0, 0, 0, broker, reput)
    context.damage = damage
    assert context.trouble == trouble


def test_an_alarm_with_changing_text_is_shown_each_time_and_logged_once_a_minute() -> None:
    context = replica()
    for context.now_ms in range(1000, 1000 + 2 * REWORD_MS, 1000):
        context.alarm("lease-unavailable", f"The lease cannot be reached: try {context.now_ms}.")
    notes = [effect for effect in context.out.take() if isinstance(effect, Note)]
    assert len(notes) == 120
    assert all(note.alarm is True for note in notes)
    assert [note.level for note in notes].count(Level.WARNING) == 2
    context.calm("lease-unavailable")
    context.alarm("lease-unavailable", "Again.")
    raised = [effect for effect in context.out.take() if isinstance(effect, Note)]
    assert [(note.level, note.alarm) for note in raised] == [
        (Level.INFO, False),
        (Level.WARNING, True),
    ]
