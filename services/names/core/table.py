"""The table of a name service: broker groups, their nodes and topics. Pure; times are passed in.

``Table.register`` applies what a node reports, ``Table.expire`` drops what was not renewed. Both
return which routes may have changed, so that the shell wakes only the long polls on those. Rules:

- A registration with a lower (epoch, counter) of the same node, or of a master with a lower epoch
  than the last one, changes nothing (``stale-registration``).
- Only a master's registration changes topics. They stay while the broker group has any node, so
  that consumers find the slaves during a failover.
- The first of two that claim the same name, term or store id is kept, until it expires.

Step before: ``shell.http_api`` decoded and checked the signature. Step after: ``answers``.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from services.names.core.bounds import TableBounds, check_bound
from shared.cluster.routes import EXPIRE_S, Registration, Role, TopicRoute, shared
from tidemark.errors import (
    BadRequest,
    BrokerGroupConflict,
    NodeIdentityTaken,
    StaleRegistration,
    UnknownBase,
    WrongCluster,
)

GONE_KEPT: Final = 1000
"""Broker groups that have expired and are still named in errors."""
NO_TOPICS: Final[Mapping[str, TopicRoute]] = {}


class Node(NamedTuple):
    """A node as it last registered."""

    name: str
    role: Role
    epoch: int
    counter: int
    api: str
    admin: str | None
    identity: str
    renewed_s: float

    def is_shown_like(self, other: Node | None) -> bool:
        """Return whether clients see no difference to an earlier registration."""
        return other is not None and (self.role, self.api, self.admin) == (
            other.role,
            other.api,
            other.admin,
        )


class BrokerGroup:
    """A broker group with its nodes and topics."""

    __slots__ = ("epoch", "master", "name", "nodes", "topics")

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        """Epoch of the last master."""
        self.master: str | None = None
        self.nodes: dict[str, Node] = {}
        self.topics: dict[str, TopicRoute] = {}


class Changes(NamedTuple):
    """What an event has changed in the answers."""

    topics: frozenset[str] = frozenset()
    """Topics whose route may have changed."""
    groups: bool = False
    """Whether the list of all broker groups may have changed."""
    everything: bool = False
    """Whether every answer may have changed."""
    expired: tuple[tuple[str, str], ...] = ()
    """Broker group and name of the nodes that were dropped."""


EVERYTHING: Final = Changes(groups=True, everything=True)


class Table:
    """All broker groups of one cluster."""

    def __init__(self, cluster: str, bounds: TableBounds) -> None:
        self.cluster = cluster
        self._bounds = bounds
        self.groups: dict[str, BrokerGroup] = {}
        self.topics: dict[str, tuple[str, ...]] = {}
        """Topic → names of the broker groups that have it, sorted."""
        self.entries = 0
        """Topics of all broker groups together."""
        self.gone: OrderedDict[str, float] = OrderedDict()
        """Broker groups that have expired, the latest last → time of the last registration [s]."""
        self._identities: dict[str, tuple[str, str]] = {}
        """Store id → broker group and node that have registered with it."""

    # -- registrations --------------------------------------------------------------------------

    def register(self, group: str, node: str, said: Registration, now_s: float) -> Changes:
        """Apply a registration.

        now_s: monotonic clock. Raises a RegistrationRefused, or BadRequest if topics and role do
        not go together; nothing is changed then.
        """
        self._check_cluster(said)
        found = self.groups.get(group) or BrokerGroup(sys.intern(group))
        known = found.nodes.get(node)
        self._check_identity(found, node, known, said, now_s)
        self._check_order(found, node, known, said)
        changed, removed = _topics_to_change(found, node, known, said)
        self._check_bounds(found, known, changed, removed)
        self.groups[found.name] = found
        self.gone.pop(found.name, None)
        return self._apply(found, node, said, changed, removed, now_s)

    def _check_cluster(self, said: Registration) -> None:
        if said.cluster != self.cluster:
            raise WrongCluster(
                f"the broker belongs to cluster {said.cluster!r}, and this name service to "
                f"{self.cluster!r}. Nothing was changed.",
                "Set cluster.name of the broker and cluster of the name service to the same name, "
                "or give the broker the URLs of its own cluster's name services.",
                cluster=self.cluster,
                given=said.cluster,
            )

    def _check_identity(
        self, group: BrokerGroup, node: str, known: Node | None, said: Registration, now_s: float
    ) -> None:
        if known is not None and known.identity != said.identity:
            raise _conflict(
                group.name,
                f"node {node} of broker group {group.name} is registered from another store "
                f"(at {known.api}, {now_s - known.renewed_s:.0f} s ago) than this one (at "
                f"{said.api})",
                now_s - known.renewed_s,
            )
        holder = self._identities.get(said.identity)
        if holder is not None and holder != (group.name, node):
            holder_group, holder_node = holder
            raise NodeIdentityTaken(
                f"node {holder_node} of broker group {holder_group} is registered with the store "
                f"id {said.identity} of node {node} of {group.name}: one store is a copy of the "
                "other. The first is kept, nothing was changed.",
                "Stop one of them. If both are wanted, remove the file store-id in the copy, and "
                "give it an empty log: two nodes that share a past are no two copies.",
                group=holder_group,
                node=holder_node,
            )

    def _check_order(
        self, group: BrokerGroup, node: str, known: Node | None, said: Registration
    ) -> None:
        if known is not None and (said.epoch, said.counter) < (known.epoch, known.counter):
            raise _stale(
                f"node {node} of broker group {group.name} has registered with epoch "
                f"{known.epoch} and counter {known.counter}; {said.epoch} and {said.counter} are "
                "lower",
                known.epoch,
                known.counter,
            )
        if said.role != "master" or group.master is None or group.master == node:
            return
        master = group.nodes[group.master]
        if said.epoch == group.epoch:
            raise _conflict(
                group.name,
                f"node {node} (at {said.api}) says that it is the master of broker group "
                f"{group.name} in epoch {said.epoch}, and node {master.name} (at {master.api}) is",
                0.0,
            )
        if said.epoch < group.epoch:
            raise _stale(
                f"broker group {group.name} has the master {master.name} (at {master.api}) of "
                f"epoch {group.epoch}, and node {node} (at {said.api}) says that it is the master "
                f"of epoch {said.epoch}",
                group.epoch,
                master.counter,
            )

    def _check_bounds(
        self,
        group: BrokerGroup,
        known: Node | None,
        changed: Mapping[str, TopicRoute],
        removed: Iterable[str],
    ) -> None:
        groups_max, nodes_max, topics_max, entries_max = self._bounds
        is_new = group.name not in self.groups
        check_bound("broker groups", len(self.groups) + is_new, groups_max, "groups_max")
        nodes = len(group.nodes) + (known is None)
        check_bound(f"nodes of broker group {group.name}", nodes, nodes_max, "nodes_max")
        grows = sum(name not in group.topics for name in changed)
        grows -= sum(name in group.topics for name in set(removed))
        if grows > 0:
            topics = len(group.topics) + grows
            check_bound(f"topics of broker group {group.name}", topics, topics_max, "topics_max")
            entries = self.entries + grows
            check_bound("topics of all broker groups", entries, entries_max, "entries_max")

    def _apply(
        self,
        group: BrokerGroup,
        name: str,
        said: Registration,
        changed: Mapping[str, TopicRoute],
        removed: Iterable[str],
        now_s: float,
    ) -> Changes:
        before = group.nodes.get(name)
        node = Node(
            sys.intern(name), said.role, said.epoch, said.counter, said.api, said.admin,
            said.identity, now_s,
        )  # fmt: skip
        group.nodes[node.name] = node
        self._identities[said.identity] = group.name, node.name
        nodes_changed = not node.is_shown_like(before)
        if said.role == "master":
            nodes_changed = nodes_changed or (group.master, group.epoch) != (name, said.epoch)
            group.master, group.epoch = node.name, said.epoch
        elif group.master == name:
            group.master, nodes_changed = None, True
        topics = self._change_topics(group, changed, removed)
        if nodes_changed:
            return Changes(frozenset(group.topics) | topics, groups=True)
        return Changes(topics, groups=bool(topics))

    def _change_topics(
        self, group: BrokerGroup, changed: Mapping[str, TopicRoute], removed: Iterable[str]
    ) -> frozenset[str]:
        """Change topics of a broker group; return the names of those that are different now."""
        different = []
        for name, topic in changed.items():
            before = group.topics.get(name)
            if before is None:
                name = sys.intern(name)
                self.topics[name] = tuple(sorted((*self.topics.get(name, ()), group.name)))
                self.entries += 1
            if before != topic:
                group.topics[name] = shared(topic)
                different.append(name)
        for name in removed:
            if group.topics.pop(name, None) is not None:
                different.append(name)
                self.entries -= 1
                rest = tuple(each for each in self.topics[name] if each != group.name)
                if rest:
                    self.topics[name] = rest
                else:
                    del self.topics[name]
        return frozenset(different)

    # -- expiry ---------------------------------------------------------------------------------

    def expire(self, now_s: float) -> Changes:
        """Drop the nodes that have not registered for EXPIRE_S, and broker groups without nodes."""
        topics: set[str] = set()
        late = [
            (group, node)
            for group in self.groups.values()
            for node in group.nodes.values()
            if now_s - node.renewed_s > EXPIRE_S
        ]
        for group, node in late:
            topics |= group.topics.keys()
            self._drop(group, node)
        expired = tuple((group.name, node.name) for group, node in late)
        return Changes(frozenset(topics), groups=bool(late), expired=expired)

    def _drop(self, group: BrokerGroup, node: Node) -> None:
        del group.nodes[node.name]
        del self._identities[node.identity]
        if group.master == node.name:
            group.master = None
        if not group.nodes:
            self._change_topics(group, NO_TOPICS, list(group.topics))
            del self.groups[group.name]
            self.gone[group.name] = node.renewed_s
            while len(self.gone) > GONE_KEPT:
                self.gone.popitem(last=False)


def _topics_to_change(
    group: BrokerGroup, node: str, known: Node | None, said: Registration
) -> tuple[Mapping[str, TopicRoute], Iterable[str]]:
    """Return the topics to set and the names to remove. Raises BadRequest, UnknownBase."""
    if said.role != "master":
        if said.topics is not None or said.base is not None:
            raise BadRequest(
                f"a node with the role {said.role} registers without topics.", field="topics"
            )
        return NO_TOPICS, ()
    if said.topics is not None:
        return said.topics, [name for name in group.topics if name not in said.topics]
    if said.base is None:
        raise BadRequest("a master registers with topics, or with base.", field="topics")
    if (
        known is None
        or known.role != "master"
        or (known.epoch, known.counter)
        != (
            said.epoch,
            said.base,
        )
    ):
        raise UnknownBase(
            f"the difference of broker group {group.name} is to epoch {said.epoch} and counter "
            f"{said.base}; this name service "
            + (f"has {known.epoch} and {known.counter}" if known else f"does not know node {node}")
            + ". Nothing was changed.",
            "Register with all topics.",
            base=said.base,
        )
    return said.changed, said.removed


def _conflict(group: str, what: str, age_s: float) -> BrokerGroupConflict:
    return BrokerGroupConflict(
        f"{what}. The first is kept, nothing was changed.",
        "Give each broker group of the cluster its own cluster.group. If the first one is gone for "
        f"good, its entry expires after {EXPIRE_S:.0f} s ({max(0.0, EXPIRE_S - age_s):.0f} s from "
        "now).",
        group=group,
    )


def _stale(what: str, epoch: int, counter: int) -> StaleRegistration:
    return StaleRegistration(
        f"{what}. Nothing was changed.",
        "A broker goes on from the known counter by itself. If this repeats, two broker groups "
        "have one name, or the store was restored from an old copy: the known entry expires "
        f"{EXPIRE_S:.0f} s after its last renewal.",
        epoch=epoch,
        counter=counter,
    )
