"""One node of a group in memory: page, volume, broker, and the effects of its replica."""

from __future__ import annotations

import zlib
from random import Random
from typing import TYPE_CHECKING, Any

from services.ha.core import effects as do
from services.ha.core import events as ev
from services.ha.core.replica import Found, Replica
from services.ha.wire.versions import SPOKEN
from shared.cluster import grant
from tidemark.formats.checkpoint import BrokerPhase, NodeRole, Slot, Trouble
from tidemark.formats.epochs import EpochStart

if TYPE_CHECKING:
    from tests.unit.ha.group import Group

BOOT = (7, 9)
RECORD = 10
SERVICES_END_MS = 30
"""Broker and reput have ended that long after a resync has begun."""


HEARTBEATS = (Slot.BROKER_HEARTBEAT_MS, Slot.REPUT_HEARTBEAT_MS)


class Page:
    def __init__(self) -> None:
        self.slots: dict[Slot, int] = {}
        self.rang = False
        """Whether a doorbell has reported a change of the page."""

    def get(self, slot: Slot) -> int:
        return self.slots.get(slot, 0)

    def publish(self, slot: Slot, value: int) -> None:
        self.rang = self.rang or (slot not in HEARTBEATS and self.get(slot) != value)
        self.slots[slot] = value


class Volume:
    """State of a node that survives restarts."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.log = bytearray()
        self.first = 0
        self.table: tuple[EpochStart, ...] = ()
        self.promised = 0
        self.seen = (0, 0)
        self.initialised = False
        self.confirm = 0
        self.damage = ""
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
        self.cannot_open = Trouble.NONE
        """Trouble that its broker reports after a grant, instead of serving."""
        self.keeps_log = False
        """Its disk hangs: the broker keeps the log after its grant has ended."""
        self.flush_hangs = False

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
            if self.cannot_open is not Trouble.NONE:
                node.trouble = self.cannot_open, Trouble.NONE
                return
            page.publish(Slot.EPOCH_RECORD_END, 0)
            page.publish(Slot.SERVING_EPOCH, epoch)
            self.append(RECORD)
            page.publish(Slot.EPOCH_RECORD_END, page.get(Slot.WRITTEN))
            page.publish(Slot.BROKER_STATE, BrokerPhase.RECOVERING)
        elif not self.keeps_log and not grant.is_valid(page, epoch=self.epoch, nonce=self.nonce):
            page.publish(Slot.SERVING_EPOCH, 0)
            self.epoch = node.lock = None
            node.take_if_wanted()
        elif (
            page.get(Slot.ROLE) == NodeRole.MASTER
            and page.get(Slot.DISPATCHED) >= page.get(Slot.EPOCH_RECORD_END) > 0
        ):
            page.publish(Slot.BROKER_STATE, BrokerPhase.SERVING)

    def append(self, size: int) -> int:
        node = self.node
        assert self.epoch is not None
        node.volume.log += bytes([self.epoch % 251 + 1]) * size
        end = len(node.volume.log)
        node.page.publish(Slot.WRITTEN, end)
        if not self.flush_hangs:
            node.page.publish(Slot.FLUSHED, end)
        return end


class Reput:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.alive, self.paused = True, False
        self.held_at: int | None = None
        """reput stays responsive, and dispatches no further than here."""
        self.opening_ms = 0
        """Delay between the confirmation of an epoch's first record and its dispatch."""
        self._opened = (0, 0)

    def step(self, now: int) -> None:
        if not self.alive or self.paused:
            return
        page = self.node.page
        page.publish(Slot.REPUT_HEARTBEAT_MS, now)
        epoch = page.get(Slot.EPOCH) if page.get(Slot.ROLE) == NodeRole.MASTER else 0
        if epoch != self._opened[0]:
            self._opened = epoch, now
        if self.held_at is None and (not epoch or now - self._opened[1] >= self.opening_ms):
            page.publish(Slot.DISPATCHED, page.get(Slot.CONFIRM))


