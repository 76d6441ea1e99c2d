"""What the parts of ha count, under the names that ``metrics`` defines. Pure.

Step before: ``own``, the lease's session and the watch count. Step after: a scrape.
"""

from __future__ import annotations

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
