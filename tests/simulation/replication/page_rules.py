"""Rules for the page of a node: the writer of each slot, and what must hold when it is stored.

The three services inform each other through the page. Every rule is about what a reader may
conclude from a slot, independent of the writer's history, so it also finds mistakes of kinds that
were not foreseen. The rules are checked before a store becomes visible. Confirm offset, lease and
log are checked in ``history``.
"""

from __future__ import annotations

from typing import Final

from shared.files.store_dir import LockByte
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.process import Process
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import (
    REGION_HA,
    REGION_REPUT,
    SLOT_SIZE,
    BrokerPhase,
    NodeRole,
    Slot,
    Trouble,
)

OF_BROKER: Final = frozenset(
    {
        Slot.SERVING_EPOCH,
        Slot.EPOCH_RECORD_END,
        Slot.BROKER_HEARTBEAT_MS,
        Slot.BROKER_PID,
        Slot.BROKER_STATE,
        Slot.BROKER_NONCE,
        Slot.BROKER_TROUBLE,
        Slot.DAMAGED_AT,
        Slot.UNIT_CHECK_QUEUE,
        Slot.UNIT_CHECK_OFFSET,
        Slot.UNIT_CHECK_COUNT,
    }
)
OF_LOG: Final = frozenset(
    {
        Slot.WRITTEN,
        Slot.FLUSHED,
        Slot.BOOT_ID_HIGH,
        Slot.BOOT_ID_LOW,
        Slot.LOG_EPOCH,
        Slot.RECOVERED_BY,
        Slot.GENERATION,
    }
)
BEATS: Final = {
    "broker": (LockByte.BROKER, Slot.BROKER_HEARTBEAT_MS),
    "reput": (LockByte.REPUT, Slot.REPUT_HEARTBEAT_MS),
    "ha": (LockByte.HA, Slot.HA_HEARTBEAT_MS),
}
PIDS: Final = {"broker": Slot.BROKER_PID, "reput": Slot.REPUT_PID, "ha": Slot.HA_PID}
"""PID of each service; 0 after a clean shutdown."""
BEAT_MS_MAX: Final = 8_000
"""A start has recovered the log within this time, also on a slow disk. Until then it writes one
heartbeat."""
YIELD_US: Final = 4_000_000
"""A running broker has released its locks within this time, also on a slow disk."""
LATE_FENCE_MS: Final = 1_000
"""Longer than a request to the lease."""
HELD_US: Final = 1_500_000
"""A switch gives up before, or ends the grant."""
ROOMY_US: Final = 8_000_000
"""Time within which a broker has tried whether its disk has room again."""
STOPPED_APART_US: Final = 500_000
LATE_APPEND_US: Final = 20_000
"""Longest time between the loads that allow an append and its publication, unless the process is
paused."""


def check_owner(machine: Machine, process: Process, slot: Slot, value: int) -> None:
    """Check that the writer of the slot holds the slot's byte of the lock file."""
    if slot in OF_LOG:
        byte = LockByte.APPEND
    elif slot in OF_BROKER:
        byte = LockByte.BROKER
    elif REGION_REPUT <= slot * SLOT_SIZE < REGION_HA:
        byte = LockByte.REPUT
    elif slot * SLOT_SIZE >= REGION_HA:
        byte = LockByte.HA
    else:
        return
    if not machine.holds(byte, process):
        raise Violation(
            f"{process.name} of {machine.name} publishes {slot.name} {value} without byte {byte}"
        )


def check_value(machine: Machine, process: Process, slot: Slot, value: int) -> None:
    """Check that a reader may rely on the value."""
    match slot:
        case Slot.WRITTEN:
            _must_be(machine, slot, value, value >= machine.slot(Slot.FLUSHED), "below FLUSHED")
            _must_be_allowed_to_append(machine, process)
        case Slot.FLUSHED:
            # ha empties the store without readers, and lets the log begin later.
            so = value <= machine.slot(Slot.WRITTEN) or _is_emptying(machine, process)
            _must_be(machine, slot, value, so, "above WRITTEN")
        case Slot.CONFIRM:
            kept = value >= machine.slot(slot) or _is_emptying(machine, process)
            _must_be(machine, slot, value, kept, f"and was {machine.slot(slot)}")
            _must_be(machine, slot, value, value <= machine.slot(Slot.WRITTEN), "above WRITTEN")
        case Slot.DISPATCHED | Slot.DISPATCHED_DURABLE:
            # An emptied log may begin above its confirm offset of 0, and has nothing to dispatch.
            confirmed = max(machine.slot(Slot.CONFIRM), machine.begins_at)
            _must_be(machine, slot, value, value <= confirmed, "above CONFIRM")
        case Slot.SERVING_EPOCH if value:
            blank = not machine.slot(Slot.EPOCH_RECORD_END)
            _must_be(machine, slot, value, blank, "with the end of another epoch's record")
            shut = machine.slot(Slot.BROKER_STATE) != BrokerPhase.SERVING
            _must_be(machine, slot, value, shut, "although BROKER_STATE is SERVING")
        case Slot.BROKER_STATE if value == BrokerPhase.SERVING:
            is_there = machine.has_taken_up
            _must_be(machine, slot, value, is_there, "before reput has published the queues")
            end, serving = machine.slot(Slot.EPOCH_RECORD_END), machine.slot(Slot.SERVING_EPOCH)
            counts = not serving or 0 < end <= machine.slot(Slot.CONFIRM)
            _must_be(
                machine, slot, value, counts, f"before the record of epoch {serving} is confirmed"
            )
        case Slot.EPOCH_RECORD_END if value:
            _must_be(machine, slot, value, value <= machine.slot(Slot.WRITTEN), "above WRITTEN")
        case Slot.BROKER_NONCE if value:
            idle = not machine.slot(Slot.SERVING_EPOCH)
            _must_be(machine, slot, value, idle, "of a start that serves an epoch already")
        case Slot.REPUT_GENERATION if value:
            _must_be(machine, slot, value, value <= machine.slot(Slot.GENERATION), "of no recovery")
        case Slot.BROKER_TROUBLE if value == Trouble.DISK_FULL:
            _must_be(machine, slot, value, _lacks_room(machine), "with room on its disk")
        case Slot.HA_NONCE:
            fenced = bool(machine.slot(Slot.FENCED)) and not machine.slot(Slot.GRANTED_TO)
            _must_be(machine, slot, value, fenced, "while the grant of the previous start is valid")
        case Slot.ROLE:
            _check_role(machine, process, NodeRole(value))
        case Slot.FENCED if not value:
            _check_grant(machine, process)
        case _:
            pass


