"""Dispatch and replication: the steps from a stored record to its visibility for consumers."""

from __future__ import annotations

from typing import Final

from deploy.grafana import units
from deploy.grafana.boards import uids
from deploy.grafana.descriptions import describe
from deploy.grafana.limits import CLOCK_SKEW, DISPATCH_SLOW, REPLICA_LAG
from deploy.grafana.panels import ALONE, RED, Board, Heat, Lines, Row, Step, Timeline
from deploy.grafana.queries import NODE, WINDOW, Query, growth, quantile, quantiles, rate
from deploy.grafana.states import ROLE_WORDS, YES_NO, role_state

BEHIND: Final = (
    Lines(
        title="Behind, in seconds",
        description=describe(
            "Confirmed, but not yet to be seen by consumers.", "tidemark_dispatch_lag_seconds"
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                f"max by (broker, replica) (tidemark_dispatch_lag_seconds{{{NODE}}})", "{{replica}}"
            ),
        ),
        width=8,
        steps=(Step(DISPATCH_SLOW.value, RED),),
    ),
    Lines(
        title="Behind, in bytes",
        description=describe(
            "At the configured bound sends are refused until dispatch has caught up.",
            "tidemark_dispatch_lag_bytes",
        ),
        unit=units.BYTES,
        queries=(
            Query(
                f"max by (broker, replica) (tidemark_dispatch_lag_bytes{{{NODE}}})", "{{replica}}"
            ),
        ),
        width=8,
    ),
    Lines(
        title="Not yet on disk",
        description=describe(
            "Dispatched, and to be dispatched again after a power cut: how long a restart would "
            "take.",
            "tidemark_dispatch_durable_offset_bytes",
        ),
        unit=units.BYTES,
        queries=(
            Query(
                f"max by (broker, replica) (tidemark_dispatch_offset_bytes{{{NODE}}} - "
                f"tidemark_dispatch_durable_offset_bytes{{{NODE}}})",
                "{{replica}}",
            ),
        ),
        width=8,
    ),
)
SPEED: Final = (
    Lines(
        title="Records dispatched",
        description=describe(
            "Records and the queue units made of them; the rest are half messages and their ends.",
            "tidemark_dispatch_records_total",
            "tidemark_dispatch_messages_total",
        ),
        unit=units.RECORDS_RATE,
        queries=(
            Query(rate("tidemark_dispatch_records_total", "replica"), "{{replica}} records"),
            Query(rate("tidemark_dispatch_messages_total", "replica"), "{{replica}} units"),
        ),
        width=8,
    ),
    Lines(
        title="Bytes dispatched",
        description=describe("Per node.", "tidemark_dispatch_bytes_total"),
        unit=units.BYTES_RATE,
        queries=(Query(rate("tidemark_dispatch_bytes_total", "replica"), "{{replica}}"),),
        width=8,
    ),
    Lines(
        title="Index keys and repairs",
        description=describe(
            "Repairs without a crash before them mean that something else writes to the store.",
            "tidemark_dispatch_index_entries_total",
            "tidemark_dispatch_repaired_units_total",
        ),
        unit=units.EVENTS_RATE,
        queries=(
            Query(rate("tidemark_dispatch_index_entries_total", "replica"), "{{replica}} keys"),
            Query(rate("tidemark_dispatch_repaired_units_total", "replica"), "{{replica}} repairs"),
        ),
        width=8,
    ),
)
DURATION: Final = (
    Heat(
        title="Store to visible",
        description=describe(
            "Dark cells are where most steps fell.", "tidemark_dispatch_visible_delay_seconds"
        ),
        unit=units.SECONDS,
        queries=(Query(rate("tidemark_dispatch_visible_delay_seconds_bucket", "le"), "{{le}}"),),
        width=8,
    ),
    Lines(
        title="Time per step, p99",
        description=describe(
            "A step as a whole, its targets, and the sync of what was touched.",
            "tidemark_dispatch_step_duration_seconds",
            "tidemark_dispatch_duration_seconds",
            "tidemark_dispatch_sync_duration_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(quantile(0.99, "tidemark_dispatch_step_duration_seconds"), "step"),
            Query(quantile(0.99, "tidemark_dispatch_duration_seconds", "target"), "{{target}}"),
            Query(quantile(0.99, "tidemark_dispatch_sync_duration_seconds"), "sync"),
        ),
        width=8,
        log=True,
    ),
    Lines(
        title="Errors",
        description=describe(
            "Per step of the graph, by code of the runbook. Dispatch stands still at the first.",
            "tidemark_dispatch_errors_total",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                growth("tidemark_dispatch_errors_total", "replica, reason"),
                "{{replica}} {{reason}}",
                needs="an error of dispatch",
            ),
        ),
        width=8,
        bars=True,
        nothing="No errors",
    ),
)

