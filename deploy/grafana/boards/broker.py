"""Broker: requests, disk and memory of one set of replicas."""

from __future__ import annotations

from typing import Final

from deploy.grafana import units
from deploy.grafana.boards import uids
from deploy.grafana.descriptions import describe
from deploy.grafana.limits import PUT_SLOW, REJECTING, TIMER_OVERDUE
from deploy.grafana.panels import RED, Board, Heat, Lines, Row, Step, Timeline
from deploy.grafana.queries import JOBS, NODE, TOPIC, Query, growth, quantile, quantiles, rate
from deploy.grafana.states import YES_NO

PUT: Final = (
    Lines(
        title="Send until answer, by acknowledgement",
        description=describe(
            "By the level that was reached.",
            "tidemark_broker_put_duration_seconds",
        ),
        unit=units.SECONDS,
        queries=tuple(
            Query(
                quantile(share, "tidemark_broker_put_duration_seconds", "ack"),
                "{{ack}} " + label,
            )
            for share, label in ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"))
        ),
        width=8,
        steps=(Step(PUT_SLOW.value, RED),),
        log=True,
    ),
    Heat(
        title="Send until answer",
        description=describe(
            "All levels together. Two bands are two levels, or a disk that sometimes stands still.",
            "tidemark_broker_put_duration_seconds",
        ),
        unit=units.SECONDS,
        queries=(Query(rate("tidemark_broker_put_duration_seconds_bucket", "le"), "{{le}}"),),
        width=8,
    ),
    Lines(
        title="Append",
        description=describe(
            "Above a few milliseconds the disk cannot take the writeback.",
            "tidemark_broker_append_duration_seconds",
        ),
        unit=units.SECONDS,
        queries=quantiles("tidemark_broker_append_duration_seconds"),
        width=8,
        log=True,
    ),
)
PUT_MORE: Final = (
    Lines(
        title="Send results",
        description=describe("Stacked.", "tidemark_broker_put_results_total"),
        unit=units.REQUESTS_RATE,
        queries=(Query(rate("tidemark_broker_put_results_total", "result"), "{{result}}"),),
        width=8,
        stacked=True,
        colours=(("ok", "green"), ("disk_full", "red"), ("failed", "dark-red")),
    ),
    Heat(
        title="Message sizes",
        description=describe(
            "Dark cells are where most messages fell.", "tidemark_broker_message_size_bytes"
        ),
        unit=units.BYTES,
        queries=(Query(rate("tidemark_broker_message_size_bytes_bucket", "le"), "{{le}}"),),
        width=8,
    ),
    Lines(
        title="Messages kept",
        description=describe(
            "Max minus min offset, by topic: what is retained. As the master counts.",
            "tidemark_topic_max_offset_messages",
            "tidemark_topic_min_offset_messages",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                f"topk(10, max by (broker, topic) (tidemark_topic_max_offset_messages{{{TOPIC}}} - "
                f"tidemark_topic_min_offset_messages{{{TOPIC}}}))",
                "{{topic}}",
            ),
        ),
        width=8,
    ),
)

