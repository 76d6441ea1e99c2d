"""Metrics of ha show the replica's status; an unknown value is left out."""

from __future__ import annotations

from typing import Any, cast

from services.ha.metrics import HaMetrics
from services.ha.shell.links import Links
from services.ha.wire.peer_clock import Skew
from shared.metrics.catalogue import ha as of_ha
from shared.metrics.family import Family, Number, Reading
from shared.metrics.registry import Registry
from tests.support.metrics import samples


class CannedLinks:
    """Links that sent bytes and refused connections."""

    accepted_count, refused_count, count = 9, 4, 2

    def sent_to(self, node: str) -> int:
        return 1000 if node == "n1" else 0

    def connected(self, node: str) -> bool:
        return node == "n1"


def node(name: str, **more: Any) -> dict[str, Any]:
    return {
        "node": name,
        "state": "in-sync",
        "in_sync": True,
        "log_end": 500,
        "durable_end": 480,
        "confirm": 450,
        "lag_bytes": 20,
        "lag_ms": 30,
        **more,
    }


def scraped(status: dict[str, Any]) -> dict[str, Number]:
    registry = Registry("ha")
    counters: dict[Family, Reading] = {
        of_ha.HA_TRUNCATIONS_TOTAL: 3,
        of_ha.HA_FAILOVERS_TOTAL: {"lost_peer": 2},
        of_ha.HA_IN_SYNC_CHANGES_TOTAL: {"join": 5},
    }
    skews = {"n1": Skew(-1500.0, 3.0)}
    HaMetrics(
        registry, "n0", lambda: status, lambda: counters, cast(Links, CannedLinks()), lambda: skews
    )
    return samples(registry)


def test_a_master_shows_its_term_and_its_slaves() -> None:
    found = scraped(
        {
            "epoch": 7,
            "min_in_sync": 1,
            "paused": False,
            "opening_ms": 2500,
            "lease": {"deadline_in_ms": 1500, "age_ms": 200},
            "nodes": [node("n0", state="master"), node("n1"), node("n2", in_sync=False)],
        }
    )
    expected = {
        'tidemark_ha_role{role="master"}': 1,
        'tidemark_ha_role{role="slave"}': 0,
        "tidemark_ha_epoch": 7,
        "tidemark_ha_opening_seconds": 2.5,
        "tidemark_ha_configured_replicas": 3,
        "tidemark_ha_in_sync_replicas": 2,
        "tidemark_ha_lease_left_seconds": 1.5,
        "tidemark_ha_lease_age_seconds": 0.2,
        "tidemark_ha_unconfirmed_bytes": 50,
        'tidemark_ha_replica_lag_bytes{peer="n1"}': 20,
        'tidemark_ha_replica_lag_seconds{peer="n1"}': 0.03,
        'tidemark_ha_replica_acked_bytes{peer="n1"}': 480,
        'tidemark_ha_replica_connected{peer="n2"}': 0,
        'tidemark_ha_transferred_bytes_total{peer="n1"}': 1000,
        "tidemark_ha_truncations_total": 3,
        'tidemark_ha_failovers_total{reason="lost_peer"}': 2,
        'tidemark_ha_in_sync_changes_total{change="join"}': 5,
        "tidemark_ha_refused_connections_total": 4,
        'tidemark_ha_clock_skew_seconds{peer="n1"}': -1.5,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_a_slave_shows_no_lag_of_others() -> None:
    found = scraped({"epoch": 7, "nodes": [node("n0"), node("n1", state="master")]})
    assert found['tidemark_ha_role{role="slave"}'] == 1
    assert found["tidemark_ha_opening_seconds"] == 0
    assert found['tidemark_ha_replica_connected{peer="n1"}'] == 1
    assert not [name for name in found if "replica_lag" in name or "replica_acked" in name]


def test_what_is_not_known_is_left_out() -> None:
    nothing = dict.fromkeys(("log_end", "durable_end", "confirm", "lag_bytes", "lag_ms"))
    found = scraped(
        {
            "epoch": None,
            "nodes": [node("n0", **nothing, in_sync=None), node("n1", **nothing, in_sync=None)],
        }
    )
    assert found['tidemark_ha_role{role="slave"}'] == 1
    for name in ("epoch", "in_sync_replicas", "lease_left_seconds", "confirm_offset_bytes"):
        assert f"tidemark_ha_{name}" not in found
    assert not [name for name in found if name.startswith("tidemark_ha_replica_lag")]


def test_a_node_that_still_recovers_shows_that_it_is_no_master() -> None:
    found = scraped({"epoch": None, "nodes": []})
    assert found['tidemark_ha_role{role="master"}'] == 0
    assert "tidemark_ha_configured_replicas" not in found
