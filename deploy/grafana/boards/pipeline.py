"""Dispatch and replication: the steps from a stored record to its visibility for consumers."""

from __future__ import annotations

from typing import Final

from deploy.grafana.boards import uids
from deploy.grafana.limits import CLOCK_SKEW, DISPATCH_SLOW, REPLICA_LAG
from deploy.grafana.panels import RED, Board, Heat, Lines, Row, Step, Timeline, rare
from deploy.grafana.queries import (
    NODE,
    NODES,
    WINDOW,
    Query,
    buckets,
    gauge,
    growth,
    quantile,
    quantiles,
    rate,
    series,
)
from deploy.grafana.states import ROLE_WORDS, YES_NO, role_state

PEERS: Final = "broker, peer"
DEPOSED: Final = "tidemark_ha_depositions_total"
SWITCHED: Final = "tidemark_ha_switchovers_total"
UNSYNCED: Final = (
    f"tidemark_dispatch_offset_bytes{{{NODE}}} - tidemark_dispatch_durable_offset_bytes{{{NODE}}}"
)


def speed(position: str, by: str, word: str = "") -> Query:
    """Return how fast a position of the log grows, per second."""
    return series(f"deriv({position}{{{NODE}}}[{WINDOW}])", by, word)


BEHIND: Final = (
    Lines(gauge("tidemark_dispatch_lag_seconds", NODES), steps=DISPATCH_SLOW.steps),
    Lines(gauge("tidemark_dispatch_lag_bytes", NODES)),
    Lines(
        series(UNSYNCED, NODES),
        title="Not yet on disk",
        text="What a restart after a power cut dispatches again.",
    ),
)
SPEED: Final = (
    Lines(
        (
            rate("tidemark_dispatch_records_total", "replica", "records"),
            rate("tidemark_dispatch_messages_total", "replica", "units"),
        ),
        title="Records dispatched",
        text="Records, and the queue units made of them.",
    ),
    Lines(rate("tidemark_dispatch_bytes_total", "replica")),
    Lines(
        (
            rate("tidemark_dispatch_index_entries_total", "replica", "keys"),
            rate("tidemark_dispatch_repaired_units_total", "replica", "repairs"),
        ),
        title="Index keys and repairs",
    ),
)
DURATION: Final = (
    Heat(buckets("tidemark_dispatch_visible_delay_seconds")),
    Lines(
        (
            quantile(0.99, "tidemark_dispatch_step_duration_seconds", word="step"),
            quantile(0.99, "tidemark_dispatch_duration_seconds", "target"),
            quantile(0.99, "tidemark_dispatch_sync_duration_seconds", word="sync"),
        ),
        title="Time per step, p99",
        text="A step as a whole, its targets, and the sync of changed files.",
        log=True,
    ),
    rare("tidemark_dispatch_errors_total", "replica, reason", "an error of dispatch"),
)

