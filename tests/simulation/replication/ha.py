"""One start of ha: the service's own replica, effect runner, watch and disk, on simulated
connections.

The composition is that of ``services.ha.service``. Simulated are the network (``network``) and the
lease object; there are no sockets for probes and admin commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import zlib
from collections.abc import Callable
from random import Random
from typing import Any, Final, cast

import msgspec

from services.ha.core import effects as do
from services.ha.core.effects import Effect, LeaseCreate, LeaseGet, LeasePut
from services.ha.core.events import (
    Command,
    Done,
    Event,
    Failed,
    LeaseAnswered,
    LeaseOutcome,
    LinkUp,
    NodeSnapshot,
    Received,
    Tick,
)
from services.ha.core.failover import State
from services.ha.core.mastership import Mastership
from services.ha.core.promises import RETRY_MS
from services.ha.core.replica import Replica
from services.ha.core.setup import Setup
from services.ha.lease.interface import Outcome
from services.ha.lease.value import Holder, Lease, Member, Stored
from services.ha.shell.effect_runner import EffectRunner
from services.ha.shell.lease_client import LeaseClient
from services.ha.shell.links import Links
from services.ha.shell.page_writer import PageWriter
from services.ha.shell.probes import Probes
from services.ha.shell.replica_disk import ReplicaDisk
from services.ha.shell.replica_store import ReplicaStore
from services.ha.shell.streaming import LogViews
from services.ha.shell.watch import SnapshotReader, Watch
from services.ha.startup import status_before
from services.ha.wire.frames import BadFrame, Frame, FrameType
from services.ha.wire.payloads import Ack, Append, Hello, HelloOk, Payload, StatusOk, parse
from services.ha.wire.versions import SPOKEN, Versions
from shared.files.lock_probe import LockProbe
from shared.files.store_dir import StoreDir
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import Health
from shared.runtime.lifecycle import run_parts
from tests.simulation.replication import redone, view_rules
from tests.simulation.replication.history import PROMISING, History
from tests.simulation.replication.known_marks import LeaseObstacles, Noted, check_found, marks_of
from tests.simulation.replication.lease_object import LeaseObject
from tests.simulation.replication.machine import ROOT, STORE, Machine
from tests.simulation.replication.network import Network
from tests.simulation.replication.plan import WINDOW_SIZE
from tests.simulation.replication.process import Process
from tests.simulation.replication.repeats import Repeats
from tests.simulation.replication.service import Service
from tests.simulation.replication.steps_taken import StepsTaken
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

IMPOSSIBLE: Final = ("ack-refused", "bad-stream")
"""Log events that only a corrupted frame or a bug can cause."""
SENSE_INTERVAL_MS: Final = 50
LEAVE_MS: Final = 2_500
"""Longest time that a stopping start waits (``services.ha.service``)."""
LEAVING: Final = -1
"""Token of the command by which a stopping start hands over."""
ORDER_US_MAX: Final = 15_000_000
"""Longest time that a command may wait for the lease and then for other nodes."""
LEASE_NOTED_US: Final = (RETRY_MS + 1_000) * 1000
"""A write that found no room is tried again after this time."""
IMPOSSIBLE_REASONS: Final = re.compile(
    r"HELLO_OK|RESYNC_REQUIRED|APPEND|an ACK|a HELLO|no window|copied to|bytes at|bytes of epoch|"
    r"epoch \d+ from|compared instead|point \d+ beyond|HELLO of|files of|no epoch in the table"
)
"""Reasons to close a link that only a peer which violates the protocol can cause."""
_MISSING_VALUE: Final = re.compile(r"\bNone\b")
"""A missing value that was formatted into a sentence."""
_SPOKEN: Final = range(SPOKEN.lowest, SPOKEN.highest + 1)


class Ha(Service):
    """A process of the service ha on one node."""

    def __init__(
        self,
        machine: Machine,
        process: Process,
        history: History,
        ring: Callable[[str], None],
        write_trace: Callable[[str, str], None] | None,
        *,
        setup: Setup,
        network: Network,
        lease: LeaseObject,
        random: Random,
    ) -> None:
        super().__init__(machine, process, history, ring, write_trace)
        self.node, self.setup = machine.name, setup
        self.network, self._lease, self._random = network, lease, random
        self.replica: Replica | None = None
        self.proves = ""
        """Incarnation that the links of this start prove."""
        self.health = Health(machine)
        """State and alarms that the probes report."""
        self.probes = Probes(machine, self._state)
        self.seen_us = 0
        """Since when this start has read the lease with its present content."""
        self.replies: dict[int, do.Reply] = {}
        self.unanswered: dict[int, int] = {}
        """Commands without a reply, and when they were given."""
        self._to_refuse: set[int] = set()
        self.targets: dict[int, str] = {}
        """Target of each switchover command."""
        self._differed: tuple[set[str], set[str]] | None = None
        """Alarms and alarms of the probes at the last check if they differed; None if they were
        equal."""
        self.noted = Noted()
        self.found_us = 0
        """When the log was recovered."""
        self._unnoted: tuple[tuple[int, int], int] | None = None
        """Lease content that is not yet on the disk, and since when."""
        self.views: LogViews | None = None
        self._runner: EffectRunner | None = None
        self._disk: ReplicaDisk | None = None
        process.on_end.append(lambda: network.ended(self))

    # -- for the world and other services -------------------------------------------------

    @property
    def versions(self) -> Versions:
        """Protocol versions of this start: every fourth start is of an older release."""
        drawn = zlib.crc32(self.setup.process.encode())
        older = 0 if drawn % 4 else drawn // 4 % (len(_SPOKEN) - 1) + 1
        return Versions(SPOKEN.lowest, SPOKEN.highest - older)

    @property
    def member(self) -> Member:
        """Identity that this start proves to its peers."""
        return Member(self.node, self.proves)

    @property
    def holder(self) -> Holder:
        """Identity of this start as holder of the lease."""
        return Holder(self.node, self.proves, self.setup.process)

    def check_log_again(self) -> None:
        """Begin the next check of the log at once."""
        if self._disk is not None:
            self._disk._wake.set()

    def ask_to_end(self) -> None:
        """SIGTERM: hand over and leave the set first, so that no sender waits for this node."""
        if self._runner is None or self.stop.is_set():
            super().ask_to_end()
            return
        self.take(Command(LEAVING, "switchover", {"reason": "stopping"}))
        self.machine.timeline.after(LEAVE_MS * 1000, super().ask_to_end)

    def order(self, command: Command, *, refused: bool) -> None:
        """Give an admin command. refused: it must not succeed."""
        if self._runner is not None:
            self.unanswered[command.token] = self.machine.timeline.now_us
        if refused:
            self._to_refuse.add(command.token)
        if command.name == "switchover" and "to" in command.arguments:
            self.targets[command.token] = command.arguments["to"]
        self.take(command)

    def check_answered(self) -> None:
        """Check that commands get a reply in time, unless the process is gone or paused."""
        now_us, resumed_us = self.machine.timeline.now_us, self.process.resumed_us
        if not self.process.alive or self.process.paused:
            return
        for token, asked_us in self.unanswered.items():
            if now_us - max(asked_us, resumed_us) > ORDER_US_MAX:
                raise Violation(f"{self.node} has not answered order {token} of {asked_us} µs")

    def check_lease_noted(self) -> None:
        """Check that the newest lease content seen is written to the disk soon, so that a later
        start does not believe an older lease."""
        replica, machine, now_us = self.replica, self.machine, self.machine.timeline.now_us
        if replica is None or not self.process.alive or self.process.paused or machine.is_full:
            self._unnoted = None
            return
        if replica.promises._writing:
            self._unnoted = None  # The write takes its time on a slow disk.
            return
        shown = replica.session._set[0]
        if (
            not replica.context.initialised
            or shown <= machine.durably_seen
            or replica.context.ending
        ):
            self._unnoted = None
            return
        if self._unnoted is None or self._unnoted[0] != shown:
            self._unnoted = shown, now_us
        if now_us - max(self._unnoted[1], self.process.resumed_us) > LEASE_NOTED_US:
            raise Violation(
                f"{self.node} read the lease {shown} {now_us - self._unnoted[1]} µs ago, but its "
                f"disk has {machine.durably_seen}"
            )

    def show(self, answer: Callable[[str], None]) -> None:
        """Answer a status request of the broker of this node. answer takes JSON, in this
        process."""

        def reply() -> None:
            machine, replica = self.machine, self.replica
            if replica is None:
                value = status_before(self.setup, self.health.state)
            else:
                value = replica.status(machine.boot_ms())
                view_rules.check_status(replica, machine, value, self.seen_us)
            if self.process.alive:
                answer(json.dumps(value))

        if self.process.alive:
            self.loop.call_soon_threadsafe(reply)

    def check_roles(self) -> None:
        """Check that ``/primary``, ``/replica`` and ``/in-sync`` match the state of the node."""
        if self.process.alive and not self.process.paused and self.probes.positions is not None:
            view_rules.check_roles(self.history, self.machine, self.process, self.probes)

    def _state(self) -> State:
        return State.RECOVERING if self.replica is None else self.replica.context.state

    def check_probes(self) -> None:
        """Check that the probes report the alarms of ha, after a short delay."""
        replica, differed, self._differed = self.replica, self._differed, None
        if replica is None or not self.process.alive or self.process.paused or self.stop.is_set():
            return
        alarms, shown = set(replica.context.alarms), {reason.code for reason in self.health.reasons}
        if alarms == shown:
            return
        if (alarms, shown) == differed:
            raise Violation(
                f"the probes of {self.node} report {sorted(shown)}, its alarms are {sorted(alarms)}"
            )
        self._differed = alarms, shown

    def _replied(self, reply: do.Reply) -> None:
        self.replies[reply.token] = reply
        self.unanswered.pop(reply.token, None)
        if reply.token == LEAVING:
            super().ask_to_end()
        if reply.ok and reply.token in self._to_refuse:
            raise Violation(f"{self.node} carries out an order that must be refused: {reply.body}")
        to = self.targets.get(reply.token)
        if reply.ok and to is not None and reply.body.get("master") != to:
            raise Violation(f"{self.node} was to switch to {to} and replied {reply.body}")

    def take(self, event: Event) -> None:
        """Pass an event to the replica."""
        if self._runner is not None and self.process.alive:
            self.loop.call_soon_threadsafe(self._runner.post, event)

    # -- the service ----------------------------------------------------------------------

    async def main(self) -> None:
        """Run as ``services.ha.service`` does."""
        before = marks_of(self.machine)
        held = await asyncio.to_thread(self._open)
        found = await asyncio.to_thread(
            lambda: held.recover(
                boot_id=self.machine.boot, progress=lambda done, total: None, stopping=lambda: False
            )
        )
        assert found is not None
        if found.halted is not None and self.node not in self.history.damaged:
            raise Violation(f"{self.node} halts at its start: {found.halted}")
        self.history.check_own_confirm(self.machine)
        check_found(self.machine, before, found, self.history)
        self.found_us = self.machine.timeline.now_us
        if found.halted is None:
            redone.check_found(self.machine, found)
        self.proves = found.incarnation
        self.trace(f"found {found}")
        positions = held.positions
        self.views = LogViews(held.directory, positions)
        self.probes.open(positions)
        disk = self._disk = ReplicaDisk(held, self._post_from_thread, self._crashed)
        replica = self.replica = Replica(self.setup, found, log=held, random=self._random.random)
        bell = cast(Doorbell, self.bell)
        lease = LeaseClient(
            _LeaseStore(self, self._lease),
            request_timeout_ms=self.setup.times.request_timeout_ms,
        )
        runner = self._runner = EffectRunner(
            cast(Replica, JudgedReplica(self, replica)),
            self.machine,
            PageWriter(positions, self.machine.boot, self.machine, bell),
            cast(Links, _Links(self)),
            disk,
            lease,
            self.health,
            self._replied,
        )
        self.network.listen(self)
        disk.start()
        locks = cast(LockProbe, self.machine)
        reader = SnapshotReader(positions, locks, self.machine, self.machine.wall_ms)
        watch = Watch(
            reader, positions, bell, self.machine, runner.post, interval_ms=SENSE_INTERVAL_MS
        )
        await run_parts(
            self.stop,
            {"replica": lambda: runner.run(self.stop), "watch": lambda: watch.run(self.stop)},
        )
        await asyncio.to_thread(disk.close)
        await asyncio.to_thread(held.stopped_clean)

    def _open(self) -> ReplicaStore:
        return ReplicaStore.open(StoreDir(self.disk, ROOT, STORE), self.setup, self.machine)

    def _post_from_thread(self, event: Event) -> None:
        if self._runner is not None:
            self._runner.post_from_thread(event)

    def _crashed(self, error: BaseException) -> None:
        self.failed(error)
        if self._runner is not None:
            self._runner.fail_from_thread(error)


class JudgedReplica:
    """The replica, with checks before and after each of its decisions."""

    def __init__(self, ha: Ha, replica: Replica) -> None:
        self._ha, self._replica = ha, replica
        self._counted: dict[Member, int] = {}
        self._repeats = Repeats(ha.node)
        self._steps = StepsTaken(ha, replica)
        self._obstacles = LeaseObstacles(ha, replica)
        self._read: Stored | None = None
        """The lease of the last read; None if another request has ended since."""
        self._wanted_epoch = 0

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle the event as the replica does, and check the outcome."""
        ha = self._ha
        before = self._replica.leadership.term
        if isinstance(event, Done) and event.durable:
            ha.history.reports_end(ha.machine, event.durable)
        if isinstance(event, LeaseAnswered):
            self._read = event.stored if event.outcome is LeaseOutcome.FOUND else None
        if isinstance(event, Received) and event.frame.type is FrameType.CAMPAIGN_NOW:
            ha.history.campaign_now_us[ha.node] = ha.machine.timeline.now_us
        if isinstance(event, Received) and not ha.history.epoch:
            self._note_description(event.frame)
        if isinstance(event, LinkUp) and event.outbound:
            self._repeats.connected(event.peer.node)
        seen = self._replica.context.session.stored
        effects = self._replica.handle(event, now_ms)
        if self._replica.context.session.stored != seen:
            ha.seen_us = ha.machine.timeline.now_us
        self._repeats.happened(event, now_ms)
        if isinstance(event, Done) and event.token == self._repeats.promise:
            self._must_know_its_promise()
        self._steps.handled()
        self._obstacles.happened(event, now_ms)
        own = self._replica.context
        if isinstance(event, Failed) and not (own.alarms or own.ending or own.halted):
            raise Violation(
                f"{ha.node} has no alarm after the failure {event.code}: {event.detail}"
            )
        after = self._replica.leadership.term
        terms = {int(term.epoch) for term in (before, after) if term is not None}
        if ha.write_trace is not None and not isinstance(event, Tick | NodeSnapshot):
            ha.trace(f"event {_short(event)}")
        # The acknowledgements of a term that has ended without its knowledge may be outdated.
        lives = after is not None and after.epoch >= ha.history.epoch
        if after is not None and lives and after._durable != self._counted:
            self._counted = dict(after._durable)
            for member, end in self._counted.items():
                ha.history.counts_ack(ha.machine, member, end)
        for effect in effects:
            self._repeats.does(effect, now_ms)
            self._judge(
                effect, terms, None if before is not after or after is None else after.epoch
            )
        return effects

    def _note_description(self, frame: Frame) -> None:
        match _parsed(frame):
            case StatusOk(node=node):
                self._steps.receives_status(node)

    def _must_know_its_promise(self) -> None:
        """Check that the replica takes as its promise exactly what is durable. A newer one is
        written next."""
        machine, promises = self._ha.machine, self._replica.promises
        known = promises.promised, promises._seen
        durable = machine.durably_promised, machine.durably_seen
        if known != durable:
            raise Violation(
                f"{machine.name} has written its promise and assumes (epoch, lease seen) "
                f"{known}; its disk has {durable}"
            )

    def _judge(self, effect: Effect, terms: set[int], reigns: int | None) -> None:
        ha, history = self._ha, self._ha.history
        if ha.write_trace is not None:
            ha.trace(f"  do {_short(effect)}")
        match effect:
            case do.Grant():
                history.granted(effect.epoch, ha.holder, ha.machine.boot)
            case do.Stream(link, frame):
                history.acts(frame.epoch, ha.holder, "streams")
                term, now_ms = self._replica.leadership.term, self._replica.context.now_ms
                if term is not None:
                    _must_be_in_the_window(ha.node, term, effect)
                    self._repeats.sends(link, term.confirm.value, now_ms, empty=False)
            case do.Send(link, frame) if frame.type in PROMISING:
                history.sends_to_master(ha.machine, frame)
                match _parsed(frame):
                    case Ack(appended, durable):
                        history.acknowledges(ha.machine, appended, durable)
                    case Hello() as hello:
                        history.sends_hello(ha.machine, hello)
                        self._repeats.sends_hello(link, frame.epoch, len(hello.table), hello.end)
            case do.Send(link, frame):
                match _parsed(frame):
                    case HelloOk() as ok:
                        history.sends_hello_ok(ha.machine, ok)
                    case StatusOk(facts=facts) as status:
                        self._steps.sends_status(status)
                        for name, fact in msgspec.structs.asdict(facts).items():
                            _check_sentence(ha.node, name, fact)
                    case Append(size=0) as append:
                        now_ms = self._replica.context.now_ms
                        self._repeats.sends(link, append.confirm, now_ms, empty=True)
            case do.Connect(node):
                session = self._replica.session
                if session.stored is not None and not session.backwards:
                    epoch = self._replica.promises.highest
                    self._repeats.connects(node, epoch, self._replica.context.now_ms)
            case do.PersistPromise():
                self._steps.promises(effect.promised)
            case do.PersistTable(_, entries) if entries:
                history.writes_table(ha.machine, entries, begins=reigns is not None)
            case LeasePut(_, lease, base):
                self._steps.writes_lease(effect)
                self._obstacles.writes_lease(effect)
                if lease.epoch > max(base.lease.epoch, self._wanted_epoch):
                    self._wanted_epoch = lease.epoch
                    if self._read != base:
                        raise Violation(f"{ha.node} takes a lease without reading it right before")
                renews = lease._replace(renewed=0) == base.lease._replace(renewed=0)
                term = self._replica.leadership.term
                switches = term is not None and term.switch is not None and term.switch.fenced
                if switches and lease.holder is None and lease.handover_to is not None:
                    self._must_be_for_its_target(lease.handover_to)
                history.writes_lease(
                    ha.machine, base.lease, lease, renews=renews, switches=switches
                )
            case LeaseCreate(_, lease):
                history.writes_lease(ha.machine, None, lease)
            case do.Close(reason=reason):
                if IMPOSSIBLE_REASONS.match(reason) and not history.damaged:
                    raise Violation(f"{ha.node} closes a link, for {reason}")
            case do.Publish(slots=slots):
                for slot, value in slots:
                    if slot is Slot.NEEDED_FROM and value:
                        self._must_be_kept(value)
                history.of_terms[ha.process] = terms
                history.reigns[ha.process] = reigns
            case do.Note(event=event, sentence=sentence):
                if event in IMPOSSIBLE and not history.damaged and ha.node not in history.corrupted:
                    raise Violation(f"{ha.node}: {sentence}")
                _check_sentence(ha.node, event, sentence)
            case do.Reply(body=body):
                for name, value in body.items():
                    _check_sentence(ha.node, name, value)

    def _must_be_kept(self, needed: int) -> None:
        """Check that NEEDED_FROM covers every byte that a linked slave has yet to copy."""
        term = self._replica.leadership.term
        for link in () if term is None else term.links.values():
            slave = self._ha.history.node(link.peer.node)
            if slave.incarnation != link.peer.incarnation:
                continue  # The link belongs to a disk that was replaced.
            if link.appended is not None and 0 < slave.end < needed:
                raise Violation(
                    f"{self._ha.node} keeps its log from {needed} on, but {slave.name} has it up "
                    f"to {slave.end}"
                )

    def _must_be_for_its_target(self, target: str) -> None:
        """Check that a switch releases the lease for the target that the command named."""
        switch = self._replica._handover._switch
        wanted = target if switch is None else self._ha.targets.get(switch.token, target)
        if target != wanted:
            raise Violation(f"{self._ha.node} was to switch to {wanted} and switches to {target}")