WORK: Final = (
    Lines(
        title="Requests waiting",
        description=describe("By kind of work.", "tidemark_broker_requests_queued"),
        unit=units.COUNT,
        queries=(Query(f"sum by (pool) (tidemark_broker_requests_queued{{{NODE}}})", "{{pool}}"),),
        width=8,
    ),
    Lines(
        title="Oldest waiting",
        description=describe(
            "Near the time-out of clients: they give up and try again, and it gets worse.",
            "tidemark_broker_oldest_queued_request_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                f"max by (pool) (tidemark_broker_oldest_queued_request_seconds{{{NODE}}})",
                "{{pool}}",
            ),
        ),
        width=8,
    ),
    Lines(
        title="Answered with an error",
        description=describe(
            "By code of the runbook. The alert covers all codes of a kind of work together.",
            "tidemark_broker_requests_rejected_total",
        ),
        unit=units.REQUESTS_RATE,
        queries=(
            Query(
                rate("tidemark_broker_requests_rejected_total", "pool, code"),
                "{{pool}} {{code}}",
                needs="a request that was refused",
            ),
        ),
        width=8,
        steps=(Step(REJECTING.value, RED),),
        nothing="No errors",
    ),
)
SERVICE: Final = (
    Lines(
        title="Service time by request, p99",
        description=describe(
            "Held pulls include the time they were held.",
            "tidemark_broker_request_duration_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                quantile(0.99, "tidemark_broker_request_duration_seconds", "request") + " >= 0",
                "{{request}}",
            ),
        ),
        width=8,
        log=True,
    ),
    Lines(
        title="Requests",
        description=describe("Stacked, by kind.", "tidemark_broker_request_duration_seconds"),
        unit=units.REQUESTS_RATE,
        queries=(
            Query(
                rate("tidemark_broker_request_duration_seconds_count", "request") + " > 0",
                "{{request}}",
            ),
        ),
        width=8,
        stacked=True,
    ),
    Lines(
        title="Connections",
        description=describe("Stacked, by what they last asked.", "tidemark_broker_connections"),
        unit=units.COUNT,
        queries=(Query(f"sum by (role) (tidemark_broker_connections{{{NODE}}})", "{{role}}"),),
        width=8,
        stacked=True,
    ),
)
HELD: Final = (
    Lines(
        title="Held pulls",
        description=describe("Consumers that wait for messages.", "tidemark_broker_long_polls"),
        unit=units.COUNT,
        queries=(Query(f"sum by (replica) (tidemark_broker_long_polls{{{NODE}}})", "{{replica}}"),),
        width=8,
    ),
    Lines(
        title="Held pulls ended",
        description=describe(
            "Many by time-out: nothing comes in, or what comes is filtered.",
            "tidemark_broker_long_poll_wakeups_total",
        ),
        unit=units.EVENTS_RATE,
        queries=(Query(rate("tidemark_broker_long_poll_wakeups_total", "reason"), "{{reason}}"),),
        width=8,
        stacked=True,
    ),
    Lines(
        title="Connections refused",
        description=describe("Around each point.", "tidemark_broker_connections_refused_total"),
        unit=units.COUNT,
        queries=(
            Query(
                growth("tidemark_broker_connections_refused_total", "replica, reason"),
                "{{replica}} {{reason}}",
                needs="a connection that was refused",
            ),
        ),
        width=8,
        bars=True,
        nothing="None refused",
    ),
)

