"""Largest number of lines in a scrape of a service, whatever topics and groups exist. Pure.

Prometheus' ``sample_limit`` of a target must be higher: beyond it, Prometheus rejects the scrape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shared.metrics.bounds import Limits
from shared.metrics.catalogue import families_of
from shared.metrics.catalogue.analytics import ANALYTICS
from shared.metrics.family import LABEL_SETS_MAX, Family, Kind

QUEUE_SERIES_MAX: Final = 20_000
"""A broker's default of ``queue_series_max``, for all families by queue together."""
DEFAULT: Final = Limits()
PER_LABEL_SET: Final[Mapping[tuple[str, str], int]] = {
    ("tidemark_broker_messages_in_total", "kind"): 4,
    ("tidemark_group_skipped_messages_total", "reason"): 2,
    ("tidemark_group_offset_resets_total", "direction"): 2,
    ("tidemark_group_lag_messages", "kind"): 1,  # a topic either is a group's retry topic or not
    ("tidemark_group_lag_seconds", "kind"): 1,
    # analytics limits pairs of all broker sets together; each pair has one value of these labels.
    ("tidemark_analytics_group_status", "status"): 1,
    ("tidemark_analytics_group_bottleneck", "stage"): 1,
    **{
        (family.name, label): 1
        for family in ANALYTICS
        if "topic" in family.labels
        for label in ("cluster", "broker")
    },
}
"""Number of values of a label other than topic and group, by family and label."""


def lines_of(family: Family) -> int:
    """Return the number of lines of one label set."""
    return len(family.buckets) + 3 if family.kind is Kind.HISTOGRAM else 1


def series_most(
    service: str,
    limits: Limits = DEFAULT,
    queue_series: int = QUEUE_SERIES_MAX,
) -> int:
    """Return the largest number of lines of a scrape, whatever topics, groups and members exist."""
    found = queue_series if service == "broker" else 0
    for family in families_of(service):
        labels = set(family.labels)
        if "queue" in labels:
            continue  # in queue_series
        if {"topic", "group"} <= labels:
            sets = limits.pairs + 1
        elif "topic" in labels:
            sets = limits.topics + 1
        elif "group" in labels:
            sets = limits.groups + 1
        else:
            sets = LABEL_SETS_MAX + 1 if labels else 1
        for label in labels - {"topic", "group"}:
            sets *= PER_LABEL_SET.get((family.name, label), 1)
        found += sets * lines_of(family)
    return found
