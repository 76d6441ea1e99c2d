"""Drills in which nodes are cut off from each other and from the lease store."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final

from drills.ledger import Outcome
from drills.namespaces import cut_apart
from drills.sends import patient_sends
from drills.stage import THREE_APART, WITH_API, Stage, drill

CUT_S: Final = 6.0
PATIENT: Final = 8


async def _no_ack_while_cut(stage: Stage, master: str, cut_at: float) -> None:
    """cut_at: end of the last cut. A process cuts each direction, which takes a second on a loaded
    machine. Until the last has ended, an ack may be true.
    """
    how = f"by {master} while it was cut off"
    untrue = stage.ledger.acked_by(master, cut_at)
    stage.check(not untrue, f"{len(untrue)} later sends were acknowledged {how}")
    earlier = [ack for ack in stage.ledger.acks() if ack.node == master]
    stage.check_none_late(earlier, cut_at, how)


@drill("7", "the master reaches the lease and no slave, min_in_sync 2", THREE_APART, short=True)
async def cut_from_slaves(stage: Stage) -> None:
    """Expect failed sends, the same master, and at least min_in_sync members in the set."""
    master, epoch = await stage.master(), stage.epoch
    await stage.load.acked(50)
    stage.mark()
    # By port: a member of etcd on the master's machine still reaches the others.
    group = stage.group
    cut_apart(group.network, master, stage.slaves(master), group.replication_ports)
    cut_at = time.monotonic()
    await stage.pass_time(CUT_S)
    await _no_ack_while_cut(stage, master, cut_at)
    await stage.check_master(master)
    stage.check_epoch(epoch)
    in_sync = stage.finder.known.newest[master].in_sync
    stage.check(len(in_sync) >= 2, f"the in-sync set shrank to {sorted(in_sync)}")
    stage.group.network.heal()
    restored_s = await stage.restored(20)
    stage.note(f"healed after {CUT_S:.0f} s; acks again after {restored_s:.2f} s")


@drill("9", "the master sends to its slaves and hears nothing of them", THREE_APART)
async def cut_one_way(stage: Stage) -> None:
    """Expect no acks without acknowledgements from the slaves."""
    master, *slaves = await stage.roles(50)
    stage.mark()
    for slave in slaves:
        stage.group.network.cut(slave, master)
    cut_at = time.monotonic()
    await stage.pass_time(CUT_S)
    await _no_ack_while_cut(stage, master, cut_at)
    stage.group.network.heal()
    await stage.restored(20)


@drill("8", "the master reaches neither slaves nor lease; clients still reach it", WITH_API, 6.0)
async def cut_from_everything(stage: Stage) -> None:
    """Expect a successor and no acks of the old master after the cut.

    The old master's tail must be truncated when it returns.
    """
    master, *slaves = await stage.roles(50)
    stage.mark()
    cut_apart(stage.group.network, master, (*slaves, *stage.lease_server.own_hosts))
    cut_at = time.monotonic()
    sending = patient_sends(stage, master, PATIENT)
    await stage.successor(master, 20)
    sending += patient_sends(stage, master, PATIENT)
    await stage.acked_again(20)
    await stage.load.acked(50)
    await _no_ack_while_cut(stage, master, cut_at)
    kept = _kept_tails(stage, master)
    stage.judge_until_now()
    stage.group.network.heal()
    await stage.in_sync()
    outcomes = Counter(await asyncio.gather(*sending))
    stage.check(
        Outcome.ACKED not in outcomes, f"{master} answered senders after the cut: {outcomes}"
    )
    stage.note(f"{master} returned; tails kept in cut/: {_kept_tails(stage, master) - kept}")


@drill("6", "the master reaches its slaves, and not the lease", WITH_API, 6.0)
async def cut_from_lease(stage: Stage) -> None:
    """Expect the master to stop before another node may take the lease."""
    master, epoch = await stage.master(), stage.epoch
    await stage.load.acked(50)
    stage.mark()
    await stage.lease_server.cut_off(stage.group.network, master)
    cut_at = time.monotonic()
    await stage.successor(master, 20)
    taken_at = time.monotonic()
    await stage.acked_again(20)
    old = stage.ledger.acked_by(master, cut_at)
    last = max((request.ended_at for request in old), default=cut_at)
    stage.note(
        f"{master} acknowledged until {last - cut_at:.2f} s after the cut "
        f"(deadline {stage.fenced_s:.2f} s), its successor came {taken_at - cut_at:.2f} s after it"
    )
    stage.check_none_late(old, cut_at + stage.fenced_s, "after the deadline")
    stage.check(stage.epoch > epoch, "the epoch did not rise")


def _kept_tails(stage: Stage, name: str) -> int:
    directory = stage.group.nodes[name].store_dir / "cut"
    return len(list(directory.iterdir())) if directory.exists() else 0
