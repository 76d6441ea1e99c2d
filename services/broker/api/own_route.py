"""The route of this node's own broker group: its nodes, its master, its topics, and their changes.

It outlives the roles of the node. On a standalone node the master is the node itself once it
accepts sends. In a group ha knows the nodes; the topics are those of the present role. Long polls
wait here, and ``registrar`` reads from here what it registers with the name services.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from services.broker.api.cluster_calls import View
from services.broker.api.gate import Gate
from services.broker.config import BrokerConfig
from services.broker.read.topic_views import TopicViews
from services.broker.request_classes import held
from services.broker.schema.routes import RouteQuery
from shared.cluster.routes import Role, Route, RouteGroup, RouteNode, group_of, unchanged, versioned
from shared.runtime.keyed_waits import KeyedWaits
from tidemark.clock import Clock
from tidemark.errors import NotServing, UnknownTopic

ALONE: Final = "n0"
"""Name of a standalone node in routes."""
WATCH_S: Final = 0.2
"""Interval at which roles are checked while a long poll is held or the node registers."""
WATCH_NEW_S: Final = 0.02
"""The same interval while sends are open and ha's view does not name this node as the master yet.
Then a failover is known soon."""
HELD_MAX: Final = 1024
"""Long polls that are held at a time; further ones are answered at once."""
STARTING: Final[Mapping[str, Any]] = {"epoch": None, "master": None, "nodes": []}
"""View of a group before ha is asked."""
CHANGES_KEPT: Final = 4096
"""Changes of topics that a registration by difference may name."""


class OwnNodes(NamedTuple):
    """The nodes of this node's broker group as it knows them."""

    epoch: int
    master: str | None
    nodes: tuple[RouteNode, ...]

    def role_of(self, node: str) -> Role:
        """Return the role of a node."""
        return next((each.role for each in self.nodes if each.node == node), "unknown")


