"""Drills about disks: slow and full disks, torn writes, flipped bits and stray files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, BinaryIO, Final

from drills.faults import Fault
from drills.node_group import LOG_FILE_SIZE, slot
from drills.sends import grow_tail, make_topic
from drills.small_disks import fill
from drills.stage import THREE, THREE_FRESH, Needs, Stage, drill
from tidemark.formats.checkpoint import Slot

MIB: Final = 1 << 20
SMALL: Final = Needs(nodes=2, disk_size=96 * MIB)
SLOW_SYNC_MS: Final = 5000
NAMED_S: Final = 20.0


@drill("19", "every fdatasync of one slave takes five seconds", THREE, 5.0)
async def slow_disk(stage: Stage) -> None:
    """Expect the slave to leave the set after the lag limit and to rejoin when its disk is fast
    again.
    """
    master, slow, other = await stage.roles(50)
    stage.mark()
    stage.group.nodes[slow].faults.set(Fault.SYNC_DELAY_MS, SLOW_SYNC_MS)
    took = await stage.in_sync(master, other, timeout_s=20)
    await stage.acked_again(10)
    stage.judge_until_now()
    stage.note(f"{slow} left the set after {took:.1f} s")
    stage.group.nodes[slow].faults.clear()
    stage.note(f"and was back {await stage.in_sync(timeout_s=60):.1f} s after its disk")


@drill("20", "the master's disk is full", SMALL, 10.0)
async def master_disk_full(stage: Stage) -> None:
    """Expect send errors, then a master with free space; no record may be stored partially."""
    master, *_ = await stage.roles(50)
    stage.mark()
    ballast = fill(stage.group.nodes[master].store_dir)
    try:
        await stage.successor(master, 60)
        await stage.acked_again(30)
        await stage.load.acked(50)
        codes = stage.ledger.codes(stage.observed.fault_at, time.monotonic())
        stage.note(f"errors meanwhile: {dict(codes)}")
    finally:
        ballast.unlink()


@drill("21", "the only slave's disk is full", SMALL, 10.0)
async def slave_disk_full(stage: Stage) -> None:
    """Expect the slave to leave the set and to rejoin when it has free space, without damage."""
    await make_topic(stage)
    master, slave = await stage.roles(50)
    stage.mark()
    ballast = fill(stage.group.nodes[slave].store_dir)
    try:
        # The current log file has its space allocated; the next files cannot be created.
        await grow_tail(stage, master, 16 * MIB)
        took = await stage.in_sync(master, timeout_s=30)
        await stage.acked_again(10)
        stage.note(f"{slave} left the set after {took:.1f} s")
    finally:
        ballast.unlink()
    stage.note(f"and was back after {await stage.in_sync(timeout_s=60):.1f} s")


@drill(
    "22",
    "the end of a slave's log is torn: above, then below what it knows to be confirmed",
    THREE_FRESH,
)
async def torn_tail(stage: Stage) -> None:
    """Expect recovery to truncate a torn end above the confirm offset.

    Below the confirm offset, the replica must halt and must not be elected.
    """
    master, slave, other = await stage.roles(100)
    stage.group.kill(slave)
    node = stage.group.nodes[slave]
    end = slot(node.store_dir, Slot.WRITTEN)
    _write(node.store_dir, end, b"\x00\x00\x01\x00half of a record that was never finished")
    stage.group.start(slave)
    stage.note(f"half a record after the end: back after {await stage.in_sync(timeout_s=60):.1f} s")
    await stage.load.acked(100)
    stage.group.kill(slave)
    end = slot(node.store_dir, Slot.WRITTEN)
    _write(node.store_dir, end - 300, bytes(300))
    stage.group.start(slave)
    await stage.in_sync(master, other, timeout_s=20)
    named = await _named(stage, slave)
    stage.note(f"300 bytes below the end are zero: {named}")
    stage.group.kill(master)
    # With min_in_sync 2 it cannot ack alone; it starts to serve when the third node is back.
    await stage.state(other, "promoting", "master", timeout_s=20)
    stage.group.start(master)
    leader = await stage.master()
    stage.check(leader != slave, f"{slave} leads with a damaged log")


@drill("23", "one bit of the confirmed log of a slave is flipped", THREE_FRESH)
async def bit_flip(stage: Stage) -> None:
    """Expect a checksum error at the return; the slave resyncs or halts, and never leads."""
    master, slave, other = await stage.roles(200)
    stage.group.kill(slave)
    node = stage.group.nodes[slave]
    end = slot(node.store_dir, Slot.CONFIRM)
    at = end - 2000
    with _log_at(node.store_dir, at) as file:
        (byte,) = file.read(1)
    _write(node.store_dir, at, bytes([byte ^ 0x10]))
    stage.group.start(slave)
    await stage.in_sync(master, other, timeout_s=20)
    named = await _named(stage, slave)
    stage.note(f"bit at {at}, end {end}: {named}")
    stage.check(
        await stage.master() == master and bool(named), f"{slave} is not named as what it is"
    )


@drill("23a", "a file that is none of the log's lies in a slave's log", THREE_FRESH)
async def stray_file(stage: Stage) -> None:
    """Expect the node to refuse to start and to name the file; without the file it starts."""
    master, slave, other = await stage.roles(50)
    stage.group.kill(slave)
    await stage.in_sync(master, other, timeout_s=20)
    node = stage.group.nodes[slave]
    stray = node.store_dir / "commitlog" / "notes.txt"
    stray.write_text("not a log file", encoding="utf-8")
    stage.group.start(slave)
    named = await _named(stage, slave)
    stage.check("notes.txt" in named, f"{slave} does not name the stray file: {named}")
    stage.check(slave not in stage.finder.known.newest[master].in_sync, "it is in the set")
    stage.group.kill(slave)
    stray.unlink()
    stage.group.start(slave)
    stage.note(f"{named}; without it {slave} was back after {await stage.in_sync():.1f} s")


async def _named(stage: Stage, name: str) -> str:
    """Wait until a node reports that it is halted or was resynced; return its state and reason."""
    found: dict[str, Any] = {}

    async def named() -> bool:
        found.update(await stage.group.entry(name, name))
        # The reason of an in-sync node is a service that has not started; the damage is repaired.
        return bool(found.get("reason")) and found.get("state") != "in-sync"

    what = f"{name} does not say what is wrong with it"
    await stage.eventually(named, lambda: what, NAMED_S)
    return f"{found['state']}: {found['reason']}"


def _log_at(store_dir: Path, at: int) -> BinaryIO:
    """Open the log file that contains a physical offset, and seek to it."""
    place = at % LOG_FILE_SIZE
    file = (store_dir / "commitlog" / f"{at - place:020d}").open("r+b")
    file.seek(place)
    return file


def _write(store_dir: Path, at: int, data: bytes) -> None:
    with _log_at(store_dir, at) as file:
        file.write(data)
