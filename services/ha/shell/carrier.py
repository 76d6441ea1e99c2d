"""Carries out what the replica wants, in its order, and brings back what came of it.

One thread, the loop's: every event is handled to its end, effects and all, before the next one is
taken, so that the page and the links show one decision after another. What blocks is given to
others (threads of the disk, requests to the lease) and comes back as an event. A bug in a decision
ends the process: nothing is sent or stored after it. Step before: ``watch``, ``links``, ``control``
tell of events. Step after: page, sockets, disk, lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from services.ha.core import effects as wanted
from services.ha.core.effects import DiskEffect, Effect
from services.ha.core.events import Done, Event, LeaseAnswered, LeaseOutcome
from services.ha.lease.interface import LeaseStore, carry_out
from services.ha.shell import hooks
from services.ha.wire.frames import Frame
from shared.cluster import grant
from shared.files.positions import Positions
from shared.runtime.health import Health
from shared.runtime.rate_limited_logger import RateLimitedLogger
from tidemark.clock import Clock
from tidemark.errors import HaltedReplica
from tidemark.formats.checkpoint import NodeRole, Slot

log = logging.getLogger(__name__)

REPUT_BELL_INTERVAL_S: Final = 0.002
"""A ring wakes another process; while there is work it looks by itself more often than twice so."""
ANNOUNCE_AGAIN_S: Final = 0.5
ANNOUNCE_PAUSE_MAX_S: Final = 10.0
STEPS: Final[Mapping[type, str]] = {
    wanted.LeasePut: "promote-2",
    wanted.LeaseCreate: "promote-2",
    wanted.PersistPromise: "promote-4",
    wanted.PersistTable: "promote-5",
    wanted.ReleaseAppendLock: "promote-6",
    wanted.Grant: "promote-7",
}
"""Steps of becoming master by the effect that each begins with; followers write promises and
tables as well, and every renewal writes the lease."""
ANNOUNCED: Final[Mapping[int, str]] = {
    NodeRole.MASTER: "master",
    NodeRole.FOLLOWER: "slave",
    NodeRole.HALTED: "slave",
}
LeaseRequest = wanted.LeaseGet | wanted.LeasePut | wanted.LeaseCreate


class Decider(Protocol):
    """The replica, as far as its effects are concerned."""

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """What is to be done because of event."""
        ...


class LinkPorts(Protocol):
    """Connections, by number."""

    def connect(self, name: str) -> None:
        """Connect to a node."""
        ...

    def send(self, number: int, frame: Frame) -> None:
        """Send a frame."""
        ...

    def stream(self, number: int, frame: Frame, offset: int, size: int) -> None:
        """Send a frame that goes on with bytes of the log."""
        ...

    def close_link(self, number: int, reason: str) -> None:
        """Close a link."""
        ...

    def disk_changed(self, done: Done) -> None:
        """An effect on the replica's disk has ended: its files, or its identity, may be others."""
        ...


class DiskPorts(Protocol):
    """The replica's own disk."""

    def carry_out(self, effect: DiskEffect) -> None:
        """Have it carried out in a thread."""
        ...


class Bells(Protocol):
    """The other processes' doorbells."""

    def ring(self, service: str) -> bool:
        """Wake a service."""
        ...


