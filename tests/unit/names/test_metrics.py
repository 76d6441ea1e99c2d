from __future__ import annotations

from services.names.config import NamesConfig
from services.names.core.table import Table
from services.names.metrics import NamesMetrics, bounds_used
from shared.metrics.catalogue.names import NAMES_REFUSED_TOTAL
from shared.metrics.registry import Registry
from tests.unit.names.registering import said

CONFIG = NamesConfig(
    groups_max=10,
    nodes_max=4,
    topics_max=8,
    entries_max=100,
    held_polls_max=20,
    connections_max=50,
)


def test_each_bound_has_its_used_share_and_the_fullest_broker_group_counts() -> None:
    table = Table("tidemark", CONFIG.table_bounds)
    assert set(bounds_used(CONFIG, table, 0, 0).values()) == {0.0}
    table.register("g0", "n0", said("a", "b", "c", "d"), 0.0)
    table.register("g0", "n1", said(role="slave", identity="of n1"), 0.0)
    table.register("g1", "n0", said("a", identity="of g1"), 0.0)
    assert bounds_used(CONFIG, table, 5, 10) == {
        "groups_max": 0.2,
        "nodes_max": 0.5,
        "topics_max": 0.5,
        "entries_max": 0.05,
        "held_polls_max": 0.25,
        "connections_max": 0.2,
    }


def test_a_bound_of_zero_has_no_share() -> None:
    config = NamesConfig(held_polls_max=0)
    table = Table("tidemark", config.table_bounds)
    assert "held_polls_max" not in bounds_used(config, table, 0, 0)


def test_refusals_that_an_alert_waits_for_begin_at_zero() -> None:
    registry = Registry("names")
    NamesMetrics(registry)
    for code in ("broker-group-conflict", "node-identity-taken", "wrong-cluster", "too-large"):
        labels = {"request": "register", "code": code}
        assert registry.get_sample_value(NAMES_REFUSED_TOTAL.name, labels) == 0.0
