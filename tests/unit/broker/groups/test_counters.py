"""What is counted in groups as it happens, within the bound on series."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from services.broker.groups.counters import GroupCounters


def counted(registry: CollectorRegistry, name: str, *labels: str) -> float | None:
    names = ("group", "topic", "reason" if "skipped" in name else "direction")
    given = dict(zip(names, labels, strict=False))
    return registry.get_sample_value(f"tidemark_group_{name}", given)


def test_commits_count_what_they_move_forward() -> None:
    registry = CollectorRegistry()
    counters = GroupCounters(registry)
    counters.committed("g", "t", before=None, after=5)
    counters.committed("g", "t", before=5, after=9, oldest_delay_s=0.2)
    counters.committed("g", "t", before=9, after=9)
    assert counted(registry, "consumed_messages_total", "g", "t") == 4
    assert (
        registry.get_sample_value("tidemark_group_consume_delay_seconds_count", {"group": "g"}) == 1
    )


def test_a_reset_counts_its_direction_and_what_it_jumps_over() -> None:
    registry = CollectorRegistry()
    counters = GroupCounters(registry)
    counters.was_reset("g", "t", before=None, after=3)
    counters.was_reset("g", "t", before=3, after=3)
    counters.was_reset("g", "t", before=3, after=10)
    counters.was_reset("g", "t", before=10, after=0)
    assert counted(registry, "offset_resets_total", "g", "t", "forward") == 1
    assert counted(registry, "offset_resets_total", "g", "t", "backward") == 1
    assert counted(registry, "skipped_messages_total", "g", "t", "reset_forward") == 7


def test_deliveries_dead_letters_and_losses_have_their_counters() -> None:
    registry = CollectorRegistry()
    counters = GroupCounters(registry)
    counters.delivered("g", "t", redelivered=2, filtered=3, oldest_delay_s=1.0)
    counters.delivered("g", "t")
    counters.dead("g", "t")
    counters.skipped("g", "t", 8, "expired")
    assert counted(registry, "redelivered_messages_total", "g", "t") == 2
    assert counted(registry, "filtered_messages_total", "g", "t") == 3
    assert counted(registry, "dead_messages_total", "g", "t") == 1
    assert counted(registry, "skipped_messages_total", "g", "t", "expired") == 8
    assert (
        registry.get_sample_value("tidemark_group_delivery_delay_seconds_count", {"group": "g"})
        == 1
    )


def test_beyond_the_bound_everything_counts_as_other() -> None:
    registry = CollectorRegistry()
    counters = GroupCounters(registry, series_max=2)
    for number in range(5):
        counters.dead(f"g{number}", "t")
        counters.delivered(f"g{number}", "t", oldest_delay_s=0.1)
    counters.dead("g0", "t")
    assert counted(registry, "dead_messages_total", "g0", "t") == 2
    assert counted(registry, "dead_messages_total", "_other", "_other") == 3
    others = {"group": "_other"}
    assert registry.get_sample_value("tidemark_group_delivery_delay_seconds_count", others) == 3
