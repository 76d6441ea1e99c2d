"""Alerts about a group of nodes: masters, copies, leases, clocks. Pure.

A standalone node exports no metrics of ha, so none of these alerts fires for it.
"""

from __future__ import annotations

from typing import Final

from deploy.prometheus.areas.nodes import BY_NODE
from deploy.prometheus.areas.recording import NODE, ON_NODE, SET
from deploy.prometheus.model import Alert, Group, Severity, events

IS_MASTER: Final = f'max {BY_NODE} (tidemark_ha_role{{role="master"}}) == 1'

REPLICATION: Final = Group(
    "tidemark-replication",
    (
        Alert(
            "TidemarkMasterCount",
            'sum by (cluster, broker) (tidemark_ha_role{role="master"}) != 1',
            Severity.PAGE,
            SET,
            "{{ $labels.broker }} has {{ $value }} masters",
            "Without a master no node takes sends. Two are reported at most until the lease of the "
            "older one ends; only one can acknowledge.",
            waits="1m",
            keeps="3m",
        ),
        Alert(
            "TidemarkMasterNotOpen",
            f"max {BY_NODE} (tidemark_ha_opening_seconds) > 30",
            Severity.PAGE,
            NODE,
            "{{ $labels.replica }} of {{ $labels.broker }} has the lease for "
            "{{ $value | humanizeDuration }} and takes no sends",
            "It was made master and does not open. Another member takes over by itself, if one "
            "could lead.",
            waits="30s",
        ),
        Alert(
            "TidemarkBelowMinimum",
            f"sum by (cluster, broker) (tidemark_ha_replica_connected and {ON_NODE} {IS_MASTER})"
            " + 1 < on (cluster, broker) max by (cluster, broker)"
            f" (tidemark_ha_min_in_sync_replicas and {ON_NODE} {IS_MASTER})",
            Severity.PAGE,
            SET,
            "the master of {{ $labels.broker }} reaches too few nodes: {{ $value }} with itself",
            "Every send is refused. The master keeps the lease: if the other nodes run, it is cut "
            "off from them, and one of them takes over when it is stopped.",
            waits="30s",
        ),
        Alert(
            "TidemarkUnderReplicated",
            "max by (cluster, broker) (tidemark_ha_in_sync_replicas and "
            f"{ON_NODE} {IS_MASTER}) < on (cluster, broker) max by (cluster, broker)"
            f" (tidemark_ha_configured_replicas and {ON_NODE} {IS_MASTER})",
            Severity.TICKET,
            SET,
            "{{ $labels.broker }} has only {{ $value }} copies in sync",
            "One more loss, and sends stop or messages that are not confirmed go with it.",
            waits="5m",
        ),
        Alert(
            "TidemarkReplicaLag",
            "max by (cluster, broker, peer) (tidemark_ha_replica_lag_seconds) > 10"
            " and on (cluster, broker, peer) max by (cluster, broker, peer)"
            f" (tidemark_ha_replica_connected and {ON_NODE} {IS_MASTER}) == 1",
            Severity.TICKET,
            (*SET, "peer"),
            "{{ $labels.peer }} of {{ $labels.broker }} is connected and "
            "{{ $value | humanizeDuration }} behind",
            "It copies and does not catch up: its disk or the network is too slow, or it has very "
            "much to copy.",
            waits="2m",
            keeps="2m",
        ),
        Alert(
            "TidemarkReplicaHalted",
            f'max {BY_NODE} (tidemark_ha_role{{role="halted"}}) == 1',
            Severity.PAGE,
            NODE,
            "{{ $labels.replica }} of {{ $labels.broker }} has halted",
            "Its log contradicts what the group confirmed, or is damaged. It serves nothing "
            "and is never elected until an operator runs `tidemark cluster resync`.",
            waits="30s",
        ),
        Alert(
            "TidemarkLeaseOld",
            "min by (cluster, broker) (tidemark_ha_lease_age_seconds) > 30",
            Severity.PAGE,
            SET,
            "the lease of {{ $labels.broker }} was last renewed "
            "{{ $value | humanizeDuration }} ago",
            "The store of the lease does not answer, or no node may take it. A master without "
            "a lease stops.",
            waits="1m",
        ),
        Alert(
            "TidemarkFailoversInARow",
            "sum by (cluster, broker) (increase("
            'tidemark_ha_failovers_total{reason="lost_peer"}[15m])) > 2',
            Severity.TICKET,
            SET,
            "{{ $labels.broker }} changed its master about {{ $value | humanize }} times within 15 "
            "minutes",
            "Each costs seconds without sends. Nodes fail in turn, or the lease's times are too "
            "short for this disk or network.",
        ),
        Alert(
            "TidemarkInSyncFlapping",
            'sum by (cluster, broker) (increase(tidemark_ha_in_sync_changes_total{change="leave"}'
            "[15m])) > 3",
            Severity.TICKET,
            SET,
            "copies of {{ $labels.broker }} left the in-sync set about {{ $value | humanize }} "
            "times within 15 minutes",
            "A slow disk or network: each time, sends wait until the member is counted out.",
        ),
        Alert(
            "TidemarkFailoverPaused",
            "max by (cluster, broker) (tidemark_ha_paused) == 1",
            Severity.TICKET,
            SET,
            "no node of {{ $labels.broker }} takes over: failover is paused",
            "`tidemark cluster pause` was run without `resume`. The next loss of the master "
            "stops sends until an operator acts.",
            waits="1h",
        ),
        Alert(
            "TidemarkClockSkew",
            "max by (cluster, broker, peer) (abs(tidemark_ha_clock_skew_seconds)) > 1",
            Severity.TICKET,
            (*SET, "peer"),
            "the clock of {{ $labels.peer }} in {{ $labels.broker }} is "
            "{{ $value | humanizeDuration }} off",
            "No messages are lost; ages and searches by time are wrong across a failover.",
            waits="5m",
        ),
        Alert(
            "TidemarkReplicationStrangers",
            f"sum {BY_NODE} (rate(tidemark_ha_refused_connections_total[5m])) > 0.05",
            Severity.TICKET,
            NODE,
            '{{ $labels.replica }} of {{ $labels.broker }} refuses {{ $value | printf "%.2f" }} '
            "connections a second on its replication port",
            "Something connects that does not know the secret: a node with another secret, a "
            "scanner, a probe.",
            waits="15m",
        ),
        Alert(
            "TidemarkResync",
            events("tidemark_ha_resyncs_total", "10m", NODE),
            Severity.INFO,
            NODE,
            "{{ $labels.replica }} of {{ $labels.broker }} emptied its log and copies it again",
            "Until it has caught up there is one copy fewer.",
            keeps="10m",
        ),
    ),
)
