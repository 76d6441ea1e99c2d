"""Checks the roles in a group: exactly one master, nodes in sync, no alarms. Pure.

Each node's view is used only for the node itself; what it reports about others may be outdated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidemark.cli.doctor.findings import About, Finding, Level

COPYING: Final = frozenset({"truncating", "resync", "catchup"})
"""States in which a node copies the master's log."""


def roles(names: Sequence[str], answering: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Check that exactly one node claims to be the master, and that all are in one group.

    names: names of all nodes. answering: views of the nodes that answer.
    """
    masters, groups = [], set()
    for name, view in answering.items():
        groups.add((view.get("cluster"), view.get("group")))
        for node in view["nodes"]:
            if node.get("node") == name and node.get("state") == "master":
                masters.append(name)
    found = []
    if len(groups) > 1:
        found.append(
            About("nodes.group", ", ".join(answering)).error(
                "doctor-wrong-node",
                f"the nodes are of different groups: {sorted(map(str, groups))}",
                "Correct cluster.name, cluster.group and the addresses.",
            )
        )
    subject = ", ".join(names)
    silent = [name for name in names if name not in answering]
    if len(masters) == 1:
        found.append(
            About("nodes.master", subject).ok(f"{masters[0]} is the master", value=1, limit=1)
        )
    elif not masters and silent:
        found.append(
            About("nodes.master", subject).unknown(
                f"no answering node is the master; {', '.join(silent)} cannot be queried here"
            )
        )
    else:
        reasons = "; ".join(
            sorted({str(view.get("reason")) for view in answering.values() if view.get("reason")})
        )
        found.append(
            About("nodes.master", subject).error(
                "doctor-masters",
                f"{len(masters)} nodes claim to be master ({', '.join(masters) or 'none'})"
                + (f": {reasons}" if reasons else ""),
                "`tidemark cluster status` shows the lease holder. With no master, wait for the "
                "lease to expire; if two remain after that, stop both and report it.",
                value=len(masters),
                limit=1,
                unit="masters",
            )
        )
    return [*found, *_in_sync(masters, answering), *_alarms(answering)]


def _alarms(views: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return the alarms of the nodes; their codes have entries in the runbook."""
    return [
        About("nodes.alarms", name).warning(
            str(alarm.get("code")),
            str(alarm.get("detail")),
            "See the runbook's entry for this code.",
        )
        for name, view in views.items()
        for alarm in view.get("alarms") or ()
    ]


def _comes_back(node: Mapping[str, Any]) -> bool:
    """Whether a node that is not in sync is catching up. Otherwise it is down, rejected or halted,
    and the group has one copy fewer until an operator acts."""
    state = node.get("state")
    return state in COPYING or (state == "follower" and not node.get("reason"))


def _in_sync(masters: Sequence[str], views: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    if len(masters) != 1:
        return []
    view = views[masters[0]]
    outside = [node for node in view["nodes"] if not node.get("in_sync")]
    if not outside:
        count = len(view["nodes"])
        return [About("nodes.in-sync", masters[0]).ok(f"all {count} nodes are in sync")]
    return [
        About("nodes.in-sync", str(node["node"])).found(
            Level.WARNING if _comes_back(node) else Level.ERROR,
            "doctor-not-in-sync",
            f"not in sync: {node.get('reason') or 'it is catching up'}",
            "Until then the other nodes fail over without it. docs/replication.md explains "
            "how a node comes back.",
            value=node.get("lag_bytes"),
            limit=0,
            unit="bytes behind",
        )
        for node in outside
    ]
