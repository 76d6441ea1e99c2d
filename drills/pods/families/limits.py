"""Time limits of interruptions by kind of fault, from the lease's default profile."""

from __future__ import annotations

from typing import Final

from drills.pods.group import PROFILE
from shared.cluster.time_rules import PROFILES

TIMES: Final = PROFILES[PROFILE]
ELECTED_S: Final = TIMES.lease_ms / 1000 + 5.0
"""Limit of an election: a lease expires, and another node is elected."""
PLANNED_S: Final = 2.0
"""Limit of a planned switchover."""
LOST_SLAVE_S: Final = TIMES.link_dead_ms / 1000 + PLANNED_S
"""Limit after the loss of a slave, which leaves the in-sync set after this time of silence."""
READY_S: Final = 180.0
"""Timeout of a pod's start."""
