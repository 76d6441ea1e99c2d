"""When the disk will be full: the pace, what does not change it, and why it may be unknown."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from services.broker.retention.forecast import SAMPLE_EVERY_S, SAMPLES_MAX, SAMPLES_MIN, Growth

GIB = 1 << 30


def grown(used: Callable[[int], int], samples: int = 40) -> Growth:
    growth = Growth()
    for number in range(samples):
        growth.sample(number * SAMPLE_EVERY_S, used(number))
    return growth


def test_a_steady_pace_gives_the_time_until_the_room_is_used_up() -> None:
    result = grown(lambda number: number * 5_000_000).forecast(60_000_000)
    assert result.full_in_s == pytest.approx(60.0)
    assert result.growth_bytes_per_s == pytest.approx(1_000_000.0)
    assert result.reason is None


def test_a_deletion_and_a_burst_do_not_bend_the_pace() -> None:
    def used(number: int) -> int:
        steady = number * 5_000_000
        return steady + (GIB if 10 < number < 14 else 0) - (GIB if number > 30 else 0)

    result = grown(used).forecast(60_000_000)
    assert result.growth_bytes_per_s == pytest.approx(1_000_000.0, rel=0.02)


@pytest.mark.parametrize(
    ("growth", "room", "reason"),
    [
        (grown(lambda number: number, SAMPLES_MIN - 1), GIB, "too_few_samples"),
        (grown(lambda number: 7), GIB, "not_growing"),
        (grown(lambda number: -number), GIB, "not_growing"),
        (grown(lambda number: number), None, "disk_not_measured"),
        (grown(lambda number: number), 1 << 60, "too_far_ahead"),
    ],
)
def test_an_unknown_value_is_none_with_a_reason(
    growth: Growth, room: int | None, reason: str
) -> None:
    result = growth.forecast(room)
    assert result.full_in_s is None
    assert result.reason == reason


def test_a_disk_without_room_is_full_now() -> None:
    assert Growth().forecast(0) == (0.0, None, None)


def test_samples_too_close_together_are_not_taken_and_old_ones_go() -> None:
    growth = Growth()
    for number in range(100 * SAMPLES_MAX):
        growth.sample(number * SAMPLE_EVERY_S / 10, 0)
    assert growth.bytes_per_s == 0
    for number in range(SAMPLES_MAX + 1):
        growth.sample(1e6 + number * SAMPLE_EVERY_S, number * 10)
    assert growth.bytes_per_s == pytest.approx(10 / SAMPLE_EVERY_S)
