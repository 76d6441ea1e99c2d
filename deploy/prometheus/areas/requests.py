"""Alerts about requests of clients (refused, failed, slow) and about dispatch. Pure."""

from __future__ import annotations

from typing import Final

from deploy.prometheus.areas.nodes import BY_NODE
from deploy.prometheus.areas.recording import NODE
from deploy.prometheus.model import Alert, Group, Severity, events

# Alerts that inhibit the one for failing sends must keep firing longer than the ranges here;
# otherwise failing sends would alert after their cause is over.
FAILED: Final = "failed|disk_full|flush_timeout|busy|replica_unavailable"
WAITING: Final = "tidemark_log_confirm_offset_bytes - tidemark_log_dispatched_offset_bytes"
STANDS_STILL: Final = f"({WAITING} > 0 and changes(tidemark_log_dispatched_offset_bytes[2m]) == 0)"
ON_A_SLAVE: Final = f'on ({", ".join(NODE)}) (tidemark_ha_role{{role="slave"}} == 1)'

REQUESTS: Final = Group(
    "tidemark-requests",
    (
        Alert(
            "TidemarkSendsFail",
            f"sum {BY_NODE} (rate(tidemark_broker_put_results_total{{"
            f'result=~"{FAILED}"}}[2m])) / sum {BY_NODE}'
            " (rate(tidemark_broker_put_results_total[2m])) > 0.001",
            Severity.PAGE,
            NODE,
            "{{ $value | humanizePercentage }} of the sends to {{ $labels.broker }} fail",
            "They are refused, or stored with an unknown outcome. Clients retry if that is safe; "
            "their unsent messages pile up.",
            waits="5m",
        ),
        Alert(
            "TidemarkPutSlow",
            "histogram_quantile(0.99, sum by (cluster, broker, replica, ack, le)"
            " (rate(tidemark_broker_put_duration_seconds_bucket[5m]))) > 0.2",
            Severity.TICKET,
            (*NODE, "ack"),
            "one of a hundred sends with ack={{ $labels.ack }} to {{ $labels.broker }} takes "
            "longer than {{ $value | humanizeDuration }}",
            "Senders wait, and those with a time-out send again.",
            waits="5m",
        ),
        Alert(
            "TidemarkRejecting",
            "sum by (cluster, broker, replica, pool) (rate(tidemark_broker_requests_rejected_total{"
            'pool!="put",'
            'code=~"overloaded|not-serving|file-not-ready|lease-unavailable"}[2m])) > 1',
            Severity.PAGE,
            (*NODE, "pool"),
            "{{ $labels.broker }} refuses {{ $value | humanize }} {{ $labels.pool }} requests a "
            "second",
            "A bound is reached or the node does not serve; consumers and tools get errors. Sends "
            "have an alert of their own.",
            waits="5m",
        ),
        Alert(
            "TidemarkDamage",
            events(
                'tidemark_broker_requests_rejected_total{code=~"corrupt-record|damaged-file|'
                'internal|read-only-disk|write-failed|flush-failed"}',
                "10m",
                (*NODE, "code"),
            ),
            Severity.PAGE,
            (*NODE, "code"),
            "{{ $labels.replica }} of {{ $labels.broker }} answered about "
            "{{ $value | humanize }} requests with {{ $labels.code }}",
            "A file or the disk below it cannot be trusted, or the broker met a defect. Nothing "
            "is skipped: what is damaged is not served.",
            keeps="10m",
        ),
        Alert(
            "TidemarkDispatchErrors",
            events('tidemark_dispatch_errors_total{reason!="disk-full"}', "5m", (*NODE, "reason")),
            Severity.PAGE,
            (*NODE, "reason"),
            "dispatch of {{ $labels.replica }} in {{ $labels.broker }} stopped with "
            "{{ $labels.reason }}",
            "Messages are stored and acknowledged, and consumers do not see them until dispatch "
            "goes on.",
            keeps="5m",
        ),
        Alert(
            "TidemarkDispatchStuck",
            f"{STANDS_STILL} unless {ON_A_SLAVE}",
            Severity.PAGE,
            (*NODE, "service", "job", "instance"),
            "dispatch of {{ $labels.replica }} in {{ $labels.broker }} stands still with "
            "{{ $value | humanize1024 }}B waiting",
            "Messages are stored and acknowledged, and consumers do not see them. At "
            "`dispatch_lag_max` sends are refused as well.",
            waits="1m",
            keeps="2m",
        ),
        Alert(
            "TidemarkSlaveDispatchStuck",
            f"{STANDS_STILL} and {ON_A_SLAVE}",
            Severity.TICKET,
            (*NODE, "service", "job", "instance"),
            "dispatch of the slave {{ $labels.replica }} in {{ $labels.broker }} stands still with "
            "{{ $value | humanize1024 }}B waiting",
            "Its copy of the log is complete, and consumers read from the master. Clients that "
            "read from this slave get nothing new; as a master it would have to catch up first.",
            waits="1m",
            keeps="2m",
        ),
        Alert(
            "TidemarkDispatchSlow",
            f"max {BY_NODE} (tidemark_dispatch_lag_seconds) > 2",
            Severity.TICKET,
            NODE,
            "messages of {{ $labels.broker }} become visible {{ $value | humanizeDuration }} late "
            "on {{ $labels.replica }}",
            "Dispatch advances and does not keep pace. A group's lag does not show it: it covers "
            "dispatched messages only.",
            waits="3m",
            keeps="1m",
        ),
        Alert(
            "TidemarkTimerOverdue",
            f"max {BY_NODE} (tidemark_timer_overdue_seconds) > 5",
            Severity.TICKET,
            NODE,
            "delayed messages of {{ $labels.broker }} are {{ $value | humanizeDuration }} late",
            "They are due and not yet in their topics; retries of consumer groups are among them.",
            waits="10m",
        ),
        Alert(
            "TidemarkConnectionLimit",
            events('tidemark_broker_connections_refused_total{reason="limit"}', "10m", NODE),
            Severity.TICKET,
            NODE,
            "{{ $labels.replica }} of {{ $labels.broker }} refused about "
            "{{ $value | humanize }} connections",
            "`connections_max` is reached: clients that are connected go on, further ones wait.",
            keeps="10m",
        ),
        Alert(
            "TidemarkClockStepped",
            events("tidemark_broker_clock_steps_total", "1h", NODE),
            Severity.TICKET,
            NODE,
            "the clock of {{ $labels.replica }} in {{ $labels.broker }} stepped back",
            "Store times are held for a while and then begin anew; look-ups by time are inexact "
            "around it, and ages are wrong by the step.",
            keeps="1h",
        ),
    ),
)
