"""A broker group: its log, its nodes, and which of them is the master.

The election is a model: another node begins a term when the old one can no longer act. Route,
registrations and everything that a master serves run their own code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec

from services.broker.api.own_route import OwnRoute
from services.broker.config import BrokerConfig, NamesSettings
from services.broker.groups.counters import GroupCounters
from services.broker.metrics import BrokerMetrics
from services.broker.registrar import Registrar
from services.broker.schema.routes import RouteQuery
from shared.cluster.config import ClusterConfig
from shared.files.store_dir import StoreConfig
from tests.simulation.cluster.group_log import GroupLog
from tests.simulation.cluster.judge import Judge
from tests.simulation.cluster.loop import Host, Loop
from tests.simulation.cluster.names import CLUSTER, Shown, without_system_topics
from tests.simulation.cluster.network import Network, Reply, Request
from tests.simulation.cluster.term import Term
from tidemark.errors import NotMaster, NotServing

LEASE_S: Final = 4.0
"""Time after which a silent master is replaced."""
OPENING_S: Final = 0.5
"""Longest time from the beginning of a term until it serves."""
WATCH_S: Final = 1.0
VIEW_S: Final = 0.6
"""Longest time until a broker learns of a change of its group."""
METRICS: Final = cast(
    BrokerMetrics,
    SimpleNamespace(
        show_names=lambda configured, registered: None,
        names_refused=SimpleNamespace(labels=lambda code: SimpleNamespace(inc=lambda: None)),
    ),
)
"""Metrics of a registrar; they are not read."""


class Wiring:
    """What all broker groups of a world share."""

    def __init__(
        self,
        loop: Loop,
        network: Network,
        judge: Judge,
        counters: GroupCounters,
        names: Sequence[str],
    ) -> None:
        """names: URLs of the name services."""
        self.loop, self.network, self.judge = loop, network, judge
        self.counters, self.names = counters, tuple(names)


class Node:
    """One node of a broker group: a broker that can be killed, stopped and started.

    It is also the broker's view of its group (``cluster_calls.View``).
    """

    def __init__(self, group: BrokerGroup, node: str, wiring: Wiring) -> None:
        self.group, self.node, self._wiring = group, node, wiring
        self.name = f"{group.name}-{node}"
        self.url = f"http://{self.name}.example:8080"
        self.host = Host(self.name)
        self.runs = False
        self.term: Term | None = None
        """What it serves as a master; None: it is a slave, or starts."""
        self._own: OwnRoute
        self._ended: asyncio.Event
        self._gate = SimpleNamespace(sends_open=False, sends_opened=asyncio.Event())

    def start(self) -> None:
        """Start the broker as a slave."""
        wiring, config = self._wiring, self.group.config_of(self)
        self.host, self.runs = Host(self.name), True
        self._gate = SimpleNamespace(sends_open=False, sends_opened=asyncio.Event())
        own = self._own = OwnRoute(config, cast(Any, self._gate), wiring.loop)
        if config.cluster.grouped:
            own.follow(self)
        self._ended = asyncio.Event()
        registrar = Registrar(config, own, f"id-{self.name}", None, METRICS, wiring.loop)
        wiring.network.listen(self.url, self)
        for part in (own.run(self._ended), registrar.run(self._ended), self._watch()):
            wiring.loop.start(part, self.host)

    async def now(self) -> Mapping[str, Any]:
        """Return what ha of this node answers to its broker, a moment late."""
        await asyncio.sleep(VIEW_S * self.group.random.random())
        return await self.group.now()

    def kill(self) -> None:
        """End the broker at once."""
        self.host.kill()
        self._end()

    async def leave(self) -> None:
        """End the broker as ``SIGTERM`` does: it says so to the name services."""
        self._close_term()
        self._ended.set()
        await asyncio.sleep(2.0)
        self.kill()

    def _end(self) -> None:
        self.runs, self.term = False, None
        self._wiring.network.close(self.url, self.host)

    def lead(self) -> None:
        """Begin a term, and serve it in a moment."""
        self.group.log.begin_epoch()
        self._wiring.judge.epochs += 1
        self._wiring.loop.start(self._open(), self.host)

    async def _open(self) -> None:
        wiring, group = self._wiring, self.group
        epoch = group.log.epoch
        await asyncio.sleep(OPENING_S * group.random.random())
        if group.log.epoch == epoch:
            term = self.term = Term(
                group.name, group.log, wiring.loop, wiring.judge, wiring.counters, group.random
            )
            self._own.serve(term.views)
            term.begin(self.host)
            self._gate.sends_open = True
            self._gate.sends_opened.set()

    async def _watch(self) -> None:
        """Notice the end of a term, and callers that have gone."""
        while True:
            await asyncio.sleep(WATCH_S)
            term = self.term
            if term is None:
                continue
            if term.is_over:
                self._close_term()
            else:
                term.puller.long_polls.wake_disconnected()

    def _close_term(self) -> None:
        term, self.term = self.term, None
        self._gate.sends_open = False
        if term is not None:
            term.end()

    @property
    def serves(self) -> bool:
        """Whether it is the master and serves."""
        return self.term is not None and not self.term.is_over and not self.host.is_stopped

    async def handle(self, request: Request) -> Reply:
        """Answer a call. Raises TidemarkError, Broken."""
        match request.parts:
            case ["route", *topic]:
                query = RouteQuery(
                    request.query.get("after", ""), int(request.query.get("wait_ms", 0))
                )
                route = await self._own.awaited(topic[0] if topic else None, query)
                return Reply(200, msgspec.msgpack.encode(route))
            case ["cluster"]:
                return Reply(200, msgspec.msgpack.encode(await self.group.now()))
        return await self._term().handle(request)

    def _term(self) -> Term:
        """Return the term. Raises NotMaster, NotServing, Fenced."""
        term = self.term
        if term is not None:
            term.check_reads()
            return term
        master = self.group.master
        if master is self:
            raise NotServing("this node is being promoted.", state="promoting")
        raise NotMaster(
            "another node is the master.",
            master=None if master is None else master.node,
            api=None if master is None else master.url,
        )


class BrokerGroup:
    """The nodes of a broker group."""

    def __init__(self, name: str, node_count: int, wiring: Wiring, random: Random) -> None:
        self.name, self.random, self._wiring = name, random, wiring
        self.log = GroupLog(random)
        self.nodes = [Node(self, f"n{number}", wiring) for number in range(node_count)]
        self.master: Node | None = None
        """The node that leads or is about to."""
        self.is_busy = False
        """Whether a fault or a change of it is in progress."""
        self.is_drained = self.is_removed = False
        """Whether the operator wants it so."""

    def config_of(self, node: Node) -> BrokerConfig:
        """Return the settings of a node."""
        names = NamesSettings(urls=self._wiring.names, api=node.url)
        if len(self.nodes) == 1:
            return BrokerConfig(cluster=ClusterConfig(name=CLUSTER, group=self.name), names=names)
        cluster = ClusterConfig(
            name=CLUSTER,
            group=self.name,
            node=node.node,
            nodes=tuple(f"{each.node}={each.name}:8084" for each in self.nodes),
            api=tuple(f"{each.node}={each.url}" for each in self.nodes),
            admin=tuple(f"{each.node}=http://{each.name}:8083" for each in self.nodes),
            secret_file=Path("secret"),
            lease_dir=Path("lease"),
        )
        return BrokerConfig(
            cluster=cluster,
            names=NamesSettings(urls=self._wiring.names),
            store=StoreConfig(visible_after="confirmed"),
        )

    async def now(self) -> Mapping[str, Any]:
        """Return the body of ``GET /v1/cluster``."""
        if len(self.nodes) == 1:
            return {"epoch": None, "master": None, "nodes": []}
        master = self.master
        return {
            "epoch": self.log.epoch,
            "master": None if master is None else master.node,
            "nodes": [
                {
                    "node": each.node,
                    "api": each.url,
                    "role": "master" if each is master else "slave",
                }
                for each in self.nodes
            ],
        }

    @property
    def serves(self) -> bool:
        """Whether its master serves."""
        return self.master is not None and self.master.serves

    @property
    def refuses_sends(self) -> bool:
        """Whether its master serves and takes no messages."""
        term = None if self.master is None else self.master.term
        return self.serves and term is not None and term.state.drained_since_ms is not None

    def real(self) -> Shown | None:
        """Return what routes should show of it; None while its master does not serve."""
        if self.master is None or (term := self.master.term) is None or not self.serves:
            return None
        routes = {name: term.views.route(name) for name in term.views.routed()}
        topics = {name: route for name, route in routes.items() if route is not None}
        epoch = self.log.epoch if len(self.nodes) > 1 else 0
        return Shown(epoch, self.master.node, without_system_topics(topics))

    def start(self) -> None:
        """Start all nodes; the first one leads."""
        for node in self.nodes:
            node.start()
        self.elect(self.nodes[0])

    def elect(self, node: Node) -> None:
        """Let a node lead from now on."""
        self.master = node
        node.lead()

    def other(self) -> Node:
        """Return a running node that is not the master; the master itself if there is none."""
        assert self.master is not None
        return next(
            (each for each in self.nodes if each is not self.master and each.runs), self.master
        )

    # -- faults ----------------------------------------------------------------------------------

    async def lose_master(self, away_s: float) -> None:
        """Kill the master; another node leads after a while, and it starts again later."""
        old = self.master
        assert old is not None
        old.kill()
        new = self.other()
        if new is old:
            await asyncio.sleep(away_s)
            old.start()
        else:
            self.master = None
            await asyncio.sleep(LEASE_S * self.random.random())
        self.elect(new)
        if new is not old:
            await asyncio.sleep(away_s)
            old.start()

    async def stop_master(self, stopped_s: float) -> None:
        """Stop the master's process; another node leads when the lease is over."""
        old = self.master
        assert old is not None
        old.host.stop()
        new = self.other()
        if stopped_s > LEASE_S and new is not old:
            await asyncio.sleep(LEASE_S)
            self.elect(new)
            stopped_s -= LEASE_S
        await asyncio.sleep(stopped_s)
        old.host.resume(self._wiring.loop)

    async def switch(self) -> None:
        """Give the mastership to another node, as planned."""
        self.elect(self.other())

    async def lose_all(self, away_s: float) -> None:
        """Kill all nodes, and start them again after a while."""
        for node in self.nodes:
            node.kill()
        self.master = None
        await asyncio.sleep(away_s)
        self.start()

    async def remove(self) -> None:
        """Stop all nodes for good."""
        self.is_removed, self.master = True, None
        await asyncio.gather(*(node.leave() for node in self.nodes if node.runs))
