"""Runs the effects of the replica in their order, and feeds their outcomes back as events.

Everything runs on the loop: an event is handled completely, with all its effects, before the next
one is taken, so that the page and the links show one decision after another. Blocking work goes to
the threads of the disk and to requests to the lease, and comes back as an event. A bug in a
decision ends the process: nothing is sent or stored after it. Step before: ``watch``, ``links`` and
``control`` post events. Step after: page, sockets, disk, lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from services.ha.core import effects
from services.ha.core.effects import Effect
from services.ha.core.events import Done, Event
from services.ha.core.replica import Replica
from services.ha.shell import hooks
from services.ha.shell.lease_client import LeaseClient
from services.ha.shell.links import Links
from services.ha.shell.page_writer import PageWriter
from services.ha.shell.replica_disk import ReplicaDisk
from shared.runtime.health import Health
from shared.runtime.rate_limited_logger import RateLimitedLogger
from tidemark.clock import Clock
from tidemark.errors import HaltedReplica
from tidemark.formats.checkpoint import Slot

log = logging.getLogger(__name__)

STEPS: Final[Mapping[type, str]] = {
    effects.LeasePut: "promote-2",
    effects.LeaseCreate: "promote-2",
    effects.PersistPromise: "promote-4",
    effects.PersistTable: "promote-5",
    effects.ReleaseAppendLock: "promote-6",
    effects.Grant: "promote-7",
}
"""Steps of becoming master, by the effect that each begins with: the names of the places at which
a test can stop or kill the process. Followers write promises and tables as well, and every renewal
writes the lease."""


class EffectRunner:
    """Connects one replica with page, sockets, disk and lease."""

    def __init__(
        self,
        replica: Replica,
        clock: Clock,
        page: PageWriter,
        links: Links,
        disk: ReplicaDisk,
        lease: LeaseClient,
        health: Health,
        replied: Callable[[effects.Reply], None],
    ) -> None:
        """replied: called with the answers to commands of operators."""
        self._replica, self._clock, self._page = replica, clock, page
        self._links, self._disk, self._lease = links, disk, lease
        self._health, self._replied = health, replied
        self._events: deque[Event] = deque()
        self._handling = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._limited_log = RateLimitedLogger(clock.monotonic)

    def post(self, event: Event) -> None:
        """Handle an event now, or after the one that is being handled. On the loop."""
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
            # A transport that posted the event would swallow the error, and the process would
            # continue with half of a decision: it ends with the error instead.
            self._events.clear()
            self.fail(error)
        finally:
            self._handling = False

    def post_from_thread(self, event: Event) -> None:
        """Call ``post`` on the loop; for other threads."""
        self._ended.get_loop().call_soon_threadsafe(self.post, event)

    def fail_from_thread(self, error: BaseException) -> None:
        """Call ``fail`` on the loop; for other threads."""
        self._ended.get_loop().call_soon_threadsafe(self.fail, error)

    def fail(self, error: BaseException) -> None:
        """End ``run`` with error; no further event is handled and no effect is run."""
        if not self._ended.done():
            self._ended.set_exception(error)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until stop is set. Raises if the replica or a bug ends the process."""
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
        self._lease.close()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Done):
            self._links.disk_changed(event)
        for effect in self._replica.handle(event, self._clock.boot_ms()):
            self._run_effect(effect)
            if self._ended.done():
                return

    def _run_effect(self, effect: Effect) -> None:
        step = STEPS.get(type(effect))
        if step is not None:
            hooks.before(step)
        match effect:
            case effects.Stream(link, frame, offset, size):
                self._links.stream(link, frame, offset, size)
            case effects.Send(link, frame):
                self._links.send(link, frame)
            case effects.Publish(slots):
                self._publish(slots)
            case effects.UseNodes(nodes):
                self._links.use_nodes(nodes)
            case effects.Connect(node):
                self._links.connect(node)
            case effects.Close(link, reason):
                self._links.close_link(link, reason)
            case effects.LeaseGet() | effects.LeasePut() | effects.LeaseCreate():
                self._lease.request(effect, self.post)
            case effects.Fence():
                self._page.fence()
            case effects.Grant():
                self._page.grant(effect)
            case effects.Reply():
                self._replied(effect)
            case effects.Note():
                self._note(effect)
            case effects.Ended(code, detail):
                self.fail(EndedByReplica(code, detail))
            case _:
                self._disk.carry_out(effect)

    def _publish(self, slots: tuple[tuple[Slot, int], ...]) -> None:
        self._page.publish(slots)
        for slot, value in slots:
            if slot is Slot.ROLE:
                self._lease.announce(value)

    def _note(self, note: effects.Note) -> None:
        facts = _facts(note.facts)
        if note.alarm is None and note.level > logging.INFO:
            # A peer can cause these lines as often as it connects.
            peer = facts.get("peer", "")
            self._limited_log.say(
                f"{note.event} {peer}", note.event, note.sentence, level=note.level, **facts
            )
            return
        if note.alarm is not None:
            facts["raised"] = note.alarm
        log.log(note.level, note.sentence, extra={"event": note.event, **facts})
        if note.alarm is True:
            self._health.add_reason(note.event, note.sentence)
        elif note.alarm is False:
            self._health.clear_reason(note.event)


class EndedByReplica(HaltedReplica):
    """The replica decided that this process must end."""

    def __init__(self, code: str, detail: str) -> None:
        self.__dict__["code"] = code  # the replica's, not the class's: it heads the message
        super().__init__(detail, "See docs/runbook.md.")


def _facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts under names that a log record does not use itself."""
    return {
        (f"{name}_" if name in ("name", "args", "msg") else name): facts[name] for name in facts
    }
