"""Drills in which processes of the master, of slaves or of all nodes are killed."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Final

from drills.comparing import compare_queues
from drills.namespaces import CLIENTS, cut_apart
from drills.stage import THREE, TWO, Needs, Stage, drill

BACK_IN_PLACE_S: Final = 3.0
NODE_LOST_S: Final = 6.0
TWO_APART: Final = Needs(nodes=2, cuts=True)
FAILOVERS: Final = 50


@drill(
    "1",
    "the master's broker, then all of its processes, are killed and come back",
    TWO,
    BACK_IN_PLACE_S,
    short=True,
)
async def kill_master(stage: Stage) -> None:
    """Expect the same replica to continue in the next epoch, without waiting for the lease."""
    for services in (("broker",), ()):
        master, epoch = await stage.master(), stage.epoch
        await stage.load.acked(50)
        at = stage.mark()
        stage.group.crash(master, *services)
        await stage.acked_again(20)
        gap, now = stage.gap_since(at), await stage.master()
        stage.check(stage.epoch > epoch, f"the epoch is still {epoch}")
        what = " and ".join(services) or "all processes"
        stage.note(
            f"{what} of {master} killed: {now} is master in epoch {stage.epoch}, "
            f"{gap:.2f} s without an ack"
        )
        await stage.in_sync()
        await stage.load.acked(50)


@drill("1a", "ha, then reput, of the master are killed and come back", TWO, BACK_IN_PLACE_S)
async def kill_ha_or_reput(stage: Stage) -> None:
    """Expect the broker to serve without ha until its deadline, and dispatch to resume."""
    for service in ("ha", "reput"):
        master, *_ = await stage.roles(50)
        stage.mark()
        stage.group.crash(master, service)
        await stage.acked_again(20)
        stage.note(f"{service} of {master} killed: {await stage.master()} is master")
        await stage.in_sync()
        await stage.load.acked(50)


@drill("2", "all processes of the master get SIGTERM and come back later", TWO, NODE_LOST_S)
async def delete_master_pod(stage: Stage) -> None:
    """Expect a takeover or a restart in place, whichever comes first."""
    master, *_ = await stage.roles(50)
    stage.mark()
    await stage.group.stop_orderly(master)
    await asyncio.sleep(1.0)
    stage.group.start(master)
    await stage.acked_again(20)


@drill(
    "3",
    "the master's node is switched off: dead processes, and a network that answers nothing",
    TWO_APART,
    NODE_LOST_S,
    short=True,
)
async def lose_master_node(stage: Stage) -> None:
    """Expect a successor within the lease time plus three seconds; the old master returns as a
    slave."""
    master, *slaves = await stage.roles(100)
    stage.mark()
    cut_apart(stage.group.network, master, slaves)
    stage.group.network.cut(master, CLIENTS)
    stage.kill_machines(master)
    await stage.successor(master, 20)
    await stage.acked_again(20)
    await stage.load.acked(100)


@drill("17", "one slave of three nodes is killed, and returns", THREE, 5.0)
async def lose_one_of_three(stage: Stage) -> None:
    """Expect a stall until the slave has left the in-sync set, then acks with two copies.

    The slave must rejoin the set by itself.
    """
    master, gone, left = await stage.roles(50)
    stage.mark()
    stage.group.kill(gone)
    took = await stage.in_sync(master, left, timeout_s=15)
    await stage.acked_again(5)
    stage.note(f"{gone} left the set after {took:.1f} s")
    await stage.load.acked(50)
    stage.observed.restored_by = stage.ledger.requests[-1].ended_at
    stage.group.start(gone)
    stage.note(f"{gone} is in sync again after {await stage.in_sync():.1f} s")


@drill("18", "both slaves of three nodes are killed; sends fail until one is back", THREE, 15.0)
async def lose_two_of_three(stage: Stage) -> None:
    """Expect no acks with fewer than min_in_sync members, and no change of the master."""
    master, epoch = await stage.master(), stage.epoch
    first, second = stage.slaves(master)
    await stage.load.acked(50)
    stage.group.kill(first)
    stage.group.kill(second)
    await stage.pass_time(1.5)
    cut_at = stage.mark()
    await stage.pass_time(5.0)
    late = stage.ledger.acked_by(master, cut_at)
    stage.check(not late, f"{len(late)} sends were acknowledged by one of three")
    await stage.check_master(master)
    stage.check_epoch(epoch)
    stage.group.start(first)
    took = await stage.restored(20)
    stage.note(f"with {first} back sends succeed after {took:.1f} s")


@drill("26", "two failovers with nothing written in between; both former masters come back", THREE)
async def double_failover(stage: Stage) -> None:
    """Expect three distinguishable epochs, although nothing was written in the middle one."""
    await stage.pause_load()
    first, epoch = await stage.master(), stage.epoch
    stage.group.kill(first)
    second = await stage.successor(first, 20)
    stage.group.kill(second)
    stage.group.start(first)
    third = await stage.successor(second, 30)
    stage.check(stage.epoch >= epoch + 2, f"epochs {epoch} … {stage.epoch}")
    stage.note(f"masters {first}, {second}, {third}; epochs {epoch} to {stage.epoch}")
    stage.load.resume()
    stage.group.start(second)
    await stage.in_sync()
    await stage.load.acked(100)


@drill("39", "all nodes are killed at once and start in a random order", THREE, 15.0)
async def all_off(stage: Stage) -> None:
    """Expect the first electable node to become master, without a lost ack."""
    await stage.load.acked(100)
    stage.mark()
    stage.kill_machines(*stage.group.names)
    order = stage.random.sample(stage.group.names, len(stage.group.names))
    for name in order:
        stage.start_machine(name)
        await asyncio.sleep(stage.random.random())
    await stage.acked_again(40)
    stage.note(f"started {', '.join(order)}: {await stage.master()} leads in epoch {stage.epoch}")


@drill("51", f"{FAILOVERS} failovers in a row under load", TWO, NODE_LOST_S)
async def fifty_failovers(stage: Stage) -> None:
    """Expect no lost ack, equal queues and logs on all nodes, and strictly rising epochs."""
    epochs = [stage.epoch]
    gaps = []
    for number in range(FAILOVERS):
        master, *_ = await stage.roles(40)
        at = stage.mark()
        stage.group.kill(master)
        if number % 2:
            await stage.successor(master, 20)
        await stage.acked_again(20)
        gaps.append(stage.gap_since(at))
        stage.group.start(master)
        epochs.append(stage.epoch)
        await stage.in_sync()
    rising = all(later > earlier for earlier, later in pairwise(epochs))
    stage.check(rising, f"epochs do not rise: {epochs}")
    gaps.sort()
    stage.observed.notes.clear()
    stage.note(
        f"{FAILOVERS} failovers, epochs {epochs[0]} to {epochs[-1]}; without an ack for "
        f"{gaps[len(gaps) // 2]:.2f} s (median), {gaps[-1]:.2f} s (worst)"
    )
    await stage.pause_load()
    differing = await compare_queues(stage)
    stage.load.resume()
    stage.check(not differing, "; ".join(differing))
