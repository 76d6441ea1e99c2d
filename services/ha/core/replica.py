"""One replica of a group: every decision of ha, as one object (docs/replication.md). Pure.

Events in, effects out (``events``, ``effects``), with the boot-time clock as an argument. The shell
runs the effects in their order; the simulation runs the same object in a simulated world. This
module passes each event to its part: frames to ``message_dispatcher``, answers of the lease to
``leadership``, copied bytes to ``following``, commands to ``admin_commands``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from services.ha.core.admin_commands import AdminCommands
from services.ha.core.counters import Counters
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
    NodeSnapshot,
    Received,
    Tick,
)
from services.ha.core.following import Following
from services.ha.core.leadership import Leadership
from services.ha.core.message_dispatcher import MessageDispatcher
from services.ha.core.peers import Peers
from services.ha.core.promises import Promises
from services.ha.core.replica_context import DAMAGE, ReplicaContext, damage_sentence
from services.ha.core.setup import Found, LogBytes, Setup
from services.ha.core.states import State, Trigger, copies
from services.ha.core.status import cluster_status, serves
from services.ha.core.switch_orders import SwitchOrders
from services.ha.lease.session import LeaseSession
from tidemark.formats.checkpoint import NodeRole, Slot

__all__ = ["Found", "LogBytes", "Replica", "Setup"]

CONFIRM_WRITTEN_MS: Final = 1000
"""Greatest age of the confirm checkpoint on disk."""


class Replica:
    """One start of ha on one volume. When it is created, the append lock is held and the log
    recovered."""

    def __init__(
        self, setup: Setup, found: Found, *, log: LogBytes, random: Callable[[], float]
    ) -> None:
        """random: uniform in [0, 1); keeps candidates apart and renewals out of step."""
        self.setup, self.found = setup, found
        seen = (found.seen_epoch, found.seen_version)
        session = LeaseSession(found.holder(setup), setup.times, seen, random)
        self.context = ReplicaContext(setup, found, log, session)
        self.promises = Promises(self.context, found.promised, seen)
        self.peers = Peers(self.context)
        self.following = Following(self.context, self.peers, self.promises, random)
        self.leadership = Leadership(
            self.context, self.peers, self.promises, self.following, random
        )
        self._dispatcher = MessageDispatcher(self.leadership)
        self._switch_orders = SwitchOrders(self.leadership)
        self._admin = AdminCommands(self.leadership, self._switch_orders)
        self._damage = Damage(self.context, self.peers)
        # The confirm offset on the page of this boot may not be in the file yet, and a power cut
        # takes the page.
        self._confirm_written = (0, 0)
        self._begun = self._ended = False
        self._fitness = ("", "", False, False)

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Return the effects of an event. The first event also starts the replica."""
        context = self.context
        context.now_ms = now_ms
        if context.liveness.turned(now_ms) and self.leadership.term is not None:
            self.leadership.term.restart_clocks()
        if not self._begun:
            self._begin()
        match event:
            case Tick():
                self._tick()
            case NodeSnapshot():
                self._observe(event)
            case Received():
                self._dispatcher.received(event)
            case LeaseAnswered():
                self._lease_answered(event)
            case Copied():
                self.following.copied(event)
            case CopyFault(code, detail) if code == DAMAGE and not self._halts_for_damage:
                self._damage.found(detail)
            case CopyFault():
                self.following.fault(event)
            case Done() | Failed():
                context.out.answered(event)
                self._dispatcher.release()
            case LinkUp(link, peer, outbound, version):
                self.peers.up(link, peer, outbound=outbound, version=version)
                self.following.tick()
                if self.leadership.term is not None:
                    self.leadership.term.up()
            case LinkDown(link, node, reason):
                self._link_down(link, node, reason)
            case Command():
                self._admin.command(event)
        self.promises.write()
        self._judge()
        return context.out.take()

    @property
    def _halts_for_damage(self) -> bool:
        """Whether damage that is found now halts this replica at once.

        Not if it is known from an earlier start and there is no master: 1. A damaged master is the
        last node, and its ha starts again. 2. The check of its log finds the same record again,
        within seconds, before the lease may be taken. 3. If it halted, no node would be left to
        serve.
        """
        context = self.context
        return copies(context.state) and (not context.damage or self.following.linked)

    def _judge(self) -> None:
        """End a term or campaign that this replica must not continue, whatever the event was."""
        context = self.context
        if context.halted is not None:
            self.leadership.give_up(context.halted.detail)
            self.following.leave(context.halted.detail)
        elif context.cannot_lead is not None:
            self.leadership.give_up(context.cannot_lead)
        context.cannot_lead = None
        if context.ending is not None and not self._ended:
            self._ended = True
            self.leadership.give_up(context.ending.detail)
            context.out.put(Ended(*context.ending))

    @property
    def state(self) -> State:
        """State of the replica."""
        return self.context.state

    @property
    def session(self) -> LeaseSession:
        """The lease as this replica sees it."""
        return self.context.session

    @property
    def count(self) -> Counters:
        """Counters since this start."""
        return self.context.count

    def status(self, now_ms: int) -> dict[str, Any]:
        """Return the answer to ``GET /v1/cluster``."""
        self.context.now_ms = max(self.context.now_ms, now_ms)
        return cluster_status(self.context, self.peers, self.leadership.term)

    def _begin(self) -> None:
        context, found = self.context, self.found
        self._begun = True
        boot = self.setup.boot
        context.out.put(
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
            context.halt(*found.halted)
            return
        context.move(Trigger.RECOVERED)
        if found.damage:
            context.alarm(DAMAGE, damage_sentence(found.damage))
        context.out.put(Publish(((Slot.ROLE, NodeRole.FOLLOWER),)))

    def _tick(self) -> None:
        self.promises.tick()
        self.leadership.tick()
        self._damage.tick(self.leadership.term)
        self._switch_orders.tick()
        self._admin.tick()
        self.peers.tick(self.promises.promised, self._urgent())
        self._write_confirm()

    def _urgent(self) -> str | None:
        """Return the node that has the lease and is not master yet: clients of this node wait for
        it."""
        master = self.following.master
        status = None if master is None else self.peers.fresh(master.node)
        if master is None or status is None or serves(status):
            return None
        return master.node

    def _write_confirm(self) -> None:
        context = self.context
        if context.halted is not None:
            return  # the recovered confirm offset may itself be damaged
        if context.state is State.RESYNC:
            # The file is removed with the store: the log no longer has what was confirmed.
            self._confirm_written = (0, context.now_ms)
            return
        written, at_ms = self._confirm_written
        if context.confirm > written and context.now_ms - at_ms >= CONFIRM_WRITTEN_MS:
            self._confirm_written = context.confirm, context.now_ms
            context.out.put(PersistConfirm(context.confirm))

    def _observe(self, snapshot: NodeSnapshot) -> None:
        context = self.context
        if context.state is State.RESYNC:
            # ha takes the bytes of broker and reput once they have ended, so held bytes prove
            # nothing; they do not count as stalled while the store is emptied.
            snapshot = snapshot._replace(broker_nonce=0, reput_alive=False)
        context.snapshot = snapshot
        context.liveness.observe(snapshot, context.now_ms)
        context.first_offset = max(context.first_offset, snapshot.first_offset)
        term = self.leadership.term
        if term is not None:
            term.observe()
        gate_open = term is not None and term.gate_open
        fitness = context.cannot_open, context.trouble, context.stalls_are_over, gate_open
        if fitness != self._fitness:
            self._fitness = fitness
            self._dispatcher.broadcast_status()

    def _lease_answered(self, event: LeaseAnswered) -> None:
        version = self.context.members.version
        self.leadership.answered(event)
        if self.context.members.version != version:
            # It acknowledges the nodes to the master, or makes the others read them.
            self._dispatcher.broadcast_status()

    def _link_down(self, link: int, node: str, reason: str) -> None:
        self.peers.down(link, node, reason)
        self.following.down(link, reason)
        if self.leadership.term is not None:
            self.leadership.term.down(link)
