"""``tidemark cluster``: shows the master and the other nodes' lag, and sends commands to a group.

A command is sent to the node that executes it, at the address that the group reports. A command
that could lose messages first shows how many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import click

from tidemark.cli.cluster_calls import ClusterCalls, node_of
from tidemark.cli.cluster_secret import NodeSecrets, Rotation, read_secret_file
from tidemark.cli.hand_over import hand_over
from tidemark.cli.output import (
    addresses,
    as_json,
    print_facts,
    print_rows,
    run,
    say,
    with_broker,
    with_client,
    with_output,
)
from tidemark.cli.replace_node import NewNode
from tidemark.cli.replace_node import remove_node as removal
from tidemark.cli.replace_node import replace_node as replacement
from tidemark.cli.times import shown_about, shown_time
from tidemark.client.client import Client
from tidemark.client.cluster_admin import Left
from tidemark.errors import ClusterRefused

NODE_COLUMNS: Final = [
    *("node", "role", "state", "in_sync", "log_end", "confirm", "lag_bytes", "lag_ms", "api"),
    "reason",
]  # fmt: skip
GROUP_COLUMNS: Final = ["broker_group", "master", "epoch", "topics", "nodes"]
LEFT_COLUMNS: Final = ["group", "messages", "seconds", "why"]
SECRET_COLUMNS: Final = ["node", "proves", "accepts", "file", "reason"]
HISTORY_COLUMNS: Final = ["epoch", "start", "node", "from", "until"]
api_option = click.option("--api", required=True, help="URL for clients.")
admin_option = click.option("--admin", required=True, help="URL of ha's admin port.")


@click.group()
def cluster() -> None:
    """The broker groups, and the nodes of one: status, switchover, failover, pause, repairs."""


@cluster.command()
@with_broker
def status(url: str) -> None:
    """Show every node's role and position, and why it is not in sync."""
    view = run(ClusterCalls(addresses(url)).view())
    if as_json():
        print_facts(view)
        return
    print_facts(_group_facts(view))
    click.echo()
    print_rows(view["nodes"], NODE_COLUMNS)


