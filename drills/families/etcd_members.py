"""Drills in which members of etcd fail that are on the machines of the nodes.

They use the times of production: an election of etcd ends while a lease of 8 s still lasts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from drills.namespaces import CLIENTS, cut_apart
from drills.stage import MACHINES, Stage, drill

LOST_S: Final = 10.0
"""A lease of 8 s and two seconds."""
DOWN_S: Final = 12.0
BACK_S: Final = 11.0
"""Time from the return of etcd to an ack: a lease, and three seconds."""
UNDISTURBED_S: Final = 1.5
FAULTY_S: Final = 15.0
STOPPED_S: Final = 0.15
RUNNING_S: Final = 0.05
COMPACTIONS: Final = 5
REFUSED_S: Final = 20.0
USER: Final = "ha"


@drill(
    "57", "a machine with the master and etcd's leader is lost; default profile", MACHINES, LOST_S
)
async def machine_lost(stage: Stage) -> None:
    """Expect a successor within the lease time plus two seconds; the machine returns whole."""
    etcd, network = stage.etcd_members, stage.group.network
    master, *slaves = await stage.roles(100)
    await asyncio.to_thread(etcd.lead, master)
    await stage.load.acked(50)
    stage.mark()
    cut_apart(network, master, slaves)
    network.cut(master, CLIENTS)
    stage.kill_machines(master)
    await stage.successor(master, 30)
    await stage.acked_again(20)
    stage.note(f"{await asyncio.to_thread(etcd.leader)} leads etcd")
    await stage.load.acked(100)


@drill("59", f"two of etcd's three members are down for {DOWN_S:.0f} s", MACHINES, BACK_S)
async def etcd_without_quorum(stage: Stage) -> None:
    """Expect the master to stop by its deadline, and no other until etcd has a quorum again."""
    etcd = stage.etcd_members
    await stage.roles(50)
    stage.mark()
    etcd.kill(*stage.random.sample(list(etcd.members), 2))
    await _stopped_by_its_deadline(stage, etcd.start_killed)


@drill("60", "etcd loses all its data", MACHINES, BACK_S)
async def etcd_data_lost(stage: Stage) -> None:
    """Expect all members to promise the next epoch, and the master to create the lease again."""
    master, *_ = await stage.roles(50)
    epoch = stage.epoch
    stage.mark()
    await asyncio.to_thread(stage.etcd_members.lose_data)
    await stage.finder.until(lambda _: stage.epoch > epoch, "an epoch after the lost one", 60)
    await stage.acked_again(30)
    stage.note(f"{master} led epoch {epoch}; {await stage.master()} leads epoch {stage.epoch}")


@drill(
    "61",
    f"all members of etcd stand still for {STOPPED_S * 1000:.0f} ms of every "
    f"{(STOPPED_S + RUNNING_S) * 1000:.0f} ms",
    MACHINES,
    UNDISTURBED_S,
)
async def slow_etcd(stage: Stage) -> None:
    """Expect the same master throughout."""
    etcd, epoch = stage.etcd_members, stage.epoch
    until = stage.mark() + FAULTY_S
    while time.monotonic() < until:
        etcd.pause()
        await asyncio.sleep(STOPPED_S)
        etcd.resume()
        await asyncio.sleep(RUNNING_S)
    stage.check_epoch(epoch)


@drill("62", "etcd is compacted and defragmented under load", MACHINES, UNDISTURBED_S)
async def etcd_compacted(stage: Stage) -> None:
    """Expect no effect: no node reads an old revision."""
    epoch = stage.epoch
    stage.mark()
    for _ in range(COMPACTIONS):
        await stage.load.acked(50)
        await asyncio.to_thread(stage.etcd_members.compact)
    stage.check_epoch(epoch)


@drill(
    "63",
    "etcd begins to require a user; then the nodes have a wrong password, then the right one",
    MACHINES._replace(fresh=True),
)
async def etcd_wrong_password(stage: Stage) -> None:
    """Expect an alarm with the remedy, no master, and no restart for a corrected password."""
    group, password = stage.group, stage.group.directory / "etcd-password"
    await stage.roles(50)
    stage.mark()
    await asyncio.to_thread(stage.etcd_members.require_user, USER, "right")
    deadline = time.monotonic() + stage.fenced_s
    await _alarm(stage, "user name is empty")
    await stage.pass_time(max(0.0, deadline + 1.0 - time.monotonic()))
    stage.check_none_late(stage.ledger.acks(), deadline, "without a user")
    password.write_text("wrong", encoding="utf-8")
    group.kill_all()
    for node in group.nodes.values():
        node.join({**group.table, "etcd_user": USER, "etcd_password_file": str(password)})
    group.start()
    began = time.monotonic()
    await _alarm(stage, "authentication failed")
    stage.check(stage.ledger.first_ack(began) is None, "a node serves with a wrong password")
    password.write_text("right", encoding="utf-8")
    stage.note(f"with the right password acked after {await stage.acked_again(30):.1f} s")


@drill(
    "64", "the members of etcd are restarted one by one, its leader last", MACHINES, UNDISTURBED_S
)
async def etcd_members_restarted(stage: Stage) -> None:
    """Expect the same master throughout."""
    etcd, epoch = stage.etcd_members, stage.epoch
    leader = await asyncio.to_thread(etcd.leader)
    stage.mark()
    for name in (*(name for name in etcd.members if name != leader), leader):
        etcd.kill(name)
        await stage.load.acked(50)
        etcd.start(name)
        await asyncio.to_thread(etcd.wait_serving)
        await stage.load.acked(50)
    stage.check_epoch(epoch)


@drill(
    "65",
    "etcd's leader, on the master's machine, is cut off from the other members",
    MACHINES,
    UNDISTURBED_S,
)
async def etcd_leader_cut_off(stage: Stage) -> None:
    """Expect the same master, which renews its lease at another member."""
    etcd = stage.etcd_members
    master, *slaves = await stage.roles(50)
    epoch = stage.epoch
    await asyncio.to_thread(etcd.lead, master)
    stage.mark()
    cut_apart(stage.group.network, master, slaves, etcd.peer_ports)
    await stage.pass_time(FAULTY_S)
    stage.check_epoch(epoch)
    leader = await asyncio.to_thread(etcd.leader)
    stage.check(leader != master, f"{leader} leads etcd without the other members")
    stage.group.network.heal()
    await asyncio.to_thread(etcd.wait_serving)
    await stage.check_master(master)


@drill("66", f"etcd takes no writes for {DOWN_S:.0f} s: its space is used up", MACHINES, BACK_S)
async def etcd_full(stage: Stage) -> None:
    """Expect the master to stop by its deadline, although etcd answers reads."""
    etcd = stage.etcd_members
    await stage.roles(50)
    stage.mark()
    await asyncio.to_thread(etcd.set_full, True)
    await _stopped_by_its_deadline(stage, lambda: etcd.set_full(False))


async def _stopped_by_its_deadline(stage: Stage, mend: Callable[[], None]) -> None:
    """Check that nothing is acked after the master's deadline; mend etcd and wait for an ack."""
    deadline = time.monotonic() + stage.fenced_s
    await stage.pass_time(DOWN_S)
    stage.check_none_late(stage.ledger.acks(), deadline, "after the deadline")
    await asyncio.to_thread(mend)
    restored_s = await stage.restored(40)
    stage.note(f"{await stage.master()} is master {restored_s:.1f} s after etcd came back")


async def _alarm(stage: Stage, words: str) -> None:
    """Wait until every node reports that the lease is unavailable, for the reason in words."""
    silent = set(stage.group.names)

    async def all_report() -> bool:
        for name in list(silent):
            alarms = (await stage.group.status(name)).get("alarms") or ()
            if any(
                alarm["code"] == "lease-unavailable" and words in alarm["detail"]
                for alarm in alarms
            ):
                silent.remove(name)
        return not silent

    await stage.eventually(all_report, lambda: f"{sorted(silent)} report no: {words}", REFUSED_S)
