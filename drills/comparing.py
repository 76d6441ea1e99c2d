"""Compare logs and consume queues of all nodes with each other and with the ledger.

The step before is a drill that ended and whose faults were removed; the step
after is ``running``, which judges the drill.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final

from drills.checker import Verdict, judge
from drills.log_reading import first_difference, queue_table, read_log
from drills.node_group import slot
from drills.stage import DrillFailed, G, GroupStage
from drills.workload import TOPIC
from tidemark.formats.checkpoint import Slot

LEVEL_S: Final = 20.0
POLL_S: Final = 0.05


async def compare(stage: GroupStage[G], *, whole: bool) -> Verdict:
    """Pause the load; compare the master's log with the ledger and the logs of the other nodes.

    whole: compare all nodes, each of which must have the complete log; otherwise only the master.
    """
    await stage.pause_load()
    master = await stage.master()
    names = stage.group.names if whole else (master,)
    await _level(stage, names, master)
    await stage.load.caught_up()
    stores = {name: stage.group.nodes[name].store_dir for name in names}
    end = slot(stores[master], Slot.CONFIRM)
    log = await asyncio.to_thread(read_log, stores[master], TOPIC, end)
    verdict = judge(stage.ledger, log, stage.finder.known.masters)
    for name in names:
        if name == master:
            continue
        differs = await asyncio.to_thread(first_difference, stores[master], stores[name], end)
        if differs is not None:
            verdict.violations.append(
                f"E: the logs of {master} and {name} differ at physical offset {differs}, "
                f"below the confirm offset {end}"
            )
    return verdict


async def compare_queues(stage: GroupStage[G]) -> list[str]:
    """Compare the consume queues of all nodes; return the differences as sentences.

    The queues are read one node after the other. If the broker appends records of its own
    meanwhile, for example after a master change, only some of the tables contain them; then all are
    read again.
    """
    while True:
        master = await stage.master()
        end = await _level(stage, stage.group.names, master)
        tables = {
            name: await asyncio.to_thread(queue_table, stage.group.nodes[name].store_dir)
            for name in stage.group.names
        }
        if slot(stage.group.nodes[master].store_dir, Slot.WRITTEN) == end:
            break
    return [
        f"the queues of {master} and {name} differ: {_first_unequal(tables[master], table)}"
        for name, table in tables.items()
        if table != tables[master]
    ]


def _first_unequal(left: Iterable[str], right: Iterable[str]) -> str:
    for one, other in zip(left, right, strict=False):
        if one != other:
            return f"{one[:200]} … {other[:200]}"
    return "one has more queues"


async def _level(stage: GroupStage[G], names: Sequence[str], master: str) -> int:
    """Wait until all nodes have flushed, confirmed and dispatched the whole log; return its end."""
    deadline = time.monotonic() + LEVEL_S * stage.finder.pace.now
    while True:
        stores = [stage.group.nodes[name].store_dir for name in names]
        end = slot(stage.group.nodes[master].store_dir, Slot.WRITTEN)
        ends = {
            (name, which.name): slot(store, which)
            for name, store in zip(names, stores, strict=True)
            for which in (Slot.WRITTEN, Slot.FLUSHED, Slot.CONFIRM, Slot.DISPATCHED)
        }
        if all(value == end for value in ends.values()):
            return end
        if time.monotonic() > deadline:
            raise DrillFailed(f"without load the nodes do not reach the same end: {ends}")
        await asyncio.sleep(POLL_S)
