"""A group in memory for tests of the replica: pages, logs, links, lease and brokers, one clock.

Every action takes a few milliseconds, and nothing is lost unless a test asks for it. The simulation
has seeded faults, and actors that stop between any two steps (tests/simulation/replication).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from services.ha.core import effects as do
from services.ha.core import events as ev
from services.ha.core.replica import Replica, Setup
from services.ha.lease.value import Lease, Member, Stored
from services.ha.wire.frames import Frame
from services.ha.wire.versions import common
from shared.cluster.nodes import Node as Configured
from shared.cluster.time_rules import LOCAL
from tests.unit.ha.node_in_memory import BOOT, Node
from tidemark.formats.checkpoint import NodeRole, Slot

STEP_MS = 10
READ_MS = 50
"""ha reads the page so often, and at a doorbell."""


class Link:
    def __init__(self, number: int, a: str, b: str) -> None:
        self.number, self.ends, self.open = number, (a, b), True

    def other(self, name: str) -> str:
        return self.ends[1] if self.ends[0] == name else self.ends[0]


class Group:
    def __init__(self, names: tuple[str, ...] = ("a", "b", "c"), min_in_sync: int = 2) -> None:
        self.now = 1000
        self.min_in_sync = min_in_sync
        self.configured = tuple(
            Configured(n, "127.0.0.1", 7000 + i, f"http://{n}", f"http://{n}-admin")
            for i, n in enumerate(names)
        )
        self.nodes = {name: Node(self, name, index) for index, name in enumerate(names)}
        self.lease: Stored | None = None
        self.lease_down: set[str] = set()
        self.cut: set[tuple[str, str]] = set()
        self.links: dict[int, Link] = {}
        self._numbers = itertools.count(1)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def number(self) -> int:
        return next(self._numbers)

    def setup(self, name: str, process: str) -> Setup:
        own = next(node for node in self.configured if node.name == name)
        return Setup(
            "tidemark", "g0", own, self.configured, self.min_in_sync, LOCAL, 1 << 20, process, BOOT
        )

    def start(self) -> Group:
        for node in self.nodes.values():
            node.start()
        return self

    # Time

    def later(self, after_ms: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + after_ms, self.number(), what))

    def run(self, for_ms: int) -> None:
        until = self.now + for_ms
        while self.now < until:
            self.now += STEP_MS
            while self._queue and self._queue[0][0] <= self.now:
                heapq.heappop(self._queue)[2]()
            for node in self.nodes.values():
                node.reput.step(self.now)
                if node.broker is not None:
                    node.broker.step(self.now)
                if node.page.rang or self.now % READ_MS == 0:
                    node.page.rang = False
                    node.post(node.snapshot())
                if self.now % READ_MS == 0:
                    node.post(ev.Tick())
                    if node.replica is not None:
                        assert node.raised == node.context.alarms.keys(), self.describe()

    def until(self, condition: Callable[[], bool], at_most_ms: int = 20_000) -> int:
        began = self.now
        while not condition():
            assert self.now - began < at_most_ms, self.describe()
            self.run(STEP_MS)
        return self.now - began

    def describe(self) -> str:
        lines = [f"{self.lease}"]
        for node in self.nodes.values():
            lines.append(f"{node.name}: {node.state} {len(node.volume.log)}")
            lines += [f"  {note.event}: {note.sentence}" for note in node.notes[-12:]]
        return "\n".join(lines)

    # The lease

    def ask_lease(self, node: Node, effect: do.LeaseGet | do.LeasePut | do.LeaseCreate) -> None:
        replica = node.replica
        if node.name in self.lease_down:
            answer = ev.LeaseAnswered(effect.request, ev.LeaseOutcome.UNKNOWN, reason="down")
            self.later(LOCAL.request_timeout_ms, lambda: node.tell(replica, answer))
            return
        answer = self._answer(effect)
        self.later(4, lambda: node.tell(replica, answer))

    def _answer(self, effect: do.LeaseGet | do.LeasePut | do.LeaseCreate) -> ev.LeaseAnswered:
        request, stored = effect.request, self.lease
        if isinstance(effect, do.LeaseGet):
            if stored is None:
                return ev.LeaseAnswered(request, ev.LeaseOutcome.ABSENT)
            return ev.LeaseAnswered(request, ev.LeaseOutcome.FOUND, stored)
        if isinstance(effect, do.LeaseCreate):
            if stored is not None:
                return ev.LeaseAnswered(request, ev.LeaseOutcome.CONFLICT)
            uid = str(self.number())
        elif stored is None:
            return ev.LeaseAnswered(request, ev.LeaseOutcome.ABSENT)
        elif (stored.version, stored.uid) != (effect.base.version, effect.base.uid):
            return ev.LeaseAnswered(request, ev.LeaseOutcome.CONFLICT)
        else:
            uid = stored.uid
        self.lease = Stored(effect.lease, str(self.number()), uid)
        return ev.LeaseAnswered(request, ev.LeaseOutcome.APPLIED, self.lease)

    def edit_lease(self, **facts: Any) -> None:
        assert self.lease is not None
        lease = self.lease.lease._replace(**facts)
        self.lease = Stored(lease, str(self.number()), self.lease.uid)

    @property
    def set(self) -> set[str]:
        return set() if self.lease is None else {member.node for member in self.lease.lease.in_sync}

    # The network

    def isolate(self, name: str) -> None:
        for other in self.nodes:
            if other != name:
                self.cut |= {(name, other), (other, name)}

    def connect(self, source: str, target: str) -> None:
        node, other = self.nodes[source], self.nodes[target]
        is_cut = {(source, target), (target, source)} & self.cut
        if other.replica is None or is_cut or source not in other.known:
            node_replica = node.replica
            why = "refused" if source in other.known else "unknown-node"
            self.later(3, lambda: node.tell(node_replica, ev.LinkDown(0, target, why)))
            return
        link = Link(self.number(), source, target)
        self.links[link.number] = link
        members = {n: Member(n, self.nodes[n].volume.incarnation) for n in link.ends}
        version = common(node.versions, other.versions)
        if version is None:
            self.later(3, lambda: node.tell(node.replica, ev.LinkDown(0, target, "versions")))
            return
        up = ev.LinkUp(link.number, members[target], True, version)
        replicas = node.replica, other.replica
        self.later(1, lambda: node.tell(replicas[0], up))
        accepted = ev.LinkUp(link.number, members[source], False, version)
        self.later(1, lambda: other.tell(replicas[1], accepted))

    def send(self, source: str, number: int, frame: Frame) -> None:
        link = self.links.get(number)
        if link is None or not link.open:
            return
        target = link.other(source)
        if (source, target) in self.cut:
            return
        replica = self.nodes[target].replica
        self.later(1, lambda: self._arrive(link, target, replica, frame))

    def _arrive(self, link: Link, target: str, replica: Replica | None, frame: Frame) -> None:
        if link.open:
            self.nodes[target].tell(replica, ev.Received(link.number, frame))

    def close(self, number: int, reason: str) -> None:
        link = self.links.pop(number, None)
        if link is None:
            return
        for name in link.ends:
            gone = partial(self._gone, link, name, self.nodes[name].replica, reason)
            self.later(2, gone)

    def _gone(self, link: Link, name: str, replica: Replica | None, reason: str) -> None:
        link.open = False
        self.nodes[name].tell(replica, ev.LinkDown(link.number, link.other(name), reason))

    def drop_links(self, name: str) -> None:
        for link in list(self.links.values()):
            if name in link.ends:
                self.close(link.number, "connection reset")

    # Checks

    @property
    def masters(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.state == "master"]

    @property
    def master(self) -> Node:
        assert len(self.masters) == 1, self.describe()
        return self.masters[0]

    def serves(self, name: str) -> bool:
        """Whether a node accepts sends now: its broker runs, and its lease has not expired."""
        node = self.nodes[name]
        awake = node.broker is not None and not node.broker.paused
        deadline = node.page.get(Slot.LEASE_DEADLINE)
        return node.open() and awake and not node.page.get(Slot.FENCED) and self.now < deadline

    def wait_master(self, other_than: str | None = None, at_most_ms: int = 20_000) -> Node:
        def there() -> bool:
            return len(self.masters) == 1 and self.masters[0].name != other_than

        self.until(there, at_most_ms)
        return self.master

    def wait_in_sync(self, *names: str) -> None:
        self.until(lambda: set(names) <= self.set)

    def append(self, size: int = 100) -> int:
        broker = self.master.broker
        assert broker is not None
        return broker.append(size)

    def confirmed(self, end: int) -> bool:
        return self.master.page.get(Slot.CONFIRM) >= end

    def send_confirmed(self, size: int = 100) -> int:
        end = self.append(size)
        self.until(lambda: self.confirmed(end))
        return end


def role(node: Node) -> NodeRole:
    return NodeRole(node.page.get(Slot.ROLE))


def lease_of(group: Group) -> Lease:
    assert group.lease is not None
    return group.lease.lease


def order(at: Node, name: str, *, wait_ms: int = 10_000, **arguments: str) -> do.Reply:
    """Send an operator's command, and wait for its answer."""
    token = 1_000_000 + at.group.number()
    at.post(ev.Command(token, name, arguments))
    at.group.until(lambda: token in at.replies, wait_ms)
    return at.replies[token]


def grown(min_in_sync: int = 2, names: tuple[str, ...] = ("a", "b", "c")) -> Group:
    """A group whose set has all nodes, with confirmed records."""
    group = Group(names, min_in_sync).start()
    group.wait_master()
    group.wait_in_sync(*names)
    group.send_confirmed(1000)
    return group


def hold(node: Node, kind: type[do.Effect]) -> list[do.Effect]:
    """Let effects of a kind hang from now on, as on a disk that does not answer; return them."""
    held, carry_out = list[do.Effect](), node.carry_out

    def holding(effect: do.Effect) -> None:
        (held.append if isinstance(effect, kind) else carry_out)(effect)

    node.carry_out = holding  # type: ignore[method-assign]
    return held


def same_logs(group: Group, end: int) -> bool:
    logs = [bytes(node.volume.log[:end]) for node in group.nodes.values()]
    return len(logs[0]) == end and all(log == logs[0] for log in logs)
