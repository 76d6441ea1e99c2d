"""What the parts of ha count, under the names that ``metrics`` defines. Pure.

Step before: ``own``, the lease's session and the watch count. Step after: a scrape.
"""

from __future__ import annotations

from services.ha.peer_clock import Skew
from services.ha.replica import Replica


def counted(replica: Replica, *, loop_stalls: int) -> dict[str, float]:
    """Counters by the names that ``metrics`` defines."""
    count, session = replica.own.count, replica.own.session
    return {
        "truncations": count.truncations,
        "truncated_bytes": count.truncated_bytes,
        "resyncs": count.resyncs,
        "fenced_frames": count.fenced_frames,
        "refused_frames": count.refused_frames,
        "implausible_acks": count.implausible_acks,
        "elections_won": count.elections_won,
        "elections_lost": count.elections_lost,
        "depositions": count.depositions,
        "switchovers": count.switchovers,
        "lease_conflicts": session.conflicts,
        "lease_unknown": session.unknowns,
        "lease_writes": session.writes,
        "loop_stalls": loop_stalls,
    }


def counted_by_kind(replica: Replica) -> dict[str, dict[str, float]]:
    """Counters with a label."""
    count = replica.own.count
    return {
        "failovers": dict(count.won_by),
        "in_sync_changes": {"join": count.in_sync_joins, "leave": count.in_sync_leaves},
    }


def skews(replica: Replica) -> dict[str, Skew]:
    """How far the wall clocks of other nodes are ahead, of those that are in touch and say it."""
    own_ahead_ms, peers = replica.own.sensed.wall_ahead_ms, replica.peers
    found = {
        node: peer.clock.skew(own_ahead_ms)
        for node, peer in peers.by_node.items()
        if peers.fresh(node) is not None
    }
    return {node: skew for node, skew in found.items() if skew is not None}
