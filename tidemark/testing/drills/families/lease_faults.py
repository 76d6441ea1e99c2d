"""Drills in which the place of the lease misbehaves, or somebody changes the object by hand."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from tidemark.testing.drills.lease_server import LeaseServer
from tidemark.testing.drills.stage import Needs, Stage, drill

WITH_API: Final = Needs(nodes=3, cuts=True, lease="kubernetes")
WITH_API_ALONE: Final = Needs(nodes=3, cuts=True, lease="kubernetes", fresh=True)
NOBODY_S: Final = 8.0
ORDER_S: Final = 15.0
DOWN_S: Final = 12.0
FAULTY_S: Final = 12.0
STRANGER: Final = f"n9/{'9' * 32}/{'9' * 16}"
NOTE_ANNOTATION: Final = "example.org/note"


def _server(stage: Stage) -> LeaseServer:
    assert stage.lease is not None, "this drill needs an API server"
    return stage.lease


@drill(
    "10",
    "lost-lease-answers",
    "the lease takes the master's writes, and the answers are lost",
    needs=WITH_API,
    restored_within_s=6.0,
)
async def lost_lease_answers(stage: Stage) -> None:
    """A write without an answer is unknown until the object has moved; no change happens twice."""
    server = _server(stage)
    master = await stage.master()
    slave, other = stage.slaves(master)
    version = await _in_sync_version(stage, master)
    await stage.load.acked(50)
    stage.mark()
    await server.faults(
        drop_answers=1,
        only_methods=["PUT"],
        only_from=[stage.group.nodes[master].host.address],
    )
    stage.group.kill(slave)
    await stage.in_sync(master, other, timeout_s=15)
    await stage.acked_again(10)
    after = await _in_sync_version(stage, master)
    if await stage.master() == master:
        stage.check(after == version + 1, f"the set's version went from {version} to {after}")
    stage.note(f"{slave} was removed once, version {version} to {after}, with every answer lost")
    await server.faults()
    # The other half: the write that adds a member is applied long after it was sent.
    await server.faults(
        apply_late_ms=1500,
        only_methods=["PUT"],
        only_from=[stage.group.nodes[master].host.address],
    )
    stage.restored_by = time.monotonic()
    stage.group.start(slave)
    await stage.pass_time(4.0)
    await server.faults()


@drill(
    "11",
    "lease-down",
    f"nobody reaches the lease for {DOWN_S:.0f} s",
    needs=WITH_API,
)
async def lease_down(stage: Stage) -> None:
    """The master stops by its deadline, nobody else begins, service resumes with the lease."""
    server = _server(stage)
    master = await stage.master()
    await stage.load.acked(50)
    at = stage.mark()
    await server.faults(drop_requests=1)
    await stage.pass_time(DOWN_S)
    late = [ack for ack in stage.ledger.acks() if ack.ended_at > at + stage.fenced_s + 0.3]
    stage.check(not late, f"{len(late)} sends were acknowledged after the deadline")
    await server.faults()
    stage.restored_s = await stage.acked_again(20)
    stage.note(
        f"{master} was master, {await stage.master()} is, {stage.restored_s:.1f} s after the lease "
        "came back"
    )
    stage.check(stage.restored_s <= stage.lease_s + 3, "service took longer than a lease and 3 s")


@drill(
    "12",
    "lease-errors",
    "the lease answers 409, 429 or 500 to 30 % of all requests",
    needs=WITH_API,
    restored_within_s=6.0,
)
async def lease_errors(stage: Stage) -> None:
    """No other epoch, unless the lease really ran out."""
    server = _server(stage)
    epoch = stage.epoch
    stage.mark()
    await server.faults(error_rate=0.3, errors=[409, 429, 500])
    await stage.pass_time(FAULTY_S)
    await server.faults()
    changed = stage.epoch - epoch
    gap = stage.ledger.longest_gap(stage.fault_at, time.monotonic())
    stage.note(
        f"{changed} changes of epoch in {FAULTY_S:.0f} s; longest time without an ack {gap:.2f} s"
    )
    stage.check(not changed or gap > stage.fenced_s / 2, "the epoch changed although nothing stood")


@drill(
    "13",
    "slow-lease",
    "every request to the lease takes most of its time-out",
    needs=WITH_API,
    restored_within_s=1.5,
)
async def slow_lease(stage: Stage) -> None:
    """It stays master; nothing flaps."""
    server = _server(stage)
    epoch = stage.epoch
    stage.mark()
    await server.faults(delay_ms=stage.times.request_timeout_ms * 6 // 10)
    await stage.pass_time(FAULTY_S)
    stage.check(stage.epoch == epoch, f"the epoch went from {epoch} to {stage.epoch}")
    await server.faults()


@drill(
    "34",
    "lease-deleted",
    "the lease is deleted while the master lives; then again, with one slave silent",
    needs=WITH_API_ALONE,
    restored_within_s=None,
)
async def lease_deleted(stage: Stage) -> None:
    """Made again with the next epoch if every member promises it; else by an operator only."""
    server = _server(stage)
    master, epoch = await stage.master(), stage.epoch
    await stage.load.acked(50)
    at = stage.mark()
    await server.delete()
    await stage.finder.until(
        lambda known: max(look.epoch for look in known.newest.values()) > epoch,
        "an epoch after the deleted one",
        20,
    )
    await stage.acked_again(20)
    stage.restored_s = stage.ledger.longest_gap(at, time.monotonic())
    stage.check(await server.read() is not None, "there is no lease")
    stage.note(
        f"{master} led epoch {epoch}; deleted: {await stage.master()} leads epoch {stage.epoch}"
    )
    master, epoch = await stage.master(), stage.epoch
    silent = stage.slaves(master)[0]
    stage.group.pause(silent)
    await server.delete()
    deleted = time.monotonic()
    await stage.pass_time(NOBODY_S)
    stage.check(await server.read() is None, "somebody made the lease without all promises")
    late = [ack for ack in stage.ledger.acks() if ack.sent_at > deleted + stage.fenced_s + 0.5]
    stage.check(not late, f"{len(late)} sends were acknowledged without a lease")
    stage.group.unpause(silent)
    await _recreate(stage)


@drill(
    "35",
    "lease-deleted-no-master",
    "the lease is deleted while all nodes are off",
    needs=WITH_API_ALONE,
    restored_within_s=None,
)
async def lease_deleted_no_master(stage: Stage) -> None:
    """Nobody begins; ``recreate-lease`` does."""
    server = _server(stage)
    await stage.load.acked(50)
    for name in stage.group.names:
        stage.group.kill(name)
    await server.delete()
    stage.group.start()
    began = time.monotonic()
    await stage.pass_time(NOBODY_S)
    stage.check(await server.read() is None, "somebody made the lease by itself")
    stage.check(stage.ledger.first_ack(began) is None, "somebody serves without a lease")
    # Nobody was there to remember the set: the operator knows that all were in it.
    await _recreate(stage, in_sync=",".join(stage.group.names))


@drill(
    "36",
    "lease-edited",
    "somebody writes another holder into the lease",
    needs=WITH_API,
    restored_within_s=8.0,
)
async def lease_edited(stage: Stage) -> None:
    """The master stops at its next renewal; a member takes over when that holder has run out."""
    server = _server(stage)
    master, epoch = await stage.master(), stage.epoch
    await stage.load.acked(50)
    stage.mark()
    for _ in range(20):
        found = await server.read()
        assert found is not None
        found["spec"]["holderIdentity"] = STRANGER
        if await server.write(found):
            break
    await stage.finder.until(
        lambda known: max(look.epoch for look in known.newest.values()) > epoch,
        "a next epoch",
        20,
    )
    await stage.acked_again(20)
    stage.note(f"{master} led; {await stage.master()} leads in epoch {stage.epoch}")


@drill(
    "47",
    "lease-restored",
    "the lease is restored from a backup of before a failover",
    needs=WITH_API_ALONE,
    restored_within_s=None,
)
async def lease_restored(stage: Stage) -> None:
    """Nobody renews or campaigns on what went back; ``recreate-lease`` ends it."""
    server = _server(stage)
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
    await stage.pass_time(NOBODY_S)
    late = [ack for ack in stage.ledger.acks() if ack.sent_at > went_back + stage.fenced_s + 0.5]
    stage.check(not late, f"{len(late)} sends were acknowledged under a lease that went back")
    reasons = "; ".join(stage.finder.described())
    stage.note(f"epoch {epoch} restored over {newest}; after {NOBODY_S:.0f} s: {reasons}")
    await _recreate(stage)


@drill(
    "48",
    "candidate-loses",
    "a candidate loses against the old master's write",
    needs=WITH_API,
    restored_within_s=8.0,
)
async def candidate_loses(stage: Stage) -> None:
    """It follows again within a second and goes on acknowledging: it has not locked itself out."""
    server = _server(stage)
    master = await stage.master()
    slaves = stage.slaves(master)
    await stage.load.acked(50)
    stage.mark()
    addresses = [stage.group.nodes[name].host.address for name in (master, *slaves)]
    await server.faults(drop_requests=1, only_from=addresses[:1])
    await asyncio.sleep(stage.lease_s - 0.1)
    # Candidates campaign from now on; their writes are held up, and the master's overtake them.
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


@drill(
    "49",
    "third-party-edits",
    "somebody else keeps editing an annotation of the lease",
    needs=WITH_API,
    restored_within_s=1.5,
)
async def third_party_edits(stage: Stage) -> None:
    """A conflict, a look, and on: nobody steps down."""
    server = _server(stage)
    epoch = stage.epoch
    stage.mark()
    edits = 0
    for number in range(60):
        found = await server.read()
        assert found is not None
        found["metadata"].setdefault("annotations", {})[NOTE_ANNOTATION] = str(number)
        edits += await server.write(found)
        await asyncio.sleep(0.1)
    stage.check(stage.epoch == epoch, f"the epoch went from {epoch} to {stage.epoch}")
    stage.note(f"{edits} edits by a third party, none of which cost anything")


async def _recreate(stage: Stage, **more: object) -> None:
    """Order a new lease, and wait for a master. more: arguments of the order."""
    name = stage.group.names[0]
    epoch = stage.epoch
    deadline = time.monotonic() + ORDER_S
    while True:
        status, answer = await stage.group.command(name, "recreate-lease", **more)
        if status == 200:
            break
        # All nodes have to answer, and one may just have come back.
        late = time.monotonic() > deadline
        stage.check(not late, f"recreate-lease was answered {status} {answer}")
        await asyncio.sleep(0.5)
    await stage.acked_again(30)
    stage.check(stage.epoch > epoch, f"the new lease has epoch {stage.epoch}, the old {epoch}")
    stage.note(f"recreate-lease: {answer}; {await stage.master()} leads")
    await stage.in_sync()


async def _in_sync_version(stage: Stage, name: str) -> int:
    status = await stage.group.status(name)
    return int((status.get("lease") or {}).get("in_sync_version") or 0)
