"""A group in memory for tests of the replica: pages, logs, links, lease and brokers, one clock.

Everything takes a millisecond or a few, nothing is lost unless a test says so. Seeded faults and
actors that stop between any two steps are the simulation's (tests/simulation/replication).
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from services.ha import effects as do
from services.ha import events as ev
from services.ha.frames import Frame
from services.ha.lease.value import Lease, Member, Stored
from services.ha.replica import Found, Replica, Setup
from shared.cluster import grant
from shared.cluster.nodes import Node as Configured
from shared.cluster.time_rules import LOCAL
from tidemark.formats.checkpoint import NodeRole, Slot, Trouble
from tidemark.formats.epochs import EpochStart

BOOT = (7, 9)
STEP_MS = 10
RECORD = 10


class Page:
    def __init__(self) -> None:
        self.slots: dict[Slot, int] = {}

    def get(self, slot: Slot) -> int:
        return self.slots.get(slot, 0)

    def publish(self, slot: Slot, value: int) -> None:
        self.slots[slot] = value


class Volume:
    """What a node keeps over restarts."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.log = bytearray()
        self.first = 0
        self.table: tuple[EpochStart, ...] = ()
        self.promised = 0
        self.seen = (0, 0)
        self.initialised = False
        self.confirm = 0
        self.cut: list[bytes] = []

    def crc_before(self, end: int, size: int) -> int | None:
        if end > len(self.log) or end - size < self.first:
            return None
        return zlib.crc32(self.log[end - size : end])


class Broker:
    def __init__(self, node: Node, nonce: int) -> None:
        self.node, self.nonce = node, nonce
        self.epoch: int | None = None
        self.served = 0
        self.paused = False

    def step(self, now: int) -> None:
        page, node = self.node.page, self.node
        if self.paused:
            return
        page.publish(Slot.BROKER_HEARTBEAT_MS, now)
        if self.epoch is None:
            epoch = grant.granted(page, nonce=self.nonce, boot=BOOT, served=self.served)
            if epoch is None or node.lock is not None:
                return
            node.lock = "broker"
            self.epoch = self.served = epoch
            page.publish(Slot.EPOCH_RECORD_END, 0)
            page.publish(Slot.SERVING_EPOCH, epoch)
            self.append(RECORD)
            page.publish(Slot.EPOCH_RECORD_END, page.get(Slot.WRITTEN))
        elif not grant.stands(page, epoch=self.epoch, nonce=self.nonce):
            page.publish(Slot.SERVING_EPOCH, 0)
            self.epoch = node.lock = None
            node.take_if_wanted()

    def append(self, size: int) -> int:
        node = self.node
        assert self.epoch is not None
        node.volume.log += bytes([self.epoch % 251 + 1]) * size
        end = len(node.volume.log)
        node.page.publish(Slot.WRITTEN, end)
        node.page.publish(Slot.FLUSHED, end)
        return end