class Node:
    def __init__(self, group: Group, name: str, index: int) -> None:
        self.group, self.name, self.index = group, name, index
        self.page = Page()
        self.volume = Volume(f"{index + 1:032x}")
        self.broker: Broker | None = None
        self.reput = Reput(self)
        self.paused = False
        """ha is stopped: events wait until it runs again."""
        self._missed: list[ev.Event] = []
        self.replica: Replica | None = None
        self.known: set[str] = set()
        """Names of the nodes whose links are accepted."""
        self.lock: str | None = None
        self.wanting: int | None = None
        self.notes: list[do.Note] = []
        self.raised: set[str] = set()
        """Alarms that the process shows, as its notes reported them."""
        self.replies: dict[int, do.Reply] = {}
        self.starts = 0
        self.disk_full = False
        self.damaged = False
        """A record of its log is damaged; ``met`` has the place that a reader found."""
        self.met: int | None = None
        self.checked: list[int] = []
        self.versions = SPOKEN
        self.wall_ahead_ms: int | None = None
        self.trouble = (Trouble.NONE, Trouble.NONE)

    @property
    def context(self) -> Any:
        assert self.replica is not None
        return self.replica.context

    @property
    def state(self) -> str:
        return "down" if self.replica is None else str(self.context.state.value)

    def open(self) -> bool:
        """Whether it accepts sends."""
        term = None if self.replica is None else self.replica.leadership.term
        return term is not None and term.gate_open and not self.paused

    def status(self) -> dict[str, Any]:
        assert self.replica is not None
        return self.replica.status(self.group.now)

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
            damage=volume.damage,
        )
        self.raised.clear()
        setup = self.group.setup(self.name, f"{self.index + 1:08x}{self.starts:08x}")
        self.known = {node.name for node in self.group.configured}
        self.replica = Replica(
            setup, found, log=volume, random=Random(self.starts * 7 + self.index).random
        )
        self.post(ev.Tick())

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

    def post(self, event: ev.Event) -> None:
        if self.replica is None:
            return
        if self.paused:
            if not isinstance(event, (ev.Tick, ev.NodeSnapshot)):
                self._missed.append(event)
            return
        for effect in self.replica.handle(event, self.group.now):
            self.carry_out(effect)

    def snapshot(self) -> ev.NodeSnapshot:
        page, broker = self.page, self.broker
        return ev.NodeSnapshot(
            0 if broker is None else broker.nonce,
            self.group.now - page.get(Slot.BROKER_HEARTBEAT_MS),
            page.get(Slot.SERVING_EPOCH),
            page.get(Slot.EPOCH_RECORD_END),
            page.get(Slot.FLUSHED),
            page.get(Slot.WRITTEN),
            *self.trouble,
            self.volume.first,
            wall_ahead_ms=self.wall_ahead_ms,
            gate_open=page.get(Slot.BROKER_STATE) == BrokerPhase.SERVING,
            dispatched=page.get(Slot.DISPATCHED),
            reput_alive=self.reput.alive,
            reput_silent_ms=self.group.now - page.get(Slot.REPUT_HEARTBEAT_MS),
            damaged_at=self.met,
        )

    def pause(self, *services: str) -> None:
        """SIGSTOP."""
        self._set_paused(services, to=True)

    def resume(self, *services: str) -> None:
        """SIGCONT."""
        self._set_paused(services, to=False)
        if "ha" in services:
            self.post(ev.Tick())
            self.post(self.snapshot())
            missed, self._missed = self._missed, []
            for event in missed:
                self.post(event)

    def _set_paused(self, services: tuple[str, ...], *, to: bool) -> None:
        for service in services:
            if service == "ha":
                self.paused = to
            elif service == "reput":
                self.reput.paused = to
            elif self.broker is not None:
                self.broker.paused = to

    def done(self, token: int, *, after_ms: int = 2, **facts: Any) -> None:
        end = len(self.volume.log)
        replica = self.replica
        facts = {"end": end, "durable": end, **facts}
        self.group.later(after_ms, lambda: self.tell(replica, ev.Done(token, **facts)))

    def tell(self, replica: Replica | None, event: ev.Event) -> None:
        if replica is self.replica:
            self.post(event)

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
            case do.UseNodes(nodes):
                self.known = {node.name for node in nodes}
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
                assert point >= self.context.confirm
                volume.cut.append(bytes(volume.log[point:]))
                del volume.log[point:]
                volume.table = table
                self.done(token)
            case do.Resync(token, intended, first, _):
                self.done(intended)
                volume.incarnation = f"{group.number():032x}"
                volume.log = bytearray(first)
                volume.first, volume.table, volume.confirm = first, (), 0
                volume.damage = ""
                page.publish(Slot.CONFIRM, 0)
                self.done(token, after_ms=SERVICES_END_MS, incarnation=volume.incarnation)
            case do.CheckLog(at):
                self.checked.append(at)
                if self.damaged:
                    replica = self.replica
                    volume.damage = f"bad CRC at {at}"
                    fault = ev.CopyFault("corrupt-record", volume.damage, len(volume.log))
                    group.later(2, lambda: self.tell(replica, fault))
            case do.Reply(token):
                self.replies[token] = effect
            case do.Note():
                self.notes.append(effect)
                if effect.alarm:
                    self.raised.add(effect.event)
                elif effect.alarm is False:
                    self.raised.discard(effect.event)
            case do.Ended(code, detail):
                raise AssertionError(f"{self.name} ended: {code} {detail}")
