"""Drills on machines with a node and a member of etcd each, with the times of production."""

from __future__ import annotations

import asyncio
from typing import Final

from drills.namespaces import CLIENTS, cut_apart
from drills.stage import MACHINES, Stage, drill

LOST_S: Final = 10.0
"""A lease of 8 s and two seconds: etcd elects a leader while the lease still lasts."""


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
    stage.group.kill(master)
    etcd.kill(master)
    await stage.successor(master, 30)
    await stage.acked_again(20)
    stage.note(f"{await asyncio.to_thread(etcd.leader)} leads etcd")
    await stage.load.acked(100)
