"""Broker: requests, disk and memory of one set of replicas."""

from __future__ import annotations

from typing import Final

from deploy.grafana import units
from deploy.grafana.boards import uids
from deploy.grafana.limits import PUT_SLOW, REJECTING, TIMER_OVERDUE
from deploy.grafana.panels import RED, Board, Heat, Lines, Row, Step, Timeline, rare
from deploy.grafana.queries import (
    JOBS,
    NODE,
    NODES,
    PROCESSES,
    TOPIC,
    Query,
    age,
    buckets,
    gauge,
    largest,
    quantile,
    quantiles,
    rate,
    series,
)
from deploy.grafana.states import NO_YES, YES_NO

SERVICE_TIME: Final = "tidemark_broker_request_duration_seconds"
REJECTED: Final = "tidemark_broker_requests_rejected_total"
KEPT_MESSAGES: Final = (
    f"tidemark_topic_max_offset_messages{{{TOPIC}}} - tidemark_topic_min_offset_messages{{{TOPIC}}}"
)
RECOVERED: Final = (
    f"tidemark_recovery_done_bytes{{{NODE}}} / (tidemark_recovery_total_bytes{{{NODE}}} > 0)"
)


def between(upper: str, lower: str, word: str = "") -> Query:
    """Return the distance of two positions of the log by node."""
    ends = (f"tidemark_log_{name}_offset_bytes{{{NODE}}}" for name in (upper, lower))
    return series(" - ".join(ends), NODES, word)


PUT: Final = (
    Lines(quantiles("tidemark_broker_put_duration_seconds", "ack"), steps=PUT_SLOW.steps, log=True),
    Heat(buckets("tidemark_broker_put_duration_seconds")),
    Lines(quantiles("tidemark_broker_append_duration_seconds"), log=True),
)
PUT_MORE: Final = (
    Lines(
        rate("tidemark_broker_put_results_total", "result"),
        stacked=True,
        colours=(("ok", "green"), ("disk_full", "red"), ("failed", "dark-red")),
    ),
    Heat(buckets("tidemark_broker_message_size_bytes")),
    Lines(
        largest(series(KEPT_MESSAGES, "broker, topic"), 10),
        title="Messages kept",
        text="What is retained.",
    ),
)

WORK: Final = (
    Lines(gauge("tidemark_broker_requests_queued", "pool", how="sum")),
    Lines(gauge("tidemark_broker_oldest_queued_request_seconds", "pool")),
    Lines(
        rate(REJECTED, "pool, code", given="a request that was refused"),
        steps=REJECTING.steps,
        nothing="No errors",
    ),
)
SERVICE: Final = (
    Lines(Query(f"{quantile(0.99, SERVICE_TIME, 'request').expr} >= 0", "{{request}}"), log=True),
    Lines(
        Query(f"{rate(f'{SERVICE_TIME}_count', 'request').expr} > 0", "{{request}}"),
        title="Requests",
        unit=units.REQUESTS_RATE,
        stacked=True,
    ),
    Lines(gauge("tidemark_broker_connections", "role", how="sum"), stacked=True),
)
HELD: Final = (
    Lines(gauge("tidemark_broker_long_polls", "replica", how="sum")),
    Lines(rate("tidemark_broker_long_poll_wakeups_total", "reason"), stacked=True),
    rare(
        "tidemark_broker_connections_refused_total",
        "replica, reason",
        "a connection that was refused",
    ),
)

OFFSETS: Final = (
    Lines(
        (
            between("max", "flushed", "unflushed"),
            between("max", "confirm", "unconfirmed"),
            between("confirm", "dispatched", "undispatched"),
        ),
        title="Not yet flushed, confirmed, dispatched",
        text="Distances between the log's positions. What grows is where records wait.",
    ),
    Heat(buckets("tidemark_log_flush_duration_seconds")),
    Lines(quantiles("tidemark_log_group_commit_requests")),
)
KEPT: Final = (
    Lines(between("max", "min"), title="Log kept"),
    Lines(age("tidemark_log_oldest_message_timestamp_seconds", NODES)),
    rare("tidemark_log_segments_deleted_total", "replica, reason", "a file that retention removed"),
    Lines(gauge("tidemark_store_used_ratio", NODES), top=1),
)
ENDANGERED: Final = (
    Timeline(gauge("tidemark_retention_sends_refused", NODES), words=NO_YES),
    Lines(gauge("tidemark_retention_expiring_groups", NODES), steps=(Step(1, RED),)),
    rare("tidemark_broker_clock_steps_total", "replica", "a clock that was set back"),
)

DELAYED: Final = (
    Lines(gauge("tidemark_timer_pending_messages", NODES)),
    Lines(gauge("tidemark_timer_overdue_seconds", NODES), steps=TIMER_OVERDUE.steps),
)

LIFE: Final = (
    Timeline(gauge("tidemark_ready", PROCESSES), width=12, words=YES_NO),
    Lines(
        series(RECOVERED, NODES, how="min", given="a start with something to recover"),
        width=6,
        title="Start: recovered so far",
        text="How much of the log is checked and dispatched. 100 % is done. The `/startup` answer "
        "has the time left, too.",
        unit=units.SHARE,
        top=1,
        nothing="Nothing to recover",
    ),
    Lines(gauge("tidemark_recovery_eta_seconds", NODES), width=6),
)
USE: Final = (
    Lines(rate("process_cpu_seconds_total", "replica, service", where=f"{JOBS}, {NODE}")),
    Lines(gauge("tidemark_process_anonymous_memory_bytes", PROCESSES)),
    Lines(gauge("process_resident_memory_bytes", PROCESSES, where=f"{JOBS}, {NODE}")),
)
HANDLES: Final = (
    Lines(gauge("tidemark_process_mappings", PROCESSES)),
    Lines(
        series(
            f"process_open_fds{{{JOBS}, {NODE}}} / process_max_fds{{{JOBS}, {NODE}}}", PROCESSES
        ),
        title="Open files",
        text="Share of the limit. Every connection and every mapped file is one; at the limit "
        "connections are refused.",
        unit=units.SHARE,
        top=1,
        steps=(Step(0.8, RED),),
    ),
    Lines(age("tidemark_up_since_timestamp_seconds", PROCESSES)),
    Lines(
        (
            Query(
                # The sampling that a scrape waits for begins after the scrape's own timestamp.
                f"clamp_min({age('tidemark_broker_look_timestamp_seconds', NODES).expr}, 0)",
                "{{replica}} age",
            ),
            gauge("tidemark_broker_look_duration_seconds", NODES, "took"),
        ),
        title="Sample behind the gauges",
        text="Gauges of topics, queues and groups are as old as the last sample, not as the "
        "scrape.",
    ),
)

BROKER: Final = Board(
    uid=uids.BROKER,
    title="Tidemark / Broker",
    description="How do the nodes of a set use time, disk and memory?",
    rows=(
        Row("Put", (PUT, PUT_MORE), (8, 7)),
        Row("Work", (WORK, SERVICE, HELD), (7, 7, 6)),
        Row("Log", (OFFSETS, KEPT, ENDANGERED), (8, 6, 5)),
        Row("Delayed messages", (DELAYED,), (7,)),
        Row("Process", (LIFE, USE, HANDLES), (7, 7, 7)),
    ),
)
