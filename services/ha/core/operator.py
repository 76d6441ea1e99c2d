"""Orders of operators, from the call to its answer (docs/replication.md, operating). Pure.

Each order is answered once. Guards and changes of the lease are ``orders``'; here is who carries an
order out. A master with trouble orders a switch itself. Step before: ``control``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from services.ha.core import orders
from services.ha.core.effects import Level, Publish, Reply
from services.ha.core.events import Command
from services.ha.core.failover import State, Trigger, copies
from services.ha.core.leadership import UNADOPTED, Leadership
from services.ha.core.mastership import Mastership
from services.ha.core.own import BROKER_STOPS
from services.ha.core.status import BELOW_MINIMUM, NOT_OPEN, could_lead, master_of, serves
from services.ha.core.switchover import Switchover
from services.ha.lease.value import Lease, Member
from services.ha.wire.payloads import StatusOk
from tidemark.formats.checkpoint import NodeRole, Slot

SWITCH_PAUSE_MS: Final = 10_000
"""Between two switches that trouble asks for."""
SWITCH_MS_MAX: Final = 5000
"""An operator waits no longer for the target."""
SHORT_LEASES: Final = 2
"""An alarm from so many lease times below the minimum on."""
OPENING_LEASES: Final = 2
"""A node opens its epoch within so many lease times after something moved, or another one tries."""
UNOPENED_MAX: Final = 2
"""The others' time doubles so often while this node gives up one term after the other."""
PATIENCE_MAX: Final = 6
"""Without trouble its own time to open doubles so often: each member may need long."""
STEADIER: Final = 2
"""A master whose services stood still for a lease time hands over only to a slave whose services
stood still for less than this part of a lease time: one half."""
STALLED: Final = "stalled-service"
"""Alarm: a service of this node stands still for too long, or too often."""
ANSWERS_MS_MAX: Final = 2500
"""An order that needs every node to answer waits for them so long."""
REMOVAL_MS_MAX: Final = 1500
"""A slave that ends waits no longer to be taken out of the set."""
STOPPING: Final = "stopping"
"""Reason of a switch ordered by this process itself, before it ends."""


class _Switch(NamedTuple):
    """A planned switch whose outcome an operator waits for."""

    token: int
    since_ms: int
    released_to: str | None = None
    is_known: bool = True
    """Whether the release is known to be applied; otherwise it may have been."""


