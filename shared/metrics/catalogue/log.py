"""Broker: log and store. Pure."""

from __future__ import annotations

from typing import Final

from shared.metrics.family import (
    REQUESTS_BUCKETS,
    SECONDS_BUCKETS,
    counter,
    declared,
    gauge,
    histogram,
)

# One family is one row of a table.
# fmt: off
LOG_MIN_OFFSET_BYTES: Final = gauge("tidemark_log_min_offset_bytes", "physical offset, bytes",
    "Start of the oldest commit log file")
LOG_MAX_OFFSET_BYTES: Final = gauge("tidemark_log_max_offset_bytes", "physical offset, bytes",
    "End of the last appended record. Minus the minimum: what is retained")
LOG_FLUSHED_OFFSET_BYTES: Final = gauge(
    "tidemark_log_flushed_offset_bytes", "physical offset, bytes",
    "Everything below is on disk",
    alert="the maximum minus this above 64 MiB for 30 s: flushing does not keep up")
LOG_CONFIRM_OFFSET_BYTES: Final = gauge(
    "tidemark_log_confirm_offset_bytes", "physical offset, bytes",
    "Consumers may see what is below: the flushed offset, or the maximum with `visible_after = "
    '"written"`')
LOG_DISPATCHED_OFFSET_BYTES: Final = gauge(
    "tidemark_log_dispatched_offset_bytes", "physical offset, bytes",
    "Consume queues and index cover what is below; as the broker reads it",
    alert="see the alert rules")
LOG_FLUSH_DURATION_SECONDS: Final = histogram("tidemark_log_flush_duration_seconds", "s",
    "One flush of the log to disk; every `ack=disk` waits for one",
    title="Flush", buckets=SECONDS_BUCKETS,
    alert="99th percentile above 100 ms; any above 2.5 s: a failing or throttled disk")
LOG_GROUP_COMMIT_REQUESTS: Final = histogram("tidemark_log_group_commit_requests", "requests",
    "Send requests released by one flush; flushes without a waiting request are not counted",
    title="Sends per flush", buckets=REQUESTS_BUCKETS, alert="nothing: 1 is one flush per send")
STORE_CAPACITY_BYTES: Final = gauge("tidemark_store_capacity_bytes{volume}", "bytes",
    "What an ordinary user can use of the file system that holds `log`, `queue` or `index` "
    "files; absent if unknown")
STORE_USED_RATIO: Final = gauge("tidemark_store_used_ratio", "ratio",
    "Used share of the store's file system in whole percent rounded up, as retention computes "
    "it; absent if unknown",
    title="Volume used", alert="above 0.85: files are deleted at any age")
STORE_FULL_SECONDS: Final = gauge("tidemark_store_full_seconds", "s",
    "Time until sends are refused at the present pace; absent if it cannot be predicted",
    title="Time until full", alert="below 6 h")
LOG_SEGMENTS_DELETED_TOTAL: Final = counter("tidemark_log_segments_deleted_total{reason}", "files",
    "Commit log files that retention removed, by cause: `age`, `size`, `disk_pressure`, `master` "
    "(a slave removes what its master has removed)",
    title="Log files removed", alert="`disk_pressure`: any")
LOG_OLDEST_MESSAGE_TIMESTAMP_SECONDS: Final = gauge(
    "tidemark_log_oldest_message_timestamp_seconds", "s",
    "Store time of the oldest record in the log; absent while there is none",
    title="Oldest record")
RETENTION_SENDS_REFUSED: Final = gauge("tidemark_retention_sends_refused", "–",
    "1 while sends are refused because the disk is used beyond `disk_warning_percent`",
    title="Sends refused: disk full", alert="1")
RETENTION_EXPIRING_GROUPS: Final = gauge("tidemark_retention_expiring_groups", "groups",
    "Groups with unread messages in the files that retention deletes next",
    title="Groups about to lose messages",
    alert="above 0: the groups must read faster, or retention be longer")
TIMER_PENDING_MESSAGES: Final = gauge("tidemark_timer_pending_messages", "messages",
    "Delayed messages not yet due; absent while unknown",
    title="Delayed messages waiting")
TIMER_OVERDUE_SECONDS: Final = gauge("tidemark_timer_overdue_seconds", "s",
    "Age of the most overdue delayed message, 0 when none is; absent while unknown",
    title="Delayed messages overdue", alert="above 5 for a minute")
STORE_FREE_BYTES: Final = gauge("tidemark_store_free_bytes{volume}", "bytes",
    "Free space for an ordinary user of the file system that holds `log`, `queue` or `index` "
    "files; absent if unknown",
    alert=(
        "less than 10 %, or less than a day at the present rate; at 0 sends get `disk-full` "
        "and reads continue"
    ))
RECOVERY_DONE_BYTES: Final = gauge("tidemark_recovery_done_bytes", "bytes",
    "Bytes of the log that recovery, then dispatch, has read since the start")
RECOVERY_TOTAL_BYTES: Final = gauge("tidemark_recovery_total_bytes", "bytes",
    "Bytes of the log that recovery, then dispatch, has to read since the start")
RECOVERY_ETA_SECONDS: Final = gauge("tidemark_recovery_eta_seconds", "s",
    "Estimated remaining time; absent while unknown",
    title="Start: time left")
LOG_NEWEST_MESSAGE_TIMESTAMP_SECONDS: Final = gauge(
    "tidemark_log_newest_message_timestamp_seconds", "s",
    "Store time of the newest record; with the next two and what of groups awaits delivery and "
    "is uncommitted taken in one pass: their differences are the delays of replication, "
    "dispatch, delivery and processing")
LOG_CONFIRM_MESSAGE_TIMESTAMP_SECONDS: Final = gauge(
    "tidemark_log_confirm_message_timestamp_seconds", "s",
    "Store time of the first record not yet confirmed; that of the newest when all are")
LOG_DISPATCHED_MESSAGE_TIMESTAMP_SECONDS: Final = gauge(
    "tidemark_log_dispatched_message_timestamp_seconds", "s",
    "Store time of the first confirmed record not yet dispatched; as confirmed when all are")
TELEMETRY_SNAPSHOTS_TOTAL: Final = counter("tidemark_telemetry_snapshots_total", "snapshots",
    "Snapshots of all positions that were appended to the telemetry journal")
TELEMETRY_SNAPSHOTS_DROPPED_TOTAL: Final = counter(
    "tidemark_telemetry_snapshots_dropped_total{reason}", "snapshots",
    "Snapshots that could not be taken or appended, by the error's [runbook](runbook.md) code, or "
    "`sample-failed`; the next one is a keyframe",
    alert="a steady rate: analytics has no positions")
TELEMETRY_JOURNAL_BYTES_TOTAL: Final = counter(
    "tidemark_telemetry_journal_bytes_total", "bytes",
    "Bodies of the records of the telemetry journal")
TELEMETRY_SNAPSHOT_ROWS: Final = gauge("tidemark_telemetry_snapshot_rows", "rows",
    "Rows of the newest snapshot: topics, groups, pairs, queues, and queues of groups")
TELEMETRY_SNAPSHOT_DURATION_SECONDS: Final = gauge(
    "tidemark_telemetry_snapshot_duration_seconds", "s",
    "Time from the tick of the newest snapshot to its end in the log, other requests in between",
    alert="above half of `telemetry_period_s`")
# fmt: on

LOG: Final = declared(globals())
