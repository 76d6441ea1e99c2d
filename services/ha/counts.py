"""What the parts of ha count, by family of the catalogue. Pure.

Step before: ``own``, the lease's session and the watch count. Step after: a scrape.
"""

from __future__ import annotations

from typing import Final

from services.ha.peer_clock import Skew
from services.ha.replica import Replica
from shared.metrics.catalogue import ha as of_ha
from shared.metrics.family import Family
from shared.metrics.registry import Reading

COUNTED: Final = (
    of_ha.HA_TRUNCATIONS_TOTAL,
    of_ha.HA_TRUNCATED_BYTES_TOTAL,
    of_ha.HA_RESYNCS_TOTAL,
    of_ha.HA_FENCED_FRAMES_TOTAL,
    of_ha.HA_REFUSED_FRAMES_TOTAL,
    of_ha.HA_IMPLAUSIBLE_ACKS_TOTAL,
    of_ha.HA_FAILOVERS_TOTAL,
    of_ha.HA_IN_SYNC_CHANGES_TOTAL,
    of_ha.HA_ELECTIONS_WON_TOTAL,
    of_ha.HA_ELECTIONS_LOST_TOTAL,
    of_ha.HA_DEPOSITIONS_TOTAL,
    of_ha.HA_SWITCHOVERS_TOTAL,
    of_ha.HA_LEASE_CONFLICTS_TOTAL,
    of_ha.HA_LEASE_UNKNOWN_TOTAL,
    of_ha.HA_LEASE_WRITES_TOTAL,
    of_ha.HA_LOOP_STALLS_TOTAL,
)
"""What ``counted`` tells."""


def counted(replica: Replica, *, loop_stalls: int) -> dict[Family, Reading]:
    """All counters; those with a label by its value."""
    count, session = replica.own.count, replica.own.session
    return {
        of_ha.HA_TRUNCATIONS_TOTAL: count.truncations,
        of_ha.HA_TRUNCATED_BYTES_TOTAL: count.truncated_bytes,
        of_ha.HA_RESYNCS_TOTAL: count.resyncs,
        of_ha.HA_FENCED_FRAMES_TOTAL: count.fenced_frames,
        of_ha.HA_REFUSED_FRAMES_TOTAL: count.refused_frames,
        of_ha.HA_IMPLAUSIBLE_ACKS_TOTAL: count.implausible_acks,
        of_ha.HA_FAILOVERS_TOTAL: dict(count.won_by),
        of_ha.HA_IN_SYNC_CHANGES_TOTAL: {
            "join": count.in_sync_joins,
            "leave": count.in_sync_leaves,
        },
        of_ha.HA_ELECTIONS_WON_TOTAL: count.elections_won,
        of_ha.HA_ELECTIONS_LOST_TOTAL: count.elections_lost,
        of_ha.HA_DEPOSITIONS_TOTAL: count.depositions,
        of_ha.HA_SWITCHOVERS_TOTAL: count.switchovers,
        of_ha.HA_LEASE_CONFLICTS_TOTAL: session.conflicts,
        of_ha.HA_LEASE_UNKNOWN_TOTAL: session.unknowns,
        of_ha.HA_LEASE_WRITES_TOTAL: session.writes,
        of_ha.HA_LOOP_STALLS_TOTAL: loop_stalls,
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
