"""No set of names makes more lines than a Prometheus accepts."""

from __future__ import annotations

import re
from pathlib import Path

from shared.metrics.bounds import Limits
from shared.metrics.catalogue import BY_NAME, families_of
from shared.metrics.catalogue import groups as of_groups
from shared.metrics.catalogue import requests as of_requests
from shared.metrics.family import Kind
from shared.metrics.registry import Registry
from shared.metrics.tables import Table
from tests.support.metrics import samples
from tests.support.series_budget import PER_LABEL_SET, QUEUE_SERIES_MAX, series_most

ROOT = Path(__file__).resolve().parents[4]
KINDS = ("normal", "fifo", "delay", "retry")


def test_a_broker_with_more_names_than_it_shows_stays_below() -> None:
    limits = Limits(topics=30, pairs=40, groups=20)
    registry = Registry("broker", limits)
    least = 0
    names = [f"n{number}" for number in range(100)]
    for family in families_of("broker"):
        labels = set(family.labels)
        if "queue" in labels or not labels & {"topic", "group"}:
            continue
        rows: list[tuple[str, ...]] = []
        for place, name in enumerate(names):
            values = {"topic": f"t{place}", "group": name, "reason": "expired"}
            values |= {"direction": "forward", "kind": "main"}
            kinds = KINDS if family is of_requests.BROKER_MESSAGES_IN_TOTAL else ("main",)
            rows += [
                tuple((values | {"kind": kind})[label] for label in family.labels) for kind in kinds
            ]
        match family.kind:
            case Kind.COUNTER:
                counters = registry.own_counter(family)
                for row in rows:
                    counters.labels(*row).inc()
            case Kind.HISTOGRAM:
                histograms = registry.own_histogram(family)
                for row in rows:
                    histograms.labels(*row).observe(1)
            case Kind.GAUGE:
                registry.read_table(
                    (family,),
                    lambda rows=rows: Table(rows, [[1] * len(rows)]),  # type: ignore[misc]
                )
                least += limits.groups  # no fewer of topics and pairs
    shown = len(samples(registry))
    assert least < shown <= series_most("broker", limits, 0)


def test_the_limit_of_prometheus_is_larger() -> None:
    texts = [
        path.read_text()
        for path in (ROOT / "deploy").rglob("*.y*ml")
        if "sample_limit" in path.read_text() or "sampleLimit" in path.read_text()
    ]
    limits = [int(found) for text in texts for found in re.findall(r"ample_?[lL]imit: (\d+)", text)]
    assert limits
    assert min(limits) > max(
        series_most(service) for service in ("broker", "reput", "ha", "analytics")
    )


def test_labels_beside_topic_and_group_are_counted() -> None:
    for family in BY_NAME.values():
        labels = set(family.labels)
        if "queue" not in labels and labels & {"topic", "group"}:
            for label in labels - {"topic", "group"}:
                assert (family.name, label) in PER_LABEL_SET
    assert {family for family, _ in PER_LABEL_SET} <= BY_NAME.keys()
    assert of_groups.GROUP_QUEUE_OFFSET_MESSAGES.name not in {name for name, _ in PER_LABEL_SET}


def test_the_bound_of_queues_is_the_brokers_default() -> None:
    from services.broker.config import BrokerConfig

    assert BrokerConfig().queue_series_max == QUEUE_SERIES_MAX
