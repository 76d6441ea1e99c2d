"""Counters of one start of ha, for metrics. Pure."""

from __future__ import annotations


class Counters:
    """Counters since this start."""

    def __init__(self) -> None:
        self.truncations = 0
        self.truncated_bytes = 0
        self.resyncs = 0
        self.fenced_frames = 0
        """Received frames: the sender has promised a higher epoch."""
        self.refused_frames = 0
        """Received frames of an epoch below the promised one."""
        self.implausible_acks = 0
        self.elections_won = 0
        self.elections_lost = 0
        self.depositions = 0
        self.switchovers = 0
        self.won_by = {"lost_peer": 0, "manual": 0, "startup": 0}
        """Won leases by reason: the holder was gone; a planned switch or a command; the lease named
        this node's own volume, or was created here."""
        self.in_sync_joins = 0
        self.in_sync_leaves = 0
