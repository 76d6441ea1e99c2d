"""Status of a node and of its group: STATUS_OK, and ``GET /v1/cluster``. Pure.

A slave answers from the last statuses of the others and the last lease that it read. An unknown
value is None, and a reason is given.
"""

from __future__ import annotations

from typing import Any, Final

from services.ha.core.mastership import Mastership
from services.ha.core.peers import Peers
from services.ha.core.replica_context import TABLE_LONG, ReplicaContext
from services.ha.core.states import State, copies
from services.ha.lease.value import Member
from services.ha.wire.payloads import REASON_SIZE_MAX, Facts, StatusOk
from shared.cluster.nodes import Node

NOT_OPEN: Final = "not-open"
"""Alarm: the lease was taken and the broker's gate does not open."""
BELOW_MINIMUM: Final = "below-minimum"
"""Alarm: too few members follow this master for it to accept sends."""
_COPYING_NAMES: Final = frozenset(state.value for state in State if copies(state))


def own_status(context: ReplicaContext, term: Mastership | None, promised: int) -> StatusOk:
    """Return the answer to STATUS."""
    session = context.session
    facts = Facts(
        reason=reason_of(context)[:REASON_SIZE_MAX],
        trouble=context.trouble,
        stalls_are_over=context.stalls_are_over,
        stalled_ms=context.liveness.remembered_ms,
        services_move=not context.cannot_open,
        open=term is not None and term.gate_open,
        refused_at=context.refused_at,
        hindrance="" if term is None or term.gate_open else term.hindrance,
        in_sync_at=context.known_in_sync_at,
        members=context.members.version,
        lag_ms={} if term is None else term.in_sync.lags_ms(context.end, context.now_ms),
    )
    return StatusOk(
        node=context.name,
        incarnation=context.incarnation,
        state=context.state.value,
        initialised=context.initialised,
        holds_records=context.holds_records,
        promised=promised,
        data_epoch=context.data_epoch,
        first_offset=context.first_offset,
        end=context.end,
        durable=context.durable,
        confirm=context.confirm,
        seen_epoch=session.seen[0],
        in_sync_version=session.seen[1],
        in_sync=context.known_in_sync,
        facts=facts,
    )


def reason_of(context: ReplicaContext) -> str:
    """Return why this node is not in a better state, or should not lead; empty if there is no
    reason."""
    if context.halted is not None:
        return f"{context.halted.code}: {context.halted.detail}"
    codes = [code for code in (NOT_OPEN, BELOW_MINIMUM) if code in context.alarms]
    if context.state in (State.MASTER, State.IN_SYNC) and not codes:
        return context.unfit
    for code in (*codes, *context.alarms):
        return f"{code}: {context.alarms[code]}"
    return context.state_reason


def serves(status: StatusOk) -> bool:
    """Return whether a node reports that it is the master and accepts sends."""
    return status.state == State.MASTER.value and status.facts.open


def could_lead(member: Member, status: StatusOk) -> bool:
    """Return whether a member of the set could be the master, according to its status."""
    return (
        status.incarnation == member.incarnation
        and status.state in _COPYING_NAMES
        and not status.facts.trouble
        and status.facts.services_move
    )


def master_of(
    context: ReplicaContext, peers: Peers, *, or_opening: bool = False
) -> tuple[str | None, str | None]:
    """Return the master for clients, or None and the reason.

    or_opening: also return a node that has the lease and has not opened its epoch yet.
    """
    if context.state is State.MASTER:
        return context.name, None
    stored = context.session.stored
    if stored is None:
        return None, "there is no lease" if context.session.absent else "the lease was not read yet"
    holder = stored.lease.holder
    if holder is None:
        return None, "the lease is released"
    if holder.member == context.member:
        return None, f"this node has the lease, and is {context.state.value}"
    if holder.node == context.name:
        return None, "the lease is held by the volume that this node had before"
    status = peers.fresh(holder.node)
    leads = (State.MASTER.value, State.PROMOTING.value) if or_opening else (State.MASTER.value,)
    if status is not None and status.state not in leads:
        return None, f"{holder.node} has the lease, and is {status.state}"
    if (context.session.unchanged_ms(context.now_ms) or 0) >= context.times.lease_ms:
        return None, f"the lease of {holder.node} has run out"
    return holder.node, None