class Carrier:
    """Between one replica and the world."""

    def __init__(
        self,
        replica: Decider,
        positions: Positions,
        boot: tuple[int, int],
        clock: Clock,
        bells: Bells,
        links: LinkPorts,
        disk: DiskPorts,
        lease: LeaseStore,
        health: Health,
        *,
        request_timeout_ms: int,
        replied: Callable[[wanted.Reply], None],
    ) -> None:
        """boot: of this boot of the machine. replied: takes the answers to operators."""
        self._replica, self._positions, self._boot = replica, positions, boot
        self._clock, self._bells, self._links, self._disk = clock, bells, links, disk
        self._lease, self._health = lease, health
        self._request_timeout_ms = request_timeout_ms
        self._replied = replied
        self._events: deque[Event] = deque()
        self._handling = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests: set[asyncio.Task[None]] = set()
        self._reput_rung_at = 0.0
        self._lease_error = ""
        self._role = ""
        """As it is to be shown."""
        self._announcing = False
        self._paced = RateLimitedLogger(clock.monotonic)

    def happen(self, event: Event) -> None:
        """Something happened. On the loop; handled now, or after what is being handled."""
        if self._ended.done():
            return
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        except Exception as error:  # noqa: BLE001
            # A transport that told of the event would swallow it, and the process go on with half
            # of what was decided: it ends with the error instead.
            self._events.clear()
            self.fail(error)
        finally:
            self._handling = False

    def happen_soon(self, event: Event) -> None:
        """Something happened, as a thread tells."""
        self._loop().call_soon_threadsafe(self.happen, event)

    def fail_soon(self, error: BaseException) -> None:
        """``fail``, as a thread tells."""
        self._loop().call_soon_threadsafe(self.fail, error)

    async def run(self, stop: asyncio.Event) -> None:
        """Until stop, or until the replica or a bug ends the process: then it raises."""
        stopped = asyncio.ensure_future(stop.wait())
        stopped.add_done_callback(lambda _: self.close())
        try:
            await self._ended
        finally:
            stopped.cancel()

    def close(self) -> None:
        """Take no further event and drop requests to the lease that are under way."""
        if not self._ended.done():
            self._ended.set_result(None)
        for task in list(self._requests):
            task.cancel()

    # -- effects --------------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        if isinstance(event, Done):
            self._links.disk_changed(event)
        for effect in self._replica.handle(event, self._clock.boot_ms()):
            self._carry_out(effect)
            if self._ended.done():
                return

    def _carry_out(self, effect: Effect) -> None:
        step = STEPS.get(type(effect))
        if step is not None:
            hooks.before(step)
        match effect:
            case wanted.Stream(link, frame, offset, size):
                self._links.stream(link, frame, offset, size)
            case wanted.Send(link, frame):
                self._links.send(link, frame)
            case wanted.Publish(slots):
                self._publish(slots)
            case wanted.Connect(node):
                self._links.connect(node)
            case wanted.Close(link, reason):
                self._links.close_link(link, reason)
            case wanted.LeaseGet() | wanted.LeasePut() | wanted.LeaseCreate():
                self._ask(effect)
            case wanted.Fence():
                grant.fence(self._positions)
                self._ring()
            case wanted.Grant(epoch, nonce, deadline_ms):
                grant.grant(
                    self._positions,
                    epoch=epoch,
                    nonce=nonce,
                    deadline_boot_ms=deadline_ms,
                    boot=self._boot,
                )
                self._ring()
            case wanted.Reply():
                self._replied(effect)
            case wanted.Note():
                self._note(effect)
            case wanted.Ended(code, detail):
                self.fail(EndedByReplica(code, detail))
            case _:
                self._disk.carry_out(effect)

    def _publish(self, slots: tuple[tuple[Slot, int], ...]) -> None:
        for slot, value in slots:
            if slot is Slot.ROLE:
                if value == NodeRole.MASTER:
                    hooks.before("promote-10")
                self._announce(value)
            self._positions.publish(slot, value)
        self._bells.ring("broker")
        changed = {slot for slot, _ in slots}
        if Slot.ROLE in changed:
            self._bells.ring("reput")
        elif Slot.CONFIRM in changed:
            self._ring_reput_for_work()

    def _announce(self, role: int) -> None:
        """Show the role where the lease is kept, after the fact: nobody decides by it."""
        name = ANNOUNCED.get(role)
        if name is None:
            return
        self._role = name
        if not self._announcing:
            self._announcing = True
            self._background(self._announced(), "announce")

    async def _announced(self) -> None:
        """Go on until the pod shows the role that this node has now.

        One after another, and again after a failure: 1. A master is cut off from everything, stops,
        and cannot say so. 2. Another is elected. 3. The network heals. If the first never said it
        again, a Service that selects the master's pod would lead to both, for ever.
        """
        shown, said, pause_s = "", "", ANNOUNCE_AGAIN_S
        while shown != self._role:
            role = self._role
            reason = await self._lease.announce(role)
            if not reason:
                shown, said, pause_s = role, "", ANNOUNCE_AGAIN_S
                continue
            if said != role:
                said = role
                log.warning(
                    "the role could not be shown on the pod, and will be again and again",
                    extra={"event": "not-announced", "role": role, "reason": reason},
                )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, ANNOUNCE_PAUSE_MAX_S)
        self._announcing = False

    def _ring(self) -> None:
        self._bells.ring("broker")
        self._bells.ring("reput")

    def _ring_reput_for_work(self) -> None:
        """Unless it was rung for work just now: then it has some, or looks for it."""
        now = self._clock.monotonic()
        if now - self._reput_rung_at >= REPUT_BELL_INTERVAL_S:
            self._reput_rung_at = now
            self._bells.ring("reput")

    def _note(self, note: wanted.Note) -> None:
        facts = _facts(note.facts)
        if note.alarm is None and note.level > logging.INFO:
            # What a peer can cause as often as it connects.
            who = facts.get("peer", "")
            self._paced.say(
                f"{note.event} {who}", note.event, note.sentence, level=note.level, **facts
            )
            return
        if note.alarm is not None:
            facts["raised"] = note.alarm
        log.log(note.level, note.sentence, extra={"event": note.event, **facts})
        if note.alarm is True:
            self._health.add_reason(note.event, note.sentence)
        elif note.alarm is False:
            self._health.clear_reason(note.event)

    def fail(self, error: BaseException) -> None:
        """End ``run`` with error; nothing is decided or carried out any more."""
        if not self._ended.done():
            self._ended.set_exception(error)

    # -- the lease ------------------------------------------------------------------------------

    def _ask(self, effect: LeaseRequest) -> None:
        self._background(self._answer(effect), type(effect).__name__)

    def _background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._loop().create_task(work, name=name)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _answer(self, effect: LeaseRequest) -> None:
        try:
            answer = await carry_out(self._lease, effect, self._request_timeout_ms)
            self._lease_error = ""
        except Exception as error:  # a client library may raise anything it likes
            reason = "the request failed for a reason unknown to ha; its log has it as lease-error"
            if self._lease_error != type(error).__name__:  # else it is the same at every try
                self._lease_error = type(error).__name__
                log.exception("a request to the lease failed", extra={"event": "lease-error"})
            answer = LeaseAnswered(effect.request, LeaseOutcome.UNKNOWN, reason=reason)
        self.happen(answer)

    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._ended.get_loop()


class EndedByReplica(HaltedReplica):
    """The replica decided that this process must end."""

    def __init__(self, code: str, detail: str) -> None:
        self.__dict__["code"] = code  # the replica's, not the class's: it heads the message
        super().__init__(detail, "See docs/runbook.md.")


def _facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts under names that a log record does not use itself."""
    return {
        (f"{name}_" if name in ("name", "args", "msg") else name): facts[name] for name in facts
    }
