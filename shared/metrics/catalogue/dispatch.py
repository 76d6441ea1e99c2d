"""Reput: dispatch. Pure."""

from __future__ import annotations

from typing import Final

from shared.metrics.family import (
    DELAY_BUCKETS,
    SECONDS_BUCKETS,
    counter,
    declared,
    gauge,
    histogram,
)

# One family is one row of a table.
# fmt: off
DISPATCH_OFFSET_BYTES: Final = gauge("tidemark_dispatch_offset_bytes", "physical offset, bytes",
    "Consume queues and index cover what is below: consumers see it")
DISPATCH_DURABLE_OFFSET_BYTES: Final = gauge(
    "tidemark_dispatch_durable_offset_bytes", "physical offset, bytes",
    "Consume queues and index on disk cover what is below: dispatch resumes here after a power cut",
    alert="the dispatched offset minus this above 1 GiB: a restart will take long")
DISPATCH_LAG_BYTES: Final = gauge("tidemark_dispatch_lag_bytes", "bytes",
    "Confirm offset minus dispatched offset: confirmed bytes without a consume queue unit",
    title="Behind in dispatch, bytes",
    alert="above 64 MiB for a minute; at `dispatch_lag_max` sends get `dispatch-behind`")
DISPATCH_LAG_SECONDS: Final = gauge("tidemark_dispatch_lag_seconds", "s",
    "Now minus the store time of the oldest record not yet dispatched; 0 if there is none",
    title="Behind in dispatch", alert="above 5 s for a minute: consumers see messages that late")
DISPATCH_BYTES_TOTAL: Final = counter("tidemark_dispatch_bytes_total", "bytes",
    "Bytes of log dispatched, fillers included",
    title="Bytes dispatched")
DISPATCH_RECORDS_TOTAL: Final = counter("tidemark_dispatch_records_total", "records",
    "Records dispatched")
DISPATCH_MESSAGES_TOTAL: Final = counter("tidemark_dispatch_messages_total", "records",
    "Records that got a consume queue unit; PREPARED and ROLLBACK records get none")
DISPATCH_INDEX_ENTRIES_TOTAL: Final = counter("tidemark_dispatch_index_entries_total", "keys",
    "Keys put into the index")
DISPATCH_REPAIRED_UNITS_TOTAL: Final = counter("tidemark_dispatch_repaired_units_total", "units",
    "Units that differed from the log and were replaced",
    alert=(
        "any without a crash before it: another program writes to the store, or the disk is "
        "faulty"
    ))
DISPATCH_ERRORS_TOTAL: Final = counter("tidemark_dispatch_errors_total{reason}", "errors",
    "Times dispatch could not continue, by the error's [runbook](runbook.md) code; a full disk "
    "counts at every try",
    title="Dispatch errors", alert="any")
DISPATCH_STEP_DURATION_SECONDS: Final = histogram("tidemark_dispatch_step_duration_seconds", "s",
    "Reading, planning and storing one step of the log",
    buckets=SECONDS_BUCKETS)
DISPATCH_SYNC_DURATION_SECONDS: Final = histogram("tidemark_dispatch_sync_duration_seconds", "s",
    "Syncing all changed queue and index files",
    buckets=SECONDS_BUCKETS, alert="99th percentile above 5 s: a failing or throttled disk")
DISPATCH_DURATION_SECONDS: Final = histogram("tidemark_dispatch_duration_seconds{target}", "s",
    "Time of one step per target: `queue`, `index`, `notify`",
    buckets=SECONDS_BUCKETS)
DISPATCH_VISIBLE_DELAY_SECONDS: Final = histogram("tidemark_dispatch_visible_delay_seconds", "s",
    "Store time to visible in the queue, of the oldest record of each step",
    title="Store to visible", buckets=DELAY_BUCKETS, alert="99th percentile above 1 s")
# fmt: on

DISPATCH: Final = declared(globals())
