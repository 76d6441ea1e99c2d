"""Decides when the lease goes to another member, and to which: on a command, SIGTERM or trouble.

An operator orders a switch; a master with trouble begins one itself; a process that is about to end
gives the lease away first. Each command is answered once. A master that cannot switch, because its
epoch does not open or its disk hangs, lets the lease expire. Step before: ``admin_commands``, or
the passing of time. Step after: ``switchover``, within the term.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from services.ha.core import admin_rules as rules
from services.ha.core import lease_edits
from services.ha.core.effects import Level, Reply
from services.ha.core.events import Command
from services.ha.core.leadership import Leadership
from services.ha.core.mastership import Mastership
from services.ha.core.replica_context import BROKER_STOPS
from services.ha.core.states import State
from services.ha.core.status import BELOW_MINIMUM, NOT_OPEN, could_lead, master_of, serves
from services.ha.core.switch_targets import fit_targets, unfit
from services.ha.lease.value import Member
from services.ha.wire.payloads import StatusOk

SWITCH_PAUSE_MS: Final = 10_000
"""Pause between two automatic switches."""
SWITCH_MS_MAX: Final = 5000
"""Limit of the time that an operator waits for the target to serve."""
SHORT_LEASES: Final = 2
"""Lease times below min_in_sync after which an alarm is raised."""
OPENING_LEASES: Final = 2
"""Lease times without progress after which an epoch that is not open is given up."""
UNOPENED_MAX: Final = 2
"""Doublings of the pause for the others, while this node gives up one term after the other."""
FAILED_TERMS_MAX: Final = 2
"""Epochs in a row that may end unopened before others come first."""
PATIENCE_MAX: Final = 6
"""Doublings of this node's own time to open an epoch without trouble, because each member may need
long."""
STEADIER: Final = 2
"""Divisor of a lease time. A master whose services stalled for a lease time hands over only to a
slave whose services stalled for less than half of one."""
HANGS: Final = "the disk of the broker has flushed nothing for a lease time"
STALLED: Final = "stalled-service"
"""Alarm: a service of this node stalls too long or too often."""
REMOVAL_MS_MAX: Final = 1500
"""Limit of the time that a stopping slave waits to be removed from the set."""
STOPPING: Final = "stopping"
"""Reason of a switch that this process orders before it ends."""


class _Switch(NamedTuple):
    """A planned switch whose outcome an operator waits for."""

    token: int
    since_ms: int
    released_to: str | None = None
    is_known: bool = True
    """Whether the release is known to be applied; False: it may have been."""


class SwitchOrders:
    """Orders the switches of the master; one for the life of the process."""

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self.context, self.peers = leadership.context, leadership.peers
        self.following = leadership.following
        self._switch: _Switch | None = None
        self._not_before_ms = 0
        self._failed_at: tuple[int, int] | None = None
        """Version of the in-sync set at which the last switch failed; None: none failed since."""
        self._given_up = 0
        """Consecutive terms that this node gave up before they were open."""
        self._failed_epoch = self._failed_terms = 0
        """The last term in a row of terms that did not open, and their number."""
        self._failing_since_ms = 0
        """When the first of them began."""
        self._short_since_ms: int | None = None
        """Since when too few members follow this master for it to accept sends."""
        self._stop: int | None = None
        """Token of the command that is answered when this process may end."""
        self._stop_since_ms = 0

    def tick(self) -> None:
        """Begin a switch if this node has trouble; answer the operator when it is done."""
        if self._stop is not None:
            self._watch_stop()
        else:
            self._hand_over()
        self._watch_switch()

    def stop(self, token: int) -> None:
        """Give the lease away because this process is about to end, then answer the command."""
        self.context.stopping, self._stop = True, token
        self._stop_since_ms = self.context.now_ms
        self._watch_stop()

    def order(self, order: Command) -> None:
        """Begin the switch that an operator orders. Raises Refused, AlreadySo."""
        term = self._leadership.term
        if term is None or not term.opened:
            master, _ = master_of(self.context, self.peers)
            raise rules.Refused(
                f"{self.context.name} is not the master. Nothing was done.",
                "Send the order to the master.",
                master=master,
            )
        if term.switch is not None:
            raise rules.Refused("a switch is under way. Nothing was done.")
        self._begin_switch(term, self._target(term, order.arguments.get("to")), order.token)

    def _target(self, term: Mastership, to: str | None) -> Member:
        """Return the slave to switch to. Raises Refused, AlreadySo."""
        context = self.context
        if to == context.name:
            detail = f"{to} is the master already. Nothing was changed."
            raise rules.AlreadySo(detail, master=to, epoch=term.epoch)
        if to is not None and to not in context.names:
            raise rules.no_such_node(context, to)
        fit = fit_targets(term, self.peers, ordered=True)
        chosen = [member for member in fit if to is None or member.node == to]
        if not chosen:
            nodes = context.others if to is None else (to,)
            why = [f"{node} {unfit(term, self.peers, node, ordered=True)}" for node in nodes]
            raise rules.Refused(
                f"{'; '.join(why)}. Nothing was done.",
                "Try again when `tidemark cluster status` shows the node in sync and without a "
                "reason.",
                retriable=True,
                in_sync=[member.node for member in term.in_sync.published],
            )
        return chosen[0]

    def _begin_switch(self, term: Mastership, target: Member, token: int | None = None) -> None:
        """token: token of the command that is answered when the switch ends."""
        context = self.context
        if self._switch is not None:
            # This node gave the lease away, and has it again before that command was answered.
            self._give_up_switch(self._switch)
        if token is not None:
            self._switch = _Switch(token, context.now_ms)
        context.say("switchover", f"Planned switch to {target.node}", to=target.node)
        term.begin_switch(
            target,
            failed=lambda *why: self._switch_failed(target.node, *why),
            released=self._switch_released,
        )

    def _switch_failed(
        self, target: str, reason: str, fenced: bool, perhaps_released: bool
    ) -> None:
        context, term = self.context, self._leadership.term
        switch, self._switch = self._switch, None
        if switch is not None and perhaps_released:
            # The next status of the target shows whether the lease was released.
            self._switch = switch._replace(released_to=target, is_known=False)
            switch = None
        self._not_before_ms = context.now_ms + SWITCH_PAUSE_MS
        self._failed_at = context.known_in_sync_at
        context.say(
            "switchover-failed", f"The planned switch failed: {reason}", level=Level.WARNING
        )
        if switch is not None:
            detail = f"{reason}. {context.name} goes on as master."
            if fenced:
                detail = (
                    f"{reason}. There is a new epoch as soon as {context.name} or another node "
                    "has the lease."
                )
            self.context.out.put(rules.Refused(detail, "Try again.").reply(switch.token))
        if term is not None:
            term.end_switch()
            if fenced:
                self._leadership.depose(f"a planned switch failed: {reason}")

    def _switch_released(self, node: str) -> None:
        """Continue after the lease was released for the target."""
        if self._switch is not None:
            self._switch = self._switch._replace(released_to=node)
        self._leadership.released(node)
        # If the order to end came while the lease was being released, the released lease names this
        # node as a member, and its successor must remove it first.
        if self.context.is_spare:
            self._stop_since_ms = self.context.now_ms
        else:
            self._stopped()

    def _watch_stop(self) -> None:
        """Give the lease to a member that can take it, then answer that this process may end."""
        context, leadership, term = self.context, self._leadership, self._leadership.term
        if term is not None:
            fit = fit_targets(term, self.peers)
            if term.switch is None and fit:
                self._begin_switch(term, fit[0])
            elif term.switch is None and not self._takers():
                self._stopped()
            elif term.switch is None:
                leadership.depose("this process ends")
            return
        if context.state is State.FENCED or leadership.campaign is not None:
            return
        stored = context.session.stored
        holder = None if stored is None else stored.lease.holder
        takers = self._takers()
        if holder is None or holder.member != context.member or not takers:
            if not self._waited_for():
                self._stopped()
            return
        token, self._stop = self._stop, None
        assert token is not None
        try:
            leadership.edits.begin(token, lease_edits.released_for(context, takers[0]))
        except rules.Refused as refused:
            self.context.out.put(refused.reply(token))

    def _waited_for(self) -> bool:
        """Return whether a master still waits for this stopping slave. Until the slave is removed
        from the set, senders would wait for a process that is gone."""
        context, session = self.context, self.context.session
        waits = self.following.end() and context.now_ms - self._stop_since_ms < REMOVAL_MS_MAX
        if not waits or self.following.linked:
            return waits
        # Without a link only the lease shows whether this replica is a member.
        is_read = session.asked_ms is not None and session.asked_ms > self._stop_since_ms
        if is_read and not context.is_spare:
            return False
        context.out.put(*session.read(context.now_ms))
        return True

    def _takers(self) -> list[str]:
        """Return other members of the set that could lead, the one with the longest log first."""
        fit = [
            status
            for member in self.context.known_in_sync
            if (status := self.peers.fresh(member.node)) is not None and could_lead(member, status)
        ]
        return [status.node for status in sorted(fit, key=lambda status: -status.end)]

    def _stopped(self) -> None:
        token, self._stop = self._stop, None
        if token is not None:
            self.context.out.put(Reply(token, ok=True, body={}))

    def _hand_over(self) -> None:
        context, term = self.context, self._leadership.term
        trouble = context.trouble
        self._note_alarms(term, trouble)
        if term is None or term.switch is not None:
            return
        # A member that does not follow keeps the confirm offset back until it has left the set.
        is_other_set = self._failed_at not in (None, context.known_in_sync_at)
        rested = context.now_ms >= self._not_before_ms or is_other_set
        if trouble and term.opened and rested and (fit := self._better_targets(term)):
            self._not_before_ms, self._failed_at = context.now_ms + SWITCH_PAUSE_MS, None
            self._alarm_hand_over(trouble, f"This node has trouble: {trouble}.")
            self._begin_switch(term, fit[0])
        elif not term.gate_open:
            self._leave_unopened(term, trouble)
        elif self._disk_hangs(term):
            self._leave_hanging(term)

    def _alarm_hand_over(self, trouble: str, text: str) -> None:
        """Raise the alarm, unless the broker is only stopping."""
        if trouble != BROKER_STOPS:
            self.context.alarm("handed-over", text)

    def _better_targets(self, term: Mastership) -> list[Member]:
        """Return slaves to which a master with trouble hands over, the longest log first.

        For stalls that are over, these are only slaves that stalled for less than half a lease
        time. Otherwise: 1. The machines of all nodes are busy, and every service stalls now and
        then. 2. The master hands over to a slave that stalls as often. 3. That one does so again.
        """
        context, fit = self.context, fit_targets(term, self.peers)
        if not context.only_stalls or context.liveness.hangs:
            return fit
        return [member for member in fit if self._is_steadier(member.node)]

    def _is_steadier(self, node: str) -> bool:
        """Return whether the services of another node stalled less of late; False without a recent
        status."""
        status = self.peers.fresh(node)
        limit_ms = self.context.times.lease_ms // STEADIER
        return status is not None and status.facts.stalled_ms < limit_ms

    def _note_alarms(self, term: Mastership | None, trouble: str) -> None:
        context, stalling = self.context, self.context.liveness.stalling
        if not trouble:
            context.calm("handed-over")
        # While the store is emptied, broker and reput wait for ha.
        if stalling and context.state is not State.RESYNC:
            context.alarm(STALLED, f"{stalling} is stalled, or was stalled too often recently.")
        elif term is not None and self._disk_hangs(term):
            context.alarm(STALLED, f"{HANGS}.")
        else:
            context.calm(STALLED)
        if term is not None and term.gate_open:
            self._given_up = self._failed_terms = 0
            context.calm(NOT_OPEN)
        elif context.state in (State.CATCHUP, State.IN_SYNC):
            self._failed_terms = 0
            context.calm(NOT_OPEN)
        self._note_minimum(term)

    def _note_minimum(self, term: Mastership | None) -> None:
        """Raise an alarm if too few members follow for two lease times. The master cannot know
        whether they are down or only cut off from it, and keeps the lease (docs/decisions/0030)."""
        context = self.context
        # Counted like the check of sends; otherwise sends would be refused without an alarm.
        if term is None or (size := term.in_sync.size(context.now_ms)) >= term.in_sync.least:
            self._short_since_ms = None
            context.calm(BELOW_MINIMUM)
            return
        if self._short_since_ms is None:
            self._short_since_ms = context.now_ms
        if context.now_ms - self._short_since_ms >= SHORT_LEASES * context.times.lease_ms:
            context.alarm(
                "below-minimum",
                f"{size} members of the in-sync set answer, {context.name} counted, and "
                f"min_in_sync is {term.in_sync.least}: sends are refused. {context.name} keeps "
                "the lease. "
                "If the others run, it is cut off from them: stop it, and one of them becomes "
                "master.",
            )

    def _leave_unopened(self, term: Mastership, trouble: str) -> None:
        """Let another member try if this node does not open the epoch that it was granted.

        There is no switch, because no client was served in this term. With each term in a row the
        others get more time, because they may have the same problem. This node also gets more time
        if it knows of no trouble: the log may be long, and every node slow.
        """
        context, stored = self.context, self.context.session.stored
        if term.epoch != self._failed_epoch:
            self._failed_epoch, self._failed_terms = term.epoch, self._failed_terms + 1
            if self._failed_terms == 1:
                self._failing_since_ms = term.begun_ms
        patience_ms = OPENING_LEASES * context.times.lease_ms
        since_ms = term.begun_ms if trouble else max(term.begun_ms, term.moved_ms)
        if self._failed_terms > FAILED_TERMS_MAX:
            # Otherwise a broker that ends in each opening, and starts again, keeps the lease here.
            trouble = (
                trouble or f"{self._failed_terms - 1} epochs in a row ended before they opened"
            )
            since_ms = self._failing_since_ms
        if context.now_ms - since_ms < patience_ms:
            return
        term.note_late()
        why = f"this node has trouble: {trouble}" if trouble else term.hindrance
        context.alarm("not-open", f"Epoch {term.epoch} is granted but accepts no sends: {why}.")
        own_time_ms = patience_ms * 2 ** min(self._given_up, PATIENCE_MAX)
        if not trouble and context.now_ms - since_ms < own_time_ms:
            return
        if stored is None or stored.lease.paused or not self._takers():
            return
        if trouble:
            self._alarm_hand_over(
                trouble, f"This node has trouble: {trouble}. It cannot open epoch {term.epoch}."
            )
        context.step_back(why, times=2 ** min(self._given_up, UNOPENED_MAX))
        self._given_up += 1

    def _disk_hangs(self, term: Mastership) -> bool:
        return term.unflushed_ms >= self.context.times.lease_ms

    def _leave_hanging(self, term: Mastership) -> None:
        """Let the lease expire if the disk hangs and a slave has more of the log on disk.

        A planned switch is impossible: it requires a log that is confirmed to its end.
        """
        stored = self.context.session.stored
        if stored is None or stored.lease.paused or not self._takers():
            return
        if term.durable_elsewhere:
            self.context.step_back(HANGS)

    def _watch_switch(self) -> None:
        context, switch = self.context, self._switch
        if switch is None or switch.released_to is None:
            return
        status = self.peers.fresh(switch.released_to)
        took_ms = context.now_ms - switch.since_ms
        if status is not None and serves(status):
            body = {"master": switch.released_to, "epoch": status.promised, "took_ms": took_ms}
            body["changed"] = True
            context.out.put(Reply(switch.token, ok=True, body=body))
            self._switch = None
        elif took_ms > SWITCH_MS_MAX:
            self._give_up_switch(switch)

    def _give_up_switch(self, switch: _Switch) -> None:
        """Answer a command whose target does not serve, although the lease was released for it, or
        may have been."""
        self._switch = None
        status = None if switch.released_to is None else self.peers.fresh(switch.released_to)
        was = "was" if switch.is_known else "may have been"
        detail = f"the lease {was} released for {switch.released_to}, {_progress(status)}."
        self.context.out.put(
            rules.Refused(detail, "See `tidemark cluster status`.").reply(switch.token)
        )


def _progress(status: StatusOk | None) -> str:
    """Describe the state of a switch target that does not serve yet."""
    if status is None:
        return "which does not answer now"
    if status.state in (State.PROMOTING.value, State.MASTER.value):
        hindrance = status.facts.hindrance
        return "which has taken it and takes no sends yet" + (f": {hindrance}" if hindrance else "")
    reason = status.facts.trouble or status.facts.reason
    return f"which is {status.state}" + (f": {reason}" if reason else "")
