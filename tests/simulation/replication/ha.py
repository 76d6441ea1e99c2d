"""One start of ha: the real replica, and a shell that carries its effects out on the node's world.

Everything that the product's shell does in one turn of its loop is here a row of steps, with a
border behind every access to the page. Follows ``services.ha.opening``, ``watch`` and ``carrier``.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import deque
from collections.abc import Callable, Generator
from random import Random
from typing import Final, cast

from services.ha import effects as do
from services.ha import recovered_table
from services.ha.events import Event, Received, Sensed, Tick
from services.ha.frames import BadFrame, Frame
from services.ha.lease.value import Holder, Member
from services.ha.payloads import Append, parse
from services.ha.replica import Replica
from services.ha.setup import Found, Setup
from services.ha.versions import SPOKEN, Versions
from services.ha.watch import Senses
from shared.cluster import grant
from shared.files.positions import Positions
from tests.simulation.replication import records
from tests.simulation.replication.frozen_clock import FrozenClock
from tests.simulation.replication.ha_disk import HaDisk, finish_cut
from tests.simulation.replication.history import History, Violation
from tests.simulation.replication.lease_object import LeaseObject
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.network import Network
from tests.simulation.replication.page import step_by_step
from tests.simulation.replication.process import Actor, Process, Steps
from tidemark.formats.checkpoint import NodeRole, Slot
from tidemark.formats.epochs import EpochStart

IMPOSSIBLE: Final = ("ack-refused",)
"""Alarms that only a lie or a bug raises."""
TURN_US: Final = 50_000
"""Between two looks at the page that nobody rang for."""


class _FrozenLocks:
    def __init__(self, *held: int) -> None:
        self._held = held

    def is_held(self, byte: int) -> bool:
        """What F_OFD_GETLK said before the first slot was loaded."""
        return byte in self._held


WALL_AHEAD_MS: Final = 1_700_000_000_000
_SPOKEN: Final = range(SPOKEN.lowest, SPOKEN.highest + 1)


class Ha:
    """A process of the service ha on one node."""

    def __init__(
        self,
        machine: Machine,
        process: Process,
        setup: Setup,
        *,
        history: History,
        network: Network,
        lease: LeaseObject,
        say: Callable[[str, str], None] | None,
        ring: Callable[[str], None],
        random: Random,
    ) -> None:
        """say: takes (node, line) of a trace. ring: wakes a service of this node."""
        self.node = machine.name
        self.machine, self.process, self.setup = machine, process, setup
        self._history, self._network, self._lease = history, network, lease
        self._say, self._ring, self._random = say, ring, random
        self.replica: Replica | None = None
        self.disk = HaDisk(machine, process, history, self.take)
        self.ended_by: str | None = None
        """The code with which it ended itself."""
        self.replies: dict[int, do.Reply] = {}
        self._inbox: deque[Event] = deque()
        self._terms: set[int] = set()
        """Epochs of the term before and after the event whose effects are being carried out."""
        self._rung = True
        self._main: Actor | None = None

    # -- what others do with it ------------------------------------------------------------

    @property
    def versions(self) -> Versions:
        """Of the protocol: every start is of another release than the one before, or the same.

        Not drawn: what the seeds mean stays as it was.
        """
        highest = SPOKEN.lowest + zlib.crc32(self.setup.process.encode()) % len(_SPOKEN)
        return Versions(SPOKEN.lowest, highest)

    @property
    def member(self) -> Member:
        """Who it proves to be to its peers."""
        return Member(self.node, self.machine.volume.incarnation)

    def start(self) -> None:
        """Begin."""
        self.process.on_end.append(lambda: self._network.ended(self))
        self._main = self.process.start("main", self._run())

    def take(self, event: Event) -> None:
        """Put an event into the queue of the loop."""
        self._inbox.append(event)
        if self._main is not None:
            self._main.wake()

    def rung(self) -> None:
        """A doorbell: look at the page."""
        self._rung = True
        if self._main is not None:
            self._main.wake()

    # -- the loop --------------------------------------------------------------------------

    def _run(self) -> Steps:
        machine = self.machine
        while not machine.take_lock(3, self.process):
            yield -10_000
        yield from step_by_step(self.process, machine.page, grant.fence)
        machine.page.publish(Slot.HA_NONCE, self._random.getrandbits(63) | 1)
        yield 0
        found = yield from self._open()
        replica = self.replica = Replica(self.setup, found, log=self, random=self._random.random)
        self._trace("start", lambda: f"{found}")
        self.disk.start()
        self._network.listen(self)
        tick_at = machine.timeline.now_us
        while True:
            now_us = machine.timeline.now_us
            if now_us >= tick_at:
                tick_at = now_us + TURN_US
                yield from self._handle(replica, Tick())
                self._rung = True
            if self._rung:
                self._rung = False
                sensed = yield from self._look()
                yield from self._handle(replica, sensed)
            while self._inbox:
                yield from self._handle(replica, self._inbox.popleft())
            yield max(1, tick_at - machine.timeline.now_us)

    def _open(self) -> Generator[int, None, Found]:
        """Take byte 0, finish a cut, recover; what is found."""
        machine, volume, page = self.machine, self.machine.volume, self.machine.page
        same_boot = (page.get(Slot.HA_BOOT_ID_HIGH), page.get(Slot.HA_BOOT_ID_LOW)) == machine.boot
        yield from self.disk.take_byte_0()
        if machine.is_full:
            self.ended_by = "disk-full"
            self.process.end()
            yield 0
        if volume.files.intent is not None:
            yield from finish_cut(machine, self._history, volume.files.intent)
            yield from self.disk.take_byte_0()
        files = volume.files
        confirm = max(files.confirm, page.get(Slot.DISPATCHED_DURABLE))
        if same_boot:
            confirm = max(confirm, page.get(Slot.CONFIRM))
        self._history.check_own_confirm(machine)
        table = recovered_table.without_bytes_dropped(files.table, volume.end)
        halted = self._fault(table, confirm)
        if table != files.table:
            volume.write(files._replace(table=table))
            yield 0
            volume.files_synced()
            yield 0
        return Found(
            incarnation=volume.incarnation,
            promised=max(files.promised, table[-1].epoch if table else 0),
            seen_epoch=files.seen_epoch,
            seen_version=files.seen_version,
            table=table,
            first_offset=0,
            end=volume.end,
            confirm=confirm,
            initialised=files.initialised,
            holds_records=volume.end > 0,
            halted=halted,
        )

    def _fault(self, table: tuple[EpochStart, ...], confirm: int) -> str | None:
        """Why this volume cannot be used; in this world each reason is somebody's bug."""
        volume = self.machine.volume
        if volume.end < confirm:
            return f"halted: the log ends at {volume.end}, and {confirm} was confirmed"
        borders = {record.start for record in records.walk(volume.log, 0, volume.end)}
        return recovered_table.contradiction(
            table, first_offset=0, end=volume.end, is_border=borders.__contains__
        )

    def _look(self) -> Generator[int, None, Sensed]:
        locked = _FrozenLocks(*(byte for byte in (1, 2) if self.machine.is_locked(byte)))
        clock = FrozenClock(self.machine.clock.now_ms)

        def wall_ms() -> int:  # told to peers, and apart from clock: no rule may ask it
            return WALL_AHEAD_MS + self.machine.clock.now_ms()

        return (
            yield from step_by_step(
                self.process,
                self.machine.page,
                lambda slots: Senses(cast(Positions, slots), locked, clock, wall_ms).look(),
            )
        )

    def _handle(self, replica: Replica, event: Event) -> Steps:
        before = replica.leadership.term
        effects = replica.handle(event, self.machine.clock.now_ms())
        after = replica.leadership.term
        self._terms = {int(term.epoch) for term in (before, after) if term is not None}
        if self._say is not None:
            self._say_event(event)
        for effect in effects:
            self._trace("  do", lambda effect=effect: _short(effect))  # type: ignore[misc]
            yield from self._carry_out(effect)

    # -- effects ---------------------------------------------------------------------------

    def _carry_out(self, effect: do.Effect) -> Steps:
        network, page = self._network, self.machine.page
        match effect:
            case do.LeaseGet() | do.LeasePut() | do.LeaseCreate():
                self._lease.ask(
                    self.node,
                    effect,
                    timeout_ms=self.setup.times.request_timeout_ms,
                    answer=self._take_if_alive,
                )
            case do.Connect(node):
                network.connect(self, node)
            case do.Send(link, frame):
                network.send(self, link, frame)
            case do.Stream(link, frame, offset, size):
                self._stream(link, frame, offset, size)
            case do.Close(link, reason):
                network.close(self, link, reason)
            case do.Publish(slots):
                for slot, value in slots:
                    self._publish(slot, value)
                    yield 0
                self._ring("broker")
                self._ring("reput")
            case do.Fence():
                yield from step_by_step(self.process, page, grant.fence)
                self._ring("broker")
            case do.Grant():
                yield from self._grant(effect)
            case do.Reply(token):
                self.replies[token] = effect
            case do.Note(event=event, sentence=sentence, alarm=True) if event in IMPOSSIBLE:
                raise Violation(f"{self.node}: {sentence}")
            case do.Note():
                pass
            case do.Ended(code):
                self.ended_by = code
                self.process.end()
            case _:
                self.disk.carry_out(effect)
        yield 0

    def _publish(self, slot: Slot, value: int) -> None:
        if slot is Slot.CONFIRM:
            self._must_be_of_the_epoch_that_is_appended()
            self._history.confirm_moved(self.machine, value)
        if slot is Slot.ROLE and value in (NodeRole.HALTED, NodeRole.RESYNC):
            confirm = self.machine.page.get(Slot.CONFIRM)
            self._history.needs_help(self.machine, NodeRole(value), confirm)
        self.machine.page.publish(slot, value)

    def _must_be_of_the_epoch_that_is_appended(self) -> None:
        """Senders of another epoch would take the confirm offset for theirs."""
        appending = self.machine.appending_epoch
        if appending is not None and appending not in self._terms:
            raise Violation(
                f"{self.node} publishes a confirm offset as the master of {self._terms or 'none'}, "
                f"and its broker still appends under epoch {appending}"
            )

    def _grant(self, effect: do.Grant) -> Steps:
        assert self.replica is not None
        machine = self.machine
        self._history.granted(effect.epoch, self._holder(), machine.boot)
        yield from step_by_step(
            self.process,
            machine.page,
            lambda slots: grant.grant(
                slots,
                epoch=effect.epoch,
                nonce=effect.nonce,
                deadline_boot_ms=effect.deadline_ms,
                boot=machine.boot,
            ),
        )
        self._ring("broker")

    def _stream(self, link: int, frame: Frame, offset: int, size: int) -> None:
        data = bytes(self.machine.volume.log[offset : offset + size])
        if len(data) != size:
            raise Violation(f"{self.node} streams [{offset}, {offset + size}), which it has not")
        self._history.acts(frame.epoch, self._holder(), "streams")
        self._network.send(self, link, frame._replace(payload=bytes(frame.payload) + data))

    def _holder(self) -> Holder:
        return Holder(self.node, self.machine.volume.incarnation, self.setup.process)

    # -- traces ----------------------------------------------------------------------------

    def _trace(self, kind: str, line: Callable[[], str]) -> None:
        if self._say is not None:
            self._say(f"{self.node} ha", f"{kind} {line()}")

    def _say_event(self, event: Event) -> None:
        match event:
            case Tick() | Sensed():
                pass
            case Received(link, frame):
                self._trace("got", lambda: f"{link} epoch {frame.epoch} {_told(frame)}")
            case _:
                self._trace("event", lambda: f"{event}")

    def _take_if_alive(self, event: Event) -> None:
        if self.process.alive:
            self.take(event)

    def crc_before(self, end: int, size: int) -> int | None:
        """Of the own log."""
        log = self.machine.volume.log
        if end > len(log) or size > end:
            return None
        return zlib.crc32(log[end - size : end])


def _told(frame: Frame) -> str:
    for version in _SPOKEN:
        with contextlib.suppress(BadFrame):
            told = parse(frame, version)
            if isinstance(told, Append):
                told = told._replace(data=f"{len(told.data)} bytes".encode())
            return f"{told}"
    return f"{frame}"


def _short(effect: do.Effect) -> str:
    match effect:
        case do.Send(link, frame):
            return f"Send {link} epoch {frame.epoch} {_told(frame)}"
        case do.Stream(link, frame, offset, size):
            return f"Stream {link} epoch {frame.epoch} [{offset}, {offset + size})"
        case do.Copy(offset, data, first):
            return f"Copy [{offset}, {offset + len(data)}) {first=}"
        case do.Publish(slots):
            return "Publish " + ", ".join(f"{slot.name}={value}" for slot, value in slots)
        case _:
            return f"{effect}"
