"""Drills in which the lease store fails: errors, no responses, lost and late responses."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from drills.stage import WITH_API, Stage, drill

DOWN_S: Final = 12.0
FAULTY_S: Final = 12.0
BACK_S: Final = 6.0
"""Time from the return of the lease to an ack: a lease, and three seconds."""


@drill("10", "the lease takes the master's writes, and the answers are lost", WITH_API, 6.0)
async def lost_lease_answers(stage: Stage) -> None:
    """Expect a write without a response to stay unknown until the object is read again.

    No change may happen twice.
    """
    server = stage.lease_server
    master = await stage.master()
    slave, other = stage.slaves(master)
    version = await _in_sync_version(stage, master)
    await stage.load.acked(50)
    stage.mark()
    only: dict[str, object] = {
        "only_methods": ["PUT"],
        "only_from": [stage.group.nodes[master].host],
    }
    await server.faults(drop_answers=1, **only)
    stage.group.kill(slave)
    await stage.in_sync(master, other, timeout_s=15)
    await stage.acked_again(10)
    after = await _in_sync_version(stage, master)
    if await stage.master() == master:
        stage.check(after == version + 1, f"the set's version went from {version} to {after}")
    stage.note(f"{slave} was removed once, version {version} to {after}, with every answer lost")
    # Second part: the write that adds a member is applied long after it was sent.
    await server.faults(apply_late_ms=1500, **only)
    stage.judge_until_now()
    stage.group.start(slave)
    await stage.pass_time(4.0)
    await server.faults()


@drill("11", f"the lease is unreachable for {DOWN_S:.0f} s", WITH_API, BACK_S)
async def lease_down(stage: Stage) -> None:
    """Expect the master to stop by its deadline, and no other until the lease is reachable."""
    server = stage.lease_server
    master, *_ = await stage.roles(50)
    stage.mark()
    await server.faults(drop_requests=1)
    # Until the server has the fault, the master may renew its lease.
    deadline = time.monotonic() + stage.fenced_s
    await stage.pass_time(DOWN_S)
    stage.check_none_late(stage.ledger.acks(), deadline, "after the deadline")
    await server.faults()
    restored_s = await stage.restored(20)
    stage.note(
        f"{master} was master, {await stage.master()} is, {restored_s:.1f} s after the lease "
        "came back"
    )


@drill("12", "the lease answers 409, 429 or 500 to 30 % of all requests", WITH_API, 6.0)
async def lease_errors(stage: Stage) -> None:
    """Expect no new epoch unless the lease really expired."""
    server, epoch = stage.lease_server, stage.epoch
    stage.mark()
    await server.faults(error_rate=0.3, errors=[409, 429, 500])
    await stage.pass_time(FAULTY_S)
    await server.faults()
    changed = stage.epoch - epoch
    gap = stage.ledger.longest_gap(stage.observed.fault_at, time.monotonic())
    stage.note(
        f"{changed} changes of epoch in {FAULTY_S:.0f} s; longest time without an ack {gap:.2f} s"
    )
    stage.check(not changed or gap > stage.fenced_s / 2, "the epoch changed although nothing stood")


@drill("13", "every request to the lease takes most of its time-out", WITH_API, 1.5)
async def slow_lease(stage: Stage) -> None:
    """Expect the same master throughout."""
    server, epoch = stage.lease_server, stage.epoch
    stage.mark()
    await server.faults(delay_ms=stage.times.request_timeout_ms * 6 // 10)
    await stage.pass_time(FAULTY_S)
    stage.check_epoch(epoch)
    await server.faults()


@drill("48", "a candidate loses against the old master's write", WITH_API, 8.0)
async def candidate_loses(stage: Stage) -> None:
    """Expect the loser to follow within a second and to ack again."""
    server = stage.lease_server
    master, *slaves = await stage.roles(50)
    stage.mark()
    addresses = [stage.group.nodes[name].host for name in (master, *slaves)]
    await server.faults(drop_requests=1, only_from=addresses[:1])
    await asyncio.sleep(stage.lease_s - 0.1)
    # The candidates' writes are delayed from now on, so that those of the master come first.
    await server.faults(
        delay_ms=stage.times.request_timeout_ms * 9 // 10,
        only_methods=["PUT"],
        only_from=addresses[1:],
    )
    await asyncio.sleep(1.5)
    await server.faults()
    await stage.acked_again(20)
    took = await stage.in_sync(timeout_s=10)
    stage.note(f"{await stage.master()} leads epoch {stage.epoch}; all in sync {took:.1f} s later")


async def _in_sync_version(stage: Stage, name: str) -> int:
    status = await stage.group.status(name)
    return int((status.get("lease") or {}).get("in_sync_version") or 0)