WHO: Final = (
    Timeline(Query(role_state(), "{{replica}}"), words=ROLE_WORDS),
    Timeline(gauge("tidemark_ha_epoch", NODES)),
)
COPIES: Final = (
    Lines(
        (
            gauge("tidemark_ha_configured_replicas", "broker", "configured"),
            gauge("tidemark_ha_in_sync_replicas", "broker", "in sync"),
            gauge("tidemark_ha_min_in_sync_replicas", "broker", "least"),
        ),
        title="Copies",
        text="With fewer in sync than the least, sends with `ack=replicated` are refused.",
    ),
    Timeline(gauge("tidemark_ha_replica_connected", PEERS), words=YES_NO),
    Timeline(gauge("tidemark_ha_replica_in_sync", PEERS), words=YES_NO),
)
LINKS: Final = (
    Lines(gauge("tidemark_ha_replica_lag_seconds", PEERS), steps=REPLICA_LAG.steps),
    Lines(
        (
            gauge("tidemark_ha_replica_lag_bytes", PEERS),
            gauge("tidemark_ha_unconfirmed_bytes", NODES, "unconfirmed"),
        ),
        title="Behind in replication, bytes",
        text="The end of the log that only the master has: if its disk is lost, messages there "
        "that replicas have not acknowledged are lost.",
    ),
    Lines(
        (
            speed("tidemark_ha_log_end_offset_bytes", NODES),
            speed("tidemark_ha_confirm_offset_bytes", "broker", "confirmed"),
            speed("tidemark_ha_replica_acked_bytes", PEERS, "acknowledged"),
        ),
        title="How fast copies grow",
        text="Each node's log, the confirm offset, and what each peer acknowledges. Where the "
        "lines part, a node falls behind; below 0 a log was cut. Not distances: nodes are scraped "
        "at different moments.",
        below_zero=True,
    ),
)
TRANSFER: Final = (
    Lines(rate("tidemark_ha_transferred_bytes_total", PEERS)),
    Heat(buckets("tidemark_ha_ack_duration_seconds")),
    Lines(quantiles("tidemark_ha_ack_duration_seconds"), log=True),
)
CHANGES: Final = (
    Lines(
        (
            growth("tidemark_ha_failovers_total", "replica, reason", given="a change of masters"),
            growth(DEPOSED, "replica", "deposed", given="a term that ended before its time"),
            growth(SWITCHED, "replica", "handed over", given="a planned switch"),
        ),
        title="New masters",
        bars=True,
    ),
    rare("tidemark_ha_in_sync_changes_total", "broker, change", "a slave that joined or left"),
    rare("tidemark_ha_truncated_bytes_total", "replica", "a log that had diverged"),
)
CLOCKS: Final = (
    Lines(
        gauge("tidemark_ha_clock_skew_seconds", "broker, replica, peer"),
        steps=(Step(-CLOCK_SKEW.value, RED), *CLOCK_SKEW.steps),
        below_zero=True,
    ),
    Lines(
        (
            gauge("tidemark_ha_lease_left_seconds", NODES, "left"),
            gauge("tidemark_ha_lease_age_seconds", NODES, "age"),
        ),
        title="Lease",
        text="The master's time left drops to 0 if it cannot renew the lease; then it stops "
        "answering as master.",
        below_zero=True,
    ),
    Lines(
        (
            rate("tidemark_ha_lease_writes_total", "broker", "written"),
            rate("tidemark_ha_lease_conflicts_total", "broker", "overtaken"),
            rate("tidemark_ha_lease_unknown_total", "broker", "unknown"),
        ),
        title="Requests to the lease",
    ),
)
STRANGE: Final = (
    Lines(
        (
            rate("tidemark_ha_refused_connections_total", "replica", "connections"),
            rate("tidemark_ha_fenced_frames_total", "replica", "fenced frames"),
            rate("tidemark_ha_refused_frames_total", "replica", "old frames"),
            rate("tidemark_ha_implausible_acks_total", "replica", "implausible acks"),
        ),
        width=8,
        title="Refused on the replication port",
    ),
    Lines(gauge("tidemark_ha_connections", NODES), width=4),
    Lines(rate("tidemark_ha_accepted_connections_total", "replica"), width=4),
    Lines(
        tuple(
            growth(f"tidemark_ha_{name}_total", "replica", word, given=event)
            for name, word, event in (
                ("elections_won", "won", "an election"),
                ("elections_lost", "lost", "an election that two nodes wanted to win"),
                ("truncations", "cut", "a log that had diverged"),
                ("resyncs", "copied anew", "a log that was copied anew"),
                ("loop_stalls", "stalled", "a process that stood still"),
            )
        ),
        width=8,
        title="Elections, cuts, stalls",
        bars=True,
    ),
)

PIPELINE: Final = Board(
    uid=uids.PIPELINE,
    title="Tidemark / Dispatch and replication",
    description="What lies between a stored record and a consumer?",
    rows=(
        Row("Dispatch", (BEHIND, SPEED, DURATION), (7, 6, 8)),
        Row("Replication", (WHO, COPIES, LINKS, TRANSFER), (6, 6, 7, 8)),
        Row("Changes", (CHANGES, CLOCKS, STRANGE), (6, 6, 6)),
    ),
)
