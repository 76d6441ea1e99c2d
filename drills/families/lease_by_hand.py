"""Drills in which the lease is deleted, edited or restored manually."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from drills.stage import WITH_API, Stage, drill

WITH_API_ALONE: Final = WITH_API._replace(fresh=True)
WITHOUT_MASTER_S: Final = 8.0
ORDER_S: Final = 15.0
STRANGER: Final = f"n9/{'9' * 32}/{'9' * 16}"


@drill(
    "34",
    "the lease is deleted while the master lives; then again, with one slave silent",
    WITH_API_ALONE,
)
async def lease_deleted(stage: Stage) -> None:
    """Expect the lease to be recreated with the next epoch if every member promises it.

    If a member is silent, only an operator may recreate the lease.
    """
    server = stage.lease_server
    master, epoch = await stage.master(), stage.epoch
    await stage.load.acked(50)
    at = stage.mark()
    await server.delete()
    await stage.finder.until(lambda _: stage.epoch > epoch, "an epoch after the deleted one", 20)
    await stage.acked_again(20)
    stage.gap_since(at)
    stage.check(await server.read() is not None, "there is no lease")
    stage.note(
        f"{master} led epoch {epoch}; deleted: {await stage.master()} leads epoch {stage.epoch}"
    )
    master, epoch = await stage.master(), stage.epoch
    silent = stage.slaves(master)[0]
    stage.group.pause(silent)
    await server.delete()
    deleted = time.monotonic()
    await stage.pass_time(WITHOUT_MASTER_S)
    stage.check(await server.read() is None, "a node created the lease without all promises")
    _check_no_ack(stage, deleted, "without a lease")
    stage.group.resume(silent)
    await _recreate(stage)


@drill("35", "the lease is deleted while all nodes are off", WITH_API_ALONE)
async def lease_deleted_no_master(stage: Stage) -> None:
    """Expect no master until an operator runs ``recreate-lease``."""
    server = stage.lease_server
    await stage.load.acked(50)
    stage.group.kill_all()
    await server.delete()
    stage.group.start()
    began = time.monotonic()
    await stage.pass_time(WITHOUT_MASTER_S)
    stage.check(await server.read() is None, "a node created the lease by itself")
    stage.check(stage.ledger.first_ack(began) is None, "a node serves without a lease")
    # No node was up to remember the in-sync set; the operator knows that all nodes were in it.
    await _recreate(stage, in_sync=",".join(stage.group.names))


@drill("36", "an operator writes another holder into the lease", WITH_API, 8.0)
async def lease_edited(stage: Stage) -> None:
    """Expect the master to stop at its next renewal, and a takeover when the edited lease ends."""
    server = stage.lease_server
    master, epoch = await stage.master(), stage.epoch
    await stage.load.acked(50)
    stage.mark()
    for _ in range(20):
        if await server.edit_holder(STRANGER):
            break
    await stage.finder.until(lambda _: stage.epoch > epoch, "a next epoch", 20)
    await stage.acked_again(20)
    stage.note(f"{master} led; {await stage.master()} leads in epoch {stage.epoch}")


@drill("47", "the lease is restored from a backup of before a failover", WITH_API_ALONE)
async def lease_restored(stage: Stage) -> None:
    """Expect no renewal or candidacy on a lease from a backup, until ``recreate-lease``."""
    server = stage.lease_server
    backup = await server.read()
    assert backup is not None
    master, epoch = await stage.master(), stage.epoch
    stage.group.kill(master)
    await stage.successor(master, 20)
    stage.group.start(master)
    await stage.in_sync()
    await stage.load.acked(50)
    newest = stage.epoch
    await server.delete()
    await server.create(backup)
    went_back = time.monotonic()
    await stage.pass_time(WITHOUT_MASTER_S)
    _check_no_ack(stage, went_back, "under a lease that went back")
    reasons = "; ".join(stage.finder.described())
    stage.note(f"epoch {epoch} restored over {newest}; after {WITHOUT_MASTER_S:.0f} s: {reasons}")
    await _recreate(stage)


@drill("49", "another program keeps editing an annotation of the lease", WITH_API, 1.5)
async def third_party_edits(stage: Stage) -> None:
    """Expect conflicts and retries, but no master that steps down."""
    server, epoch = stage.lease_server, stage.epoch
    stage.mark()
    edits = 0
    for number in range(60):
        edits += await server.edit_note(str(number))
        await asyncio.sleep(0.1)
    stage.check_epoch(epoch)
    stage.note(f"{edits} edits by a third party, none of which cost anything")


def _check_no_ack(stage: Stage, since: float, how: str) -> None:
    acks = [ack for ack in stage.ledger.acks() if ack.sent_at > since]
    stage.check_none_late(acks, since + stage.fenced_s, how)


async def _recreate(stage: Stage, **more: object) -> None:
    """Run ``recreate-lease`` and wait for a master. more: arguments of the command."""
    epoch = stage.epoch
    # All nodes must respond, but one may have just started.
    answer = await stage.ordered(stage.group.names[0], "recreate-lease", ORDER_S, **more)
    await stage.acked_again(30)
    stage.check(stage.epoch > epoch, f"the new lease has epoch {stage.epoch}, the old {epoch}")
    stage.note(f"recreate-lease: {answer}; {await stage.master()} leads")
    await stage.in_sync()
