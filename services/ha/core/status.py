"""What a node says of itself and of its group: STATUS_OK, and ``GET /v1/cluster``. Pure.

A slave answers from what the others told it lately and what the lease said last. What is not known
is None, and the reason is said.
"""

from __future__ import annotations

from typing import Any, Final

from services.ha.core.failover import State, copies
from services.ha.core.mastership import Mastership
from services.ha.core.own import TABLE_LONG, Own
from services.ha.core.peers import Peers
from services.ha.lease.value import Member
from services.ha.wire.payloads import StatusOk
from shared.cluster.nodes import Node

NOT_OPEN: Final = "not-open"
"""Alarm: the lease was taken and the broker's gate does not open."""
BELOW_MINIMUM: Final = "below-minimum"
"""Alarm: too few members follow this master for it to take sends."""
_COPYING_NAMES: Final = frozenset(state.value for state in State if copies(state))


def own_status(own: Own, term: Mastership | None, promised: int) -> StatusOk:
    """What this node answers to STATUS."""
    session = own.session
    facts: dict[str, Any] = {
        "reason": reason_of(own),
        "trouble": own.trouble,
        "stalls_are_over": own.stalls_are_over,
        "stalled_ms": own.liveness.remembered_ms,
        # Named as it was when only the broker was judged: earlier versions read it.
        "broker": not own.idle_service,
        "open": term is not None and term.gate_open,
        "refused_at": own.refused_at,
        "hindrance": "" if term is None or term.gate_open else term.hindrance,
        "in_sync_at": own.known_in_sync_at,
    }
    if term is not None:
        facts["lag_ms"] = term.in_sync.lags_ms(own.end, own.now_ms)
    return StatusOk(
        node=own.name,
        incarnation=own.incarnation,
        state=own.state.value,
        initialised=own.initialised,
        holds_records=own.holds_records,
        promised=promised,
        data_epoch=own.data_epoch,
        first_offset=own.first_offset,
        end=own.end,
        durable=own.durable,
        confirm=own.confirm,
        seen_epoch=session.seen[0],
        in_sync_version=session.seen[1],
        in_sync=own.known_in_sync,
        facts=facts,
    )


def reason_of(own: Own) -> str:
    """Why this node is not further than it is, or should not lead; empty: it is as it should be."""
    if own.halted is not None:
        return f"{own.halted.code}: {own.halted.detail}"
    codes = [code for code in (NOT_OPEN, BELOW_MINIMUM) if code in own.alarms]
    if own.state in (State.MASTER, State.IN_SYNC) and not codes:
        return own.unfit
    for code in (*codes, *own.alarms):
        return f"{code}: {own.alarms[code]}"
    return own.state_reason


def serves(status: StatusOk) -> bool:
    """Whether a node says that it is the master and takes sends."""
    return status.state == State.MASTER.value and status.facts.get("open") is not False


def could_lead(member: Member, status: StatusOk) -> bool:
    """Whether a member of the set could be the master, by what it says of itself."""
    return (
        status.incarnation == member.incarnation
        and status.state in _COPYING_NAMES
        and not status.facts.get("trouble")
        and status.facts.get("broker") is not False  # earlier versions do not say it
    )


def master_of(own: Own, peers: Peers) -> tuple[str | None, str | None]:
    """The master that clients should go to, or None and why it is not known."""
    if own.state is State.MASTER:
        return own.name, None
    stored = own.session.stored
    if stored is None:
        return None, "there is no lease" if own.session.absent else "the lease was not read yet"
    holder = stored.lease.holder
    if holder is None:
        return None, "the lease is released"
    if holder.member == own.member:
        return None, f"this node has the lease, and is {own.state.value}"
    if holder.node == own.name:
        return None, "the lease is held by the volume that this node had before"
    status = peers.fresh(holder.node)
    if status is not None and status.state != State.MASTER.value:
        return None, f"{holder.node} has the lease, and is {status.state}"
    if (own.session.unchanged_ms(own.now_ms) or 0) >= own.times.lease_ms:
        return None, f"the lease of {holder.node} has run out"
    return holder.node, None