def _must_be_in_the_window(node: str, term: Mastership, effect: do.Stream) -> None:
    """Check that at most a window of bytes is sent to a slave before it acknowledges: its memory is
    limited."""
    link = term.links.get(effect.link)
    if link is None or link.appended is None:
        return
    ahead = effect.offset + effect.size - link.appended
    if ahead > WINDOW_SIZE:
        raise Violation(f"{node} sends {ahead} bytes ahead on a link, {WINDOW_SIZE} is the limit")


def _check_sentence(node: str, what: str, value: object) -> None:
    """Check that a sentence for people has no empty or missing value in it."""
    if isinstance(value, str) and (
        value != value.strip() or "  " in value or _MISSING_VALUE.search(value)
    ):
        raise Violation(f"{node} writes a sentence with a missing value: {what} {value!r}")


class _Links:
    """Connections over the simulated network (``services.ha.shell.links.Links``)."""

    def __init__(self, ha: Ha) -> None:
        self._ha = ha

    def connect(self, name: str) -> None:
        """Connect to a node."""
        self._ha.network.connect(self._ha, name)

    def disk_changed(self, done: Done) -> None:
        """Take over the files of the log, and the identity, after a change on disk."""
        if done.incarnation:
            self._ha.proves = done.incarnation
        assert self._ha.views is not None
        self._ha.views.refresh()

    def send(self, number: int, frame: Frame) -> None:
        """Send a frame."""
        self._ha.network.send(self._ha, number, frame)

    def stream(self, number: int, frame: Frame, offset: int, size: int) -> None:
        """Send a frame followed by bytes of the log."""
        assert self._ha.views is not None
        views = self._ha.views.views(offset, size)
        if views is None:
            if offset >= self._ha.machine.begins_at:
                raise Violation(f"{self._ha.node} cannot read {size} bytes at {offset} to send")
            self.close_link(number, f"log-gone: bytes {offset} to {offset + size}")
            return
        self._must_be_the_log(views, offset, size)
        self._ha.network.send(self._ha, number, frame, views)

    def _must_be_the_log(self, views: list[memoryview], offset: int, size: int) -> None:
        """Check that the bytes to be sent are those of the log."""
        machine = self._ha.machine
        if b"".join(views) != machine.log(offset, offset + size):
            raise Violation(
                f"{self._ha.node} sends {size} bytes at {offset} that differ from its log"
            )

    def close_link(self, number: int, reason: str) -> None:
        """Close a link."""
        self._ha.network.close(self._ha, number, reason)


