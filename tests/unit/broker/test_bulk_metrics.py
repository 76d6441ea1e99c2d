"""Counters and histograms of the hot path: exposed as Prometheus' own client exposes its own."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from services.broker.bulk_metrics import BulkCounter, BulkHistogram

BUCKETS = (1, 2.5, 64, 4194304)


def exposed(registry: CollectorRegistry) -> list[str]:
    """What Prometheus reads, apart from the times at which the series began."""
    lines = generate_latest(registry).decode().splitlines()
    return [line.rsplit(" ", 1)[0] if "_created" in line else line for line in lines]


def both(
    labels: Iterable[str] = (),
) -> tuple[BulkHistogram, Histogram, CollectorRegistry, CollectorRegistry]:
    ours, theirs = CollectorRegistry(auto_describe=True), CollectorRegistry(auto_describe=True)
    return (
        BulkHistogram(
            "tidemark_x_bytes", "What x is.", list(labels), buckets=BUCKETS, registry=ours
        ),
        Histogram("tidemark_x_bytes", "What x is.", labels, buckets=BUCKETS, registry=theirs),
        ours,
        theirs,
    )


@given(st.lists(st.integers(0, 1000) | st.sampled_from([1.0, 2.5, 2.6, 1e9]), max_size=30))
def test_values_one_by_one_are_exposed_as_the_clients_own(values: list[float]) -> None:
    mine, other, ours, theirs = both()
    for value in values:
        mine.observe(value)
        other.observe(value)
    assert exposed(ours) == exposed(theirs)


def test_labels_are_exposed_as_the_clients_own() -> None:
    mine, other, ours, theirs = both(["ack", "kind"])
    assert exposed(ours) == exposed(theirs), "nothing yet"
    for labels in (("disk", "a"), ("memory", 'b"\n')):
        for value in (0.5, 3, 1e12):
            mine.labels(*labels).observe(value)
            other.labels(*labels).observe(value)
    assert exposed(ours) == exposed(theirs)


def test_many_values_at_once_count_like_one_after_the_other() -> None:
    mine, other, ours, theirs = both()
    mine.observe_counts([1, 0, 2, 0, 1], 1 + 60 + 64 + 5000000)
    for value in (1, 60, 64, 5000000):
        other.observe(value)
    assert exposed(ours) == exposed(theirs)


def test_counters_are_exposed_as_the_clients_own() -> None:
    ours, theirs = CollectorRegistry(auto_describe=True), CollectorRegistry(auto_describe=True)
    name, definition = "tidemark_x_total", "How many x."
    mine = BulkCounter(name, definition, ["topic"], registry=ours)
    other = Counter(name, definition, ["topic"], registry=theirs)
    assert exposed(ours) == exposed(theirs), "nothing yet"
    for topic, amount in (("a", 1), ("b", 1 << 60), ("a", 0), ("a", 7)):
        mine.labels(topic).inc(amount)
        other.labels(topic).inc(amount)
    assert exposed(ours) == exposed(theirs)