class Node:
    def __init__(self, group: Group, name: str, index: int) -> None:
        self.group, self.name, self.index = group, name, index
        self.page = Page()
        self.volume = Volume(f"{index + 1:032x}")
        self.broker: Broker | None = None
        self.replica: Replica | None = None
        self.lock: str | None = None
        self.wanting: int | None = None
        self.notes: list[do.Note] = []
        self.replies: dict[int, do.Reply] = {}
        self.starts = 0
        self.disk_full = False
        self.trouble = (Trouble.NONE, Trouble.NONE)

    @property
    def own(self) -> Any:
        assert self.replica is not None
        return self.replica.own

    @property
    def state(self) -> str:
        return "down" if self.replica is None else str(self.own.state.value)

    # Life

    def start(self) -> None:
        self.start_ha()
        self.start_broker()

    def start_broker(self) -> None:
        self.starts += 1
        nonce = self.index * 1000 + self.starts
        self.broker = Broker(self, nonce)

    def start_ha(self) -> None:
        self.starts += 1
        grant.fence(self.page)
        if self.broker is not None:
            self.broker.step(self.group.now)
        assert self.lock is None
        self.lock = "ha"
        volume = self.volume
        end = len(volume.log)
        found = Found(
            incarnation=volume.incarnation,
            promised=volume.promised,
            seen_epoch=volume.seen[0],
            seen_version=volume.seen[1],
            table=tuple(entry for entry in volume.table if entry.start <= end),
            first_offset=volume.first,
            end=end,
            confirm=max(volume.confirm, self.page.get(Slot.CONFIRM)),
            initialised=volume.initialised,
            holds_records=end > volume.first,
        )
        setup = self.group.setup(self.name, f"{self.index + 1:08x}{self.starts:08x}")
        self.replica = Replica(
            setup, found, log=volume, random=Random(self.starts * 7 + self.index).random
        )
        self.happen(ev.Tick())

    def kill_ha(self) -> None:
        self.replica = None
        self.wanting = None
        if self.lock == "ha":
            self.lock = None
        self.group.drop_links(self.name)

    def kill_broker(self) -> None:
        self.broker = None
        if self.lock == "broker":
            self.lock = None
            self.take_if_wanted()

    def kill(self) -> None:
        self.kill_broker()
        self.kill_ha()

    # Events and effects

    def happen(self, event: ev.Event) -> None:
        if self.replica is None:
            return
        for effect in self.replica.handle(event, self.group.now):
            self.carry_out(effect)

    def sensed(self) -> ev.Sensed:
        page, broker = self.page, self.broker
        return ev.Sensed(
            0 if broker is None else broker.nonce,
            self.group.now - page.get(Slot.BROKER_HEARTBEAT_MS),
            page.get(Slot.SERVING_EPOCH),
            page.get(Slot.EPOCH_RECORD_END),
            page.get(Slot.FLUSHED),
            page.get(Slot.WRITTEN),
            *self.trouble,
            self.volume.first,
        )

    def done(self, token: int, **facts: Any) -> None:
        end = len(self.volume.log)
        replica = self.replica
        facts = {"end": end, "durable": end, **facts}
        self.group.later(2, lambda: self.tell(replica, ev.Done(token, **facts)))

    def tell(self, replica: Replica | None, event: ev.Event) -> None:
        if replica is self.replica:
            self.happen(event)

    def take_if_wanted(self) -> None:
        if self.wanting is not None and self.lock is None:
            token, self.wanting = self.wanting, None
            self.lock = "ha"
            self.done(token)

    def carry_out(self, effect: do.Effect) -> None:
        group, volume, page = self.group, self.volume, self.page
        match effect:
            case do.LeaseGet() | do.LeasePut() | do.LeaseCreate():
                group.ask_lease(self, effect)
            case do.Connect(node):
                group.connect(self.name, node)
            case do.Send(link, frame):
                group.send(self.name, link, frame)
            case do.Stream(link, frame, offset, size):
                data = bytes(frame.payload) + bytes(volume.log[offset : offset + size])
                assert len(data) == len(frame.payload) + size
                group.send(self.name, link, frame._replace(payload=data))
            case do.Close(link, reason):
                group.close(link, reason)
            case do.Copy(offset, data, _):
                assert self.lock == "ha"
                assert offset == len(volume.log)
                volume.log += data
                end = len(volume.log)
                page.publish(Slot.WRITTEN, end)
                page.publish(Slot.FLUSHED, end)
                replica = self.replica
                group.later(2, lambda: self.tell(replica, ev.Copied(end, end)))
            case do.PersistPromise(token) if self.disk_full:
                replica = self.replica
                failed = ev.Failed(token, "disk-full", "no room")
                group.later(2, lambda: self.tell(replica, failed))
            case do.PersistPromise(token, promised, epoch, version):
                assert promised >= volume.promised
                volume.promised, volume.seen, volume.initialised = promised, (epoch, version), True
                self.done(token)
            case do.PersistTable(token, entries):
                volume.table = entries
                self.done(token)
            case do.PersistConfirm(confirm):
                volume.confirm = confirm
            case do.TakeAppendLock(token):
                self.wanting = token
                group.later(1, self.take_if_wanted)
            case do.ReleaseAppendLock(token):
                assert self.lock == "ha"
                self.lock = None
                self.done(token)
            case do.Settle(token):
                self.done(token)
            case do.Publish(slots):
                for slot, value in slots:
                    page.publish(slot, value)
            case do.Fence():
                grant.fence(page)
            case do.Grant(epoch, nonce, deadline):
                assert self.lock is None
                grant.grant(page, epoch=epoch, nonce=nonce, deadline_boot_ms=deadline, boot=BOOT)
            case do.Cut(token, point, table):
                assert self.lock == "ha"
                assert point >= self.own.confirm
                volume.cut.append(bytes(volume.log[point:]))
                del volume.log[point:]
                volume.table = table
                self.done(token)
            case do.Resync(token, first, _):
                volume.incarnation = f"{group.number():032x}"
                volume.log = bytearray(first)
                volume.first, volume.table, volume.confirm = first, (), 0
                page.publish(Slot.CONFIRM, 0)
                self.done(token, incarnation=volume.incarnation)
            case do.Reply(token):
                self.replies[token] = effect
            case do.Note():
                self.notes.append(effect)
            case do.Ended(code, detail):
                raise AssertionError(f"{self.name} ended: {code} {detail}")


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
                if node.broker is not None:
                    node.broker.step(self.now)
                node.happen(node.sensed())
                if self.now % 50 == 0:
                    node.happen(ev.Tick())

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
        if other.replica is None or {(source, target), (target, source)} & self.cut:
            node_replica = node.replica
            self.later(3, lambda: node.tell(node_replica, ev.LinkDown(0, target, "refused")))
            return
        link = Link(self.number(), source, target)
        self.links[link.number] = link
        members = {n: Member(n, self.nodes[n].volume.incarnation) for n in link.ends}
        up = ev.LinkUp(link.number, members[target], True)
        replicas = node.replica, other.replica
        self.later(1, lambda: node.tell(replicas[0], up))
        accepted = ev.LinkUp(link.number, members[source], False)
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

    # What is true

    @property
    def masters(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.state == "master"]

    @property
    def master(self) -> Node:
        assert len(self.masters) == 1, self.describe()
        return self.masters[0]

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
    at.happen(ev.Command(token, name, arguments))
    at.group.until(lambda: token in at.replies, wait_ms)
    return at.replies[token]


def grown(min_in_sync: int = 2, names: tuple[str, ...] = ("a", "b", "c")) -> Group:
    """A group whose set has all nodes, with something confirmed."""
    group = Group(names, min_in_sync).start()
    group.wait_master()
    group.wait_in_sync(*names)
    group.send_confirmed(1000)
    return group


def same_logs(group: Group, end: int) -> bool:
    logs = [bytes(node.volume.log[:end]) for node in group.nodes.values()]
    return len(logs[0]) == end and all(log == logs[0] for log in logs)
