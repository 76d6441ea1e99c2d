"""What a cut, a resync and a start leave behind, in memory and after a power cut.

A cut and a resync begin with an intent and end when it is removed. Every start completes an
operation that has an intent, so whatever is not done when the intent is removed is never done.
"""

from __future__ import annotations

from typing import Final

from services.ha.core.setup import Found
from services.ha.shell.resync import REPUT_SLOTS
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.store_view import FILE_SIZE
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

EMPTIED: Final = (
    *REPUT_SLOTS,
    *(Slot.LOG_EPOCH, Slot.SERVING_EPOCH, Slot.EPOCH_RECORD_END, Slot.CONFIRM),
    *(Slot.FOREIGN_FROM, Slot.FOREIGN_UNTIL),
)
"""Slots that describe a log which a resync removes."""
ENDS: Final = (Slot.FLUSHED, Slot.WRITTEN)


def check_found(machine: Machine, found: Found) -> None:
    """Check that a start has completed what was begun, and has read its volume correctly."""
    if machine.has_intent:
        raise Violation(f"{machine.name} has started and left {machine.intent} unfinished")
    ends = {found.end, machine.slot(Slot.WRITTEN), machine.slot(Slot.FLUSHED)}
    if len(ends) != 1 or found.table != machine.durable_table:
        raise Violation(
            f"{machine.name} has found a log up to {found.end} with the epochs {found.table}; its "
            f"page has {ends - {found.end}}, its table on disk is {machine.durable_table}"
        )
    if found.first_offset > machine.begins_at or found.confirm < machine.noted_confirm:
        raise Violation(
            f"{machine.name} has found a log from {found.first_offset} on, confirmed up to "
            f"{found.confirm}; it begins at {machine.begins_at}, {machine.noted_confirm} is noted"
        )
    if found.promised < machine.durably_promised:
        raise Violation(
            f"{machine.name} has found the promise {found.promised}; {machine.durably_promised} is "
            "on its disk"
        )


def check_cut_begins(machine: Machine, confirmed: bytearray) -> None:
    """Check that a cut removes nothing confirmed and keeps a copy of what it removes.

    confirmed: the confirmed log of the group.
    """
    point, end = _number(machine, "point"), machine.end
    upto = min(end, len(confirmed))
    begin = max(point, machine.begins_at)
    if begin < upto and machine.log(begin, upto) == confirmed[begin:upto]:
        raise Violation(f"{machine.name} cuts its log at {point}, but {upto} bytes are confirmed")
    for slot in (Slot.CONFIRM, Slot.DISPATCHED_DURABLE):
        if machine.slot(slot) > point:
            raise Violation(
                f"{machine.name} cuts its log at {point}, but its page has {slot.name} "
                f"{machine.slot(slot)}"
            )
    tail = machine.log(point, end).rstrip(b"\0")
    if tail and not machine.is_full and not any(k.startswith(tail) for k in machine.kept(point)):
        raise Violation(f"{machine.name} cuts {len(tail)} bytes from {point} on without a copy")
    found = [tuple(entry) for entry in _entries(machine)]
    if found != [tuple(entry) for entry in machine.table[: len(found)]]:
        raise Violation(f"{machine.name} cuts its table {machine.table} to {found}")


def check_cut_ends(machine: Machine) -> None:
    """Check that log, table and offsets end at the point of the cut."""
    point = _number(machine, "point")
    for slot in ENDS:
        if max(machine.slot(slot), machine.durable_slot(slot)) > point:
            raise Violation(
                f"{machine.name} has cut its log at {point}, but its page has {slot.name} "
                f"{machine.slot(slot)}, on disk {machine.durable_slot(slot)}"
            )
    file_end = point - point % FILE_SIZE + FILE_SIZE
    for rest in (machine.log(point, file_end), machine.durable_log(point, file_end)):
        if rest.strip(b"\0"):
            raise Violation(f"{machine.name} has cut its log at {point}, but bytes follow")
    if max(machine.files(), default=0) >= file_end:
        raise Violation(
            f"{machine.name} has cut its log at {point}, but has the files {machine.files()}"
        )
    found = [tuple(entry) for entry in _entries(machine)]
    if [tuple(entry) for entry in machine.durable_table] != found:
        raise Violation(
            f"{machine.name} has cut its table to {found}, but has {machine.durable_table} on disk"
        )


def check_emptied(machine: Machine) -> None:
    """Check that nothing of the previous log is left, and that the volume is another member."""
    first, incarnation = _number(machine, "first_offset"), machine.intent.get("incarnation")
    wanted = dict.fromkeys(EMPTIED, 0) | dict.fromkeys((*ENDS, Slot.MIN), first)
    for slot, value in wanted.items():
        found = machine.slot(slot), machine.durable_slot(slot)
        if found != (value, value):
            raise Violation(
                f"{machine.name} is emptied to begin at {first}, but its page has {slot.name} "
                f"{found[0]}, on disk {found[1]}"
            )
    if machine.noted_confirm or machine.has_noted_damage:
        raise Violation(
            f"{machine.name} is emptied, but has noted {machine.noted_confirm} as confirmed"
            + (", and damage" if machine.has_noted_damage else "")
        )
    if machine.durable_table or machine.table:
        raise Violation(f"{machine.name} is emptied, but has the epochs {machine.table}")
    if machine.durable_incarnation != incarnation:
        raise Violation(
            f"{machine.name} is to be {incarnation}, but is {machine.durable_incarnation} on disk"
        )
    if machine.files() != [first] or machine.log(first, first + FILE_SIZE).strip(b"\0"):
        raise Violation(
            f"{machine.name} is emptied to begin at {first}, but has the files {machine.files()}"
        )


def _number(machine: Machine, name: str) -> int:
    value = machine.intent.get(name)
    assert isinstance(value, int), "an intent has it"
    return value


def _entries(machine: Machine) -> list[tuple[int, int]]:
    table = machine.intent.get("table")
    assert isinstance(table, list), "an intent to cut has it"
    return [(epoch, start) for epoch, start in table]