def cluster_status(
    context: ReplicaContext, peers: Peers, term: Mastership | None
) -> dict[str, Any]:
    """Return the answer to ``GET /v1/cluster``."""
    session = context.session
    lease = None if session.stored is None else session.stored.lease
    master, reason = master_of(context, peers)
    end = _master_end(context, peers, master)
    answer: dict[str, Any] = {
        "cluster": context.setup.cluster,
        "group": context.setup.group,
        "epoch": None if lease is None else lease.epoch,
        "master": master,
        "min_in_sync": context.setup.min_in_sync if lease is None else lease.min_in_sync,
        "paused": None if lease is None else lease.paused,
        "lease": _lease(context, term),
        "opening_ms": None if term is None else term.opening_ms,
        "nodes_version": context.members.version,
        "nodes": [_node(node, context, peers, term, master, end) for node in context.members.nodes],
        "history": [
            {"epoch": entry.epoch, "start": entry.start} for entry in context.table[-TABLE_LONG:]
        ],
        "alarms": [{"code": code, "detail": detail} for code, detail in context.alarms.items()],
    }
    if reason is not None:
        answer["reason"] = reason
    return answer


def _lease(context: ReplicaContext, term: Mastership | None) -> dict[str, Any]:
    session = context.session
    stored = session.stored
    deadline_ms = None if term is None else term.deadline_ms
    facts: dict[str, Any] = {
        "holder": None,
        "age_ms": session.unchanged_ms(context.now_ms),
        "deadline_in_ms": None if deadline_ms is None else deadline_ms - context.now_ms,
        "in_sync_version": None,
    }
    if stored is not None:
        holder = stored.lease.holder
        facts["holder"] = None if holder is None else holder.node
        facts["in_sync_version"] = stored.lease.in_sync_version
    if session.reason:
        facts["reason"] = session.reason
    return facts


def _master_end(context: ReplicaContext, peers: Peers, master: str | None) -> int | None:
    if master is None:
        return None
    if master == context.name:
        return context.end
    status = peers.fresh(master)
    return None if status is None else status.end


def _node(
    node: Node,
    context: ReplicaContext,
    peers: Peers,
    term: Mastership | None,
    master: str | None,
    end: int | None,
) -> dict[str, Any]:
    """Return what is known here of one node of the group."""
    peer = peers.by_node.get(node.name)
    status: StatusOk | None
    seen_ms_ago: int | None = 0
    reason: str | None = None
    if node.name == context.name:
        status = own_status(context, term, context.session.seen[0])
    elif peer is None:
        status, seen_ms_ago = None, None
        reason = f"{context.name} was removed from the group"
    else:
        status = peer.status
        seen_ms_ago = None if peer.status_ms is None else context.now_ms - peer.status_ms
        if peers.fresh(node.name) is None:
            reason = f"not reachable from {context.name}: {peer.reason or 'it does not answer'}"
    stored = context.session.stored
    in_sync = None if stored is None else _is_in_sync(context, node.name, status)
    answer: dict[str, Any] = {
        "node": node.name,
        "role": None,
        "state": None,
        "incarnation": None,
        "in_sync": in_sync,
        "api": node.api,
        "admin": node.admin,
        "first_offset": None,
        "log_end": None,
        "durable_end": None,
        "confirm": None,
        "lag_bytes": None,
        "lag_ms": None,
        "reason": reason,
        "seen_ms_ago": seen_ms_ago,
    }
    if status is None:
        return answer
    answer["incarnation"] = status.incarnation
    answer["first_offset"] = status.first_offset
    answer["log_end"], answer["durable_end"] = status.end, status.durable
    answer["confirm"] = status.confirm
    if reason is None:
        answer["state"] = status.state
        answer["role"] = "master" if node.name == master else "slave"
        answer["lag_bytes"] = None if end is None else max(0, end - status.end)
        answer["lag_ms"] = _lag_ms(node.name, context, peers, term, master)
        answer["reason"] = status.facts.reason or None
        _put_acknowledged(answer, context, term)
    return answer


def _put_acknowledged(
    answer: dict[str, Any], context: ReplicaContext, term: Mastership | None
) -> None:
    """Add the ends that a slave has acknowledged to this master; they are newer than its status."""
    for link in () if term is None else term.links.values():
        if link.peer.node == answer["node"] and link.acked_end is not None:
            answer["log_end"], answer["durable_end"] = link.appended, link.acked_end
            answer["lag_bytes"] = max(0, context.end - link.acked_end)


def _is_in_sync(context: ReplicaContext, node: str, status: StatusOk | None) -> bool:
    """Return whether the set has the node with its present volume, as far as that is known."""
    stored = context.session.stored
    assert stored is not None
    return any(
        member.node == node and (status is None or member.incarnation == status.incarnation)
        for member in stored.lease.in_sync
    )


def _lag_ms(
    node: str, context: ReplicaContext, peers: Peers, term: Mastership | None, master: str | None
) -> int | None:
    """Return the lag of a node in time: a master knows it, a slave takes it from the master's
    status."""
    if master is None:
        return None
    if node == master:
        return 0
    if term is not None:
        return term.in_sync.lags_ms(context.end, context.now_ms).get(node)
    status = peers.fresh(master)
    return None if status is None else status.facts.lag_ms.get(node)
