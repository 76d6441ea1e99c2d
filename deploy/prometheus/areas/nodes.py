"""Alerts about processes: whether all exist, are up, and have the same version. Pure."""

from __future__ import annotations

from typing import Final

from deploy.prometheus.areas.recording import NODE, SET
from deploy.prometheus.model import TARGET_LABELS, Alert, Group, Severity, events

SAMPLES_MAX: Final = 400_000
"""``sample_limit`` of the scrape configuration; higher than a broker's maximum with defaults."""
BY_NODE: Final = f"by ({', '.join(NODE)})"
BY_PROCESS: Final = f"by ({', '.join(TARGET_LABELS)})"

OF_NODES: Final = 'job=~"tidemark-(broker|reput|ha)"'
KIND: Final = ", ".join((*SET, "service"))

NODES: Final = Group(
    "tidemark-nodes",
    (
        Alert(
            "TidemarkTargetDown",
            # Analytics has a separate ticket, because it serves no messages.
            'up{job=~"tidemark-.*", job!="tidemark-analytics"} == 0',
            Severity.PAGE,
            (*TARGET_LABELS, "job", "instance"),
            "{{ $labels.service }} of {{ $labels.replica }} in {{ $labels.broker }} "
            "({{ $labels.instance }}) does not answer",
            "The process is gone, hangs, or cannot be reached. Its metrics are missing meanwhile, "
            "so other alerts about it cannot fire.",
            waits="1m",
            keeps="3m",
        ),
        Alert(
            "TidemarkBrokerGone",
            f"max by ({KIND}) (max_over_time(up{{{OF_NODES}}}[6h])) == 1"
            f" unless on ({KIND}) up{{{OF_NODES}}}",
            Severity.PAGE,
            (*SET, "service"),
            "no {{ $labels.service }} of {{ $labels.broker }} is left among the targets",
            "Service discovery lists none of these processes any more, so no other alert covers "
            "them. Ends by itself after six hours, for a set that was removed on purpose.",
            waits="5m",
            keeps="4m",
        ),
        Alert(
            "TidemarkNotReady",
            f'max {BY_PROCESS} (tidemark_ready{{service!="analytics"}}) == 0'
            f" unless on ({', '.join(NODE)}) max {BY_NODE}"
            " (changes(tidemark_recovery_done_bytes[2m])) > 0",
            Severity.PAGE,
            TARGET_LABELS,
            "{{ $labels.service }} of {{ $labels.replica }} in {{ $labels.broker }} is not ready",
            "It runs and refuses requests, and no recovery advances. `/ready` names every reason.",
            waits="5m",
        ),
        Alert(
            "TidemarkRestarting",
            f"max {BY_PROCESS} (changes("
            f"max {BY_PROCESS} (tidemark_up_since_timestamp_seconds)[30m:1m])) > 3",
            Severity.TICKET,
            TARGET_LABELS,
            "{{ $labels.service }} of {{ $labels.replica }} in {{ $labels.broker }} started "
            "{{ $value }} times within half an hour",
            "The process ends repeatedly: the last log line before each start has the reason.",
        ),
        Alert(
            "TidemarkVersionsDiffer",
            "count by (cluster) (count by (cluster, version) (tidemark_node_info)) > 1",
            Severity.INFO,
            ("cluster",),
            "{{ $value }} versions run in {{ $labels.cluster }}",
            "A roll-out has stopped half-way. Neighbouring versions work together, but only until "
            "one of them is two apart.",
            waits="1h",
        ),
        Alert(
            "TidemarkScrapeLarge",
            f'scrape_samples_scraped{{job=~"tidemark-.*"}} > {SAMPLES_MAX * 4 // 5}',
            Severity.TICKET,
            (*TARGET_LABELS, "job", "instance"),
            "{{ $labels.service }} of {{ $labels.replica }} in {{ $labels.broker }} exports "
            "{{ $value }} samples",
            "At the scrape's `sample_limit` Prometheus discards the whole answer, and the process "
            "counts as down.",
            waits="10m",
        ),
        Alert(
            "TidemarkLookOld",
            f"time() - max {BY_NODE} (tidemark_broker_look_timestamp_seconds) > 120",
            Severity.TICKET,
            NODE,
            "figures of topics and groups of {{ $labels.replica }} in {{ $labels.broker }} are "
            "{{ $value | humanizeDuration }} old",
            "The broker samples its topics, queues and groups while it is scraped, and the sample "
            "does not finish. Alerts about consumer groups are as old.",
            waits="5m",
        ),
        Alert(
            "TidemarkSeriesDropped",
            events("tidemark_telemetry_series_dropped_total", "1h", (*TARGET_LABELS, "family")),
            Severity.INFO,
            (*TARGET_LABELS, "family"),
            "{{ $labels.family }} of {{ $labels.replica }} folded about {{ $value | humanize }} "
            "series into _other",
            "More topics or groups than the bound on series: sums stay right, single ones are "
            "not distinguished.",
            keeps="1h",
        ),
    ),
)
