"""ha: replication. Pure."""

from __future__ import annotations

from typing import Final

from shared.metrics.family import SECONDS_BUCKETS, counter, declared, gauge, histogram

# One family is one row of a table.
# fmt: off
HA_ROLE: Final = gauge("tidemark_ha_role{role}", "–",
    "1 for the role of this node: `master`, `slave`, `candidate` (on the way to master), "
    "`fenced`, `halted`",
    title="Roles",
    alert="not exactly one master per group for longer than a failover; any `halted`")
HA_EPOCH: Final = gauge("tidemark_ha_epoch", "–",
    "Epoch of the group's master known here",
    title="Epoch", alert="several steps within minutes")
HA_CONFIGURED_REPLICAS: Final = gauge("tidemark_ha_configured_replicas", "nodes",
    "Nodes in the configuration, the master included")
HA_IN_SYNC_REPLICAS: Final = gauge("tidemark_ha_in_sync_replicas", "nodes",
    "Members of the published in-sync set, the master included",
    alert="below the configured ones for longer than a restart")
HA_MIN_IN_SYNC_REPLICAS: Final = gauge("tidemark_ha_min_in_sync_replicas", "nodes",
    "A smaller in-sync set acknowledges nothing")
HA_LEASE_LEFT_SECONDS: Final = gauge("tidemark_ha_lease_left_seconds", "s",
    "Time until this node must stop answering as master; negative afterwards",
    alert="below the margin of the profile")
HA_LEASE_AGE_SECONDS: Final = gauge("tidemark_ha_lease_age_seconds", "s",
    "Since the lease was last seen to change",
    alert="more than the lease time: no node renews it")
HA_LOG_END_OFFSET_BYTES: Final = gauge("tidemark_ha_log_end_offset_bytes", "bytes",
    "End of the node's own log")
HA_CONFIRM_OFFSET_BYTES: Final = gauge("tidemark_ha_confirm_offset_bytes", "bytes",
    "Physical offset up to which every member of the set has everything on disk, as known here")
HA_UNCONFIRMED_BYTES: Final = gauge("tidemark_ha_unconfirmed_bytes", "bytes",
    "Own log's end minus the confirm offset",
    alert="growing during sends")
HA_PAUSED: Final = gauge("tidemark_ha_paused", "–",
    "1 while automatic failover is paused (`tidemark cluster pause`)",
    alert="1 for longer than the maintenance")
HA_OPENING_SECONDS: Final = gauge("tidemark_ha_opening_seconds", "s",
    "Time for which this node has the lease and its broker accepts no sends; 0: it accepts them, "
    "or this node is not master",
    alert="above 60")
HA_CONNECTIONS: Final = gauge("tidemark_ha_connections", "connections",
    "Connections on the replication port",
    title="Connections", alert="near `connections_max`")
HA_REPLICA_CONNECTED: Final = gauge("tidemark_ha_replica_connected{peer}", "–",
    "1 while there is a link to the peer",
    title="Links", alert="0")
HA_REPLICA_IN_SYNC: Final = gauge("tidemark_ha_replica_in_sync{peer}", "–",
    "1 while the peer is a member of the published in-sync set",
    title="In-sync set", alert="0")
HA_REPLICA_LAG_BYTES: Final = gauge("tidemark_ha_replica_lag_bytes{peer}", "bytes",
    "Own log's end minus what the peer acknowledged as on disk")
HA_REPLICA_LAG_SECONDS: Final = gauge("tidemark_ha_replica_lag_seconds{peer}", "s",
    "Time since the peer last had on disk everything that the master had; 0 when it has everything",
    title="Behind in replication", alert="above the profile's lag limit")
HA_REPLICA_ACKED_BYTES: Final = gauge("tidemark_ha_replica_acked_bytes{peer}", "bytes",
    "Physical offset up to which the peer has the log on disk, as far as known here")
HA_ACK_DURATION_SECONDS: Final = histogram("tidemark_ha_ack_duration_seconds{peer}", "s",
    "From sending bytes to the peer until it acknowledged them as on its disk; once per ACK, of "
    "its oldest bytes",
    title="Sent to acknowledged", buckets=SECONDS_BUCKETS,
    alert="99th percentile above half of the ack limit: a slow disk or network holds up every send")
