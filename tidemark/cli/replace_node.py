"""``tidemark cluster replace-node``: adds a node to a group and removes another one.

The new node is added first, and the old one removed once the new one is in sync, so that the group
never has fewer copies. If the new one takes over the name or the addresses of the old one, the old
one has to go first. A repeated command continues where it ended. Step before: ``cluster``. Step
after: ``cluster_calls``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tidemark.cli.cluster_calls import ClusterCalls, Refusal
from tidemark.cli.output import say
from tidemark.errors import NotServing, TidemarkError, Unreachable

POLL_S: Final = 0.5
AGREEMENT_S: Final = 10.0
"""Longest time until the other nodes have acknowledged that a node was removed."""


class ReplacementUnfinished(TidemarkError):
    """The new node is not in sync in time, so the old one was not removed."""

    code, title, status = "replacement-unfinished", "The new node is not in sync yet", 503


class NewNode(NamedTuple):
    """A node as ``add-node`` takes it."""

    node: str
    replication: str
    api: str
    admin: str


async def remove_node(calls: ClusterCalls, node: str) -> dict[str, Any]:
    """Remove a node, after a switchover if it is the master. Raises Refusal and others."""
    if (await calls.view())["master"] == node:
        master = (await calls.at_master("switchover", {}))["master"]
        return await calls.at(master, "remove-node", {"node": node})
    return await calls.at_master("remove-node", {"node": node})


async def replace_node(
    calls: ClusterCalls, old: str, new: NewNode, timeout_s: float
) -> dict[str, Any]:
    """Add a node, wait until it is in sync, and remove another one; return the nodes.

    timeout_s: limit of the wait. Raises ReplacementUnfinished, Refusal and others; what is done
    stays, and the call may be repeated.
    """
    present = _node(await calls.view(), old)
    goes_first = present is not None and _is_in_the_way(present, new)
    if goes_first:
        await remove_node(calls, old)
        say(f"{old} is removed: {new.node} has its name or an address of it")
    added = await _added(calls, new, AGREEMENT_S if goes_first else 0.0)
    say(f"{new.node} is a node of the group" + ("" if _changed(added) else " already"))
    await _in_sync(calls, new.node, old, timeout_s)
    say(f"{new.node} is in sync")
    if old != new.node and not goes_first:
        removed = await remove_node(calls, old)
        say(f"{old} is " + ("removed" if _changed(removed) else "not a node of the group"))
    view = await calls.view()
    return {
        "replaced": old,
        "by": new.node,
        "master": view["master"],
        "nodes": [node["node"] for node in view["nodes"]],
    }


async def _added(calls: ClusterCalls, new: NewNode, patience_s: float) -> dict[str, Any]:
    """Add the node; return the answer.

    patience_s: for how long a refusal is tried again, because the other nodes may not have
    acknowledged yet that one was removed.
    """
    ends_at = time.monotonic() + patience_s
    while True:
        try:
            return await calls.at_master("add-node", new._asdict())
        except Refusal:
            if time.monotonic() >= ends_at:
                raise
        await asyncio.sleep(POLL_S)


async def _in_sync(calls: ClusterCalls, new: str, old: str, timeout_s: float) -> None:
    """Return when a node is in sync. A group without a master at the moment is waited for."""
    ends_at, why = time.monotonic() + timeout_s, ""
    while time.monotonic() < ends_at:
        try:
            node = _node(await calls.view(), new) or {}
        except (Unreachable, NotServing) as error:
            node = {"reason": error.detail}
        if node.get("in_sync"):
            return
        why = str(node.get("reason") or "it is copying the log")
        await asyncio.sleep(POLL_S)
    raise ReplacementUnfinished(
        f"after {timeout_s:g} s {new} is not in sync: {why}. It is a node of the group, and {old} "
        "was not removed if it was still there.",
        "Start it, and repeat the command: it continues.",
    )


def _node(view: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((node for node in view["nodes"] if node["node"] == name), None)


def _is_in_the_way(old: Mapping[str, Any], new: NewNode) -> bool:
    """Whether the new node cannot be added beside the old one: it has its name or an address."""
    alike = old["api"] == new.api, old["admin"] == new.admin
    # With all of them it is the new node: the command is repeated.
    return not all(alike) if old["node"] == new.node else any(alike)


def _changed(answer: Mapping[str, Any]) -> bool:
    return answer.get("changed") is not False
