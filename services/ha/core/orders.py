"""What an operator orders, and the guards of it (docs/replication.md, operating). Pure.

Every command is answered once: at once if it is refused, else when what it wants is so, or is known
not to be. Changes of the lease go through the one session of this process, one at a time, and are
made on what the lease says then. Step before: ``control``. Step after: ``campaign``, ``following``,
the lease.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from services.ha.core.campaign import lease_over
from services.ha.core.effects import Reply
from services.ha.core.events import Command
from services.ha.core.failover import State, copies
from services.ha.core.own import Own
from services.ha.core.peers import Peers
from services.ha.core.status import could_lead
from services.ha.core.switchover import released
from services.ha.lease.session import Settled
from services.ha.lease.value import Lease, Member
from services.ha.wire.payloads import StatusOk
from tidemark.offsets import Epoch

EDIT_ATTEMPTS: Final = 5
EDIT_MS_MAX: Final = 5000
UNHEARD_EPOCHS: Final = 1000
"""A node that did not answer may know of epochs that nobody else knows."""


class Refused(Exception):
    """An order that is not carried out: what is in the way, and what to do."""

    def __init__(self, detail: str, advice: str = "", **facts: Any) -> None:
        super().__init__(detail)
        self.body: dict[str, Any] = {"detail": detail, "advice": advice, **facts}


class NotYet(Refused):
    """An order that waits for nodes to answer: they may, a moment later."""


class AlreadySo(Exception):
    """What an order wants is so already: nothing is written, and the answer says so."""

    def __init__(self, detail: str, **facts: Any) -> None:
        super().__init__(detail)
        self.body: dict[str, Any] = {**facts, "changed": False, "detail": detail}


def no_such_node(own: Own, name: str) -> Refused:
    """An order for a node that the settings do not name."""
    names = ", ".join(own.setup.names)
    return Refused(f"there is no node {name!r}; the group has {names}. Nothing was changed.")


class _Edit(NamedTuple):
    """A change of the lease that was ordered."""

    token: int
    change: Callable[[Lease | None], Lease]
    """From what the lease says to what it is to say; raises Refused, AlreadySo."""
    creates: bool
    """The object may be absent, or have gone back."""
    since_ms: int
    attempts: int = 0
    wanted: Lease | None = None
    """Proposed, and not settled yet."""
    unanswered: bool = False
    """A try had no answer, and may have been applied for a while."""


class LeaseEdits:
    """Orders that change the lease and nothing else; one at a time."""

    def __init__(self, own: Own) -> None:
        self._own = own
        self._edit: _Edit | None = None

    def begin(
        self, token: int, change: Callable[[Lease | None], Lease], *, creates: bool = False
    ) -> None:
        """Have it changed, and the order answered. Raises Refused."""
        if self._edit is not None:
            raise Refused("another order changes the lease. Nothing was done.", "Try again.")
        self._edit = _Edit(token, change, creates, self._own.now_ms)
        self.tick()

    def tick(self) -> None:
        """Propose it as soon as the session can."""
        edit, own = self._edit, self._own
        if edit is None:
            return
        if edit.wanted is not None:
            if own.session.unsettled is None:
                self._refuse("the write of the lease was given up, and may be applied: look again")
            return
        if own.now_ms - edit.since_ms > EDIT_MS_MAX:
            self._refuse(f"the lease could not be written: {own.session.reason or 'no answer'}")
            return
        session = own.session
        if not session.free or (session.stored is None and not (edit.creates and session.absent)):
            return
        if session.backwards and not edit.creates:
            self._refuse("the lease went back; see `tidemark cluster recreate-lease`")
            return
        try:
            wanted = edit.change(None if session.stored is None else session.stored.lease)
        except Refused as refused:
            self._edit = None
            own.out.put(Reply(edit.token, ok=False, body=refused.body))
            return
        except AlreadySo as so:
            assert session.stored is not None
            self._edit = None
            body = _body(session.stored.lease)
            # 1. A write is applied and its answer lost. 2. The master renews the lease on top of
            # it. 3. The second try finds what it wants: who made it so is not known.
            body |= {"changed": None} if edit.unanswered else so.body
            own.out.put(Reply(edit.token, ok=True, body=body))
            return
        self._edit = edit._replace(wanted=wanted, attempts=edit.attempts + 1)
        if session.stored is None:
            own.out.put(*session.create(wanted, own.now_ms))
        else:
            own.out.put(*session.propose(wanted, own.now_ms, despite=edit.creates))

    def settled(self, settled: Settled | None) -> None:
        """A write of the lease is over; maybe the one that was ordered."""
        edit = self._edit
        if edit is None or settled is None or settled.wanted is not edit.wanted:
            return
        if settled.applied:
            self._edit = None
            body = {**_body(settled.wanted), "changed": True}
            self._own.out.put(Reply(edit.token, ok=True, body=body))
        elif edit.attempts >= EDIT_ATTEMPTS:
            self._refuse("others changed the lease at the same time, again and again")
        else:
            unanswered = edit.unanswered or settled.unanswered
            self._edit = edit._replace(wanted=None, unanswered=unanswered)

    def _refuse(self, detail: str) -> None:
        edit, self._edit = self._edit, None
        if edit is not None:
            self._own.out.put(Reply(edit.token, ok=False, body=Refused(f"{detail}.").body))


def _body(lease: Lease) -> dict[str, Any]:
    in_sync = [member.node for member in lease.in_sync]
    return {"epoch": lease.epoch, "paused": lease.paused, "in_sync": in_sync}


def set_paused(paused: bool) -> Callable[[Lease | None], Lease]:
    """No automatic failover, or again."""

    def change(lease: Lease | None) -> Lease:
        assert lease is not None
        if lease.paused == paused:
            state = "paused" if paused else "on"
            raise AlreadySo(f"automatic failover is {state} already. Nothing was changed.")
        return lease._replace(paused=paused)

    return change


def released_for(own: Own, target: str) -> Callable[[Lease | None], Lease]:
    """Nobody holds the lease; target may take it at once."""

    def change(lease: Lease | None) -> Lease:
        if lease is None or lease.holder is None or lease.holder.member != own.member:
            raise Refused("the lease is not this node's any more")
        return released(lease, own, target)

    return change


def without_member(own: Own, node: str) -> Callable[[Lease | None], Lease]:
    """The set without a node; only the master orders it."""

    def change(lease: Lease | None) -> Lease:
        assert lease is not None
        if lease.holder != own.holder:
            raise Refused(f"{own.name} is not the master any more. Nothing was changed.")
        if node == own.name:
            raise Refused(
                f"{node} is the master. Nothing was changed.", "Use `tidemark cluster switchover`."
            )
        remaining = tuple(member for member in lease.in_sync if member.node != node)
        if remaining == lease.in_sync:
            if node not in own.setup.names:
                raise no_such_node(own, node)
            raise AlreadySo(f"{node} is not in the in-sync set. Nothing was changed.")
        if len(remaining) < lease.min_in_sync:
            raise Refused(
                f"{len(remaining)} members would remain; min_in_sync is {lease.min_in_sync}. "
                "Nothing was changed.",
                "Bring another node into the set first, or lower cluster.min_in_sync everywhere.",
            )
        version = lease.in_sync_version + 1
        return lease._replace(in_sync=remaining, in_sync_version=version)

    return change


class Loss(NamedTuple):
    """What this node lacks of what others know to be confirmed."""

    own_end: int
    known_confirm: int
    known_from: tuple[str, ...]
    """Nodes that said so, now or lately."""
    silent: tuple[str, ...]
    """Nodes that do not answer now: what they said last counts."""

    @property
    def body(self) -> dict[str, Any]:
        """As an answer says it."""
        lost = max(0, self.known_confirm - self.own_end)
        facts: dict[str, Any] = {
            "estimated_loss_bytes": lost,
            "own_end": self.own_end,
            "known_confirm": self.known_confirm,
            "known_from": list(self.known_from),
        }
        if self.silent:
            facts["loss_reason"] = (
                f"{', '.join(self.silent)} does not answer; what it said last counts, and it may "
                "have confirmed more since"
            )
        return facts


def estimate(own: Own, peers: Peers) -> Loss:
    """What making this node master now would lose."""
    told = [peer.status for peer in peers.by_node.values() if peer.status is not None]
    confirm = max([own.confirm, *(status.confirm for status in told)])
    silent = tuple(node for node in own.others if peers.fresh(node) is None)
    known_from = tuple(sorted([own.name, *(status.node for status in told)]))
    return Loss(own.end, confirm, known_from, silent)


def guard_failover(own: Own, peers: Peers, order: Command) -> Loss:
    """Whether this node may be made master uncleanly, and what that costs. Raises Refused."""
    arguments, loss = order.arguments, estimate(own, peers)
    target = arguments.get("to", own.name)
    if target != own.name:
        raise Refused(
            f"this is {own.name}; the order is for {target}. Nothing was done.",
            f"Send it to {target}.",
        )
    if arguments.get("dry_run") == "true":
        return loss
    if arguments.get("group") != own.setup.group:
        raise Refused(
            f"the group's name is not {arguments.get('group', '')!r}. Nothing was done.",
            "Type the name of the group, to show that you mean this one.",
            **loss.body,
        )
    if arguments.get("old_master_stopped") != "true":
        raise Refused(
            "nobody has said that the old master is stopped. Nothing was done.",
            "Stop it, and say so.",
            **loss.body,
        )
    if not copies(own.state) or own.idle_service:
        why = f"without a {own.idle_service} that moves" if own.idle_service else own.state.value
        raise Refused(f"{own.name} is {why}. Nothing was done.", "See `tidemark cluster status`.")
    if not lease_over(own):
        raise Refused(
            "the lease has not run out: its holder may be alive. Nothing was done.",
            "Wait until nobody renews it, or use `tidemark cluster switchover`.",
            **loss.body,
        )
    return loss


def recreated(own: Own, peers: Peers, promised: int, order: Command) -> Lease:
    """The lease that takes the place of one that is gone or went back. Raises Refused.

    Its epoch is above everything that anybody may have promised or seen; nobody holds it, and the
    member of the set with most of the log is asked to take it.
    """
    session = own.session
    if session.stored is not None and not session.backwards:
        raise Refused(
            "there is a lease, and it did not go back. Nothing was done.",
            "If nobody who is left is in its set, `tidemark cluster failover` makes one the master "
            "and says first what that costs.",
        )
    if session.stored is None and not session.absent:
        reason = session.reason or "it was not read yet"
        raise NotYet(f"it is not known whether there is a lease: {reason}. Nothing was done.")
    if own.state in (State.PROMOTING, State.MASTER, State.CANDIDATE):
        raise Refused(f"{own.name} is {own.state.value}. Nothing was done.", "Try again.")
    stopped = _names(order, "stopped")
    answers = {node: peers.fresh(node) for node in own.others}
    missing = [node for node, status in answers.items() if status is None]
    undeclared = [node for node in missing if node not in stopped]
    if undeclared:
        raise NotYet(
            f"{', '.join(undeclared)} does not answer. Nothing was done.",
            "Start it; or make sure that it is stopped, and say so with --stopped.",
        )
    told = [status for status in answers.values() if status is not None]
    epoch = max([promised, own.data_epoch, session.seen[0]])
    version = session.seen[1]
    for status in told:
        epoch = max(epoch, status.promised, status.data_epoch, status.seen_epoch)
        version = max(version, status.in_sync_version)
    in_sync = _last_set(own, told, all_answer=not missing)
    incarnations = {own.name: own.incarnation}
    incarnations |= {status.node: status.incarnation for status in told}
    if named := _names(order, "in_sync"):
        in_sync = _members(named, incarnations)
    if not in_sync:
        raise Refused(
            "no node knows who was in the in-sync set. Nothing was done.",
            "Say it with --in-sync; a node that was not in it lacks acknowledged messages.",
        )
    ends = {own.member: (own.data_epoch, own.end)}
    ends |= {Member(s.node, s.incarnation): (s.data_epoch, s.end) for s in told}
    there = [member for member in in_sync if member in ends]
    if not there:
        raise Refused("no member of the in-sync set answers. Nothing was done.")
    # Every member of the set has all that was confirmed, so one that can lead comes first: a
    # damaged one would take what is released for it. Of a set that an operator names, only the
    # longest log is known to have most.
    can_lead = {m for s in told if could_lead(m := Member(s.node, s.incarnation), s)}
    if copies(own.state) and not own.unfit:
        can_lead.add(own.member)
    first = max(there, key=lambda member: (bool(named) or member in can_lead, ends[member]))
    return Lease(
        holder=None,
        epoch=Epoch(epoch + 1 + (UNHEARD_EPOCHS if missing else 0)),
        in_sync=tuple(sorted(in_sync)),
        in_sync_version=version + 1,
        min_in_sync=own.setup.min_in_sync,
        replicas=own.setup.names,
        handover_to=first.node,
    )


def _last_set(own: Own, told: list[StatusOk], *, all_answer: bool) -> tuple[Member, ...]:
    """The in-sync set as the lease said it last; empty: nobody who answers knows it.

    1. a is cut off; b takes the lease and removes a from the set, and confirms without it.
    2. The lease is deleted, and b starts again: it has seen the newest set, and does not know it.
    3. The set that a remembers has a in it: made again with that, a could take it, and what was
       confirmed in step 1 is lost. So a set counts only if nobody has seen a later one.
    """
    said = [(own.known_in_sync_at, own.known_in_sync)]
    said += [(_said_at(status), status.in_sync) for status in told]
    heard = [own.session.seen, *((status.seen_epoch, status.in_sync_version) for status in told)]
    # Version 0: the epoch was heard of, and no lease of it was seen. Whoever took it has seen it.
    seen = [(epoch, version) for epoch, version in (*heard, *(at for at, _ in said)) if version]
    newest = max(seen, default=(0, 0))
    members = next((members for at, members in said if at == newest), ())
    if max(heard) <= newest:
        return members
    # Somebody asked for a later epoch. Whether it was taken, and the set changed in it, is known to
    # its master, which may be silent or have another volume now, and to those that have its bytes.
    volumes = {own.name: own.incarnation, **{status.node: status.incarnation for status in told}}
    forgotten = any(volumes.get(node, volume) != volume for node, volume in members)
    data_epoch = max(own.data_epoch, *(status.data_epoch for status in told), 0)
    return members if all_answer and not forgotten and data_epoch <= newest[0] else ()


def _said_at(status: StatusOk) -> tuple[int, int]:
    """Of which lease (epoch, version) a node's set is; a peer's word, so it may be anything."""
    match status.facts.get("in_sync_at"):
        case [int(epoch), int(version)]:
            return epoch, version
        case _:
            return 0, 0


def _names(order: Command, argument: str) -> list[str]:
    return [name for name in order.arguments.get(argument, "").split(",") if name]


def _members(nodes: list[str], incarnations: dict[str, str]) -> tuple[Member, ...]:
    unknown = [node for node in nodes if node not in incarnations]
    if unknown:
        raise Refused(
            f"{', '.join(unknown)} does not answer, so its volume is not known. Nothing was done."
        )
    return tuple(Member(node, incarnations[node]) for node in nodes)
