"""One start of the broker of a node of a group: the service's own roles, log and sends, and two
clients.

A producer sends while sends are accepted; a consumer reads while reads are. Not simulated are
sockets and consumer groups (``consuming``).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from services.broker.api.gate import Gate
from services.broker.api.http_api import _checked
from services.broker.config import BrokerConfig
from services.broker.context import BrokerContext
from services.broker.log.promises import AckLevel
from services.broker.log.term import GrantedTerm
from services.broker.metrics import BrokerMetrics
from services.broker.read.pull import PullRequest
from services.broker.replication.grouped_store import GroupedStore
from services.broker.replication.node import GroupNode
from services.broker.roles import RoleContext
from services.broker.send.request import ProduceRequest
from services.broker.send.send_result import SendResult
from services.broker.watch import Watch
from shared.cluster.config import ClusterConfig
from shared.files.store_dir import Role
from shared.metrics.registry import Registry
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import Health
from shared.runtime.lifecycle import run_parts
from shared.state.records import STATE_QUEUE, STATE_TOPIC
from shared.state.state import BrokerState
from tests.simulation.replication.api_client import (
    ANYWHERE_HEADERS,
    PORT,
    ApiClient,
    View,
    make_api,
)
from tests.simulation.replication.history import History
from tests.simulation.replication.loop import CLIENT
from tests.simulation.replication.machine import ROOT, STORE, Machine
from tests.simulation.replication.process import Process
from tests.simulation.replication.send_rules import SentRequest
from tests.simulation.replication.service import Service
from tests.simulation.replication.violation import Violation
from tidemark.errors import AckTimeout, CorruptRecord, DamagedFile, SwitchingOver, TidemarkError
from tidemark.formats import batch, properties
from tidemark.formats.batch import WireMessage
from tidemark.formats.checkpoint import NodeRole, Slot
from tidemark.formats.hosts import Host
from tidemark.offsets import PhysicalOffset

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha

HOST: Final = Host(b"\x7f\0\0\1", 8080)
TOPICS: Final = ("orders", "orders", "orders", "refunds", "audit")
QUEUES_SEEN: Final = (*((topic, 0) for topic in dict.fromkeys(TOPICS)), (STATE_TOPIC, STATE_QUEUE))
PULLED_MAX: Final = 8
BODY_MAX: Final = 300
LARGE_BODY_MAX: Final = 6_000
"""Larger than one transfer to a slave that catches up, smaller than a log file."""
LARGE_SHARE: Final = 0.04
WAITING_MAX: Final = 50
SHUT_US: Final = 2_000_000
"""A gate has followed its term after this time."""
SHUT: Final = frozenset({"no-role", "catching-up", "waiting-for-store"})
"""Reasons of /ready while nothing is served."""
REPORTED_US: Final = 500_000
"""A stopping broker has reported that after this time."""
HEARD_MS: Final = 1_000
"""A service with a heartbeat within this time is not taken for dead."""
ANSWERED_US: Final = 500_000
"""Time after the timeout of a send within which a running broker has answered."""
HELD_MS: Final = 3_000
HELD_MAX: Final = 5
WOKEN_US: Final = 1_000_000
"""Time within which a held pull is answered after a new message or the end of its term."""
FOLLOWED_US: Final = 1_000_000
"""Time within which a running slave has applied the state of what it serves."""


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


@dataclass
class _Held:
    """A pull that waits for the next message of a queue."""

    topic: str
    queue: int
    offset: int
    parts: Any
    """The components of the term of the request."""
    idle_us: int
    """When the pull last had a reason to wait."""


@dataclass
class _OfTerm:
    """A request that waits until the group has confirmed what it appended."""

    term: GrantedTerm
    valid_us: int
    """When the term was last valid."""
    limit_us: int
    """Longest time for an answer after the end of the term."""


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
        self._ack_limit_ms, self._between_s = ack_limit_ms, 1 / sends_per_s
        self._random = machine.timeline.random
        self.node: GroupNode | None = None
        self.store: GroupedStore | None = None
        self._health = Health(machine)
        self._gate = Gate(self._health)
        self._config, self._ha = _config(machine.name, names), ha
        self._api: Any = make_api(self._config, self._gate, machine)
        self.client = ApiClient(self, self._api, self._gate)
        self._waiting: dict[asyncio.Task[Any], int | None] = {}
        """Sends without an answer and the time limit of each; None while it may still wait for the
        creation of a topic or a file, which has its own limits."""
        self._held: dict[asyncio.Task[Any], _Held] = {}
        """Pulls that wait."""
        self._of_term: dict[asyncio.Task[Any], _OfTerm] = {}
        """Requests that wait for the group."""
        self._idle_us = machine.timeline.now_us
        """When it last served an epoch or refused sends."""
        self._shut_us = machine.timeline.now_us
        """When it was last not master of an open epoch, or its components had noticed that
        epoch."""
        self._agreed_us = machine.timeline.now_us
        """When its probes last matched its gate."""
        self._ruled_us = machine.timeline.now_us
        """When it last had a role, or refused reads."""
        self._free_us = machine.timeline.now_us
        """When it was last not stopping, or had reported that it stops."""
        self._shown = 0, machine.timeline.now_us
        """End of the log that a slave served, and when."""
        self._hands_over_us: int | None = None
        """When it was asked to stop as a master that another member could replace."""

    @property
    def epoch(self) -> int | None:
        """Epoch that it serves or is about to serve, or None."""
        term = None if self.node is None else self.node._term
        return None if term is None else term.epoch

    @property
    def shows(self) -> int:
        """End of the log for consumers; 0 while reads are refused."""
        return self.store.dispatched if self.store is not None and self._gate.reads_open else 0

    @property
    def state(self) -> BrokerState:
        """The state that it serves."""
        return cast(BrokerState, self._api.components.groups.state)

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
        self._api.show_cluster(view)
        metrics = BrokerMetrics(Registry("broker"), self.machine)
        bell = cast(Doorbell, self.bell)
        context = RoleContext(
            BrokerContext(self._config, self.machine, metrics, self._health, bell, PORT),
            metrics,
            self._gate,
            self._api,
            watch,
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
                "producer": lambda: self._produce(stop),
                "consumer": lambda: self._consume(stop),
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
        if not self._gate.sends_open or machine.slot(Slot.SERVING_EPOCH) or self.process.paused:
            self._idle_us = now_us
        if now_us - max(self._idle_us, self.process.resumed_us) > SHUT_US:
            raise Violation(f"{machine.name} serves no epoch but accepts sends")
        may_open = (
            machine.slot(Slot.ROLE) == NodeRole.MASTER
            and machine.slot(Slot.DISPATCHED) >= machine.slot(Slot.EPOCH_RECORD_END) > 0
            and machine.slot(Slot.SERVING_EPOCH)
            and machine.holds(Role.APPEND, self.process)
        )
        if not may_open or self.process.paused or self.process.is_opened:
            self._shut_us = now_us
        if now_us - max(self._shut_us, self.process.resumed_us) > SHUT_US:
            raise Violation(
                f"{machine.name} is master, but components of its broker still wait for the open "
                "epoch"
            )
        self._check_probes()
        store, gate = self.store, self._gate
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
            self._gate.check_reads(anywhere=True)
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
        """Check that a broker which another member could replace has reported its stop before it
        ended."""
        begun_us, changed_us = self._hands_over_us, self.machine.changed_us
        if begun_us is None:
            return
        ended_us = changed_us.get(Slot.SERVING_EPOCH, 0)
        is_fenced = begun_us <= changed_us.get(Slot.FENCED, 0) <= ended_us
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

    # -- clients ---------------------------------------------------------------------------

    async def _produce(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self._random.uniform(0, 2 * self._between_s))
            if self.history.producers_paused:
                continue
            if len(self._waiting) < WAITING_MAX and self._gate.sends_open:
                timeout_ms = self._random.choice((1, 1, 6)) * self._ack_limit_ms
                task = asyncio.create_task(self._send(timeout_ms), name=CLIENT)
                self._waiting[task] = None
                task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[Any]) -> None:
        self._waiting.pop(task, None)
        self._held.pop(task, None)
        self._of_term.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and self.process.alive:
            self.failed(error)

    def check_answered(self) -> None:
        """Check that every send which has stored something is answered in time."""
        now_us = self.machine.timeline.now_us
        if self.process.paused or now_us - self.process.resumed_us < ANSWERED_US:
            return
        waiting = [answered_us for answered_us in self._waiting.values() if answered_us is not None]
        late_us = now_us - min(waiting, default=now_us)
        if late_us > 0:
            raise Violation(
                f"a send at {self.machine.name} has no answer {late_us} µs after its time limit"
            )

    async def _send(
        self, timeout_ms: int, asked: AckLevel | None = None, *, is_drawn: bool = True
    ) -> TidemarkError | None:
        """Send a message, and perhaps once more as a retry; the error of the last request, or
        None."""
        history, random = self.history, self._random
        serial, topic = history.next_serial(), random.choice((*TOPICS, *history.late_topics))
        share = history.large_share or LARGE_SHARE
        size_max = LARGE_BODY_MAX if random.random() < share else BODY_MAX
        body = f"{serial} ".encode() * random.randint(1, size_max // 8)
        if is_drawn:
            asked = random.choice((AckLevel.REPLICATED, AckLevel.DISK, None, None))
        pairs = properties.encode({properties.UNIQ_KEY: f"{serial:016x}"})
        request = ProduceRequest(
            entries=batch.encode([WireMessage(body, pairs)]),
            message_count=1,
            picks=None,
            ack=asked,
            timeout_ms=timeout_ms,
        )
        places: dict[int, int] = {}
        error = await self._request(topic, request, body, places)
        # A client that does not know the outcome sends again, or has lost the answer.
        again = 0.5 if isinstance(error, AckTimeout) else 0.05
        if places and random.random() < again and self._gate.sends_open:
            request = request._replace(retry=True, timeout_ms=6 * self._ack_limit_ms)
            error = await self._request(topic, request, body, places)
        return error

    async def _request(
        self, topic: str, request: ProduceRequest, body: bytes, places: dict[int, int]
    ) -> TidemarkError | None:
        """Send one request. The answer is given in the step of the loop in which the send ends.
        places: takes start and end of each record that is stored."""
        machine, history = self.machine, self.history
        term = None if self.node is None else self.node._term
        asked = SentRequest(machine, self.process, request.ack, request.timeout_ms)
        before, task = len(places), asyncio.current_task()
        assert task is not None

        def waits() -> None:
            self._waiting[task] = asked.admitted_us + request.timeout_ms * 1000 + ANSWERED_US
            if asked.by_the_group:
                self.wait_for_group(task)

        def stored(topic: str, sent: SendResult, start: int, end: int) -> None:
            places[start] = end
            waits()
            members = max(asked.members, machine.slot(Slot.IN_SYNC_SIZE))
            if asked.level is AckLevel.REPLICATED and members < 2:
                raise Violation(
                    f"{machine.name} stores a send for REPLICATED without another member"
                )

        if request.retry:
            waits()
        try:
            self._gate.check_sends()
            sent = await self._api.components.sends.send(topic, request, HOST, stored)
        except TidemarkError as error:
            if len(places) > before:
                history.stored(machine, asked.admitted_us)
            if not self.stop.is_set():
                asked.check_error(error, term, is_stored=len(places) > before or request.retry)
            return error
        if len(places) > before:
            history.stored(machine, asked.admitted_us)
        asked.check_level(sent.level, sent.copies)
        start = sent.results()[0]["physical_offset"]
        by_the_group = sent.level is AckLevel.REPLICATED or request.ack is None
        history.acknowledged(
            machine, start, places[start], body, sent.copies, by_the_group=by_the_group
        )
        return None

    async def _consume(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self._random.uniform(0, 0.1))
            store, newest_before = self.store, self.history.epoch
            if store is None or not self._gate.reads_open:
                continue
            anywhere = self._random.random() < 0.5
            try:
                self._gate.check_reads(anywhere=anywhere)
            except SwitchingOver as error:
                raise Violation(f"{self.machine.name} refuses reads: {error}") from None
            except TidemarkError:
                continue
            epoch = self.epoch
            if not anywhere:
                self.history.answers(self.machine, "answers reads")
            if not anywhere and epoch is not None:
                self.history.read_at_master(self.machine, epoch, newest_before)
                opened = self.machine.slot(Slot.EPOCH_RECORD_END)
                self.history.state(self.machine, self.state, opened)
            self.history.read(self.machine, store.dispatched)
            self._pull_newest()
            if len(self._held) < HELD_MAX and self._random.random() < 0.1:
                self._hold()
            if epoch is None:
                self._judge_followed(store.dispatched)

    def _judge_followed(self, dispatched: int) -> None:
        """Check that a slave has applied the state up to the end that it served a while ago."""
        now_us = self.machine.timeline.now_us
        shown, since_us = self._shown
        if now_us - max(since_us, self.process.resumed_us) > FOLLOWED_US:
            self.history.state(self.machine, self.state, shown)
            self._shown = dispatched, now_us

    def _hold(self) -> None:
        """Let a consumer wait for the next message of a queue."""
        (topic, queue), parts = self._random.choice(QUEUES_SEEN), self._api.components
        _, end = parts.read.puller.bounds(topic, queue)
        asked = f"offset={end}&max={PULLED_MAX}&wait_ms={HELD_MS}"
        path = f"/v1/topics/{topic}/queues/{queue}/messages?{asked}"
        anywhere = self.epoch is None or self._random.random() < 0.2

        async def wait() -> None:
            try:
                await self.client.call("GET", path, ANYWHERE_HEADERS if anywhere else None)
                if not anywhere:
                    self.history.answers(self.machine, "answers a held pull")
            except (CorruptRecord, DamagedFile) as error:
                self._gate.judge(error)
            except TidemarkError:
                return  # An error is an answer, too: the consumer asks again.

        task = asyncio.create_task(wait(), name=CLIENT)
        self._held[task] = _Held(topic, queue, end, parts, self.machine.timeline.now_us)
        task.add_done_callback(self._answered)

    def check_held(self) -> None:
        """Check that a held pull is answered when a message arrives or its term ends."""
        history, name, now_us = self.history, self.machine.name, self.machine.timeline.now_us
        self.check_terms()
        for held in self._held.values():
            assert self.store is not None
            seen = history.records.seen(held.topic, held.queue, self.store.dispatched)
            live = bisect_left(seen, self.machine.begins_at, key=lambda place: place.start)
            waits = len(seen) <= max(held.offset, live) and self._api.components is held.parts
            if waits or self.process.paused or name in {*history.damaged, *history.lost_queues}:
                held.idle_us = now_us
            elif now_us - max(held.idle_us, self.process.resumed_us) > WOKEN_US:
                raise Violation(
                    f"a pull of {held.topic} {held.queue} from {held.offset} waits at {name}, "
                    f"and {len(seen)} messages are there"
                )

    def wait_for_group(self, task: asyncio.Task[Any], limit_us: int = WOKEN_US) -> None:
        """Register a request that must be answered at the latest when the present term ends."""
        term = None if self.node is None else self.node._term
        if term is not None and not task.done():
            self._of_term[task] = _OfTerm(term, self.machine.timeline.now_us, limit_us)
            task.add_done_callback(self._answered)

    def check_terms(self) -> None:
        """Check that requests which wait for the group are answered when their term ends."""
        now_us = self.machine.timeline.now_us
        for asked in self._of_term.values():
            if asked.term.is_valid or self.process.paused or self.machine.is_full:
                asked.valid_us = now_us
            elif now_us - max(asked.valid_us, self.process.resumed_us) > asked.limit_us:
                raise Violation(
                    f"a request at {self.machine.name} has no answer, and epoch "
                    f"{asked.term.epoch} ended {now_us - asked.valid_us} µs ago"
                )

    def show(self, topic: str, queue: int, offset: int) -> None:
        """Pull messages of the queue from the offset on."""
        self.loop.call_soon_threadsafe(self._pull, topic, queue, offset)

    def _pull_newest(self) -> None:
        (topic, queue), store = self._random.choice(QUEUES_SEEN), self.store
        assert store is not None
        first, _ = self._api.components.read.puller.bounds(topic, queue)
        known = self.history.records.seen(topic, queue, store.dispatched)
        self._pull(topic, queue, max(first, len(known) - self._random.randint(1, PULLED_MAX)))

    def _pull(self, topic: str, queue: int, offset: int) -> None:
        """Pull and check messages of a queue as a consumer gets them."""
        puller, store = self._api.components.read.puller, self.store
        assert store is not None
        resumed = store.positions.resumed_dispatch()
        before = store.dispatched
        try:
            result = puller.look(
                PullRequest(topic, queue, offset, PULLED_MAX, None, None, 0, False)
            )
            for _, unit, data in result.messages():
                _checked(data, unit, puller.checks_at(unit.physical_offset))
            found = [bytes(data) for _, _, data in result.messages()]
        except (CorruptRecord, DamagedFile) as error:
            answer = self._gate.judge(error)
            if not answer.retriable and self.machine.name not in self.history.damaged:
                raise
            return
        # If reput restarts meanwhile, what was dispatched before may be shown but need not be.
        since = max(before, store.dispatched)
        if resumed is None or resumed != store.positions.resumed_dispatch():
            before = PhysicalOffset(0)
        self.history.pulled(
            self.machine, topic, queue, offset, found, result.max_offset, before, since
        )
