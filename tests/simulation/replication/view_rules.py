"""Rules for what a node reports about its group: the master, its epoch, or why it is unknown.

The past of the lease is the truth. The maximal age of an answer follows from the constants of
``cluster_view`` and the times of the lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web

from services.broker.replication.cluster_view import FRESH_S, TIMEOUT_S, WATCH_S
from services.ha.core.replica import Replica
from services.ha.core.states import State
from services.ha.lease.value import Member
from services.ha.shell.probes import Probes
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.process import Process
from tests.simulation.replication.violation import Violation
from tidemark.errors import NotMaster
from tidemark.formats.checkpoint import NodeRole, Slot

if TYPE_CHECKING:
    from tests.simulation.replication.api_client import View
    from tests.simulation.replication.history import History

MASTER: Final = NodeRole.MASTER
SLACK_US: Final = 300_000
"""For a busy event loop and a switch of threads."""
FRESH_US: Final = int((FRESH_S + TIMEOUT_S) * 1e6) + SLACK_US
"""Maximal age of an answer, which callers share while it is being requested."""
WATCHED_US: Final = int((WATCH_S + TIMEOUT_S) * 1e6) + SLACK_US
"""Time within which a broker that is not master has asked its ha again and noted the answer."""
PATIENCE_US: Final = int(TIMES.lease_ms * 1.05) * 1000 + 20_000
"""Time after which an unchanged lease has run out, by a clock with a small error."""
LEFT_US: Final = (TIMES.lease_ms + 2 * TIMES.link_dead_ms) * 1000
"""Time within which a slave that left the set has learned it, or has lost its link."""
LATE_MS: Final = 50
"""Between the wake of a waiting request, which checks the deadline, and the answer."""


def check_status(
    replica: Replica, machine: Machine, answer: Mapping[str, Any], seen_us: int
) -> None:
    """Check that ha names a master that holds the lease, as far as it can know, or a reason for
    none.

    seen_us: time at which this start of ha first read the lease with its present content.
    """
    name, reason, own = answer.get("master"), answer.get("reason"), machine.name
    _must_have_a_reason(own, name, reason)
    if name is None:
        return
    stored, now_us = replica.context.session.stored, machine.timeline.now_us
    holder = None if stored is None else stored.lease.holder
    if name == own:
        if replica.context.state is not State.MASTER or machine.slot(Slot.FENCED):
            raise Violation(f"ha of {own} names itself as the master, but is fenced")
    elif holder is None or holder.node != name:
        raise Violation(
            f"ha of {own} names {name} as the master, but the holder of the lease is {holder}"
        )
    elif now_us - seen_us > PATIENCE_US:
        raise Violation(
            f"ha of {own} names {name} as the master, but has seen no change of the lease for "
            f"{now_us - seen_us} µs"
        )


def check_answer(
    history: History, machine: Machine, process: Process, answer: Mapping[str, Any], view: View
) -> None:
    """Check that GET /v1/cluster names the master that ha reports, with an epoch that this node
    acquired."""
    name, now_us = answer.get("master"), machine.timeline.now_us
    _must_have_a_reason(machine.name, name, answer.get("reason"))
    if name is None:
        return
    ha_answer = view.ha_answer or {}
    age_us = now_us - max(view.answered_us, process.resumed_us)
    if ha_answer.get("master") != name or age_us > FRESH_US:
        raise Violation(
            f"GET /v1/cluster of {machine.name} names {name}; its ha named "
            f"{ha_answer.get('master')} "
            f"{now_us - view.answered_us} µs ago"
        )
    if not history.has_led(name, answer.get("epoch")):
        raise Violation(
            f"GET /v1/cluster of {machine.name} names {name} in epoch {answer.get('epoch')}, which "
            "it never acquired"
        )


def check_refusal(
    machine: Machine,
    refusal: NotMaster,
    ha_answer: Mapping[str, Any] | None,
    answered_us: int,
    *,
    since_us: int,
) -> None:
    """Check that a refused client is sent to the master in ha's last answer, and to no other node.

    since_us: time since which the broker has been running and its node has not been the master.
    """
    now_us, name = machine.timeline.now_us, refusal.facts.get("master")
    if now_us - since_us <= WATCHED_US:
        return
    known = (ha_answer or {}).get("master")
    if now_us - answered_us > WATCHED_US:
        known = None
        if name is None:
            return
    elif now_us - answered_us < SLACK_US and known != name:
        return  # The answer of ha is still being applied.
    if name != known:
        raise Violation(
            f"{machine.name} sends clients to {name}; its ha named {known} "
            f"{now_us - answered_us} µs ago"
        )
    if name is not None and refusal.facts.get("api") != f"http://{name}:8080":
        raise Violation(f"{machine.name} sends clients of {name} to {refusal.facts.get('api')}")


def check_in_time(machine: Machine, process: Process, what: str) -> None:
    """Check that a master answers for its group at most a few steps after its deadline."""
    late_ms = machine.boot_ms() - machine.slot(Slot.LEASE_DEADLINE)
    now_us = machine.timeline.now_us
    fenced_us = machine.changed_us.get(Slot.FENCED, 0)
    since_us = max(fenced_us, process.resumed_us, machine.changed_us.get(Slot.LEASE_DEADLINE, 0))
    if min(late_ms, (now_us - since_us) // 1000) > LATE_MS:
        raise Violation(f"{machine.name} {what} {late_ms} ms after the deadline of its lease")


def check_roles(history: History, machine: Machine, process: Process, probes: Probes) -> None:
    """Check the probes of ha: primary while the lease lasts, replica while the node follows, and in
    sync while it may be a member of the set."""
    name, now_us, slot = machine.name, machine.timeline.now_us, machine.slot
    in_time = machine.boot_ms() < slot(Slot.LEASE_DEADLINE) and not slot(Slot.FENCED)
    leads = in_time and slot(Slot.ROLE) == NodeRole.MASTER
    follows = slot(Slot.ROLE) == NodeRole.FOLLOWER
    if (probes.is_primary, probes.is_replica) != (leads, follows):
        raise Violation(
            f"ha of {name} answers /primary with {probes.is_primary} and /replica with "
            f"{probes.is_replica}; correct are {leads} and {follows}"
        )
    member = Member(name, machine.incarnation)
    left_us = now_us if member in history.published else history.member_us.get(member, 0)
    is_in_sync = _status(probes) == 200
    if is_in_sync and now_us - max(left_us, process.resumed_us) > LEFT_US and not leads:
        raise Violation(
            f"/in-sync of {name} returns 200, but the node left the set {now_us - left_us} µs ago"
        )
    if leads and not is_in_sync:
        raise Violation(f"{name} is the primary, but its /in-sync does not return 200")


def _status(probes: Probes) -> int:
    """Status code of ``/in-sync``, whose handler never waits."""
    try:
        probes._in_sync(cast(web.Request, None)).send(None)
    except StopIteration as answered:
        return cast(web.Response, answered.value).status
    raise AssertionError("it waits for something")


def _must_have_a_reason(node: str, master: object, reason: object) -> None:
    if (master is None) != bool(reason):
        raise Violation(f"{node} names {master} as the master, with the reason {reason!r}")