class OwnRoute:
    """The route of this node's broker group. Belongs to one event loop."""

    def __init__(self, config: BrokerConfig, gate: Gate, clock: Clock) -> None:
        self._cluster, self._names = config.cluster, list(config.names.urls)
        self._config, self._gate, self._clock = config, gate, clock
        self.node: Final = config.cluster.node or ALONE
        self.api = config.own_api(config.port)
        """URL under which clients reach this node."""
        self._view: View | None = None
        self._views: TopicViews | None = None
        self._waits = KeyedWaits()
        self._held_max = HELD_MAX
        self.nodes = OwnNodes(0, None, ())
        self._serves = False
        """Whether sends were open at the last ``refresh``."""
        self.counter = clock.wall_ms()
        """Rises with each change of a topic. It begins with the time of the start, so that it is
        above the counters of earlier starts, if the clock was right."""
        self._changes: deque[tuple[int, str]] = deque(maxlen=CHANGES_KEPT)
        """Counter and topic of the latest changes."""
        self._since = self.counter
        """Counter from which on ``_changes`` has all changes."""
        self.changed = asyncio.Event()
        """Set when roles or topics have changed; ``registrar`` clears it."""

    # -- what it is made from -------------------------------------------------------------------

    def listen_on(self, port: int) -> None:
        """Use the port of the API that was opened."""
        self.api = self._config.own_api(port)

    def follow(self, view: View) -> None:
        """Take the nodes from ha's view of the group. Not called on a standalone node."""
        self._view = view

    def serve(self, views: TopicViews) -> None:
        """Show these topics from now on."""
        self._views = views
        views.report_changes_to(self._topic_changed)
        self._begin_anew(self.counter + 1)
        self._waits.wake_all()

    def topics_followed(self) -> None:
        """Let long polls look again: a slave has applied changes of topics."""
        self._waits.wake_all()

    def raise_counter(self, least: int) -> None:
        """Go on from this counter, because a name service knows a higher one of this node."""
        if least > self.counter:
            self._begin_anew(least)

    def _begin_anew(self, counter: int) -> None:
        """Count from here; a difference to an earlier counter is not known."""
        self.counter = self._since = counter
        self._changes.clear()
        self.changed.set()

    def _topic_changed(self, topic: str | None) -> None:
        if topic is None:
            self._begin_anew(self.counter + 1)
            self._waits.wake_all()
            return
        self.counter += 1
        if len(self._changes) == CHANGES_KEPT:
            self._since = self._changes[0][0]
        self._changes.append((self.counter, topic))
        self._waits.wake((topic, None))
        self.changed.set()

    # -- what it shows --------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """Role of this node as of the last ``refresh``; master only while it accepts sends."""
        role = self.nodes.role_of(self.node)
        return "unknown" if role == "master" and not self._serves else role

    @property
    def topics(self) -> TopicViews | None:
        """The topics of the present role; None before the store is open."""
        return self._views

    def changes_since(self, counter: int) -> set[str] | None:
        """Return the topics that have changed since then; None if that is not known any more."""
        if not self._since <= counter <= self.counter:
            return None
        return {topic for changed_at, topic in self._changes if changed_at > counter}

    async def refresh(self) -> None:
        """Update nodes and roles; wake long polls if they have changed."""
        nodes = await self._in_group() if self._cluster.grouped else self._alone()
        serves = self._gate.sends_open
        if (nodes, serves) != (self.nodes, self._serves):
            self.nodes, self._serves = nodes, serves
            self._waits.wake_all()
            self.changed.set()

    async def _in_group(self) -> OwnNodes:
        view = STARTING if self._view is None else await self._view.now()
        return _nodes_in(self.nodes.nodes or self._configured(), view)

    def _configured(self) -> tuple[RouteNode, ...]:
        return tuple(
            RouteNode(each.name, "unknown", each.api, each.admin) for each in self._cluster.replicas
        )

    def _alone(self) -> OwnNodes:
        serves = self._gate.sends_open
        node = RouteNode(self.node, "master" if serves else "unknown", self.api, None)
        return OwnNodes(0, self.node if serves else None, (node,))

    def route(self, topic: str | None) -> Route:
        """Return the route of a topic; None: the broker group alone.

        Raises UnknownTopic, BadName; NotServing if the topics are not known yet.
        """
        return versioned(
            Route(
                self._cluster.name,
                "",
                True,
                not self._names,  # it knows its own broker group alone
                [],
                self._names,
                [self._group(topic)],
                msgspec.UNSET if topic is None else topic,
            )
        )

    def _group(self, topic: str | None) -> RouteGroup:
        views, nodes = self._views, self.nodes
        entry, count = None, 0
        if topic is not None:
            if views is None:
                raise NotServing(
                    "this node is starting and does not know its topics yet.",
                    "Try again, or ask another node.",
                )
            views.check_known(topic)
            entry = views.route(topic)
            if entry is None:
                raise UnknownTopic(
                    f"topic {topic!r} is a topic of the broker itself: no client is routed to it.",
                    "Pull it from each node to read it.",
                    topic=topic,
                )
        elif views is not None:
            count = views.count
        return group_of(
            self._cluster.group,
            nodes.epoch,
            nodes.master,
            list(nodes.nodes),
            topic=entry,
            topic_count=count,
        )

    async def awaited(self, topic: str | None, query: RouteQuery) -> Route:
        """Return the route once its version differs from ``query.after``, or at the end of the
        wait. Raises what ``route`` raises, also during the wait."""
        await self.refresh()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + query.wait_ms / 1000
        while (route := self.route(topic)).version == query.after:
            left_s = until_s - loop.time()
            if left_s <= 0 or self._waits.count >= self._held_max:
                return unchanged(route)
            with held(self._clock):
                await self._waits.wait(topic, left_s)
        return route

    async def run(self, stop: asyncio.Event) -> None:
        """Watch the roles while long polls wait for them, until stop; then answer all of these."""
        opened = self._gate.sends_opened
        stopping = asyncio.create_task(stop.wait())
        opening = asyncio.create_task(opened.wait())
        try:
            while not stop.is_set():
                is_new = False
                if self._names or self._waits.count:
                    await self.refresh()
                    is_new = self._serves and self.nodes.role_of(self.node) != "master"
                await asyncio.wait(
                    {stopping, opening},
                    timeout=WATCH_NEW_S if is_new else WATCH_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if opening.done():
                    opened.clear()
                    opening = asyncio.create_task(opened.wait())
        finally:
            stopping.cancel()
            opening.cancel()
            self._held_max = 0
            self._waits.wake_all()


def _nodes_in(known: tuple[RouteNode, ...], view: Mapping[str, Any]) -> OwnNodes:
    """Return the nodes of a group from ``GET /v1/cluster`` of ha.

    known: the nodes as last known, which remain while ha does not answer.
    """
    said = {each["node"]: each.get("role") for each in view["nodes"]}
    master = view.get("master")
    if "nodes_version" in view:
        known = tuple(
            RouteNode(each["node"], "unknown", each["api"], each["admin"]) for each in view["nodes"]
        )

    def role(name: str) -> Role:
        if name == master:
            return "master"
        return "slave" if said.get(name) == "slave" else "unknown"

    nodes = tuple(
        msgspec.structs.replace(each, role=role(each.node))
        for each in sorted(known, key=lambda each: each.node)
    )
    return OwnNodes(view.get("epoch") or 0, master, nodes)