def check_deadline(machine: Machine) -> None:
    """Check that a running node ends a grant whose lease it could not renew."""
    ha, now_us = machine.processes.get("ha"), machine.timeline.now_us
    if ha is None or ha.paused or not ha.alive or machine.slot(Slot.FENCED):
        return
    late_ms = machine.boot_ms() - machine.slot(Slot.LEASE_DEADLINE)
    granted = machine.slot(Slot.GRANTED_TO) and machine.holds(LockByte.HA, ha)
    # A lease whose grant came late because an answer was missing is renewed first.
    since_us = max(ha.resumed_us, machine.changed_us.get(Slot.FENCED, 0))
    if granted and min(late_ms, (now_us - since_us) // 1000) > LATE_FENCE_MS:
        raise Violation(
            f"{machine.name} keeps its grant {late_ms} ms after the deadline of its lease"
        )


def check_beats(machine: Machine) -> None:
    """Check that a running service writes heartbeats: a silent one counts as dead."""
    for service, (byte, slot) in BEATS.items():
        process = machine.processes.get(service)
        if process is None or process.paused or not machine.holds(byte, process):
            continue
        holder = machine.holder(LockByte.APPEND)
        if holder is not None and holder.paused:
            continue  # A start of ha waits for byte 0.
        silent_ms = machine.boot_ms() - machine.slot(slot)
        ran_ms = (machine.timeline.now_us - process.resumed_us) // 1000
        if min(silent_ms, ran_ms) > BEAT_MS_MAX:
            raise Violation(
                f"{service} of {machine.name} runs without heartbeat for {silent_ms} ms"
            )


def check_held(machine: Machine) -> None:
    """Check that sends are held for a switch no longer than a switch takes."""
    ha, now_us = machine.processes.get("ha"), machine.timeline.now_us
    if ha is None or ha.paused or not ha.alive or machine.slot(Slot.FENCED):
        return
    since_us = max(machine.changed_us.get(Slot.SENDS_HELD, now_us), ha.resumed_us)
    if machine.slot(Slot.SENDS_HELD) and now_us - since_us > HELD_US:
        raise Violation(
            f"{machine.name} holds sends for {now_us - since_us} µs without being fenced"
        )


def check_trouble(machine: Machine) -> None:
    """Check that a running broker clears its trouble some time after its disk has room."""
    broker, now_us = machine.processes.get("broker"), machine.timeline.now_us
    lacks = machine.is_full or machine.is_crowded
    if broker is None or broker.paused or not broker.alive or lacks:
        return
    since_us = max(
        machine.roomy_us,
        broker.resumed_us,
        machine.changed_us.get(Slot.BROKER_TROUBLE, now_us),
        machine.changed_us.get(Slot.ROLE, now_us),
    )
    trouble = Trouble(machine.slot(Slot.BROKER_TROUBLE))
    if trouble is Trouble.DISK_FULL and now_us - since_us > ROOMY_US:
        raise Violation(
            f"the disk of {machine.name} has had room for {now_us - machine.roomy_us} µs, but its "
            "broker publishes DISK_FULL"
        )


def check_yields(machine: Machine) -> None:
    """Check that a broker without a grant releases the log, and that one whose store is to be
    emptied ends."""
    broker, now_us = machine.processes.get("broker"), machine.timeline.now_us
    if broker is None or broker.paused or not broker.alive:
        return

    def lasts(slot: Slot) -> bool:
        changed_us = machine.changed_us.get(slot, now_us)
        since_us = max(changed_us, broker.resumed_us, machine.hung_until_us)
        return now_us - since_us > YIELD_US

    if not machine.slot(Slot.BROKER_PID):
        return  # The broker has stopped and takes all locks to mark the store as clean.
    if machine.slot(Slot.FENCED) and lasts(Slot.FENCED) and machine.holds(LockByte.APPEND, broker):
        raise Violation(f"the broker of {machine.name} keeps byte 0 long after its grant ended")
    emptied = machine.slot(Slot.ROLE) == NodeRole.RESYNC
    if emptied and lasts(Slot.ROLE) and machine.holds(LockByte.BROKER, broker):
        raise Violation(f"the broker of {machine.name} keeps a store that is to be emptied")


def check_stopped(machine: Machine) -> None:
    """Check that the last service that shuts down with no work left marks the store as clean, so
    that the next start need not scan the log. Two that end at the same time may each leave it to
    the other."""
    for service, process in machine.processes.items():
        published_us = machine.changed_us.get(PIDS[service], 0)
        if process.is_finished and machine.slot(PIDS[service]) and published_us >= process.begun_us:
            raise Violation(
                f"{service} of {machine.name} shut down cleanly, but its PID is still in the page"
            )
    processes, slot = machine.processes.values(), machine.slot
    nothing_left = (
        slot(Slot.REPUT_GENERATION) == slot(Slot.GENERATION) != 0
        and slot(Slot.WRITTEN) == slot(Slot.FLUSHED)
        and slot(Slot.DISPATCHED_DURABLE) == slot(Slot.CONFIRM)
    )
    is_last = len(processes) == len(BEATS) and all(each.is_finished for each in processes)
    alone = machine.timeline.now_us - machine.ended_us > STOPPED_APART_US
    fails = machine.is_full or machine.has_failed
    if is_last and alone and nothing_left and not fails and not machine.is_clean:
        raise Violation(f"{machine.name} shut down cleanly, but is not marked as clean")


def _check_role(machine: Machine, process: Process, role: NodeRole) -> None:
    if role is NodeRole.FOLLOWER:
        if not machine.holds(LockByte.APPEND, process):
            raise Violation(f"{machine.name} becomes a follower without byte 0")
        if not machine.slot(Slot.FENCED):
            raise Violation(f"{machine.name} becomes a follower while its grant is valid")
    elif role is NodeRole.MASTER:
        end, epoch = machine.slot(Slot.EPOCH_RECORD_END), machine.slot(Slot.EPOCH)
        if not 0 < end <= machine.slot(Slot.CONFIRM):
            raise Violation(
                f"{machine.name} is master before the record of epoch {epoch} is confirmed"
            )


def _check_grant(machine: Machine, process: Process) -> None:
    """Check that everything on which a grant relies survives a power cut."""
    epoch = machine.slot(Slot.EPOCH)
    if machine.holds(LockByte.APPEND, process):
        raise Violation(f"{machine.name} grants epoch {epoch} while it holds byte 0")
    if machine.durably_promised != epoch:
        raise Violation(
            f"{machine.name} grants epoch {epoch}; the promise on its disk is "
            f"{machine.durably_promised}"
        )
    table = machine.durable_table
    if not table or table[-1].epoch != epoch:
        raise Violation(f"{machine.name} grants epoch {epoch}, which its table on disk lacks")
    if not machine.has_table_backup:
        raise Violation(f"{machine.name} grants epoch {epoch}, but its table has no backup")
    boot = machine.slot(Slot.HA_BOOT_ID_HIGH), machine.slot(Slot.HA_BOOT_ID_LOW)
    if boot != machine.boot or not machine.slot(Slot.GRANTED_TO):
        raise Violation(f"{machine.name} grants epoch {epoch} to no start of this boot")
    if machine.slot(Slot.SENDS_HELD):
        raise Violation(f"{machine.name} grants epoch {epoch} with sends held for a switch")


def _must_be_allowed_to_append(machine: Machine, process: Process) -> None:
    """Check that a broker appends under an epoch only while its grant is valid."""
    serving, now_us = machine.slot(Slot.SERVING_EPOCH), machine.timeline.now_us
    if process.name != "broker" or not serving or not machine.slot(Slot.FENCED):
        return
    fenced_us = now_us - machine.changed_us.get(Slot.FENCED, now_us)
    if min(fenced_us, now_us - process.resumed_us) > LATE_APPEND_US:
        raise Violation(
            f"the broker of {machine.name} appends in epoch {serving}, fenced {fenced_us} µs ago"
        )


def _lacks_room(machine: Machine) -> bool:
    """Whether the disk takes no writes, or did not a short time ago."""
    lacks = machine.is_full or machine.is_crowded or machine.queues_are_full or machine.has_failed
    return lacks or machine.timeline.now_us - machine.roomy_us < ROOMY_US


def _is_emptying(machine: Machine, process: Process) -> bool:
    return process.name == "ha" and machine.holds(LockByte.BROKER, process)


def _must_be(machine: Machine, slot: Slot, value: int, so: bool, otherwise: str) -> None:
    if not so:
        raise Violation(f"{machine.name} publishes {slot.name} {value}, {otherwise}")
