"""Counters of groups, within the bound on series."""

from __future__ import annotations

from services.broker.groups.counters import GroupCounters
from shared.metrics.bounds import Limits
from shared.metrics.registry import Registry
from tests.support.metrics import sample, samples


def counted(registry: Registry, name: str, *labels: str) -> float | None:
    names = ("group", "topic", "reason" if "skipped" in name else "direction")
    given = dict(zip(names, labels, strict=False))
    return sample(registry, f"tidemark_group_{name}", given)


def test_commits_count_what_they_move_forward() -> None:
    registry = Registry("broker")
    counters = GroupCounters(registry)
    counters.committed("g", "t", before=None, after=5)
    counters.committed("g", "t", before=5, after=9, oldest_delay_s=0.2)
    counters.committed("g", "t", before=9, after=9)
    assert counted(registry, "consumed_messages_total", "g", "t") == 4
    assert sample(registry, "tidemark_group_consume_delay_seconds_count", {"group": "g"}) == 1


def test_a_reset_counts_its_direction_and_what_it_jumps_over() -> None:
    registry = Registry("broker")
    counters = GroupCounters(registry)
    counters.was_reset("g", "t", before=None, after=3)
    counters.was_reset("g", "t", before=3, after=3)
    counters.was_reset("g", "t", before=3, after=10)
    counters.was_reset("g", "t", before=10, after=0)
    assert counted(registry, "offset_resets_total", "g", "t", "forward") == 1
    assert counted(registry, "offset_resets_total", "g", "t", "backward") == 1
    assert counted(registry, "skipped_messages_total", "g", "t", "reset_forward") == 7


def test_deliveries_dead_letters_and_losses_have_their_counters() -> None:
    registry = Registry("broker")
    counters = GroupCounters(registry)
    counters.delivered("g", "t", redelivered=2, filtered=3, oldest_delay_s=1.0)
    counters.delivered("g", "t")
    counters.dead("g", "t")
    counters.skipped("g", "t", 8, "expired")
    assert counted(registry, "redelivered_messages_total", "g", "t") == 2
    assert counted(registry, "filtered_messages_total", "g", "t") == 3
    assert counted(registry, "dead_messages_total", "g", "t") == 1
    assert counted(registry, "skipped_messages_total", "g", "t", "expired") == 8
    assert sample(registry, "tidemark_group_delivery_delay_seconds_count", {"group": "g"}) == 1


def test_beyond_the_bound_everything_counts_as_other() -> None:
    registry = Registry("broker", Limits(pairs=2, groups=2))
    counters = GroupCounters(registry)
    for number in range(5):
        counters.dead(f"g{number}", "t")
        counters.delivered(f"g{number}", "t", oldest_delay_s=0.1)
    counters.dead("g0", "t")
    assert counted(registry, "dead_messages_total", "g0", "t") == 2
    assert counted(registry, "dead_messages_total", "_other", "_other") == 3
    others = {"group": "_other"}
    assert sample(registry, "tidemark_group_delivery_delay_seconds_count", others) == 3


def test_the_histograms_of_delays_can_be_left_out() -> None:
    registry = Registry("broker")
    counters = GroupCounters(registry, delays=False)
    counters.delivered("g", "t", redelivered=1, oldest_delay_s=1.0)
    counters.committed("g", "t", before=1, after=2, oldest_delay_s=1.0)
    assert not [name for name in samples(registry) if "_delay_seconds" in name]
    assert counted(registry, "redelivered_messages_total", "g", "t") == 1