def _group_facts(view: Mapping[str, Any]) -> dict[str, object]:
    lease = view.get("lease") or {}
    left_ms = lease.get("deadline_in_ms")
    # Unknown facts are left out: a node without a running ha process knows very little.
    facts: dict[str, object] = {
        "cluster": f"{view['cluster']} / {view['group']}",
        "epoch": view.get("epoch"),
        "master": view["master"] or f"none: {view.get('reason') or 'reason unknown'}",
        "in_sync": [node["node"] for node in view["nodes"] if node.get("in_sync")] or None,
        "min_in_sync": view.get("min_in_sync"),
        "automatic_failover": _automatic(view),
        "if_the_master_is_lost": _successor(view),
        "lease_holder": lease.get("holder"),
        "master_may_answer_for": None if left_ms is None else shown_about(left_ms / 1000),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _automatic(view: Mapping[str, Any]) -> str | None:
    paused = view.get("paused")
    if paused is None:
        return None
    return "paused: no automatic failover until `tidemark cluster resume`" if paused else "on"


def _successor(view: Mapping[str, Any]) -> str | None:
    """Return what happens if the master is lost now: only in-sync nodes may take over."""
    if view["master"] is None or view.get("min_in_sync") is None:
        return None
    others = [
        node["node"]
        for node in view["nodes"]
        if node.get("in_sync") and node["node"] != view["master"]
    ]
    if view.get("paused"):
        return "no failover: the group waits for it, or for `tidemark cluster resume`"
    if not others:
        return "no other node is in sync: the group waits until the master is back"
    # An in-sync node may be unable to lead; a node without an answer may be able.
    unfit = {node["node"]: node["reason"] for node in view["nodes"] if _is_unfit(node)}
    fit = [name for name in others if name not in unfit]
    if not fit:
        why = "; ".join(f"{name}: {unfit[name]}" for name in others)
        return f"no node takes over until one that is in sync can lead ({why})"
    return f"{' or '.join(fit)} takes over, with all messages acknowledged as replicated"


def _is_unfit(node: Mapping[str, Any]) -> bool:
    return node.get("state") == "in-sync" and bool(node.get("reason"))


@cluster.command()
@with_broker
def groups(url: str) -> None:
    """List the broker groups of the cluster: master, epoch, nodes, number of topics."""
    routes = with_client(url, lambda client: client.routes())
    rows = [
        {
            "broker_group": each.broker_group,
            "master": each.master,
            "epoch": each.epoch or None,
            "topics": each.topics,
            "nodes": [f"{node.node}({node.role}) {node.url}" for node in each.nodes],
        }
        for each in routes.groups
    ]
    print_rows(rows, GROUP_COLUMNS)
    if not routes.complete:
        say(f"a name service has just started and has not heard of {', '.join(routes.missing)}")


@cluster.command()
@click.argument("broker_group", required=False)
@click.option("--dry-run", is_flag=True, help="Only show what is left; change nothing.")
@with_broker
def drain(broker_group: str | None, dry_run: bool, url: str) -> None:
    """Close a broker group to producers, and show what consumers still have to read there.

    Run it again to see what is left. BROKER_GROUP is needed in a cluster of several.
    """

    async def drained(client: Client) -> Left:
        if not dry_run and not (await client.drain(broker_group)).changed:
            say("it is drained already: nothing was changed")
        return await client.left(broker_group)

    left = with_client(url, drained)
    print_rows(
        [
            {
                "group": name,
                "messages": lag.messages,
                "seconds": lag.seconds,
                "why": "; ".join(sorted(set(lag.reasons.values()))) or None,
            }
            for name, lag in sorted(left.groups.items())
            if lag.messages != 0
        ],
        LEFT_COLUMNS,
    )
    print_facts(
        {
            "drained_since": shown_time(left.draining.since_ms),
            "delayed_messages": left.delayed,
            "empty": left.is_empty,
        }
    )


@cluster.command()
@click.argument("broker_group", required=False)
@with_broker
def undrain(broker_group: str | None, url: str) -> None:
    """Open a drained broker group to producers again."""
    done = with_client(url, lambda client: client.undrain(broker_group))
    if not done.changed:
        say("it was not drained: nothing was changed")


@cluster.command()
@with_broker
def history(url: str) -> None:
    """List the epochs: who was the master, from when until the next one began.

    The times are those of the first record of each epoch; `-` is unknown. START is its offset.
    """
    rows = terms(run(ClusterCalls(addresses(url)).view()).get("history", []))
    if not as_json():
        rows = [
            {**row, "from": shown_time(row["at_ms"]), "until": shown_time(row["until_ms"])}
            for row in rows
        ]
    print_rows(rows, HISTORY_COLUMNS)


def terms(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the epochs with the time at which the next one began, None if that is not known.

    A group may have had no master for a while before that.
    """
    begun_ms = [row.get("at_ms") for row in history]
    return [
        {**row, "at_ms": at_ms, "until_ms": until_ms}
        for row, (at_ms, until_ms) in zip(history, zip_longest(begun_ms, begun_ms[1:]), strict=True)
    ]


@cluster.command()
@click.option("--to", help="The node that becomes master; default: the next in-sync one.")
@with_broker
def switchover(to: str | None, url: str) -> None:
    """Make another in-sync node the master; clients repeat sends for a second, none is lost."""
    print_facts(run(ClusterCalls(addresses(url)).at_master("switchover", {"to": to} if to else {})))


@cluster.command()
@click.option("--to", required=True, help="The node that becomes master.")
@click.option(
    "--old-master-stopped",
    is_flag=True,
    help="Confirms that the old master is stopped everywhere.",
)
@click.option("--group", help="The group's name, instead of typing it when asked.")
@click.option("--dry-run", is_flag=True, help="Show what would be lost; change nothing.")
@with_broker
def failover(to: str, old_master_stopped: bool, group: str | None, dry_run: bool, url: str) -> None:
    """Make a node master that is not in sync: the data it lacks is LOST. The last resort."""
    calls = ClusterCalls(addresses(url))
    estimate = run(calls.at(to, "failover", {"to": to, "dry_run": True}))
    say(_loss(to, estimate))
    if dry_run:
        print_facts(estimate)
        return
    if not old_master_stopped:
        raise ClusterRefused(
            "it is not confirmed that the old master is stopped. Nothing was changed.",
            "Stop it, then add --old-master-stopped.",
        )
    typed = group or click.prompt("Type the group's name to continue", err=True)
    order = {"to": to, "group": typed, "old_master_stopped": True, "dry_run": False}
    print_facts(run(calls.at(to, "failover", order)))


def _loss(to: str, estimate: Mapping[str, Any]) -> str:
    lost = estimate.get("estimated_loss_bytes")
    if lost is None:
        return f"the loss on {to} is not known: {estimate.get('loss_reason', 'no reason given')}"
    if lost == 0:
        return f"{to} has every byte that the answering nodes know to be confirmed"
    return f"{lost} bytes of confirmed log are missing on {to} and will be lost"


@cluster.command()
@with_broker
def pause(url: str) -> None:
    """Disable automatic failover until `resume`, for work on the nodes or the network."""
    print_facts(run(ClusterCalls(addresses(url)).at_master("pause", {}, or_any=True)))


@cluster.command()
@with_broker
def resume(url: str) -> None:
    """Enable automatic failover again."""
    print_facts(run(ClusterCalls(addresses(url)).at_master("resume", {}, or_any=True)))


@cluster.command("remove-member")
@click.argument("node")
@with_broker
def remove_member(node: str, url: str) -> None:
    """Remove NODE, which is down, from the in-sync set now instead of after its timeout."""
    print_facts(run(ClusterCalls(addresses(url)).at_master("remove-member", {"node": node})))


@cluster.command("add-node")
@click.argument("node", metavar="NAME=HOST:PORT")
@api_option
@admin_option
@with_broker
def add_node(node: str, api: str, admin: str, url: str) -> None:
    """Add a node to the running group; it copies the log and then joins the in-sync set."""
    order = _new_node(node, api, admin)._asdict()
    print_facts(run(ClusterCalls(addresses(url)).at_master("add-node", order)))


@cluster.command("remove-node")
@click.argument("node")
@with_broker
def remove_node(node: str, url: str) -> None:
    """Remove NODE from the running group for good; a master hands over first."""
    print_facts(run(removal(ClusterCalls(addresses(url)), node)))


@cluster.command("replace-node")
@click.argument("old")
@click.argument("new", metavar="NAME=HOST:PORT")
@api_option
@admin_option
@click.option(
    "--timeout-s",
    type=click.FloatRange(1.0, 86_400.0),
    default=3600.0,
    show_default=True,
    help="Longest wait for the new node to copy the log.",
)
@with_broker
def replace_node(old: str, new: str, api: str, admin: str, timeout_s: float, url: str) -> None:
    """Add the new node, wait until it is in sync, and then remove OLD.

    OLD goes first if the new node takes over its name or an address. Repeat the command after a
    failure: it continues.
    """
    calls = ClusterCalls(addresses(url))
    print_facts(run(replacement(calls, old, _new_node(new, api, admin), timeout_s)))


def _new_node(node: str, api: str, admin: str) -> NewNode:
    """Return the described node. Raises click.BadParameter."""
    name, equals, replication = node.partition("=")
    if not equals:
        raise click.BadParameter(f"{node} is not NAME=HOST:PORT")
    return NewNode(name, replication, api, admin)


@cluster.command("recreate-lease")
@click.option("--stopped", multiple=True, help="A node that is known to be stopped; repeatable.")
@click.option("--in-sync", multiple=True, help="A member of the in-sync set, if no node knows it.")
@click.option("--dry-run", is_flag=True, help="Show the resulting lease; change nothing.")
@with_broker
def recreate_lease(
    stopped: tuple[str, ...], in_sync: tuple[str, ...], dry_run: bool, url: str
) -> None:
    """Recreate a lease that was deleted or reset to an old state, without a live master."""
    order = {"stopped": list(stopped), "in_sync": list(in_sync), "dry_run": dry_run}
    print_facts(run(ClusterCalls(addresses(url)).at_any("recreate-lease", order)))


@cluster.command()
@click.argument("node")
@click.option("--group", help="The group's name, instead of typing it when asked.")
@with_broker
def resync(node: str, group: str | None, url: str) -> None:
    """Delete the data of NODE and copy it again from the master."""
    calls = ClusterCalls(addresses(url))
    held = node_of(run(calls.view()), node)["log_end"]
    what = "its log" if held is None else f"its log, which ends at byte {held}"
    say(f"{node} is emptied: {what}, queues and index are copied again from the master")
    typed = group or click.prompt("Type the group's name to continue", err=True)
    print_facts(run(calls.at(node, "resync", {"group": typed})))


@cluster.command("rotate-secret")
@click.option(
    "--new-secret-file",
    type=click.Path(path_type=Path),
    required=True,
    help="File with the new secret; the same one when the command is repeated.",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    help="File with the present secret, e.g. this node's cluster.secret_file: seals the new one.",
)
@click.option("--by-hand", is_flag=True, help="Say what to change on each node, and wait for it.")
@click.option("--dry-run", is_flag=True, help="Show each node's secrets; change nothing.")
@click.option(
    "--timeout-s",
    type=click.FloatRange(1.0, 86_400.0),
    default=300.0,
    show_default=True,
    help="Longest wait for all nodes in each of the three steps.",
)
@with_broker
def rotate_secret(
    new_secret_file: Path,
    secret_file: Path | None,
    by_hand: bool,
    dry_run: bool,
    timeout_s: float,
    url: str,
) -> None:
    """Replace the secret that nodes prove to each other, while the group serves."""
    if by_hand == (secret_file is not None):
        raise click.UsageError("give either --secret-file or --by-hand")
    new = read_secret_file(new_secret_file)
    rotation = Rotation(ClusterCalls(addresses(url)), new, secret_file, timeout_s=timeout_s)
    nodes = run(rotation.nodes() if dry_run else rotation.run())
    print_rows([_secret_row(node) for node in nodes], SECRET_COLUMNS)


def _secret_row(node: NodeSecrets) -> dict[str, object]:
    seen = node.seen
    return {
        "node": node.node,
        "proves": None if seen is None else seen.proves,
        "accepts": None if seen is None else ", ".join(seen.accepts),
        "file": node.file or None,
        "reason": node.reason or None,
    }


@cluster.command("hand-over")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    required=True,
    help="Directory with the sockets of this node's services.",
)
@click.option(
    "--timeout-s", type=click.FloatRange(0.1, 3600.0), default=15.0, show_default=True,
    help="Longest wait for another master.",
)  # fmt: skip
@with_output
def hand_over_command(run_dir: Path, timeout_s: float) -> None:
    """Hand over to another node if this one is master; run it before you stop this node."""
    print_facts(run(hand_over(run_dir, timeout_s)))


@cluster.command()
@click.argument("node")
@with_broker
def adopt(node: str, url: str) -> None:
    """Let NODE bring a store that has records, but no group marker, into the group."""
    print_facts(run(ClusterCalls(addresses(url)).at(node, "adopt", {})))
