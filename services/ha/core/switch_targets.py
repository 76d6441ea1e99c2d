"""Slaves that a master could hand over to (docs/replication.md, becoming master). Pure.

Step before: an operator, trouble of this node, or the end of its process. Step after:
``switchover``.
"""

from __future__ import annotations

from services.ha.core.mastership import Mastership
from services.ha.core.peers import Peers
from services.ha.lease.value import Member


def fit_targets(term: Mastership, peers: Peers, *, ordered: bool = False) -> list[Member]:
    """Return slaves that could take over now, the one with the longest log first.

    Slaves without a recent status come after all others. ordered: slaves whose services stalled and
    recovered are included, last.
    """
    fit = []
    for link in term.links.values():
        node = link.peer.node
        if not unfit(term, peers, node, ordered=ordered):
            stalled = bool(unfit(term, peers, node, ordered=False))
            silent = peers.fresh(node) is None
            fit.append((stalled, silent, -(link.acked_end or 0), link.peer))
    return [member for *_, member in sorted(fit)]


def unfit(term: Mastership, peers: Peers, node: str, *, ordered: bool) -> str:
    """Return why a slave could not take over now; empty: it could. ordered: see ``fit_targets``."""
    link = next((link for link in term.links.values() if link.peer.node == node), None)
    published = term.in_sync.published
    if link is None and any(member.node == node for member in published):
        return "does not follow"
    if link is None or link.peer not in published:
        return "is not in the in-sync set"
    if link.acked_end is None:
        return "does not follow yet"
    if term.in_sync.peer(link.peer).leaving:
        return "is about to end"
    if (status := peers.fresh(node)) is None:
        return ""
    facts = status.facts
    stalled = ordered and facts.stalls_are_over
    if not facts.services_move or (facts.trouble and not stalled):
        return f"cannot take over: {facts.reason or facts.trouble}"
    return ""
