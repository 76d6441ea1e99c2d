"""Checks of operators' commands, and the lease that replaces a lost one. Pure.

A command is refused with the obstacle and a remedy (docs/replication.md, operating). Step before:
``admin_commands``. Step after: ``campaign``, ``following``, ``lease_edits``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from services.ha.core.campaign import lease_over
from services.ha.core.effects import Reply
from services.ha.core.events import Command
from services.ha.core.peers import Peers, do_not_answer
from services.ha.core.replica_context import ReplicaContext
from services.ha.core.states import State, copies
from services.ha.core.status import could_lead
from services.ha.lease.value import Lease, Member
from services.ha.wire.payloads import StatusOk
from tidemark.offsets import Epoch

UNHEARD_EPOCHS: Final = 1000
"""Added to the epoch if a node did not answer, because it may know of later epochs."""


class Refused(Exception):
    """A command that is not executed: the obstacle, and the remedy."""

    def __init__(self, detail: str, advice: str = "", **facts: Any) -> None:
        super().__init__(detail)
        self.body: dict[str, Any] = {"detail": detail, "advice": advice, **facts}

    def reply(self, token: int) -> Reply:
        """Return the answer to the command with that token."""
        return Reply(token, ok=False, body=self.body)


class NotYet(Refused):
    """A command that waits for answers of nodes, which may come a moment later."""


class AlreadySo(Exception):
    """The state that a command asks for already exists; nothing is written."""

    def __init__(self, detail: str, **facts: Any) -> None:
        super().__init__(detail)
        self.body: dict[str, Any] = {**facts, "changed": False, "detail": detail}

    def reply(self, token: int) -> Reply:
        """Return the answer to the command with that token."""
        return Reply(token, ok=True, body=self.body)


def no_such_node(context: ReplicaContext, name: str) -> Refused:
    """Return the refusal of a command for a node that the group does not have."""
    names = ", ".join(context.names)
    return Refused(f"there is no node {name!r}; the group has {names}. Nothing was changed.")


class Loss(NamedTuple):
    """Confirmed bytes that this node lacks, according to other nodes."""

    own_end: int
    known_confirm: int
    known_from: tuple[str, ...]
    """Nodes whose confirm offsets are known, now or from earlier."""
    silent: tuple[str, ...]
    """Nodes that do not answer now; their last status is used."""

    @property
    def body(self) -> dict[str, Any]:
        """The facts of an answer."""
        lost = max(0, self.known_confirm - self.own_end)
        facts: dict[str, Any] = {
            "estimated_loss_bytes": lost,
            "own_end": self.own_end,
            "known_confirm": self.known_confirm,
            "known_from": list(self.known_from),
        }
        if self.silent:
            facts["loss_reason"] = (
                f"{do_not_answer(self.silent)}; the last status counts, and more may have been "
                "confirmed since"
            )
        return facts


def estimate(context: ReplicaContext, peers: Peers) -> Loss:
    """Return what would be lost if this node became master now."""
    statuses = [peer.status for peer in peers.by_node.values() if peer.status is not None]
    confirm = max([context.confirm, *(status.confirm for status in statuses)])
    silent = tuple(node for node in context.others if peers.fresh(node) is None)
    known_from = tuple(sorted([context.name, *(status.node for status in statuses)]))
    return Loss(context.end, confirm, known_from, silent)


def guard_failover(context: ReplicaContext, peers: Peers, order: Command) -> Loss:
    """Check whether this node may become master uncleanly; return the loss. Raises Refused."""
    arguments, loss = order.arguments, estimate(context, peers)
    target = arguments.get("to", context.name)
    if target != context.name:
        raise Refused(
            f"this is {context.name}; the order is for {target}. Nothing was done.",
            f"Send it to {target}.",
        )
    if arguments.get("dry_run") == "true":
        return loss
    if arguments.get("group") != context.setup.group:
        raise Refused(
            f"the group's name is not {arguments.get('group', '')!r}. Nothing was done.",
            "Type the name of the group, to show that you mean this one.",
            **loss.body,
        )
    if arguments.get("old_master_stopped") != "true":
        raise Refused(
            "it is not confirmed that the old master is stopped. Nothing was done.",
            "Stop it, and confirm that.",
            **loss.body,
        )
    if not copies(context.state) or context.cannot_open:
        why = context.cannot_open or f"it is {context.state.value}"
        raise Refused(
            f"{context.name} cannot lead: {why}. Nothing was done.",
            "See `tidemark cluster status`.",
        )
    if context.is_removed:
        raise Refused(f"{context.name} is not a node of the group. Nothing was done.")
    if not lease_over(context):
        raise Refused(
            "the lease has not run out: its holder may be alive. Nothing was done.",
            "Wait until it is no longer renewed, or use `tidemark cluster switchover`.",
            **loss.body,
        )
    return loss


def recreated(context: ReplicaContext, peers: Peers, promised: int, order: Command) -> Lease:
    """Return the lease that replaces one that is gone or went back. Raises Refused, NotYet.

    Its epoch is above everything that any node may have promised or seen. It has no holder, and the
    member of the set with the longest log may take it.
    """
    session = context.session
    if context.is_removed:
        raise Refused(
            f"{context.name} is not a node of the group. Nothing was done.",
            f"Give the command to one of {', '.join(context.names)}.",
        )
    if session.stored is not None and not session.backwards:
        raise Refused(
            "the lease exists and has not gone backwards. Nothing was done.",
            "If no remaining node is in its set, `tidemark cluster failover` makes one the master "
            "and shows first what that loses.",
        )
    if session.stored is None and not session.absent:
        reason = session.reason or "it was not read yet"
        raise NotYet(f"it is not known whether there is a lease: {reason}. Nothing was done.")
    if context.state in (State.PROMOTING, State.MASTER, State.CANDIDATE):
        raise Refused(f"{context.name} is {context.state.value}. Nothing was done.", "Try again.")
    stopped = _names(order, "stopped")
    answers = {node: peers.fresh(node) for node in context.others}
    missing = [node for node, status in answers.items() if status is None]
    undeclared = [node for node in missing if node not in stopped]
    if undeclared:
        raise NotYet(
            f"{do_not_answer(undeclared)}. Nothing was done.",
            "Start each such node; or make sure that it is stopped, and name it with --stopped.",
        )
    statuses = [status for status in answers.values() if status is not None]
    for status in statuses:
        if (status.facts.members or 0) > context.members.version:
            raise Refused(
                f"{status.node} knows later nodes of the group. Nothing was done.",
                f"Give the command to {status.node}.",
            )
    epoch = max([promised, context.data_epoch, session.seen[0]])
    version = session.seen[1]
    for status in statuses:
        epoch = max(epoch, status.promised, status.data_epoch, status.seen_epoch)
        version = max(version, status.in_sync_version)
    in_sync = _last_set(context, statuses, all_answer=not missing)
    incarnations = {context.name: context.incarnation}
    incarnations |= {status.node: status.incarnation for status in statuses}
    if named := _names(order, "in_sync"):
        in_sync = _members(named, incarnations)
    if not in_sync:
        raise Refused(
            "no node knows who was in the in-sync set. Nothing was done.",
            "Name its members with --in-sync; any other node may lack acknowledged messages.",
        )
    ends = {context.member: (context.data_epoch, context.end)}
    ends |= {Member(s.node, s.incarnation): (s.data_epoch, s.end) for s in statuses}
    there = [member for member in in_sync if member in ends]
    if not there:
        raise Refused("no member of the in-sync set answers. Nothing was done.")
    # Every member of the set has all confirmed records, so one that can lead comes first: a damaged
    # one would take the lease that is released for it. Of a set that an operator names, only the
    # longest log is known to have the most.
    can_lead = {m for s in statuses if could_lead(m := Member(s.node, s.incarnation), s)}
    if copies(context.state) and not context.unfit:
        can_lead.add(context.member)
    first = max(there, key=lambda member: (bool(named) or member in can_lead, ends[member]))
    return Lease(
        holder=None,
        epoch=Epoch(epoch + 1 + (UNHEARD_EPOCHS if missing else 0)),
        in_sync=tuple(sorted(in_sync)),
        in_sync_version=version + 1,
        min_in_sync=context.setup.min_in_sync,
        replicas=context.names,
        handover_to=first.node,
        members=context.members_to_write(),
    )


def _last_set(
    context: ReplicaContext, statuses: list[StatusOk], *, all_answer: bool
) -> tuple[Member, ...]:
    """Return the in-sync set of the last lease; empty: no node that answers knows it.

    1. a is cut off; b takes the lease, removes a from the set, and confirms without it.
    2. The lease is deleted, and b starts again: it has seen the newest set, and does not know it.
    3. The set that a remembers contains a. If the lease were created with it, a could take it, and
       what was confirmed in step 1 would be lost. So a set counts only if no node has seen a later
       one.
    """
    said = [(context.known_in_sync_at, context.known_in_sync)]
    said += [(status.facts.in_sync_at, status.in_sync) for status in statuses]
    heard = [
        context.session.seen,
        *((status.seen_epoch, status.in_sync_version) for status in statuses),
    ]
    # Version 0: the node heard of the epoch and saw no lease of it. Its master has seen one.
    seen = [(epoch, version) for epoch, version in (*heard, *(at for at, _ in said)) if version]
    newest = max(seen, default=(0, 0))
    members = next((members for at, members in said if at == newest), ())
    if max(heard) <= newest:
        return members
    # A node asked for a later epoch. Whether it was taken, and the set changed in it, is known to
    # its master, which may be silent or have another volume now, and to the nodes that have its
    # records.
    volumes = {
        context.name: context.incarnation,
        **{status.node: status.incarnation for status in statuses},
    }
    forgotten = any(volumes.get(node, volume) != volume for node, volume in members)
    data_epoch = max(context.data_epoch, *(status.data_epoch for status in statuses), 0)
    return members if all_answer and not forgotten and data_epoch <= newest[0] else ()


def _names(order: Command, argument: str) -> list[str]:
    return [name for name in order.arguments.get(argument, "").split(",") if name]


def _members(nodes: list[str], incarnations: dict[str, str]) -> tuple[Member, ...]:
    unknown = [node for node in nodes if node not in incarnations]
    if unknown:
        raise Refused(
            f"{do_not_answer(unknown)}, and only the volume of a node that answers is known. "
            "Nothing was done."
        )
    return tuple(Member(node, incarnations[node]) for node in nodes)