GROUP: Final = "a group of at least two nodes"
WHO: Final = (
    Timeline(
        title="Roles",
        description=describe(
            "Two masters at once is an alert. A gap: the node's ha did not answer.",
            "tidemark_ha_role",
        ),
        unit=units.PLAIN,
        queries=(Query(role_state(), "{{replica}}"),),
        width=12,
        words=ROLE_WORDS,
        nothing=ALONE,
    ),
    Timeline(
        title="Epoch",
        description=describe(
            "Nodes of one broker set agree, but for the moment of a change.", "tidemark_ha_epoch"
        ),
        unit=units.PLAIN,
        queries=(Query(f"max by (broker, replica) (tidemark_ha_epoch{{{NODE}}})", "{{replica}}"),),
        width=12,
        nothing=ALONE,
    ),
)
COPIES: Final = (
    Lines(
        title="Copies",
        description=describe(
            "Below the dashed line of the least, sends with `ack=replicated` are refused.",
            "tidemark_ha_in_sync_replicas",
            "tidemark_ha_configured_replicas",
            "tidemark_ha_min_in_sync_replicas",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                f"max by (broker) (tidemark_ha_configured_replicas{{{NODE}}})",
                "{{broker}} configured",
            ),
            Query(
                f"max by (broker) (tidemark_ha_in_sync_replicas{{{NODE}}})", "{{broker}} in sync"
            ),
            Query(
                f"max by (broker) (tidemark_ha_min_in_sync_replicas{{{NODE}}})", "{{broker}} least"
            ),
        ),
        width=8,
        nothing=ALONE,
    ),
    Timeline(
        title="Links",
        description=describe("As the master sees them.", "tidemark_ha_replica_connected"),
        unit=units.PLAIN,
        queries=(
            Query(
                f"max by (broker, peer) (tidemark_ha_replica_connected{{{NODE}}})",
                "{{peer}}",
                needs=GROUP,
            ),
        ),
        width=8,
        words=YES_NO,
        nothing=ALONE,
    ),
    Timeline(
        title="In the set",
        description=describe("As the master published it.", "tidemark_ha_replica_in_sync"),
        unit=units.PLAIN,
        queries=(
            Query(
                f"max by (broker, peer) (tidemark_ha_replica_in_sync{{{NODE}}})",
                "{{peer}}",
                needs=GROUP,
            ),
        ),
        width=8,
        words=YES_NO,
        nothing=ALONE,
    ),
)
LINKS: Final = (
    Lines(
        title="Slaves behind, in seconds",
        description=describe("As the master sees them.", "tidemark_ha_replica_lag_seconds"),
        unit=units.SECONDS,
        queries=(
            Query(
                f"max by (broker, peer) (tidemark_ha_replica_lag_seconds{{{NODE}}})",
                "{{peer}}",
                needs=GROUP,
            ),
        ),
        width=8,
        steps=(Step(REPLICA_LAG.value, RED),),
        nothing=ALONE,
    ),
    Lines(
        title="Slaves behind, in bytes",
        description=describe(
            "The end of the log that only the master has: a power cut there loses what was not "
            "acknowledged by replicas.",
            "tidemark_ha_replica_lag_bytes",
            "tidemark_ha_unconfirmed_bytes",
        ),
        unit=units.BYTES,
        queries=(
            Query(
                f"max by (broker, peer) (tidemark_ha_replica_lag_bytes{{{NODE}}})",
                "{{peer}}",
                needs=GROUP,
            ),
            Query(
                f"max by (broker, replica) (tidemark_ha_unconfirmed_bytes{{{NODE}}})",
                "{{replica}} unconfirmed",
            ),
        ),
        width=8,
        nothing=ALONE,
    ),
    Lines(
        title="How fast copies grow",
        description=describe(
            "Each node's log, the confirm offset, and what each peer acknowledges. Where the lines "
            "part, a node falls behind; below 0 a log was cut. Not distances: nodes are scraped "
            "at different moments.",
            "tidemark_ha_log_end_offset_bytes",
            "tidemark_ha_confirm_offset_bytes",
            "tidemark_ha_replica_acked_bytes",
        ),
        unit=units.BYTES_RATE,
        queries=(
            Query(
                f"max by (broker, replica) "
                f"(deriv(tidemark_ha_log_end_offset_bytes{{{NODE}}}[{WINDOW}]))",
                "{{replica}}",
            ),
            Query(
                f"max by (broker) (deriv(tidemark_ha_confirm_offset_bytes{{{NODE}}}[{WINDOW}]))",
                "{{broker}} confirmed",
            ),
            Query(
                f"max by (broker, peer) "
                f"(deriv(tidemark_ha_replica_acked_bytes{{{NODE}}}[{WINDOW}]))",
                "{{peer}} acknowledged",
                needs=GROUP,
            ),
        ),
        width=8,
        below_zero=True,
        nothing=ALONE,
    ),
)
TRANSFER: Final = (
    Lines(
        title="Sent to peers",
        description=describe("By peer.", "tidemark_ha_transferred_bytes_total"),
        unit=units.BYTES_RATE,
        queries=(Query(rate("tidemark_ha_transferred_bytes_total", "broker, peer"), "{{peer}}"),),
        width=8,
        nothing=ALONE,
    ),
    Heat(
        title="Sent to acknowledged",
        description=describe(
            "Every send with `ack=replicated` waits this long. Dark cells are where most fell.",
            "tidemark_ha_ack_duration_seconds",
        ),
        unit=units.SECONDS,
        queries=(Query(rate("tidemark_ha_ack_duration_seconds_bucket", "le"), "{{le}}"),),
        width=8,
        nothing=ALONE,
    ),
    Lines(
        title="Sent to acknowledged, quantiles",
        description=describe(
            "Half, 99 % and 99.9 % were faster.", "tidemark_ha_ack_duration_seconds"
        ),
        unit=units.SECONDS,
        queries=quantiles("tidemark_ha_ack_duration_seconds"),
        width=8,
        log=True,
        nothing=ALONE,
    ),
)
CHANGES: Final = (
    Lines(
        title="Masters made",
        description=describe(
            "Around each point, by reason. Several `lost_peer` within minutes: a link or a disk "
            "that comes and goes.",
            "tidemark_ha_failovers_total",
            "tidemark_ha_depositions_total",
            "tidemark_ha_switchovers_total",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                growth("tidemark_ha_failovers_total", "replica, reason"),
                "{{replica}} {{reason}}",
                needs="a change of masters",
            ),
            Query(
                growth("tidemark_ha_depositions_total", "replica"),
                "{{replica}} deposed",
                needs="a term that ended before its time",
            ),
            Query(
                growth("tidemark_ha_switchovers_total", "replica"),
                "{{replica}} handed over",
                needs="a planned switch",
            ),
        ),
        width=8,
        bars=True,
        nothing="No change",
    ),
    Lines(
        title="In-sync set changes",
        description=describe("Around each point.", "tidemark_ha_in_sync_changes_total"),
        unit=units.COUNT,
        queries=(
            Query(
                growth("tidemark_ha_in_sync_changes_total", "broker, change"),
                "{{broker}} {{change}}",
                needs="a slave that joined or left",
            ),
        ),
        width=8,
        bars=True,
        colours=(),
        nothing="No change",
    ),
    Lines(
        title="Bytes cut",
        description=describe(
            "Around each point: what a node had that the group does not keep. Nothing that was "
            "acknowledged by replicas is among it.",
            "tidemark_ha_truncated_bytes_total",
        ),
        unit=units.BYTES,
        queries=(
            Query(
                growth("tidemark_ha_truncated_bytes_total", "replica"),
                "{{replica}}",
                needs="a log that had diverged",
            ),
        ),
        width=8,
        bars=True,
        nothing="Nothing was cut",
    ),
)
CLOCKS: Final = (
    Lines(
        title="Clock against peers",
        description=describe(
            "Beyond a second either way, lag in seconds across nodes is not to be trusted.",
            "tidemark_ha_clock_skew_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                f"max by (broker, replica, peer) (tidemark_ha_clock_skew_seconds{{{NODE}}})",
                "{{replica}} to {{peer}}",
                needs=GROUP,
            ),
        ),
        width=8,
        steps=(Step(-CLOCK_SKEW.value, RED), Step(CLOCK_SKEW.value, RED)),
        below_zero=True,
        nothing=ALONE,
    ),
    Lines(
        title="Lease",
        description=describe(
            "The master's time left drops to 0 where the lease cannot be renewed; then it stops to "
            "answer as master.",
            "tidemark_ha_lease_left_seconds",
            "tidemark_ha_lease_age_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                f"max by (broker, replica) (tidemark_ha_lease_left_seconds{{{NODE}}})",
                "{{replica}} left",
            ),
            Query(
                f"max by (broker, replica) (tidemark_ha_lease_age_seconds{{{NODE}}})",
                "{{replica}} age",
            ),
        ),
        width=8,
        below_zero=True,
        nothing=ALONE,
    ),
    Lines(
        title="Requests to the lease",
        description=describe(
            "A steady rate of unknown ones: the place where the lease is kept is slow or away.",
            "tidemark_ha_lease_writes_total",
            "tidemark_ha_lease_conflicts_total",
            "tidemark_ha_lease_unknown_total",
        ),
        unit=units.EVENTS_RATE,
        queries=(
            Query(rate("tidemark_ha_lease_writes_total", "broker"), "{{broker}} written"),
            Query(rate("tidemark_ha_lease_conflicts_total", "broker"), "{{broker}} overtaken"),
            Query(rate("tidemark_ha_lease_unknown_total", "broker"), "{{broker}} unknown"),
        ),
        width=8,
        nothing=ALONE,
    ),
)
STRANGE: Final = (
    Lines(
        title="Refused on the replication port",
        description=describe(
            "Who knocks without the secret, and frames of old terms.",
            "tidemark_ha_refused_connections_total",
            "tidemark_ha_fenced_frames_total",
            "tidemark_ha_refused_frames_total",
            "tidemark_ha_implausible_acks_total",
        ),
        unit=units.EVENTS_RATE,
        queries=(
            Query(
                rate("tidemark_ha_refused_connections_total", "replica"), "{{replica}} connections"
            ),
            Query(rate("tidemark_ha_fenced_frames_total", "replica"), "{{replica}} fenced frames"),
            Query(rate("tidemark_ha_refused_frames_total", "replica"), "{{replica}} old frames"),
            Query(
                rate("tidemark_ha_implausible_acks_total", "replica"),
                "{{replica}} implausible acks",
            ),
        ),
        width=8,
        nothing=ALONE,
    ),
    Lines(
        title="Connections",
        description=describe(
            "On the replication port.",
            "tidemark_ha_connections",
        ),
        unit=units.COUNT,
        queries=(
            Query(f"max by (broker, replica) (tidemark_ha_connections{{{NODE}}})", "{{replica}}"),
        ),
        width=4,
        nothing=ALONE,
    ),
    Lines(
        title="New connections",
        description=describe(
            "A steady rate: links that do not hold.", "tidemark_ha_accepted_connections_total"
        ),
        unit=units.EVENTS_RATE,
        queries=(Query(rate("tidemark_ha_accepted_connections_total", "replica"), "{{replica}}"),),
        width=4,
        nothing=ALONE,
    ),
    Lines(
        title="Elections, cuts, stalls",
        description=describe(
            "Around each point.",
            "tidemark_ha_elections_won_total",
            "tidemark_ha_elections_lost_total",
            "tidemark_ha_truncations_total",
            "tidemark_ha_resyncs_total",
            "tidemark_ha_loop_stalls_total",
        ),
        unit=units.COUNT,
        queries=tuple(
            Query(
                growth(f"tidemark_ha_{name}_total", "replica"), "{{replica}} " + word, needs=event
            )
            for name, word, event in (
                ("elections_won", "won", "an election"),
                ("elections_lost", "lost", "an election that two nodes wanted to win"),
                ("truncations", "cut", "a log that had diverged"),
                ("resyncs", "copied anew", "a log that was copied anew"),
                ("loop_stalls", "stalled", "a process that stood still"),
            )
        ),
        width=8,
        bars=True,
        nothing="None",
    ),
)

PIPELINE: Final = Board(
    uid=uids.PIPELINE,
    title="Tidemark / Dispatch and replication",
    description="What stands between a stored record and a consumer that may see it.",
    rows=(
        Row("Dispatch", (BEHIND, SPEED, DURATION), (7, 6, 8)),
        Row("Replication", (WHO, COPIES, LINKS, TRANSFER), (6, 6, 7, 8)),
        Row("Changes", (CHANGES, CLOCKS, STRANGE), (6, 6, 6)),
    ),
)
