"""Changes of the group's nodes by an operator (docs/replication.md, changing the nodes). Pure.

The nodes are part of the lease, so the compare-and-set that changes them also fences every other
master. A change begins only from a version that a majority of the in-sync set has acknowledged by
its status, so no two changes are under way. Step before: ``admin_commands``. Step after:
``lease_edits``, and every node reads the new version from the lease.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from services.ha.core.admin_rules import AlreadySo, Refused
from services.ha.core.mastership import Mastership
from services.ha.core.peers import Peers
from services.ha.core.replica_context import ReplicaContext
from services.ha.lease.texts import size_with_all
from services.ha.lease.value import Lease, Membership
from shared.cluster.nodes import NODES_MAX, Node, parse_node

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
URL: Final = re.compile(r"https?://[^\s/]{1,255}(/\S*)?")


def requested_node(arguments: Mapping[str, str]) -> Node:
    """Return the node that ``add-node`` describes. Raises Refused."""
    name, api, admin = (arguments.get(each, "") for each in ("node", "api", "admin"))
    if not NAME.fullmatch(name):
        raise Refused(
            f"{name!r} is not a name: letters, digits, '.', '_' and '-', at most 63. Nothing was "
            "changed."
        )
    if not (URL.fullmatch(api) and URL.fullmatch(admin)):
        raise Refused(f"api {api!r} or admin {admin!r} is not a URL. Nothing was changed.")
    try:
        return parse_node(name, arguments.get("replication", ""), api, admin)
    except ValueError as error:
        raise Refused(f"{error}. Nothing was changed.") from None


def check_agreement(context: ReplicaContext, peers: Peers, term: Mastership) -> None:
    """Raise Refused unless a majority of the in-sync set has acknowledged the present nodes.

    A node of an earlier version would drop the nodes from the lease, so none may be in the group.
    """
    statuses = {node: peers.fresh(node) for node in context.others}
    old = [node for node, status in statuses.items() if status and status.facts.members is None]
    if old:
        raise Refused(
            f"{', '.join(old)} cannot keep a changed list of nodes. Nothing was changed.",
            "Upgrade every node first.",
        )
    version, missing = context.members.version, []
    for member in term.in_sync.published:
        status = statuses.get(member.node)
        if member != context.member and (
            status is None
            or (status.incarnation, status.facts.members) != (member.incarnation, version)
        ):
            missing.append(member.node)
    if 2 * len(missing) >= len(term.in_sync.published):
        raise Refused(
            f"{', '.join(missing)} did not acknowledge the present nodes (version {version}), and "
            "a majority of the in-sync set must. Nothing was changed.",
            "Try again when they follow; `tidemark cluster status` shows them.",
        )


def with_node(context: ReplicaContext, node: Node) -> Callable[[Lease | None], Lease]:
    """Return the change that adds a node to the present version of the group."""
    begun = context.members

    def change(lease: Lease | None) -> Lease:
        present = _present(context, lease, begun)
        if node in present.nodes:
            raise AlreadySo(f"{node.name} is a node of the group already. Nothing was changed.")
        for other in present.nodes:
            if other.name == node.name:
                raise Refused(
                    f"{node.name} is a node of the group with other addresses. Nothing was "
                    "changed.",
                    f"Remove it first: `tidemark cluster remove-node {node.name}`.",
                )
            if (other.host, other.port) == (node.host, node.port) or (
                node.api == other.api or node.admin == other.admin
            ):
                raise Refused(f"{other.name} has that address. Nothing was changed.")
        if len(present.nodes) >= NODES_MAX:
            raise Refused(f"a group has at most {NODES_MAX} nodes. Nothing was changed.")
        assert lease is not None
        wanted = _changed(lease, present, (*present.nodes, node))
        size, size_max = size_with_all(wanted), context.setup.lease_size_max
        if size_max is not None and size > size_max:
            raise Refused(
                f"the lease would have {size} bytes, and the file system of its directory takes "
                f"{size_max}. Nothing was changed.",
                "Use shorter names and addresses, or keep the lease in etcd or Kubernetes.",
            )
        return wanted

    return change


def without_node(
    context: ReplicaContext, term: Mastership, name: str
) -> Callable[[Lease | None], Lease]:
    """Return the change that removes a node from the group, and from its in-sync set."""
    begun = context.members

    def change(lease: Lease | None) -> Lease:
        present = _present(context, lease, begun)
        remaining = tuple(node for node in present.nodes if node.name != name)
        if remaining == present.nodes:
            raise AlreadySo(f"{name} is not a node of the group. Nothing was changed.")
        assert lease is not None
        in_sync = tuple(member for member in lease.in_sync if member.node != name)
        active = term.in_sync.heard_of(in_sync, context.now_ms)
        if active < max(1, lease.min_in_sync):
            raise Refused(
                f"{active} members of the in-sync set would remain and follow; min_in_sync is "
                f"{lease.min_in_sync}. Nothing was changed.",
                "Bring another node into the set first: `tidemark cluster add-node`.",
            )
        return _changed(lease, present, remaining)._replace(in_sync=in_sync)

    return change


def _present(context: ReplicaContext, lease: Lease | None, begun: Membership) -> Membership:
    """Return the nodes that a change starts from. Raises Refused if it may not be made now."""
    if lease is None or lease.holder != context.holder:
        raise Refused(f"{context.name} is not the master any more. Nothing was changed.")
    if context.members.version != begun.version:
        raise Refused(
            f"the nodes were changed meanwhile, to version {context.members.version}. Nothing else "
            "was changed.",
            "Check `tidemark cluster status`, and repeat the command.",
        )
    return context.members


def _changed(lease: Lease, present: Membership, nodes: tuple[Node, ...]) -> Lease:
    # The version of the set rises too. Otherwise an older lease that is put back, with a node that
    # was removed since, would not show less than was seen.
    return lease._replace(
        members=Membership(present.version + 1, nodes),
        replicas=tuple(node.name for node in nodes),
        in_sync_version=lease.in_sync_version + 1,
    )
