"""Routes: which broker groups a cluster has, and which of them have a topic. Pure.

A *broker group* is one master and its slaves; the broker groups of a cluster share nothing. A name
service, or a broker for its own broker group, answers a *route*. ``route_calls`` fetches routes,
``cluster`` keeps the last known ones, and ``queue_choice`` chooses a queue from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tidemark import errors
from tidemark.client.nodes import NODES_MAX, base_of

SOURCES_MAX: Final = 32
"""Maximum number of addresses that are asked for routes."""


class RouteNode(NamedTuple):
    """One node of a broker group."""

    node: str
    role: str
    """``master``, ``slave`` or ``unknown``."""
    url: str
    """Address of its API."""


class GroupRoute(NamedTuple):
    """One broker group, and in the route of a topic what it has of that topic."""

    broker_group: str
    epoch: int
    """Epoch of its master; 0 if it is not known."""
    master: str | None
    """Name of its master; None if it has none or the master is not known."""
    nodes: tuple[RouteNode, ...]
    queues: int = 0
    """Number of queues of the topic; 0 in the route of the whole cluster."""
    readable: bool = True
    writable: bool = True
    topics: int | None = None
    """Number of topics; only in the route of the whole cluster."""

    @property
    def master_url(self) -> str | None:
        """Address of the master; None if it is not known."""
        return next((each.url for each in self.nodes if each.node == self.master), None)

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the nodes, the master's first."""
        ordered = sorted(self.nodes, key=lambda each: each.node != self.master)
        return tuple(each.url for each in ordered)[:NODES_MAX]


class Routes(NamedTuple):
    """The answer of a name service or of a broker."""

    cluster: str
    version: str
    """Changes with anything else in the answer."""
    complete: bool
    """Whether the answerer knows every broker group. One that has just started does not, and a
    broker with name services knows its own alone."""
    missing: frozenset[str]
    """Broker groups of which it has not heard yet."""
    names: tuple[str, ...]
    """Addresses of the name services that it knows."""
    groups: tuple[GroupRoute, ...]
    """Sorted by name."""

    @property
    def is_alone(self) -> bool:
        """Whether there is one broker group and no name service, so that no others can appear."""
        return len(self.groups) <= 1 and not self.names

    def group(self, broker_group: str) -> GroupRoute | None:
        """Return the broker group of this name."""
        return next((each for each in self.groups if each.broker_group == broker_group), None)


NO_TOPIC: Final = Routes("", "", True, frozenset(), (), ())
"""The route of a topic that no broker group has."""


def unheard(routes: Routes, what: str) -> errors.RouteIncomplete:
    """Return the error for a call that needs all broker groups. what: what did not happen."""
    missing = ", ".join(sorted(routes.missing)) or "those of other name services"
    return errors.RouteIncomplete(
        f"the address that answers with routes has not heard of {missing} yet. {what}",
        "Try again in half a minute; if it stays, see the log of those brokers.",
        missing=sorted(routes.missing),
    )


def read_routes(answer: Mapping[str, Any]) -> Routes:
    """Parse the answer to ``GET /v1/route`` or ``/v1/route/{topic}``. Raises BrokenAnswer."""
    try:
        return Routes(
            cluster=str(answer["cluster"]),
            version=str(answer["version"]),
            complete=answer["complete"] is True,
            missing=frozenset(map(str, answer["missing"])),
            names=tuple(base_of(url) for url in answer["names"]),
            groups=tuple(sorted(map(_group, answer["groups"]), key=lambda each: each.broker_group)),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.BrokenAnswer(f"a route in the answer lacks {error}") from error


def _group(wire: Mapping[str, Any]) -> GroupRoute:
    return GroupRoute(
        broker_group=str(wire["group"]),
        epoch=int(wire["epoch"]),
        master=None if wire["master"] is None else str(wire["master"]),
        nodes=tuple(
            RouteNode(str(each["node"]), str(each["role"]), base_of(each["api"]))
            for each in wire["nodes"]
            if each["api"] is not None
        ),
        queues=int(wire.get("queues", 0)),
        readable=wire.get("readable", True) is True,
        writable=wire.get("writable", True) is True,
        topics=wire.get("topics"),
    )


def merged(before: Routes | None, after: Routes) -> Routes:
    """Return the routes to use: those of ``after``, and of ``before`` what ``after`` cannot know.

    1. A name service restarts; 2. it answers before a broker group has registered again; 3. without
    the routes of before, clients would send nothing to a broker group that is well. While it still
    asks other name services, it cannot say which ones are missing: then all of before stay.
    """
    if before is None or after.complete:
        return after
    known = {each.broker_group for each in after.groups}
    kept = [
        each
        for each in before.groups
        if (each.broker_group in after.missing or not after.missing)
        and each.broker_group not in known
    ]
    groups = sorted([*after.groups, *kept], key=lambda each: each.broker_group)
    return after._replace(groups=tuple(groups), complete=before.complete)


def next_sources(
    sources: Sequence[str], asked: str, names: Iterable[str], *, is_first: bool
) -> tuple[str, ...]:
    """Return the addresses to ask from now on, after ``asked`` has answered with these ``names``.

    A broker answers for its own broker group alone and names the name services, so these replace
    the given addresses. A name service is asked again, together with those that it knows.
    """
    named = tuple(names)
    if is_first and named and asked not in named:
        return named[:SOURCES_MAX]
    return tuple(dict.fromkeys([asked, *sources, *named]))[:SOURCES_MAX]
