"""One start of the broker of a node of a group: the service's own roles, log and sends, and two
clients.

A producer sends while sends are accepted; a consumer reads while reads are, and commits offsets.
Not simulated are sockets, members of consumer groups and delayed delivery (``consuming``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from services.broker.api.gate import Gate
from services.broker.api.own_route import OwnRoute
from services.broker.config import BrokerConfig
from services.broker.context import BrokerContext
from services.broker.metrics import BrokerMetrics
from services.broker.replication.grouped_store import GroupedStore
from services.broker.replication.node import GroupNode
from services.broker.roles import RoleContext
from services.broker.watch import Watch
from shared.cluster.config import ClusterConfig
from shared.files.store_dir import LockByte
from shared.metrics.registry import Registry
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import Health
from shared.runtime.lifecycle import run_parts
from shared.state.state import BrokerState
from tests.simulation.replication.api_client import PORT, ApiClient, View, make_api
from tests.simulation.replication.consumer import Consumer
from tests.simulation.replication.history import History
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.pending import PendingRequests
from tests.simulation.replication.process import Process
from tests.simulation.replication.producer import Producer
from tests.simulation.replication.service import Service
from tests.simulation.replication.store_view import ROOT, STORE
from tests.simulation.replication.violation import Violation
from tidemark.errors import TidemarkError
from tidemark.formats.checkpoint import NodeRole, Slot, Trouble

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha

SHUT_US: Final = 2_000_000
"""A gate has followed its term after this time."""
SHUT: Final = frozenset({"no-role", "catching-up", "waiting-for-store"})
"""Reasons of /ready while nothing is served."""
REPORTED_US: Final = 500_000
"""A stopping broker has reported that after this time."""
HEARD_MS: Final = 1_000
"""A service with a heartbeat within this time is not taken for dead."""


@lru_cache
def _config(node: str, names: tuple[str, ...]) -> BrokerConfig:
    """Configuration of a node in a group of these nodes."""
    return BrokerConfig(
        store_dir=ROOT,
        store=STORE,
        auto_create_topics=True,
        auto_create_queues=1,
        cluster=ClusterConfig(
            node=node,
            nodes=tuple(f"{name}={name}:9000" for name in names),
            api=tuple(f"{name}=http://{name}:{PORT}" for name in names),
            admin=tuple(f"{name}=http://{name}:8090" for name in names),
            secret_file=Path("/secret"),
            lease_dir=Path("/lease"),
        ),
    )


class Broker(Service):
    """A process of the service broker on one node."""

    def __init__(
        self,
        machine: Machine,
        process: Process,
        history: History,
        ring: Callable[[str], None],
        write_trace: Callable[[str, str], None] | None,
        *,
        ack_limit_ms: int,
        sends_per_s: float,
        names: tuple[str, ...],
        ha: Callable[[], Ha | None],
    ) -> None:
        """names: the nodes of the group. ha: returns the current start of ha of this node."""
        super().__init__(machine, process, history, ring, write_trace)
        self.node: GroupNode | None = None
        self.store: GroupedStore | None = None
        self._health = Health(machine)
        self.gate = Gate(self._health)
        self._config, self._ha = _config(machine.name, names), ha
        self.own_route = OwnRoute(self._config, self.gate, machine)
        self.api: Any = make_api(self._config, self.gate, self.own_route, machine)
        self.client = ApiClient(self, self.api, self.gate)
        self.requests = PendingRequests(self)
        self.producer = Producer(self, ack_limit_ms=ack_limit_ms, sends_per_s=sends_per_s)
        self.consumer = Consumer(self)
        self._idle_us = machine.timeline.now_us
        """When it last served an epoch or refused sends."""
        self._shut_us = machine.timeline.now_us
        """When it was last not master of an open epoch, or its components had noticed that
        epoch."""
        self._agreed_us = machine.timeline.now_us
        """When its probes last matched its gate."""
        self._ruled_us = machine.timeline.now_us
        """When it last had a role, or refused reads."""
        self._sound_us = machine.timeline.now_us
        """When its published trouble last matched whether it can read its state."""
        self._free_us = machine.timeline.now_us
        """When it was last not stopping, or had reported that it stops."""
        self._hands_over_us: int | None = None
        """When it was asked to stop as a master that another member could replace."""

    @property
    def epoch(self) -> int | None:
        """Epoch that the broker serves or is about to serve, or None."""
        term = None if self.node is None else self.node._term
        return None if term is None else term.epoch

    @property
    def shows(self) -> int:
        """End of the log for consumers; 0 while reads are refused."""
        return self.store.dispatched if self.store is not None and self.gate.reads_open else 0

    @property
    def state(self) -> BrokerState:
        """The state that it serves."""
        return cast(BrokerState, self.api.components.groups.state)

    async def main(self) -> None:
        """Run as ``services.broker.service`` does in a group."""
        stop = self.stop
        store = self.store = await GroupedStore.wait_open(
            self._config, self.disk, self.machine, self._health, stop
        )
        if store is None:
            return
        watch = Watch(store, self._health, stop, self._config.dispatch_lag_max)
        view = self.client.view = View(self._config, self.machine, store, self._ha)
        self.api.show_cluster(view)
        metrics = BrokerMetrics(Registry("broker"), self.machine)
        bell = cast(Doorbell, self.bell)
        context = RoleContext(
            BrokerContext(self._config, self.machine, metrics, self._health, bell, PORT),
            metrics,
            self.gate,
            self.api,
            watch,
            self.own_route,
            on_serving=lambda: None,
        )
        node = self.node = GroupNode(context, store, view)
        await run_parts(
            stop,
            {
                "node": lambda: node.run(stop),
                "cluster-view": lambda: view.run(stop),
                "client": lambda: self.client.run(stop),
                "watch": watch.run,
                "producer": lambda: self.producer.run(stop),
                "consumer": lambda: self.consumer.run(stop),
            },
        )
        await asyncio.to_thread(store.stopped_clean)

    @property
    def hindrances(self) -> list[str]:
        """Reasons for which its probes are not ready; empty if they are."""
        if self._health.ready:
            return []
        return [self._health.state, *(reason.code for reason in self._health.reasons)]

    def check_gate(self) -> None:
        """Check that a broker without an epoch refuses sends, and that the components of an open
        epoch have noticed it."""
        machine, now_us = self.machine, self.machine.timeline.now_us
        if not self.gate.sends_open or machine.slot(Slot.SERVING_EPOCH) or self.process.paused:
            self._idle_us = now_us
        if now_us - max(self._idle_us, self.process.resumed_us) > SHUT_US:
            raise Violation(f"{machine.name} serves no epoch but accepts sends")
        may_open = (
            machine.slot(Slot.ROLE) == NodeRole.MASTER
            and machine.slot(Slot.DISPATCHED) >= machine.slot(Slot.EPOCH_RECORD_END) > 0
            and machine.slot(Slot.SERVING_EPOCH)
            and machine.holds(LockByte.APPEND, self.process)
        )
        if not may_open or self.process.paused or self.process.opened is not None:
            self._shut_us = now_us
        if now_us - max(self._shut_us, self.process.resumed_us) > SHUT_US:
            raise Violation(
                f"{machine.name} is master, but components of its broker still wait for the open "
                "epoch"
            )
        self._check_probes()
        self._check_damage()
        store, gate = self.store, self.gate
        if gate.reads_open and not machine.has_taken_up:
            raise Violation(f"{machine.name} accepts reads before reput has published the queues")
        if gate.reads_open and gate.fault is not None:
            raise Violation(f"{machine.name} accepts reads although it is damaged: {gate.fault}")
        has_role = store is None or store.follows or self.epoch is not None
        has_role = has_role and machine.slot(Slot.ROLE) != NodeRole.HALTED
        if has_role or not gate.reads_open or self.process.paused:
            self._ruled_us = now_us
        if now_us - max(self._ruled_us, self.process.resumed_us) > SHUT_US:
            role = NodeRole(machine.slot(Slot.ROLE)).name.lower()
            raise Violation(f"{machine.name} accepts reads in the role {role}")

    def _check_probes(self) -> None:
        """Check that GET /ready returns 200 exactly while reads are served; only damage may
        differ."""
        health, now_us = self._health, self.machine.timeline.now_us
        is_shut = {health.state} - {"serving"} | {reason.code for reason in health.reasons} & SHUT
        try:
            self.gate.check_reads(anywhere=True)
        except TidemarkError as error:
            differs = health.ready
            why = f"GET /ready returns 200, and a read fails: {error}"
        else:
            differs = bool(is_shut)
            why = f"reads are served, and GET /ready reports {sorted(is_shut)}"
        if not differs or self.process.paused:
            self._agreed_us = now_us
        if now_us - max(self._agreed_us, self.process.resumed_us) > SHUT_US:
            raise Violation(f"{self.machine.name}: {why}")

    def _check_damage(self) -> None:
        """Check that the page has DAMAGED exactly while nothing is served for damage."""
        machine, now_us = self.machine, self.machine.timeline.now_us
        has_fault = self.gate.fault is not None
        is_published = machine.slot(Slot.BROKER_TROUBLE) == Trouble.DAMAGED
        if has_fault == is_published or self.process.paused or self.stop.is_set():
            self._sound_us = now_us
        if now_us - max(self._sound_us, self.process.resumed_us) > SHUT_US:
            raise Violation(
                f"{machine.name} {'does not publish' if has_fault else 'publishes'} DAMAGED; its "
                f"fault is {self.gate.fault}"
            )

    @property
    def _can_hand_over(self) -> bool:
        machine = self.machine
        return bool(
            machine.slot(Slot.SERVING_EPOCH)
            and machine.slot(Slot.ROLE) == NodeRole.MASTER
            and not machine.slot(Slot.FENCED)
            and machine.slot(Slot.IN_SYNC_SIZE) > 1
            and machine.boot_ms() - machine.slot(Slot.HA_HEARTBEAT_MS) < HEARD_MS
            and not machine.slot(Slot.BROKER_TROUBLE)
        )

    def ask_to_end(self) -> None:
        """SIGTERM."""
        super().ask_to_end()
        if self.process.alive and not self.process.paused and self._can_hand_over:
            self._hands_over_us = self.machine.timeline.now_us

    def check_ended(self) -> None:
        """Check that a broker which shut down cleanly has stored the last offsets of its term, and
        that one which another member could replace has reported its stop before it ended. The log
        is not that of its term any more if ha has copied or cut since it released byte 0, and a
        broker that has lost its term serves the state of a slave."""
        begun_us, changed_us, machine = self._hands_over_us, self.machine.changed_us, self.machine
        ended_us, fenced_us = (
            changed_us.get(slot, 0) for slot in (Slot.SERVING_EPOCH, Slot.FENCED)
        )
        held_us = changed_us.get(Slot.SENDS_HELD, 0)
        is_fenced = machine.slot(Slot.FENCED) and fenced_us <= ended_us
        is_held = held_us > self.process.begun_us
        is_another = changed_us.get(Slot.WRITTEN, 0) > self.process.released_us > 0
        opened = self.process.opened
        is_own = opened is not None and opened is self.state
        if is_own and not (is_fenced or is_held or is_another):
            self.history.ends_with(machine, self.state)
        if begun_us is None:
            return
        is_fenced = begun_us <= fenced_us <= ended_us
        if changed_us.get(Slot.BROKER_TROUBLE, 0) < begun_us and not is_fenced:
            raise Violation(f"the broker of {self.machine.name} ended without a report to ha")

    def check_leaving(self) -> None:
        """Check that the broker of a stopping master reports that, so that another node takes over
        first."""
        machine, now_us = self.machine, self.machine.timeline.now_us
        if not (self.stop.is_set() and self._can_hand_over) or self.process.paused:
            self._free_us = now_us
        if now_us - max(self._free_us, self.process.resumed_us) > REPORTED_US:
            raise Violation(f"the broker of {machine.name} is to stop and does not report that")
