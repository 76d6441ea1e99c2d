"""Drills about operator commands for situations that need a manual decision."""

from __future__ import annotations

from typing import Final

from drills.node_group import slot
from drills.sends import grow_tail, make_topic
from drills.stage import Needs, Stage, drill
from tidemark.formats.checkpoint import Slot

MIB: Final = 1 << 20
GROUP: Final = "g0"
ORDER_S: Final = 15.0


@drill(
    "45",
    "an operator makes a node master that lacks confirmed bytes",
    Needs(nodes=3, min_in_sync=1, fresh=True),
)
async def unclean_failover(stage: Stage) -> None:
    """Expect the dry run to report the exact number of lost bytes, and exactly that loss."""
    await make_topic(stage)
    master, behind, other = await stage.roles(50)
    stage.group.kill(behind)
    await stage.in_sync(master, other, timeout_s=20)
    await stage.load.acked(200)
    await grow_tail(stage, master, 4 * MIB)
    await stage.pause_load()
    status, answer = await stage.group.command(master, "pause")
    stage.check(status == 200, f"pause was answered {status} {answer}")
    stores = {name: stage.group.nodes[name].store_dir for name in (master, other)}
    # A confirm offset that the other nodes have not received cannot be used in their estimate.
    await stage.finder.until(
        lambda _: slot(stores[other], Slot.CONFIRM) == slot(stores[master], Slot.WRITTEN),
        f"{other} to hear the last confirm offset",
        10,
    )
    confirmed = slot(stores[master], Slot.CONFIRM)
    stage.group.kill(master)
    stage.group.start(behind)
    await stage.pass_time(stage.lease_s + 3.0)
    await stage.state(behind, "follower")
    own_end = slot(stage.group.nodes[behind].store_dir, Slot.WRITTEN)
    status, estimate = await stage.group.command(behind, "failover", to=behind, dry_run=True)
    stage.check(status == 200, f"failover --dry-run was answered {status} {estimate}")
    lost = confirmed - own_end
    stage.note(
        f"confirmed {confirmed}, {behind} ends at {own_end}: {lost} bytes; estimated {estimate}"
    )
    stage.check(
        estimate.get("estimated_loss_bytes") == lost,
        f"it says {estimate.get('estimated_loss_bytes')} bytes, and {lost} are lost",
    )
    status, refused = await stage.group.command(
        behind, "failover", to=behind, group="another", old_master_stopped=True
    )
    stage.check(status != 200, f"it was done without the group's name: {refused}")
    # Before the command: a consumer that reads the shorter queues must not count it as a violation.
    stage.expect_loss_from(own_end)
    # The node waits for the lease duration, counted from its own start.
    await stage.ordered(
        behind, "failover", ORDER_S, to=behind, group=GROUP, old_master_stopped=True
    )
    await stage.group.command(behind, "resume")
    stage.group.kill(other)
    stage.load.resume()
    await stage.acked_again(30)
    stage.note(f"{await stage.master()} leads epoch {stage.epoch}")
