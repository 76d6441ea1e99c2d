"""Series of a healthy cluster: a master, a slave and a standalone node, every 30 seconds. Pure.

Values are in promtool's notation: ``5+2x3`` is 5 7 9 11, ``_`` a missing sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

STEP_S: Final = 30
STEPS: Final = 160
"""An hour and 20 minutes."""


class Case(NamedTuple):
    """One test case: a history and the alerts that fire in it."""

    name: str
    """A sentence."""
    changes: Mapping[str, str | None]
    """Series that differ from the healthy ones or are added; None: the series is missing."""
    fires: tuple[tuple[str, tuple[str, ...]], ...]
    """Times since the start (``10m``) with the names of all alerts that fire at that time."""


def series(metric: str, target: str, **labels: str) -> str:
    """Return a series' name with labels. target: a key of ``TARGETS``, such as ``n0/broker``."""
    cluster, broker, replica, service = TARGETS[target]
    every = {
        "cluster": cluster,
        "broker": broker,
        "replica": replica,
        "service": service,
        "job": f"tidemark-{service}",
        "instance": f"{replica}-{service}",
        **labels,
    }
    pairs = ",".join(f'{name}="{value}"' for name, value in every.items())
    return f"{metric}{{{pairs}}}"


def always(value: float) -> str:
    """Return the same value for every step."""
    return f"{value}x{STEPS}"


def growing(by: float, start: float = 0) -> str:
    """Return values that grow by the same amount at each step."""
    return f"{start}+{by}x{STEPS}"


TARGETS: Final[Mapping[str, tuple[str, str, str, str]]] = {
    f"{replica}/{service}": ("prod", broker, replica, service)
    for broker, replica, services in (
        ("g0", "n0", ("broker", "reput", "ha")),
        ("g0", "n1", ("broker", "reput", "ha")),
        ("solo", "s0", ("broker", "reput")),
    )
    for service in services
} | {
    "analytics/analytics": ("prod", "analytics", "analytics", "analytics"),
    "names-0/names": ("prod", "names", "names-0", "names"),
    "names-1/names": ("prod", "names", "names-1", "names"),
}


def _healthy() -> dict[str, str]:
    found: dict[str, str] = {}

    def add(metric: str, target: str, values: str, **labels: str) -> None:
        found[series(metric, target, **labels)] = values

    for target in TARGETS:
        add("up", target, always(1))
        add("tidemark_ready", target, always(1))
        add("tidemark_up_since_timestamp_seconds", target, always(1000))
        info = {"version": "1.0", "python": "3.11", "wire_version": "1", "store_format": "1"}
        add("tidemark_node_info", target, always(1), **info)
        add("tidemark_telemetry_series_dropped_total", target, always(0), family="topic")
    for node in ("n0", "n1", "s0"):
        _add_node(node, found)
    for node, role in (("n0", "master"), ("n1", "slave")):
        _add_ha(node, role, found)
    analytics = "analytics/analytics"
    for metric in ("last_success", "newest_tick"):
        task = {"task": "evaluate"} if metric == "last_success" else {}
        add(f"tidemark_analytics_{metric}_timestamp_seconds", analytics, growing(STEP_S), **task)
    add("tidemark_analytics_source_gaps_total", analytics, always(0), source="scrape")
    for node in ("n0", "s0"):
        _add_groups(f"{node}/broker", found)
    for name in ("names-0", "names-1"):
        _add_names(f"{name}/names", found)
    return found


