"""Drills with a planned change of the master."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

from drills.ledger import Request
from drills.stage import MACHINES, THREE, TWO, Stage, drill
from services.ha.core.switchover import NOT_CONFIRMED

SWITCH_S: Final = 1.0
SWITCHES: Final = 20
PUT_OFF_MAX: Final = 5
"""Number of switches that a machine which stood still may put off."""
HOLD_S: Final = 1.0
"""Time for which a master holds sends before it goes on."""
BUSY: Final = frozenset(
    {"switching-over", "not-master", "no-master", "fenced", "not-connected", "not-serving"}
)
"""Errors that a switchover may cause; each means that nothing was stored."""
TIMED: Final = frozenset({"ack-timeout", "no-answer"})
"""Errors that mean that the sender's timeout has expired."""


@drill("38", f"{SWITCHES} planned switches under load", TWO, SWITCH_S, short=True)
@drill(
    "58",
    f"{SWITCHES} planned switches, etcd on each machine; default profile",
    MACHINES,
    SWITCH_S,
    name="switchover-etcd",
)
async def switchover(stage: Stage) -> None:
    """Expect each switchover to take at most a second and to cause only the errors in ``BUSY``.

    A switch that the machine delays until the master gives it up is ordered again. Its time
    without an ack counts like that of any other.
    """
    gaps: list[float] = []
    put_off = 0
    await stage.target()  # a node may still recover from the drill before
    first = stage.mark()
    while len(gaps) < SWITCHES:
        await stage.in_sync()
        await stage.load.acked(30)
        await stage.target()
        master, epoch = await stage.master(), stage.epoch
        at = stage.mark()
        status, answer = await stage.group.command(master, "switchover")
        if put_off < PUT_OFF_MAX and status == 409 and _is_put_off(stage, answer, at):
            put_off += 1
            await stage.acked_again(10)
            stage.gap_since(at)
            await stage.check_master(master)
            stage.check_epoch(epoch)
            continue
        stage.check(status == 200, f"switchover at {master} was answered {status} {answer}")
        await stage.successor(master, 10)
        await stage.acked_again(10)
        gaps.append(stage.gap_since(at))
        stage.check(stage.epoch > epoch, f"the epoch is still {epoch}")
    gaps.sort()
    stage.observed.notes[:] = [
        f"{SWITCHES} switches: without an ack for {gaps[len(gaps) // 2]:.2f} s (median), "
        f"{gaps[-1]:.2f} s (worst); {put_off} put off"
    ]
    beyond = Counter(
        request.code
        for request in stage.ledger.requests
        if request.sent_at >= first and request.code and not _is_due(stage, request)
    )
    stage.check(not beyond, f"errors beyond busy: {dict(beyond)}")


def _is_due(stage: Stage, request: Request) -> bool:
    """Return whether a switchover or the machine may have caused this error."""
    if request.code in BUSY:
        return True
    return request.code in TIMED and _was_held_up(
        stage, request.sent_at, request.ended_at, request.node
    )


def _is_put_off(stage: Stage, answer: Mapping[str, object], ordered_at: float) -> bool:
    """Return whether the machine kept the log from being confirmed until the master gave up."""
    now = time.monotonic()
    return (
        NOT_CONFIRMED in str(answer.get("detail"))
        and now - ordered_at >= HOLD_S
        and _was_held_up(stage, ordered_at, now)
    )


def _was_held_up(stage: Stage, began: float, ended: float, node: str = "") -> bool:
    """Return whether, for at least half of the time, the machine did not run the node (without a
    name: any node) or the disk stalled."""
    pace = stage.finder.pace
    held_s = max(pace.held_back_s(began, ended, node), pace.disk_stalled_s(began, ended))
    return 2 * held_s >= ended - began


@drill(
    "37",
    "all nodes are restarted one after another, the master last, then the master first",
    THREE,
    2.0,
)
async def rolling_restart(stage: Stage) -> None:
    """Expect write gaps of at most two seconds, because a stopping master hands over."""
    gaps = []
    for master_last in (True, False):
        master = await stage.master()
        slaves = stage.slaves(master)
        for name in (*slaves, master) if master_last else (master, *slaves):
            await stage.in_sync()
            await stage.load.acked(30)
            at = stage.mark()
            await stage.group.stop_orderly(name)
            stage.group.start(name)
            await asyncio.sleep(1.0)
            await stage.acked_again(20)
            await stage.in_sync()
            gaps.append((stage.gap_since(at), name))
    stage.note(", ".join(f"{name} {gap:.2f} s" for gap, name in gaps))
