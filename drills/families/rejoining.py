"""Drills in which a replica returns with a log or a volume that does not match the group."""

from __future__ import annotations

import time
from typing import Final

from drills.namespaces import cut_apart
from drills.sends import grow_tail, make_topic
from drills.stage import THREE, THREE_APART, THREE_FRESH, TWO, Needs, Stage, drill

MIB: Final = 1 << 20
TAIL_SIZE: Final = 100 * MIB
QUIET_S: Final = 8.0
REJOIN_S: Final = 60.0
NAMED_S: Final = 20.0
BEHIND: Final = 24 * MIB


@drill("28", "a master that was cut off returns with up to 100 MiB that no other has", THREE_APART)
async def long_tail(stage: Stage) -> None:
    """Expect the node to truncate at the divergence point, keep the tail and rejoin the set."""
    await make_topic(stage)
    master, *slaves = await stage.roles(50)
    cut_apart(stage.group.network, master, slaves)
    grown = await grow_tail(stage, master, TAIL_SIZE)
    stage.mark()
    stage.group.kill(master)
    stage.group.network.heal()
    await stage.successor(master, 20)
    await stage.acked_again(20)
    stage.judge_until_now()
    await stage.load.acked(100)
    returned = time.monotonic()
    stage.group.start(master)
    await stage.in_sync(timeout_s=REJOIN_S)
    took = time.monotonic() - returned
    kept = stage.group.nodes[master].store_dir / "cut"
    sizes = [path.stat().st_size for path in kept.iterdir()] if kept.exists() else []
    stage.note(
        f"{grown >> 20} MiB appended alone; {sum(sizes) >> 20} MiB kept in cut/; back in the set "
        f"after {took:.1f} s"
    )
    stage.check(sum(sizes) >= grown, f"cut/ holds {sum(sizes)} bytes of a tail of {grown}")


@drill(
    "29",
    "a slave returns after the master's retention has passed its end",
    Needs(nodes=2, log_size_max=12 * MIB),
)
async def overtaken_by_retention(stage: Stage) -> None:
    """Expect the slave to be resynced as a new member and to join the set."""
    await make_topic(stage)
    master = await stage.master()
    (slave,) = stage.slaves(master)
    before = await _incarnation(stage, master, slave)
    await stage.load.acked(50)
    stage.group.kill(slave)
    await stage.in_sync(master, timeout_s=20)
    await grow_tail(stage, master, 3 * BEHIND)
    end = _first_offset(stage, slave, last=True)
    await stage.finder.until(
        lambda _: _first_offset(stage, master) > end, "retention to delete a file", 60
    )
    stage.group.start(slave)
    took = await stage.in_sync(timeout_s=REJOIN_S)
    after = await _incarnation(stage, master, slave)
    stage.check(after != before, f"{slave} still is the member {before}")
    stage.note(f"{slave} was resynced and in the set after {took:.1f} s, as another member")


@drill(
    "30", "the volume of the only slave is replaced by an empty one while the master is down", TWO
)
async def replaced_volume(stage: Stage) -> None:
    """Expect an empty volume never to become master; the complete one does and is copied to it."""
    master = await stage.master()
    (slave,) = stage.slaves(master)
    before = await _incarnation(stage, master, slave)
    await stage.load.acked(100)
    stage.group.kill(slave)
    stage.group.kill(master)
    stage.group.wipe(slave)
    stage.group.start(slave)
    await stage.pass_time(QUIET_S)
    known = stage.finder.known.newest[slave]
    stage.check(known.master != slave, f"{slave} leads with an empty volume")
    stage.group.start(master)
    stage.check(await stage.master() == master, f"{master} does not lead")
    took = await stage.in_sync(timeout_s=REJOIN_S)
    after = await _incarnation(stage, master, slave)
    stage.check(after != before, f"{slave} still is the member {before}")
    stage.note(
        f"no master for {QUIET_S:.0f} s; with {master} back {slave} was copied: {took:.1f} s"
    )


@drill("40", "all nodes off, and the volume of one member of the set is lost", THREE, 20.0)
async def lost_volume_all_off(stage: Stage) -> None:
    """Expect another member to become master, without a lost ack."""
    await stage.load.acked(100)
    master = await stage.master()
    stage.mark()
    stage.kill_machines(*stage.group.names)
    stage.group.wipe(master)
    for name in stage.group.names:
        stage.start_machine(name)
    await stage.acked_again(40)
    leader = await stage.master()
    stage.check(leader != master, f"{master} leads with an empty volume")
    stage.note(f"{master} lost its volume; {leader} leads in epoch {stage.epoch}")


@drill("40a", "a slave returns with the name of another cluster in its settings", THREE_FRESH)
async def foreign_cluster(stage: Stage) -> None:
    """Expect both sides to refuse the connection, and the master to report it.

    With its own cluster name the node can rejoin.
    """
    master, slave, other = await stage.roles(50)
    stage.group.kill(slave)
    await stage.in_sync(master, other, timeout_s=20)
    node = stage.group.nodes[slave]
    node.join({**stage.group.table, "name": "elsewhere"})
    stage.group.start(slave)
    await stage.finder.until(
        lambda _: "belongs to node" in node.processes["ha"].log_tail(),
        f"ha of {slave} to refuse a foreign volume",
        NAMED_S,
    )
    stage.note(f"on its volume {slave} does not start: it belongs to another cluster")
    stage.group.kill(slave)
    stage.group.wipe(slave)
    stage.group.start(slave)
    reason = ""

    async def is_foreign() -> bool:
        nonlocal reason
        reason = str((await stage.group.entry(master, slave)).get("reason") or "")
        return "foreign-cluster" in reason

    await stage.eventually(
        is_foreign, lambda: f"{master} says of {slave}: {reason or 'nothing'}", NAMED_S
    )
    stage.note(f"on an empty one {master} says of {slave}: {reason}")
    stage.check(slave not in stage.finder.known.newest[master].in_sync, "it is in the set")
    stage.group.kill(slave)
    stage.group.wipe(slave)
    node.join(stage.group.table)
    stage.group.start(slave)
    stage.note(f"with its own name {slave} was back after {await stage.in_sync():.1f} s")


async def _incarnation(stage: Stage, asked: str, name: str) -> str:
    return str((await stage.group.entry(asked, name)).get("incarnation"))


def _first_offset(stage: Stage, name: str, *, last: bool = False) -> int:
    """Return the start of the first (or last) log file of a node."""
    directory = stage.group.nodes[name].store_dir / "commitlog"
    names = sorted(path.name for path in directory.iterdir() if path.name.isdigit())
    return int(names[-1 if last else 0])
