"""How long service may be away, by what is done: from the times of the lease's default profile."""

from __future__ import annotations

from typing import Final

from drills.pods.group import PROFILE
from shared.cluster.time_rules import PROFILES

TIMES: Final = PROFILES[PROFILE]
ELECTED_S: Final = TIMES.lease_ms / 1000 + 5.0
"""A lease runs out, and somebody is elected."""
PLANNED_S: Final = 2.0
"""A switch that somebody wants."""
LOST_SLAVE_S: Final = TIMES.link_dead_ms / 1000 + PLANNED_S
"""A slave that has ended without a word leaves the set when it has been silent for so long."""
READY_S: Final = 180.0
"""Patience with a pod's start."""