OFFSETS: Final = (
    Lines(
        title="Not yet flushed, confirmed, dispatched",
        description=describe(
            "Distances between the log's positions. What grows is where records wait.",
            "tidemark_log_flushed_offset_bytes",
            "tidemark_log_confirm_offset_bytes",
            "tidemark_log_dispatched_offset_bytes",
        ),
        unit=units.BYTES,
        queries=(
            Query(
                f"max by (broker, replica) (tidemark_log_max_offset_bytes{{{NODE}}} - "
                f"tidemark_log_flushed_offset_bytes{{{NODE}}})",
                "{{replica}} unflushed",
            ),
            Query(
                f"max by (broker, replica) (tidemark_log_max_offset_bytes{{{NODE}}} - "
                f"tidemark_log_confirm_offset_bytes{{{NODE}}})",
                "{{replica}} unconfirmed",
            ),
            Query(
                f"max by (broker, replica) (tidemark_log_confirm_offset_bytes{{{NODE}}} - "
                f"tidemark_log_dispatched_offset_bytes{{{NODE}}})",
                "{{replica}} undispatched",
            ),
        ),
        width=8,
    ),
    Heat(
        title="Flush",
        description=describe(
            "Every `ack=disk` waits for one. Dark cells are where most fell.",
            "tidemark_log_flush_duration_seconds",
        ),
        unit=units.SECONDS,
        queries=(Query(rate("tidemark_log_flush_duration_seconds_bucket", "le"), "{{le}}"),),
        width=8,
    ),
    Lines(
        title="Sends per flush",
        description=describe(
            "How well flushes are shared; 1 is one flush per send.",
            "tidemark_log_group_commit_requests",
        ),
        unit=units.COUNT,
        queries=quantiles("tidemark_log_group_commit_requests"),
        width=8,
    ),
)
KEPT: Final = (
    Lines(
        title="Log kept",
        description=describe(
            "Max minus min physical offset.",
            "tidemark_log_max_offset_bytes",
            "tidemark_log_min_offset_bytes",
        ),
        unit=units.BYTES,
        queries=(
            Query(
                f"max by (broker, replica) (tidemark_log_max_offset_bytes{{{NODE}}} - "
                f"tidemark_log_min_offset_bytes{{{NODE}}})",
                "{{replica}}",
            ),
        ),
        width=6,
    ),
    Lines(
        title="Oldest record",
        description=describe(
            "Its age: how far back reads go.", "tidemark_log_oldest_message_timestamp_seconds"
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                "time() - max by (broker, replica) "
                f"(tidemark_log_oldest_message_timestamp_seconds{{{NODE}}})",
                "{{replica}}",
            ),
        ),
        width=6,
    ),
    Lines(
        title="Files removed",
        description=describe("Around each point.", "tidemark_log_segments_deleted_total"),
        unit=units.COUNT,
        queries=(
            Query(
                growth("tidemark_log_segments_deleted_total", "replica, reason"),
                "{{replica}} {{reason}}",
                needs="a file that retention removed",
            ),
        ),
        width=6,
        bars=True,
        nothing="None removed",
    ),
    Lines(
        title="Volume used",
        description=describe("Retention deletes early above 85 %.", "tidemark_store_used_ratio"),
        unit=units.SHARE,
        queries=(
            Query(f"max by (broker, replica) (tidemark_store_used_ratio{{{NODE}}})", "{{replica}}"),
        ),
        width=6,
        top=1,
    ),
)
ENDANGERED: Final = (
    Timeline(
        title="Sends refused for want of room",
        description=describe("Yes is an outage for producers.", "tidemark_retention_sends_refused"),
        unit=units.PLAIN,
        queries=(
            Query(
                f"max by (broker, replica) (tidemark_retention_sends_refused{{{NODE}}})",
                "{{replica}}",
            ),
        ),
        width=8,
        words=tuple(
            word._replace(colour=colour)
            for word, colour in zip(YES_NO, ("green", "red"), strict=True)
        ),
    ),
    Lines(
        title="Groups about to lose messages",
        description=describe(
            "They have to read faster, or retention has to be longer.",
            "tidemark_retention_expiring_groups",
        ),
        unit=units.COUNT,
        queries=(
            Query(
                f"max by (broker, replica) (tidemark_retention_expiring_groups{{{NODE}}})",
                "{{replica}}",
            ),
        ),
        width=8,
        steps=(Step(1, RED),),
    ),
    Lines(
        title="Clock steps",
        description=describe("Around each point.", "tidemark_broker_clock_steps_total"),
        unit=units.COUNT,
        queries=(
            Query(
                growth("tidemark_broker_clock_steps_total", "replica"),
                "{{replica}}",
                needs="a clock that was set back",
            ),
        ),
        width=8,
        bars=True,
        nothing="No steps",
    ),
)

DELAYED: Final = (
    Lines(
        title="Waiting for their time",
        description=describe("As the master counts.", "tidemark_timer_pending_messages"),
        unit=units.COUNT,
        queries=(
            Query(
                f"max by (broker, replica) (tidemark_timer_pending_messages{{{NODE}}})",
                "{{replica}}",
            ),
        ),
        width=12,
    ),
    Lines(
        title="Overdue",
        description=describe(
            "Delivery of delayed messages does not keep up.", "tidemark_timer_overdue_seconds"
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                f"max by (broker, replica) (tidemark_timer_overdue_seconds{{{NODE}}})",
                "{{replica}}",
            ),
        ),
        width=12,
        steps=(Step(TIMER_OVERDUE.value, RED),),
    ),
)

