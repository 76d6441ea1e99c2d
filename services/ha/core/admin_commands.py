"""Commands of operators, from the call to its answer (docs/replication.md, operating). Pure.

Each command is answered once: at once if it is refused, else when its outcome is known. Step
before: ``control``. Step after: ``switch_orders`` for switches, ``lease_edits`` for changes of the
lease, ``leadership`` and ``following`` for the rest.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from services.ha.core import admin_rules as rules
from services.ha.core import lease_edits, members
from services.ha.core.effects import Publish, Reply
from services.ha.core.events import Command
from services.ha.core.following import DAMAGED
from services.ha.core.leadership import UNADOPTED, Leadership
from services.ha.core.states import State, Trigger, copies
from services.ha.core.status import master_of
from services.ha.core.switch_orders import REMOVAL_MS_MAX, STOPPING, SwitchOrders
from services.ha.lease.value import Lease
from services.ha.wire.payloads import StatusOk
from tidemark.formats.checkpoint import NodeRole, Slot

ANSWERS_MS_MAX: Final = 2500
"""Time that a command waits for the answers of all nodes."""


class _Emptying(NamedTuple):
    """A command to resync that waits until this node has left the in-sync set."""

    order: Command
    since_ms: int
    linked_ms: int | None
    """When it was last linked to the master; None: not since the command."""


class AdminCommands:
    """Runs the commands of operators; one for the life of the process."""

    def __init__(self, leadership: Leadership, switch_orders: SwitchOrders) -> None:
        self._leadership, self._switch_orders = leadership, switch_orders
        self.context, self.peers = leadership.context, leadership.peers
        self.promises, self.following = leadership.promises, leadership.following
        self._recreating: tuple[Command, int] | None = None
        """A command to recreate the lease, and since when it waits for answers of other nodes."""
        self._emptying: _Emptying | None = None

    def tick(self) -> None:
        """Recreate the lease once all nodes have answered; empty the store once no master counts on
        its copy."""
        self._recreate()
        self._leave_and_empty()

    def command(self, order: Command) -> None:
        """Run a command, or answer why it is refused."""
        try:
            self._order(order)
        except rules.Refused as refused:
            self.context.out.put(refused.reply(order.token))
        except rules.AlreadySo as so:
            self.context.out.put(so.reply(order.token))

    def _order(self, order: Command) -> None:
        context, token = self.context, order.token
        match order.name:
            case "switchover" if order.arguments.get("reason") == STOPPING:
                self._switch_orders.stop(token)
            case "switchover":
                self._switch_orders.order(order)
            case "failover":
                self._order_failover(order)
            case "pause" | "resume":
                self._leadership.edits.begin(token, lease_edits.set_paused(order.name == "pause"))
            case "remove-member":
                node = order.arguments.get("node", "")
                if (term := self._leadership.term) is not None and term.follows(node):
                    raise rules.Refused(
                        f"{node} follows: it would be in the set again as soon as it has caught "
                        "up. Nothing was changed.",
                        "Stop the node first; or remove it from the group: `tidemark cluster "
                        "remove-node`.",
                    )
                self._leadership.edits.begin(token, lease_edits.without_member(context, node))
            case "add-node" | "remove-node":
                self._change_nodes(order)
            case "recreate-lease":
                if self._recreating is not None:
                    raise rules.Refused("the same order waits already. Nothing was done.")
                self._recreating = order, context.now_ms
                for node in context.others:
                    self.peers.hurry(node)
                self._recreate()
            case "resync":
                self._order_resync(order)
            case "adopt":
                self._order_adopt(token)
            case _:
                raise rules.Refused(f"there is no order {order.name!r}. Nothing was done.")

    def _recreate(self) -> None:
        """Create the lease again; nodes that have just come back get a moment to answer."""
        if self._recreating is None:
            return
        context, (order, since_ms) = self.context, self._recreating
        try:
            lease = rules.recreated(context, self.peers, self.promises.highest, order)
        except rules.NotYet as refused:
            if context.now_ms - since_ms >= ANSWERS_MS_MAX:
                self._recreating = None
                self.context.out.put(refused.reply(order.token))
            return
        except rules.Refused as refused:
            self._recreating = None
            self.context.out.put(refused.reply(order.token))
            return
        self._recreating = None
        if order.arguments.get("dry_run") == "true":
            body = {"epoch": lease.epoch, "in_sync": [member.node for member in lease.in_sync]}
            context.out.put(Reply(order.token, ok=True, body={**body, "to": lease.handover_to}))
            return
        try:
            # Computed again when it is written: meanwhile another node may have created the lease,
            # and it may have a master and another set.
            self._leadership.edits.begin(
                order.token,
                lambda _: rules.recreated(context, self.peers, self.promises.highest, order),
                creates=True,
            )
        except rules.Refused as refused:
            self.context.out.put(refused.reply(order.token))

    def _change_nodes(self, order: Command) -> None:
        """Begin a change of the group's nodes. Raises Refused."""
        context, term = self.context, self._leadership.term
        if term is None:
            master, _ = master_of(context, self.peers)
            raise rules.Refused(
                f"{context.name} is not the master. Nothing was changed.",
                "Send the order to the master.",
                master=master,
            )
        if term.switch is not None:
            raise rules.Refused("a switch is under way. Nothing was changed.", "Try again.")
        name = order.arguments.get("node", "")
        if order.name == "add-node":
            change = members.with_node(context, members.requested_node(order.arguments))
            what = f"{name} is being added to the group"
        elif name == context.name:
            raise rules.Refused(
                f"{name} is the master. Nothing was changed.",
                "Make another node the master first: `tidemark cluster switchover`.",
            )
        else:
            change = members.without_node(context, term, name)
            what = f"{name} is being removed from the group"
        members.check_agreement(context, self.peers, term)
        self._leadership.edits.begin(order.token, change, what=what)

    def _order_failover(self, order: Command) -> None:
        context, token = self.context, order.token
        loss = rules.guard_failover(context, self.peers, order)
        if order.arguments.get("dry_run") == "true":
            context.out.put(Reply(token, ok=True, body=loss.body))
            return
        if not self._leadership.can_campaign:
            raise rules.Refused(
                "a campaign or a copy is under way. Nothing was done.", "Try again when it ends."
            )

        def outcome(lease: Lease | None, reason: str) -> None:
            if lease is None:
                self.context.out.put(
                    rules.Refused(f"{reason}. Nothing was lost.", **loss.body).reply(token)
                )
            else:
                body = {"master": context.name, "epoch": lease.epoch, **loss.body}
                context.out.put(Reply(token, ok=True, body=body))

        self._leadership.begin_campaign("an operator orders it", forced=True, outcome=outcome)

    def _order_resync(self, order: Command) -> None:
        """Leave the in-sync set as at an orderly stop, then empty the store. Otherwise the master
        could hand over to this node while it is being emptied."""
        context = self.context
        if self._emptying is not None:
            raise rules.Refused("the same order waits already. Nothing was done.")
        self._copied_from(order)
        if copies(context.state):
            linked_ms = context.now_ms if self.following.linked else None
            self._emptying = _Emptying(order, context.now_ms, linked_ms)
            self._leave_and_empty()
        else:
            self._empty(order)

    def _leave_and_empty(self) -> None:
        if self._emptying is None:
            return
        context, linked = self.context, self.following.linked
        self.following.end()
        if linked:
            self._emptying = self._emptying._replace(linked_ms=context.now_ms)
        order, since_ms, linked_ms = self._emptying
        until_ms, is_out = since_ms + REMOVAL_MS_MAX, False
        if not linked:
            # The master ended the link because it has removed this node, if the lease agrees.
            left_ms = since_ms if linked_ms is None else linked_ms
            until_ms = max(until_ms, left_ms + context.times.request_timeout_ms)
            read_ms = context.session.asked_ms
            if read_ms is not None and read_ms > left_ms:
                is_out = context.member not in context.known_in_sync
            else:
                context.out.put(*context.session.read(context.now_ms))
        is_late = context.now_ms >= until_ms
        if copies(context.state) and not is_out and not is_late:
            return
        try:
            # A set of the least size keeps this node, and its master knows that it leaves.
            is_known = linked_ms is None or self.following.heard_since(since_ms)
            if not is_out and not is_known:
                raise rules.Refused(
                    f"the link to the master ended, and {context.name} may still be in the in-sync "
                    "set. Nothing was done.",
                    "Try again when `tidemark cluster status` has a master.",
                )
            self._empty(order)
        except (rules.Refused, rules.AlreadySo) as refused:
            if copies(context.state) and not is_late:
                return  # the connection to the master is not there again yet
            self.following.stay("its store is not emptied")
            context.out.put(refused.reply(order.token))
        self._emptying = None

    def _empty(self, order: Command) -> None:
        context, status = self.context, self._copied_from(order)
        self.following.leave("an operator orders a resync")
        context.move(Trigger.ORDERED_RESYNC, "an operator orders it")
        size = status.end - status.first_offset
        body = {"node": context.name, "copies_from": status.node, "bytes": size}
        body["changed"] = True
        answer = Reply(order.token, ok=True, body=body)
        self.following.resync(
            status.first_offset, "an operator orders it", lambda _: context.out.put(answer)
        )

    def _copied_from(self, order: Command) -> StatusOk:
        """Return the status of the master to copy from. Raises Refused, AlreadySo."""
        context = self.context
        if order.arguments.get("group") != context.setup.group:
            raise rules.Refused(
                f"the group's name is not {order.arguments.get('group', '')!r}. Nothing was done.",
                "Type the name of the group, to show that you mean this one.",
            )
        # A new master of two nodes with a minimum of two opens once the other one follows, which a
        # halted node never does. A healthy node is not emptied before: its copy is needed.
        is_halted = context.state is State.HALTED
        master, reason = master_of(context, self.peers, or_opening=is_halted)
        if master == context.name:
            raise rules.Refused(
                f"{context.name} is the master: it is what the others copy. Nothing was done.",
                "Make another node the master first: `tidemark cluster switchover`.",
            )
        status = None if master is None else self.peers.fresh(master)
        if master is None or status is None:
            raise rules.Refused(
                f"there is no master to copy from: {reason or 'it does not answer'}. Nothing was "
                "done.",
            )
        if status.facts.trouble == DAMAGED:
            raise rules.Refused(
                f"{master} reports damage. Nothing after a damaged record could be copied, and "
                f"{context.name} may have the only copy of it. Nothing was done.",
                f"The alarms and /ready of {master} give the place: repair it, then restart the ha "
                f"of {master}, which reads it again. Do the same if retention has removed it.",
            )
        if copies(context.state) and not context.holds_records:
            raise rules.AlreadySo(
                f"{context.name} holds no record: it copies all of {master} as it is. Nothing was "
                "changed.",
                node=context.name,
                copies_from=master,
            )
        may_begin = copies(context.state) or is_halted
        if context.table_writes or self.following.rewriting or not may_begin:
            raise rules.Refused(f"{context.name} is {context.state.value}. Nothing was done.")
        return status

    def _order_adopt(self, token: int) -> None:
        context = self.context
        is_unadopted = context.halted is not None and context.halted.code == UNADOPTED
        if not is_unadopted or self.following.rewriting:
            raise rules.Refused(f"{context.name} does not hold a store to adopt. Nothing was done.")
        context.halted = None
        context.calm(UNADOPTED)
        context.initialised = True
        context.move(Trigger.ADOPTED, "an operator orders it")
        context.out.put(Publish(((Slot.ROLE, NodeRole.FOLLOWER),)))
        self.promises.see(context.session.seen)
        context.out.put(Reply(token, ok=True, body={"node": context.name, "log_end": context.end}))
