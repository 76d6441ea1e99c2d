"""One replica of a group: every decision of ha, as one object (docs/replication.md). Pure.

Events in, effects out (``events``, ``effects``), the boot-time clock as an argument. The shell
carries effects out in their order; the simulation runs the same object on a simulated world. Here
each event is sent to the part that it concerns: frames to ``reception``, the lease and all that
comes of it to ``leadership``, copied bytes to ``following``, orders to ``operator``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from services.ha.core.damage import Damage
from services.ha.core.effects import Effect, Ended, PersistConfirm, Publish
from services.ha.core.events import (
    Command,
    Copied,
    CopyFault,
    Done,
    Event,
    Failed,
    LeaseAnswered,
    LinkDown,
    LinkUp,
    Received,
    Sensed,
    Tick,
)
from services.ha.core.failover import State, Trigger, copies
from services.ha.core.following import Following
from services.ha.core.leadership import Leadership
from services.ha.core.operator import Operator
from services.ha.core.own import DAMAGE, Counters, Own, damage_sentence
from services.ha.core.peers import Peers
from services.ha.core.promises import Promises
from services.ha.core.reception import Reception
from services.ha.core.setup import Found, LogBytes, Setup
from services.ha.core.status import cluster_status, serves
from services.ha.lease.session import LeaseSession
from tidemark.formats.checkpoint import NodeRole, Slot

__all__ = ["Found", "LogBytes", "Replica", "Setup"]

CONFIRM_WRITTEN_MS: Final = 1000
"""The confirm checkpoint on disk is at most so old."""


class Replica:
    """One start of ha on one volume. Byte 0 is held and the log recovered when it is made."""

    def __init__(
        self, setup: Setup, found: Found, *, log: LogBytes, random: Callable[[], float]
    ) -> None:
        """random: uniform in [0, 1): keeps candidates apart and renewals out of step."""
        self.setup, self.found = setup, found
        seen = (found.seen_epoch, found.seen_version)
        session = LeaseSession(found.holder(setup), setup.times, seen, random)
        self.own = Own(setup, found, log, session)
        self.promises = Promises(self.own, found.promised, seen)
        self.peers = Peers(self.own)
        self.following = Following(self.own, self.peers, self.promises, random)
        self.leadership = Leadership(self.own, self.peers, self.promises, self.following, random)
        self._reception = Reception(self.leadership)
        self._operator = Operator(self.leadership)
        self._damage = Damage(self.own, self.peers)
        # What the page of this boot said may not be in the file yet: a power cut takes the page.
        self._confirm_written = (0, 0)
        self._begun = self._ended = False
        self._fitness = ("", "", False, False)

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """What is to be done because of event. The first one of all begins."""
        own = self.own
        own.now_ms = now_ms
        if own.liveness.turned(now_ms) and self.leadership.term is not None:
            self.leadership.term.woke()
        if not self._begun:
            self._begin()
        match event:
            case Tick():
                self._tick()
            case Sensed():
                self._sensed(event)
            case Received():
                self._reception.received(event)
            case LeaseAnswered():
                self.leadership.answered(event)
            case Copied():
                self.following.copied(event)
            case CopyFault(code, detail) if code == DAMAGE and not self._halts_for_damage:
                self._damage.found(detail)
            case CopyFault():
                self.following.fault(event)
            case Done() | Failed():
                own.out.answered(event)
                self._reception.release()
            case LinkUp(link, peer, outbound, version):
                self.peers.up(link, peer, outbound=outbound, version=version)
                self.following.tick()
            case LinkDown(link, node, reason):
                self._link_down(link, node, reason)
            case Command():
                self._operator.command(event)
        self._judge()
        return own.out.take()

    @property
    def _halts_for_damage(self) -> bool:
        """Whether damage that is found now halts this replica at once.

        Not if it is known from an earlier start and nobody leads: 1. A damaged master is the last
        node, and its ha starts again. 2. The check of its log finds the same record again, within
        seconds, before the lease may be taken. 3. Halted, it would leave nobody to serve.
        """
        own = self.own
        return copies(own.state) and (not own.damage or self.following.linked)

    def _judge(self) -> None:
        """What must not lead any more does not, whatever the event was."""
        own = self.own
        if own.halted is not None:
            self.leadership.give_up(own.halted.detail)
            self.following.leave(own.halted.detail)
        elif own.cannot_lead is not None:
            self.leadership.give_up(own.cannot_lead)
        own.cannot_lead = None
        if own.ending is not None and not self._ended:
            self._ended = True
            self.leadership.give_up(own.ending.detail)
            own.out.put(Ended(*own.ending))

    @property
    def state(self) -> State:
        """What it is."""
        return self.own.state

    @property
    def session(self) -> LeaseSession:
        """What it knows of the lease."""
        return self.own.session

    @property
    def count(self) -> Counters:
        """Since this start."""
        return self.own.count

    def status(self, now_ms: int) -> dict[str, Any]:
        """The answer to ``GET /v1/cluster``."""
        self.own.now_ms = max(self.own.now_ms, now_ms)
        return cluster_status(self.own, self.peers, self.leadership.term)

    def _begin(self) -> None:
        own, found = self.own, self.found
        self._begun = True
        boot = self.setup.boot
        own.out.put(
            Publish(
                (
                    (Slot.CONFIRM, min(found.confirm, found.end)),
                    (Slot.HA_BOOT_ID_HIGH, boot[0]),
                    (Slot.HA_BOOT_ID_LOW, boot[1]),
                    (Slot.MIN_IN_SYNC, self.setup.min_in_sync),
                )
            )
        )
        if found.halted is not None:
            own.halt(*found.halted)
            return
        own.move(Trigger.RECOVERED)
        if found.damage:
            own.alarm(DAMAGE, damage_sentence(found.damage))
        own.out.put(Publish(((Slot.ROLE, NodeRole.FOLLOWER),)))

    def _tick(self) -> None:
        self.promises.tick()
        self.leadership.tick()
        self._damage.tick(self.leadership.term)
        self._operator.tick()
        self.peers.tick(self.promises.promised, self._urgent())
        self._write_confirm()

    def _urgent(self) -> str | None:
        """The node that has the lease and is not master yet: clients here wait to hear of it."""
        master = self.following.master
        told = None if master is None else self.peers.fresh(master.node)
        if master is None or told is None or serves(told):
            return None
        return master.node

    def _write_confirm(self) -> None:
        own = self.own
        if own.halted is not None:
            return  # what this start found may be the damage itself
        if own.state is State.RESYNC:
            # The file is emptied with the store: what was confirmed there is not in it any more.
            self._confirm_written = (0, own.now_ms)
            return
        written, at_ms = self._confirm_written
        if own.confirm > written and own.now_ms - at_ms >= CONFIRM_WRITTEN_MS:
            self._confirm_written = own.confirm, own.now_ms
            own.out.put(PersistConfirm(own.confirm))

    def _sensed(self, sensed: Sensed) -> None:
        own = self.own
        own.sensed = sensed
        own.liveness.sensed(sensed, own.now_ms)
        own.first_offset = max(own.first_offset, sensed.first_offset)
        term = self.leadership.term
        if term is not None:
            term.sensed()
        gate_open = term is not None and term.gate_open
        fitness = own.idle_service, own.trouble, own.stalls_are_over, gate_open
        if fitness != self._fitness:
            self._fitness = fitness
            self._reception.tell_status()

    def _link_down(self, link: int, node: str, reason: str) -> None:
        self.peers.down(link, node, reason)
        self.following.down(link, reason)
        if self.leadership.term is not None:
            self.leadership.term.down(link)