WHO: Final = "{{replica}} {{service}}"
LIFE: Final = (
    Timeline(
        title="Ready",
        description=describe("By process.", "tidemark_ready"),
        unit=units.PLAIN,
        queries=(Query(f"max by (broker, replica, service) (tidemark_ready{{{NODE}}})", WHO),),
        width=12,
        words=YES_NO,
    ),
    Lines(
        title="Start: recovered so far",
        description=describe(
            "After a start: how much of the log is checked and dispatched. 100 % is done. The time "
            "left is in the `/startup` answer and in `tidemark_recovery_eta_seconds`.",
            "tidemark_recovery_done_bytes",
            "tidemark_recovery_total_bytes",
        ),
        unit=units.SHARE,
        queries=(
            Query(
                f"min by (broker, replica) (tidemark_recovery_done_bytes{{{NODE}}} / "
                f"(tidemark_recovery_total_bytes{{{NODE}}} > 0))",
                "{{replica}}",
                needs="a start with something to recover",
            ),
        ),
        width=6,
        top=1,
        nothing="Nothing to recover",
    ),
    Lines(
        title="Start: time left",
        description=describe("Estimated.", "tidemark_recovery_eta_seconds"),
        unit=units.SECONDS,
        queries=(
            Query(
                f"max by (broker, replica) (tidemark_recovery_eta_seconds{{{NODE}}})", "{{replica}}"
            ),
        ),
        width=6,
    ),
)
USE: Final = (
    Lines(
        title="Processor",
        description="Cores used by each process. The broker's loop is one thread: near 1 it is "
        "what limits the node.",
        unit=units.PLAIN,
        queries=(
            Query(rate("process_cpu_seconds_total", "replica, service", f"{JOBS}, {NODE}"), WHO),
        ),
        width=8,
    ),
    Lines(
        title="Memory that is kept",
        description=describe(
            "Steady growth over days is a leak.", "tidemark_process_anonymous_memory_bytes"
        ),
        unit=units.BYTES,
        queries=(
            Query(
                "max by (broker, replica, service) "
                f"(tidemark_process_anonymous_memory_bytes{{{NODE}}})",
                WHO,
            ),
        ),
        width=8,
    ),
    Lines(
        title="Resident memory",
        description="With mapped files, which the kernel takes back when it needs room.",
        unit=units.BYTES,
        queries=(
            Query(
                f"max by (broker, replica, service) (process_resident_memory_bytes{{{JOBS}, "
                f"{NODE}}})",
                WHO,
            ),
        ),
        width=8,
    ),
)
HANDLES: Final = (
    Lines(
        title="Mappings",
        description=describe(
            "Half of `vm.max_map_count` is the time to act.", "tidemark_process_mappings"
        ),
        unit=units.COUNT,
        queries=(
            Query(f"max by (broker, replica, service) (tidemark_process_mappings{{{NODE}}})", WHO),
        ),
        width=6,
    ),
    Lines(
        title="Open files",
        description="Share of the limit. Every connection and every mapped file is one; at "
        "the limit connections are refused.",
        unit=units.SHARE,
        queries=(
            Query(
                f"max by (broker, replica, service) (process_open_fds{{{JOBS}, {NODE}}} / "
                f"process_max_fds{{{JOBS}, {NODE}}})",
                WHO,
            ),
        ),
        width=6,
        top=1,
        steps=(Step(0.8, RED),),
    ),
    Lines(
        title="Running since",
        description=describe(
            "Age of each process. A drop to 0 is a start.", "tidemark_up_since_timestamp_seconds"
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                "time() - max by (broker, replica, service) "
                f"(tidemark_up_since_timestamp_seconds{{{NODE}}})",
                WHO,
            ),
        ),
        width=6,
    ),
    Lines(
        title="Sample behind the gauges",
        description=describe(
            "Gauges of topics, queues and groups are as old as the last sample, not as the scrape.",
            "tidemark_broker_look_timestamp_seconds",
            "tidemark_broker_look_duration_seconds",
        ),
        unit=units.SECONDS,
        queries=(
            Query(
                # The sampling that a scrape waits for begins after the scrape's own timestamp.
                "clamp_min(time() - max by (broker, replica) "
                f"(tidemark_broker_look_timestamp_seconds{{{NODE}}}), 0)",
                "{{replica}} age",
            ),
            Query(
                f"max by (broker, replica) (tidemark_broker_look_duration_seconds{{{NODE}}})",
                "{{replica}} took",
            ),
        ),
        width=6,
    ),
)

BROKER: Final = Board(
    uid=uids.BROKER,
    title="Tidemark / Broker",
    description="What a broker set does with its time, its disk and its memory.",
    rows=(
        Row("Put", (PUT, PUT_MORE), (8, 7)),
        Row("Work", (WORK, SERVICE, HELD), (7, 7, 6)),
        Row("Log", (OFFSETS, KEPT, ENDANGERED), (8, 6, 5)),
        Row("Delayed messages", (DELAYED,), (7,)),
        Row("Process", (LIFE, USE, HANDLES), (7, 7, 7)),
    ),
)