def _add_node(node: str, found: dict[str, str]) -> None:
    broker, reput = f"{node}/broker", f"{node}/reput"
    serving = node != "n1"
    found |= {
        series("tidemark_log_confirm_offset_bytes", broker): growing(3000, 5000),
        series("tidemark_log_dispatched_offset_bytes", broker): growing(3000, 5000),
        series("tidemark_dispatch_lag_seconds", reput): always(0),
        series("tidemark_dispatch_errors_total", reput, reason="disk-full"): always(0),
        series("tidemark_store_free_bytes", broker, volume="log"): always(6e10),
        series("tidemark_store_capacity_bytes", broker, volume="log"): always(1e11),
        series("tidemark_retention_sends_refused", broker): always(0),
        series("tidemark_retention_expiring_groups", broker): always(0),
        series("tidemark_log_segments_deleted_total", broker, reason="disk_pressure"): always(0),
        series("tidemark_log_segments_deleted_total", broker, reason="age"): growing(1),
        series("tidemark_log_oldest_message_timestamp_seconds", broker): always(-250000),
        series("tidemark_recovery_done_bytes", broker): always(1e9),
        series("tidemark_timer_overdue_seconds", broker): always(0),
        series("tidemark_broker_look_timestamp_seconds", broker): growing(STEP_S),
        series("tidemark_broker_clock_steps_total", broker): always(0),
        series("tidemark_broker_connections_refused_total", broker, reason="limit"): always(0),
        series("tidemark_broker_names_configured", broker): always(2),
        series("tidemark_broker_names_registered", broker): always(2),
    }
    for result, by in (("ok", 3000 if serving else 0), ("busy", 0), ("invalid", 20)):
        key = series("tidemark_broker_put_results_total", broker, result=result)
        found[key] = growing(by)
    for code, pool in (("bad-request", "put"), ("overloaded", "pull"), ("corrupt-record", "pull")):
        key = series("tidemark_broker_requests_rejected_total", broker, pool=pool, code=code)
        found[key] = growing(60 if code == "bad-request" else 0)
    for le, by in (("0.01", 2990), ("0.1", 3000), ("1", 3000), ("+Inf", 3000)):
        put = series("tidemark_broker_put_duration_seconds_bucket", broker, ack="disk", le=le)
        found[put] = growing(by if serving else 0)
        found[series("tidemark_log_flush_duration_seconds_bucket", broker, le=le)] = growing(by)


def _add_ha(node: str, role: str, found: dict[str, str]) -> None:
    target, peer = f"{node}/ha", "n1" if node == "n0" else "n0"
    for each in ("master", "slave", "candidate", "fenced", "halted"):
        found[series("tidemark_ha_role", target, role=each)] = always(int(each == role))
    found |= {
        series("tidemark_ha_in_sync_replicas", target): always(2),
        series("tidemark_ha_configured_replicas", target): always(2),
        series("tidemark_ha_lease_age_seconds", target): always(1),
        series("tidemark_ha_paused", target): always(0),
        series("tidemark_ha_opening_seconds", target): always(0),
        series("tidemark_ha_replica_connected", target, peer=peer): always(1),
        series("tidemark_ha_clock_skew_seconds", target, peer=peer): always(-0.01),
        series("tidemark_ha_refused_connections_total", target): always(0),
        series("tidemark_ha_resyncs_total", target): always(0),
        series("tidemark_ha_failovers_total", target, reason="lost_peer"): always(0),
        series("tidemark_ha_in_sync_changes_total", target, change="leave"): always(0),
    }
    if role == "master":
        found[series("tidemark_ha_replica_lag_seconds", target, peer=peer)] = always(0)


def _add_names(target: str, found: dict[str, str]) -> None:
    refused = {"request": "register", "code": "broker-group-conflict"}
    found |= {
        series("tidemark_names_missing_groups", target): always(0),
        series("tidemark_names_groups_without_master", target): always(0),
        series("tidemark_names_refused_total", target, **refused): always(0),
        series("tidemark_names_bound_used_ratio", target, bound="entries_max"): always(0.3),
    }


def _add_groups(target: str, found: dict[str, str]) -> None:
    """Add ``orders``, which reads its topic, and ``new``, which has members and no commit."""
    for group, lag in (("orders", always(1)), ("new", None)):
        pair = {"group": group, "topic": "orders"}
        if lag is not None:
            found[series("tidemark_group_lag_seconds", target, **pair, kind="main")] = lag
        found |= {
            series("tidemark_group_subscribed", target, **pair): always(1),
            series("tidemark_group_stuck_queues", target, **pair): always(0),
            series("tidemark_group_ahead_queues", target, **pair): always(0),
            series("tidemark_group_dead_messages_total", target, **pair): always(0),
            series("tidemark_group_members", target, group=group): always(2),
            series("tidemark_group_lag_objective_seconds", target, group=group): always(60),
            series(
                "tidemark_group_skipped_messages_total", target, **pair, reason="expired"
            ): always(0),
            series(
                "tidemark_group_offset_resets_total", target, **pair, direction="backward"
            ): always(0),
        }


HEALTHY: Final[Mapping[str, str]] = _healthy()