class Operator:
    """Of one start of ha."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self.own, self.peers = leadership.own, leadership.peers
        self.promises, self.following = leadership.promises, leadership.following
        self._switch: _Switch | None = None
        self._not_before_ms = 0
        self._failed_at: tuple[int, int] | None = None
        """With which in-sync set the last switch failed, since when there was no other."""
        self._unopened = 0
        """Terms in a row that this node gave up before they were opened, at most UNOPENED_MAX."""
        self._tries = 0
        """The same, at most PATIENCE_MAX."""
        self._recreating: tuple[Command, int] | None = None
        """An order to make the lease again, and since when it waits for answers."""
        self._short_since_ms: int | None = None
        """Since when too few members follow this master for it to take sends."""
        self._stop: int | None = None
        """Who is told when this process may end."""
        self._stop_since_ms = 0

    def tick(self) -> None:
        """Begin a switch that trouble asks for; answer the operator once the target is master."""
        if self._stop is not None:
            self._watch_stop()
        else:
            self._hand_over()
        self._watch_switch()
        self._recreate()

    def command(self, order: Command) -> None:
        """Carry an order out, or say why not."""
        try:
            self._order(order)
        except orders.Refused as refused:
            self._refuse(order.token, refused)
        except orders.AlreadySo as so:
            self.own.out.put(Reply(order.token, ok=True, body=so.body))

    def _refuse(self, token: int, refused: orders.Refused) -> None:
        self.own.out.put(Reply(token, ok=False, body=refused.body))

    def _order(self, order: Command) -> None:
        own, token = self.own, order.token
        match order.name:
            case "switchover" if order.arguments.get("reason") == STOPPING:
                own.stopping, self._stop, self._stop_since_ms = True, token, own.now_ms
                self._watch_stop()
            case "switchover":
                self._order_switch(order)
            case "failover":
                self._order_failover(order)
            case "pause" | "resume":
                self._leadership.edits.begin(token, orders.set_paused(order.name == "pause"))
            case "remove-member":
                node = order.arguments.get("node", "")
                if (term := self._leadership.term) is not None and term.follows(node):
                    raise orders.Refused(
                        f"{node} follows: it would be in the set again as soon as it has caught "
                        "up. Nothing was changed.",
                        "Stop the node first. Take it out of cluster.nodes of every node if it is "
                        "not to come back.",
                    )
                self._leadership.edits.begin(token, orders.without_member(own, node))
            case "recreate-lease":
                if self._recreating is not None:
                    raise orders.Refused("the same order waits already. Nothing was done.")
                self._recreating = order, own.now_ms
                for node in own.others:
                    self.peers.hurry(node)
                self._recreate()
            case "resync":
                self._order_resync(order)
            case "adopt":
                self._order_adopt(token)
            case _:
                raise orders.Refused(f"there is no order {order.name!r}. Nothing was done.")

    def _recreate(self) -> None:
        """Make the lease again; nodes that have just come back get a moment to answer."""
        if self._recreating is None:
            return
        own, (order, since_ms) = self.own, self._recreating
        try:
            lease = orders.recreated(own, self.peers, self.promises.highest, order)
        except orders.NotYet as refused:
            if own.now_ms - since_ms >= ANSWERS_MS_MAX:
                self._recreating = None
                self._refuse(order.token, refused)
            return
        except orders.Refused as refused:
            self._recreating = None
            self._refuse(order.token, refused)
            return
        self._recreating = None
        if order.arguments.get("dry_run") == "true":
            body = {"epoch": lease.epoch, "in_sync": [member.node for member in lease.in_sync]}
            own.out.put(Reply(order.token, ok=True, body={**body, "to": lease.handover_to}))
            return
        try:
            # Looked at again when it is written: meanwhile somebody else may have made the lease,
            # and it may have a master and another set.
            self._leadership.edits.begin(
                order.token,
                lambda _: orders.recreated(own, self.peers, self.promises.highest, order),
                creates=True,
            )
        except orders.Refused as refused:
            self._refuse(order.token, refused)

    def _order_switch(self, order: Command) -> None:
        term = self._leadership.term
        if term is None or not term.opened:
            master, _ = master_of(self.own, self.peers)
            raise orders.Refused(
                f"{self.own.name} is not the master. Nothing was done.",
                "Send the order to the master.",
                master=master,
            )
        if term.switch is not None:
            raise orders.Refused("a switch is under way. Nothing was done.")
        target = self._target(term, order.arguments.get("to"))
        if self._switch is not None:
            # This node gave the lease away, and has it again before that order was answered.
            self._give_up_switch(self._switch)
        self._switch = _Switch(order.token, self.own.now_ms)
        self._begin_switch(term, target)

    def _target(self, term: Mastership, to: str | None) -> Member:
        """The slave to switch to. Raises Refused, AlreadySo."""
        own = self.own
        if to == own.name:
            detail = f"{to} is the master already. Nothing was changed."
            raise orders.AlreadySo(detail, master=to, epoch=term.epoch)
        if to is not None and to not in own.setup.names:
            raise orders.no_such_node(own, to)
        fit = term.fit_targets(self.peers, ordered=True)
        chosen = [member for member in fit if to is None or member.node == to]
        if not chosen:
            nodes = own.others if to is None else (to,)
            why = [f"{node} {term.unfit(node, self.peers, ordered=True)}" for node in nodes]
            raise orders.Refused(
                f"{'; '.join(why)}. Nothing was done.",
                "Try again when `tidemark cluster status` has the node in sync and no reason "
                "beside it.",
                retriable=True,
                in_sync=[member.node for member in term.in_sync.published],
            )
        return chosen[0]

    def _begin_switch(self, term: Mastership, target: Member) -> None:
        own = self.own
        own.say("switchover", f"Planned switch to {target.node}", to=target.node)
        term.switch = Switchover(
            own,
            self.peers,
            term,
            target,
            failed=lambda *why: self._switch_failed(target.node, *why),
            released=self._switch_released,
        )

    def _switch_failed(
        self, target: str, reason: str, fenced: bool, perhaps_released: bool
    ) -> None:
        own, term = self.own, self._leadership.term
        switch, self._switch = self._switch, None
        if switch is not None and perhaps_released:
            # What the target does shows whether it was.
            self._switch = switch._replace(released_to=target, is_known=False)
            switch = None
        self._not_before_ms = own.now_ms + SWITCH_PAUSE_MS
        self._failed_at = own.known_in_sync_at
        own.say("switchover-failed", f"The planned switch failed: {reason}", level=Level.WARNING)
        if switch is not None:
            detail = f"{reason}. {own.name} goes on as master."
            if fenced:
                detail = (
                    f"{reason}. There is a new epoch as soon as {own.name} or another node "
                    "has the lease."
                )
            self._refuse(switch.token, orders.Refused(detail, "Try again."))
        if term is not None:
            term.switch = None
            own.out.put(Publish(((Slot.SENDS_HELD, 0),)))
            if fenced:
                self._leadership.depose(f"a planned switch failed: {reason}")

    def _switch_released(self, node: str) -> None:
        """The lease is the target's to take."""
        if self._switch is not None:
            self._switch = self._switch._replace(released_to=node)
        self._leadership.released(node)
        self._stopped()

    def _watch_stop(self) -> None:
        """Give the lease to a member that can take it, and only then say that all is over."""
        own, leadership, term = self.own, self._leadership, self._leadership.term
        if term is not None:
            fit = term.fit_targets(self.peers)
            if term.switch is None and fit:
                self._begin_switch(term, fit[0])
            elif term.switch is None and not self._takers():
                self._stopped()
            elif term.switch is None:
                leadership.depose("this process ends")
            return
        if own.state is State.FENCED or leadership.campaign is not None:
            return
        stored = own.session.stored
        holder = None if stored is None else stored.lease.holder
        takers = self._takers()
        if holder is None or holder.member != own.member or not takers:
            if not self._waited_for():
                self._stopped()
            return
        token, self._stop = self._stop, None
        assert token is not None
        try:
            leadership.edits.begin(token, orders.released_for(own, takers[0]))
        except orders.Refused as refused:
            self._refuse(token, refused)

    def _waited_for(self) -> bool:
        """Whether a master still waits for this slave, which says that it ends: until it has taken
        it out of the set, senders would wait for a process that is gone."""
        return self.following.end() and self.own.now_ms - self._stop_since_ms < REMOVAL_MS_MAX

    def _takers(self) -> list[str]:
        """Other members of the set that could lead, the one with most of the log first."""
        fit = [
            status
            for member in self.own.known_in_sync
            if (status := self.peers.fresh(member.node)) is not None and could_lead(member, status)
        ]
        return [status.node for status in sorted(fit, key=lambda status: -status.end)]

    def _stopped(self) -> None:
        token, self._stop = self._stop, None
        if token is not None:
            self.own.out.put(Reply(token, ok=True, body={}))

    def _hand_over(self) -> None:
        own, term = self.own, self._leadership.term
        trouble = own.trouble
        self._note_alarms(term, trouble)
        if term is None or term.switch is not None:
            return
        # A member that does not follow keeps the log from being confirmed to its end until it has
        # left the set.
        is_other_set = self._failed_at not in (None, own.known_in_sync_at)
        rested = own.now_ms >= self._not_before_ms or is_other_set
        if trouble and term.opened and rested and (fit := self._better_targets(term)):
            self._not_before_ms, self._failed_at = own.now_ms + SWITCH_PAUSE_MS, None
            self._alarm_hand_over(trouble, f"This node has trouble: {trouble}.")
            self._begin_switch(term, fit[0])
        elif not term.gate_open:
            self._leave_unopened(term, trouble)

    def _alarm_hand_over(self, trouble: str, text: str) -> None:
        """A broker that is asked to stop is no trouble, although its node hands over like one."""
        if trouble != BROKER_STOPS:
            self.own.alarm("handed-over", text)

    def _better_targets(self, term: Mastership) -> list[Member]:
        """Slaves to which a master with trouble hands over, the one with most of the log first.

        For stalls that are over, only those that stood still for less than half a lease time.
        Otherwise: 1. the machines of all nodes are busy, and every service stalls now and then; 2.
        the master hands over to a slave that stalls as often; 3. that one does so again.
        """
        own, fit = self.own, term.fit_targets(self.peers)
        if not own.only_stalls or own.liveness.hangs:
            return fit
        return [member for member in fit if self._is_steadier(member.node)]

    def _is_steadier(self, node: str) -> bool:
        """Whether the services of another node moved of late; False if it has not said so lately.

        Earlier versions do not say how long they stood still, only whether it is too long.
        """
        told = self.peers.fresh(node)
        stalled_ms = None if told is None else told.facts.get("stalled_ms", 0)
        return isinstance(stalled_ms, int) and stalled_ms < self.own.times.lease_ms // STEADIER

    def _note_alarms(self, term: Mastership | None, trouble: str) -> None:
        own, stalling = self.own, self.own.liveness.stalling
        if not trouble:
            own.calm("handed-over")
        if stalling:
            own.alarm(STALLED, f"{stalling} stands still, or stood still too often of late.")
        else:
            own.calm(STALLED)
        if term is not None and term.gate_open:
            self._unopened = self._tries = 0
            own.calm(NOT_OPEN)
        elif own.state in (State.CATCHUP, State.IN_SYNC):
            own.calm(NOT_OPEN)
        self._note_minimum(term)

    def _note_minimum(self, term: Mastership | None) -> None:
        """Say it if too few members follow for two lease times: the master cannot know whether they
        are down or only cut off from it, and keeps the lease (docs/decisions/0030)."""
        own = self.own
        # Counted as sends are judged: else they are refused, and no alarm says why.
        if term is None or (size := term.in_sync.size(own.now_ms)) >= term.in_sync.least:
            self._short_since_ms = None
            own.calm(BELOW_MINIMUM)
            return
        if self._short_since_ms is None:
            self._short_since_ms = own.now_ms
        if own.now_ms - self._short_since_ms >= SHORT_LEASES * own.times.lease_ms:
            own.alarm(
                "below-minimum",
                f"{size} members of the in-sync set answer, {own.name} counted, and min_in_sync "
                f"is {term.in_sync.least}: sends are refused. {own.name} keeps the lease. "
                "If the others run, it is cut off from them: stop it, and one of them becomes "
                "master.",
            )

    def _leave_unopened(self, term: Mastership, trouble: str) -> None:
        """Let another member try, if this node does not open the epoch that it was granted.

        There is nothing to switch: nobody was served in this term. Each time in a row the others,
        who may be no better off, get longer; so does this node, if it has no trouble that it knows
        of: the log may be long, and everybody slow.
        """
        own, stored = self.own, self.own.session.stored
        if term.granted_ms is None:
            return
        patience_ms = OPENING_LEASES * own.times.lease_ms
        since_ms = term.granted_ms if trouble else max(term.granted_ms, term.moved_ms)
        if own.now_ms - since_ms < patience_ms:
            return
        why = f"this node has trouble: {trouble}" if trouble else term.hindrance
        own.alarm("not-open", f"Epoch {term.epoch} is granted and takes no sends: {why}.")
        if not trouble and own.now_ms - since_ms < patience_ms * 2**self._tries:
            return
        if stored is None or stored.lease.paused or not self._takers():
            return
        if trouble:
            self._alarm_hand_over(
                trouble, f"This node has trouble: {trouble}. It cannot open epoch {term.epoch}."
            )
        own.step_back(why, times=2**self._unopened)
        self._unopened = min(self._unopened + 1, UNOPENED_MAX)
        self._tries = min(self._tries + 1, PATIENCE_MAX)

    def _watch_switch(self) -> None:
        own, switch = self.own, self._switch
        if switch is None or switch.released_to is None:
            return
        told = self.peers.fresh(switch.released_to)
        took_ms = own.now_ms - switch.since_ms
        if told is not None and serves(told):
            body = {"master": switch.released_to, "epoch": told.promised, "took_ms": took_ms}
            body["changed"] = True
            own.out.put(Reply(switch.token, ok=True, body=body))
            self._switch = None
        elif took_ms > SWITCH_MS_MAX:
            self._give_up_switch(switch)

    def _give_up_switch(self, switch: _Switch) -> None:
        """Answer an order whose target does not serve, though it was or may be given the lease."""
        self._switch = None
        told = None if switch.released_to is None else self.peers.fresh(switch.released_to)
        was = "was" if switch.is_known else "may have been"
        detail = f"the lease {was} released for {switch.released_to}, {_progress(told)}."
        self._refuse(switch.token, orders.Refused(detail, "See `tidemark cluster status`."))

    def _order_failover(self, order: Command) -> None:
        own, token = self.own, order.token
        loss = orders.guard_failover(own, self.peers, order)
        if order.arguments.get("dry_run") == "true":
            own.out.put(Reply(token, ok=True, body=loss.body))
            return
        if not self._leadership.can_stand:
            raise orders.Refused("a campaign or a copy is under way. Nothing was done.", "Again.")

        def outcome(lease: Lease | None, reason: str) -> None:
            if lease is None:
                self._refuse(token, orders.Refused(f"{reason}. Nothing was lost.", **loss.body))
            else:
                body = {"master": own.name, "epoch": lease.epoch, **loss.body}
                own.out.put(Reply(token, ok=True, body=body))

        self._leadership.stand("an operator orders it", forced=True, outcome=outcome)

    def _order_resync(self, order: Command) -> None:
        own = self.own
        if order.arguments.get("group") != own.setup.group:
            raise orders.Refused(
                f"the group's name is not {order.arguments.get('group', '')!r}. Nothing was done.",
                "Type the name of the group, to show that you mean this one.",
            )
        master, reason = master_of(own, self.peers)
        if master == own.name:
            raise orders.Refused(
                f"{own.name} is the master: it is what the others copy. Nothing was done.",
                "Make another node the master first: `tidemark cluster switchover`.",
            )
        told = None if master is None else self.peers.fresh(master)
        if master is None or told is None:
            raise orders.Refused(
                f"there is no master to copy from: {reason or 'it does not answer'}. Nothing was "
                "done.",
            )
        if copies(own.state) and not own.holds_records:
            raise orders.AlreadySo(
                f"{own.name} holds no record: it copies all of {master} as it is. Nothing was "
                "changed.",
                node=own.name,
                copies_from=master,
            )
        busy = own.table_writes or self.following.rewriting
        if busy or not own.move(Trigger.ORDERED_RESYNC, "an operator orders it"):
            raise orders.Refused(f"{own.name} is {own.state.value}. Nothing was done.")
        self.following.leave("an operator orders a resync")
        self.following.resync(told.first_offset, "an operator orders it")
        body = {"node": own.name, "copies_from": master, "bytes": told.end - told.first_offset}
        body["changed"] = True
        own.out.put(Reply(order.token, ok=True, body=body))

    def _order_adopt(self, token: int) -> None:
        own = self.own
        is_unadopted = own.halted is not None and own.halted.code == UNADOPTED
        if not is_unadopted or self.following.rewriting:
            raise orders.Refused(f"{own.name} does not hold a store to adopt. Nothing was done.")
        own.halted = None
        own.calm(UNADOPTED)
        own.initialised = True
        own.move(Trigger.ADOPTED, "an operator orders it")
        own.out.put(Publish(((Slot.ROLE, NodeRole.FOLLOWER),)))
        self.promises.see(own.session.seen)
        own.out.put(Reply(token, ok=True, body={"node": own.name, "log_end": own.end}))


def _progress(told: StatusOk | None) -> str:
    """What a node that was to become the master does instead, in words."""
    if told is None:
        return "which does not answer now"
    if told.state in (State.PROMOTING.value, State.MASTER.value):
        hindrance = told.facts.get("hindrance")
        return "which has taken it and takes no sends yet" + (f": {hindrance}" if hindrance else "")
    reason = told.facts.get("trouble") or told.facts.get("reason")
    return f"which is {told.state}" + (f": {reason}" if reason else "")