HA_TRANSFERRED_BYTES_TOTAL: Final = counter("tidemark_ha_transferred_bytes_total{peer}", "bytes",
    "Bytes sent to the peer",
    title="Sent to peers")
HA_ACCEPTED_CONNECTIONS_TOTAL: Final = counter(
    "tidemark_ha_accepted_connections_total", "connections",
    "Connections accepted on the replication port",
    title="New connections", alert="a steady rate: links do not hold")
HA_REFUSED_CONNECTIONS_TOTAL: Final = counter(
    "tidemark_ha_refused_connections_total", "connections",
    "Connections closed before a proof of the secret, or for an invalid frame",
    alert="any steady rate: find the peer")
HA_TRUNCATIONS_TOTAL: Final = counter("tidemark_ha_truncations_total", "cuts",
    "Cuts of the own log at the divergence point")
HA_TRUNCATED_BYTES_TOTAL: Final = counter("tidemark_ha_truncated_bytes_total", "bytes",
    "Bytes cut from a log that had diverged; they are kept in `cut/`",
    title="Bytes cut")
HA_RESYNCS_TOTAL: Final = counter("tidemark_ha_resyncs_total", "resyncs",
    "Times that the own log was emptied and copied again",
    alert="any without an operator's command")
HA_FENCED_FRAMES_TOTAL: Final = counter("tidemark_ha_fenced_frames_total", "frames",
    "Answers that a higher epoch has been promised")
HA_REFUSED_FRAMES_TOTAL: Final = counter("tidemark_ha_refused_frames_total", "frames",
    "Frames of an epoch below the promised one")
HA_IMPLAUSIBLE_ACKS_TOTAL: Final = counter("tidemark_ha_implausible_acks_total", "frames",
    "Impossible acknowledgements; each closed a link",
    alert="any")
HA_FAILOVERS_TOTAL: Final = counter("tidemark_ha_failovers_total{reason}", "terms",
    "Times that this process became master: `lost_peer`, `manual` (a command or a switchover), "
    "`startup`",
    alert="`lost_peer` several times within minutes")
HA_IN_SYNC_CHANGES_TOTAL: Final = counter("tidemark_ha_in_sync_changes_total{change}", "changes",
    "Changes of the published in-sync set by this process as master: `join`, `leave`",
    title="In-sync set changes", alert="several `leave` within minutes: a slow disk or network")
HA_ELECTIONS_WON_TOTAL: Final = counter("tidemark_ha_elections_won_total", "elections",
    "Times that this process took the lease",
    alert="several within minutes")
HA_ELECTIONS_LOST_TOTAL: Final = counter("tidemark_ha_elections_lost_total", "elections",
    "Attempts in which another node took the lease first")
HA_DEPOSITIONS_TOTAL: Final = counter("tidemark_ha_depositions_total", "terms",
    "Terms of this process that ended unexpectedly",
    alert="any")
HA_SWITCHOVERS_TOTAL: Final = counter("tidemark_ha_switchovers_total", "switches",
    "Switchovers away from this process")
HA_LEASE_CONFLICTS_TOTAL: Final = counter("tidemark_ha_lease_conflicts_total", "writes",
    "Writes to the lease that another write had overtaken",
    alert="a steady rate: another writer edits it")
HA_LEASE_UNKNOWN_TOTAL: Final = counter("tidemark_ha_lease_unknown_total", "requests",
    "Requests to the lease without an outcome: timeouts and errors",
    alert="a steady rate: the API is slow or unreachable")
HA_LEASE_WRITES_TOTAL: Final = counter("tidemark_ha_lease_writes_total", "writes",
    "Writes to the lease that were applied")
HA_LOOP_STALLS_TOTAL: Final = counter("tidemark_ha_loop_stalls_total", "stalls",
    "Times that the process stood still for longer than two seconds",
    alert="any")
HA_CLOCK_SKEW_SECONDS: Final = gauge("tidemark_ha_clock_skew_seconds{peer}", "s",
    "Estimated difference of the peer's clock to the own one, positive where the peer's is ahead",
    title="Clock against peers",
    alert="above 1 s either way: lag in seconds across nodes is not reliable")
# fmt: on

HA: Final = declared(globals())