def cluster_status(own: Own, peers: Peers, term: Mastership | None) -> dict[str, Any]:
    """The answer to ``GET /v1/cluster``."""
    session = own.session
    lease = None if session.stored is None else session.stored.lease
    master, reason = master_of(own, peers)
    end = _master_end(own, peers, master)
    answer: dict[str, Any] = {
        "cluster": own.setup.cluster,
        "group": own.setup.group,
        "epoch": None if lease is None else lease.epoch,
        "master": master,
        "min_in_sync": own.setup.min_in_sync if lease is None else lease.min_in_sync,
        "paused": None if lease is None else lease.paused,
        "lease": _lease(own, term),
        "opening_ms": None if term is None else term.opening_ms,
        "nodes": [_node(node, own, peers, term, master, end) for node in own.setup.nodes],
        "history": [
            {"epoch": entry.epoch, "start": entry.start} for entry in own.table[-TABLE_LONG:]
        ],
        "alarms": [{"code": code, "detail": detail} for code, detail in own.alarms.items()],
    }
    if reason is not None:
        answer["reason"] = reason
    return answer


def _lease(own: Own, term: Mastership | None) -> dict[str, Any]:
    session = own.session
    stored = session.stored
    deadline_ms = None if term is None else term.deadline_ms
    facts: dict[str, Any] = {
        "holder": None,
        "age_ms": session.unchanged_ms(own.now_ms),
        "deadline_in_ms": None if deadline_ms is None else deadline_ms - own.now_ms,
        "in_sync_version": None,
    }
    if stored is not None:
        holder = stored.lease.holder
        facts["holder"] = None if holder is None else holder.node
        facts["in_sync_version"] = stored.lease.in_sync_version
    if session.reason:
        facts["reason"] = session.reason
    return facts


def _master_end(own: Own, peers: Peers, master: str | None) -> int | None:
    if master is None:
        return None
    if master == own.name:
        return own.end
    status = peers.fresh(master)
    return None if status is None else status.end


def _node(
    node: Node,
    own: Own,
    peers: Peers,
    term: Mastership | None,
    master: str | None,
    end: int | None,
) -> dict[str, Any]:
    """One configured node, as far as it is known here."""
    peer = peers.by_node.get(node.name)
    status: StatusOk | None
    seen_ms_ago: int | None = 0
    reason: str | None = None
    if peer is None:
        status = own_status(own, term, own.session.seen[0])
    else:
        status = peer.status
        seen_ms_ago = None if peer.status_ms is None else own.now_ms - peer.status_ms
        if peers.fresh(node.name) is None:
            reason = f"not reachable from {own.name}: {peer.reason or 'it does not answer'}"
    stored = own.session.stored
    in_sync = None if stored is None else _is_in_sync(own, node.name, status)
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
        answer["lag_ms"] = _lag_ms(node.name, own, peers, term, master)
        answer["reason"] = status.facts.get("reason") or None
        _put_acknowledged(answer, own, term)
    return answer


def _put_acknowledged(answer: dict[str, Any], own: Own, term: Mastership | None) -> None:
    """Of a slave that follows this master: what it acknowledged, newer than what it says of itself
    once per heartbeat."""
    for link in () if term is None else term.links.values():
        if link.peer.node == answer["node"] and link.counts is not None:
            answer["log_end"], answer["durable_end"] = link.appended, link.counts
            answer["lag_bytes"] = max(0, own.end - link.counts)


def _is_in_sync(own: Own, node: str, status: StatusOk | None) -> bool:
    """Whether the set has the node with the volume that it has now, as far as that is known."""
    stored = own.session.stored
    assert stored is not None
    return any(
        member.node == node and (status is None or member.incarnation == status.incarnation)
        for member in stored.lease.in_sync
    )


def _lag_ms(
    node: str, own: Own, peers: Peers, term: Mastership | None, master: str | None
) -> int | None:
    """How far behind in time the node is: the master knows it, and tells it in its status."""
    if master is None:
        return None
    if node == master:
        return 0
    if term is not None:
        return term.in_sync.lags_ms(own.end, own.now_ms).get(node)
    status = peers.fresh(master)
    lags = None if status is None else status.facts.get("lag_ms")
    lag = lags.get(node) if isinstance(lags, dict) else None
    return lag if isinstance(lag, int) else None
