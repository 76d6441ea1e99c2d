"""The simulated processes: interrupted at every border, killed for good, never more durable than a
disk guarantees."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from shared.cluster import grant
from shared.files.positions import Positions
from tests.simulation.replication.machine import Judge, Machine
from tests.simulation.replication.node_disk import ProcessDisk
from tests.simulation.replication.plan import THEMES, theme_of
from tests.simulation.replication.process import Process
from tests.simulation.replication.seams import simulated
from tests.simulation.replication.store_view import PAGE, ROOT
from tests.simulation.replication.threads import Lock
from tests.simulation.replication.timeline import Timeline
from tidemark.formats.checkpoint import NodeRole, Slot

BOOT = (1, 2)
FILE = ROOT / "file"


class NoJudge:
    """Judges nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def machine_of(timeline: Timeline) -> Machine:
    return Machine(timeline, "n0", cast(Judge, NoJudge()), drift=0.0, disk_us=1_000)


def page_of(machine: Machine, *, preemption: float = 1.0) -> tuple[Process, Positions]:
    process = Process(machine, "ha", preemption=preemption)
    disk: Any = ProcessDisk(machine, process)
    return process, Positions.open(disk, PAGE)


def test_others_see_every_state_between_the_stores_of_a_fence() -> None:
    timeline = Timeline(0)
    seen: list[tuple[int, ...]] = []
    with simulated(timeline):
        machine = machine_of(timeline)
        process, page = page_of(machine)
        grant.grant(page, epoch=3, nonce=7, deadline_boot_ms=100, boot=BOOT)
        process.start("fencing", lambda: grant.fence(page))

        def check() -> bool:
            shown = tuple(map(machine.slot, (Slot.FENCED, Slot.GRANTED_TO, Slot.ROLE)))
            if not seen or seen[-1] != shown:
                seen.append(shown)
            return False

        timeline.run_until(10_000, done=check)
    promoting, void = NodeRole.PROMOTING, NodeRole.VOID
    assert seen == [(1, 7, promoting), (1, 0, promoting), (1, 0, void)]


def test_a_grant_that_ends_while_it_is_read_is_none() -> None:
    # Whatever the load behind which ha fences: the broker is granted the epoch only if all that it
    # loaded was loaded before.
    results = []
    for fenced_at in range(14):
        timeline = Timeline(0)
        with simulated(timeline):
            machine = machine_of(timeline)
            _, page = page_of(machine)
            grant.grant(page, epoch=3, nonce=7, deadline_boot_ms=100, boot=BOOT)
            loads = 0

            class Interrupted:
                def get(self, slot: Slot, page: Positions = page, at: int = fenced_at) -> int:
                    nonlocal loads
                    loads += 1
                    value = page.get(slot)
                    if loads == at:
                        grant.fence(page)
                    return value

                publish = page.publish

            found = grant.granted(Interrupted(), nonce=7, boot=BOOT, served=0)
        results.append(found if fenced_at <= loads else "too late")
    last = results.index("too late") - 1
    assert last >= 6
    assert results[0] == 3, "no process fences"
    assert results[1:last] == [None] * (last - 1)


def test_a_killed_process_changes_nothing_any_more() -> None:
    timeline, unwound = Timeline(0), []
    with simulated(timeline):
        machine = machine_of(timeline)
        process, page = page_of(machine, preemption=0.0)
        lock = Lock()

        def work() -> None:
            try:
                with lock:
                    page.publish(Slot.WRITTEN, 5)
                    page.publish(Slot.FLUSHED, 5)
            finally:
                unwound.append(True)
                page.publish(Slot.WRITTEN, 9)

        process.start("writer", work)
        process.strike_after(1, process.end)
        timeline.run_until(10_000)
    assert unwound == [True]
    assert (machine.slot(Slot.WRITTEN), machine.slot(Slot.FLUSHED)) == (5, 0)


def test_a_sync_makes_durable_what_was_stored_when_it_began() -> None:
    timeline = Timeline(0)
    with simulated(timeline):
        machine = machine_of(timeline)
        process = Process(machine, "ha", preemption=0.0)
        disk = ProcessDisk(machine, process)
        file = disk.create(FILE, 8, reserve=True)
        file.pwrite(b"old", 0)
        process.start("sync", file.sync)
        timeline.run_until(500)
        assert durable(machine, FILE) == b""
        file.pwrite(b"new", 4)
        timeline.run_until(10_000)
    assert durable(machine, FILE) == b"old\0\0\0\0\0"


def test_a_later_sync_does_not_make_good_for_one_that_failed() -> None:
    # The kernel marks the pages clean: only what is stored again reaches the disk.
    timeline, failed = Timeline(0), []
    with simulated(timeline):
        machine = machine_of(timeline)
        process = Process(machine, "ha", preemption=0.0)
        disk = ProcessDisk(machine, process)
        file = disk.create(FILE, 8, reserve=True)
        file.pwrite(b"old", 0)

        def sync() -> None:
            try:
                file.sync()
            except OSError as error:
                failed.append(error.errno)

        machine.syncs_fail = True
        process.start("sync", sync)
        timeline.run_until(10_000)
        machine.syncs_fail = False
        process.start("sync", sync)
        timeline.run_until(20_000)
        assert failed == [errno.EIO]
        assert durable(machine, FILE) == bytes(8)
        file.pwrite(b"old", 0)
        process.start("sync", sync)
        timeline.run_until(30_000)
    assert durable(machine, FILE) == b"old" + bytes(5)


def test_every_theme_gets_its_share_of_any_long_range_of_seeds() -> None:
    turn = len(THEMES) * 3 // 2 + 3
    for first in (0, 1, 500, 9_000):
        drawn = Counter(map(theme_of, range(first, first + turn)))
        assert set(drawn) == {(), *THEMES}
        assert abs(drawn[()] - turn / 3) <= 1


def durable(machine: Machine, path: Path) -> bytes:
    return machine.disk.durable_bytes(path)