class _LeaseStore:
    """The lease object over a lossy network (``services.ha.lease.interface``)."""

    def __init__(self, ha: Ha, lease: LeaseObject) -> None:
        self._ha, self._lease = ha, lease

    async def get(self) -> Outcome:
        """Read the lease."""
        return await self._ask(LeaseGet(0))

    async def put(self, lease: Lease, base: Stored) -> Outcome:
        """Write the lease if it is still base."""
        return await self._ask(LeasePut(0, lease, base))

    async def create(self, lease: Lease) -> Outcome:
        """Create the lease."""
        return await self._ask(LeaseCreate(0, lease))

    async def announce(self, role: str) -> str:
        """Do nothing: there is no pod."""
        return ""

    async def close(self) -> None:
        """Do nothing: there is no resource."""

    async def _ask(self, request: LeaseGet | LeasePut | LeaseCreate) -> Outcome:
        loop = self._ha.loop
        answered: asyncio.Future[LeaseAnswered] = loop.create_future()

        def settle(answer: LeaseAnswered) -> None:
            if not answered.done():
                answered.set_result(answer)

        def answer(answer: LeaseAnswered) -> None:
            if self._ha.process.alive:
                loop.call_soon_threadsafe(settle, answer)

        timeout_ms = self._ha.setup.times.request_timeout_ms
        self._lease.ask(self._ha.node, request, timeout_ms=timeout_ms, answer=answer)
        found = await answered
        return Outcome(found.outcome, found.stored, found.reason)


def _short(what: Any) -> str:
    match what:
        case Received(link, frame) | do.Send(link, frame):
            return f"{type(what).__name__} {link} epoch {frame.epoch} {_payload_text(frame)}"
        case do.Stream(link, frame, offset, size):
            return f"Stream {link} epoch {frame.epoch} [{offset}, {offset + size})"
        case do.Copy(offset, data, first):
            return f"Copy [{offset}, {offset + len(data)}) {first=}"
        case do.Publish(slots):
            return "Publish " + ", ".join(f"{slot.name}={value}" for slot, value in slots)
        case _:
            return f"{what}"


def _payload_text(frame: Frame) -> str:
    payload = _parsed(frame)
    if isinstance(payload, Append):
        payload = payload._replace(data=f"{len(payload.data)} bytes".encode())
    return f"{payload}"


def _parsed(frame: Frame) -> Payload | Frame:
    for version in reversed(_SPOKEN):
        with contextlib.suppress(BadFrame):
            return parse(frame, version)
    return frame
