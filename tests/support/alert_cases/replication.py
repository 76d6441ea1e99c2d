"""Cases of groups of nodes."""

from __future__ import annotations

from typing import Final

from tests.support.alert_cases.healthy import STEPS, Case, always, series
from tests.support.alert_cases.nodes import IN_SYNC, OTHERS_IN_SYNC, role

LAG: Final = series("tidemark_ha_replica_lag_seconds", "n0/ha", peer="n1")
CONNECTED: Final = series("tidemark_ha_replica_connected", "n0/ha", peer="n1")
MINIMUM: Final = series("tidemark_ha_min_in_sync_replicas", "n0/ha")
AGES: Final = tuple(series("tidemark_ha_lease_age_seconds", f"{node}/ha") for node in ("n0", "n1"))
FAILOVERS: Final = series("tidemark_ha_failovers_total", "n1/ha", reason="lost_peer")
LEAVES: Final = series("tidemark_ha_in_sync_changes_total", "n0/ha", change="leave")
OPENING: Final = series("tidemark_ha_opening_seconds", "n0/ha")
PAUSED: Final = series("tidemark_ha_paused", "n0/ha")
SKEW: Final = series("tidemark_ha_clock_skew_seconds", "n0/ha", peer="n1")
STRANGERS: Final = series("tidemark_ha_refused_connections_total", "n0/ha")

REPLICATION_CASES: Final = (
    Case(
        "Two masters for longer than a minute page",
        role("n1", "master", f"0x20 1x{STEPS}"),
        (("11m", ()), ("12m", ("TidemarkMasterCount",))),
    ),
    Case(
        "No master for longer than a minute pages",
        role("n0", "master", f"1x20 0x{STEPS}"),
        (("11m", ()), ("12m", ("TidemarkMasterCount",))),
    ),
    Case(
        "A switchover is silent, whichever node is seen first",
        {
            **role("n0", "master", f"1x20 0x39 1x{STEPS}"),
            **role("n1", "master", f"0x21 1x39 0x{STEPS}"),
        },
        (("11m", ()), ("12m", ()), ("31m", ()), ("32m", ())),
    ),
    Case(
        "A master that does not open pages",
        {OPENING: f"0x20 0+30x{STEPS}"},
        (("10m", ()), ("12m", ("TidemarkMasterNotOpen",))),
    ),
    Case(
        "A master that takes twenty seconds to open does not",
        {OPENING: f"0x20 10x1 20x1 0x{STEPS}"},
        (("11m", ()), ("12m", ())),
    ),
    Case(
        "A master that reaches fewer nodes than the minimum pages; one that may be alone does not",
        {MINIMUM: f"1x20 2x{STEPS}", CONNECTED: f"1x40 0x{STEPS}"},
        (("20m", ()), ("22m", ("TidemarkBelowMinimum",))),
    ),
    Case(
        "A copy fewer than configured makes a ticket; what a slave believes does not count",
        {IN_SYNC: f"2x20 1x{STEPS}", CONNECTED: f"1x20 0x{STEPS}", LAG: f"0x20 0+30x{STEPS}"},
        (("15m", ()), ("16m", ("TidemarkUnderReplicated",)), ("40m", ("TidemarkUnderReplicated",))),
    ),
    Case(
        "A set that is not known is no short set",
        {IN_SYNC: None, OTHERS_IN_SYNC: f"2x20 1x{STEPS}"},
        (("16m", ()), ("40m", ())),
    ),
    Case(
        "A copy that is connected and stays behind makes a ticket",
        {LAG: f"0x20 15x{STEPS}"},
        (("12m", ()), ("13m", ("TidemarkReplicaLag",))),
    ),
    Case(
        "A copy that is behind for a minute does not",
        {LAG: f"0x20 15x2 0x{STEPS}"},
        (("12m", ()), ("13m", ())),
    ),
    Case(
        "A node that halted pages",
        {**role("n1", "halted", f"0x20 1x{STEPS}"), **role("n1", "slave", f"1x20 0x{STEPS}")},
        (("10m", ()), ("12m", ("TidemarkReplicaHalted",))),
    ),
    Case(
        "A lease that is not renewed pages",
        {key: f"1x20 1+30x{STEPS}" for key in AGES},
        (("11m", ()), ("14m", ("TidemarkLeaseOld",))),
    ),
    Case(
        "A lease that one node does not see renewed does not",
        {AGES[1]: f"1x20 1+30x{STEPS}"},
        (("14m", ()), ("40m", ())),
    ),
    Case(
        "Three failovers within a quarter of an hour make a ticket",
        {FAILOVERS: f"0x20 1x4 2x4 3x{STEPS}"},
        (("13m", ()), ("16m", ("TidemarkFailoversInARow",)), ("40m", ())),
    ),
    Case("One failover does not", {FAILOVERS: f"0x20 1x{STEPS}"}, (("11m", ()), ("20m", ()))),
    Case(
        "Copies that come and go make a ticket",
        {LEAVES: f"0x20 1x2 2x2 3x2 4x2 5x{STEPS}"},
        (("11m", ()), ("16m", ("TidemarkInSyncFlapping",)), ("40m", ())),
    ),
    Case(
        "A pause that was forgotten makes a ticket after an hour",
        {PAUSED: f"0x20 1x{STEPS}"},
        (("60m", ()), ("72m", ("TidemarkFailoverPaused",))),
    ),
    Case(
        "A clock that is two seconds behind makes a ticket",
        {SKEW: f"0x20 -2x{STEPS}"},
        (("14m", ()), ("16m", ("TidemarkClockSkew",))),
    ),
    Case(
        "Strangers on the replication port make a ticket after a quarter of an hour",
        {STRANGERS: f"0x20 0+3x{STEPS}"},
        (("20m", ()), ("30m", ("TidemarkReplicationStrangers",))),
    ),
    Case(
        "A few refused connections do not",
        {STRANGERS: f"0x20 3x{STEPS}"},
        (("20m", ()), ("30m", ())),
    ),
    Case(
        "A copy that was emptied is shown",
        {series("tidemark_ha_resyncs_total", "n1/ha"): f"0x20 1x{STEPS}", PAUSED: always(0)},
        (("9m", ()), ("12m", ("TidemarkResync",)), ("45m", ())),
    ),
)
