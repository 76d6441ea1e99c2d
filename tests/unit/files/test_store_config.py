from __future__ import annotations

import pytest

from shared.files.store_config import StoreConfig, parse_delay_levels


def test_queue_files_hold_whole_units() -> None:
    assert StoreConfig(consume_queue_file_size=201).consume_queue_file_size == 220
    assert StoreConfig().consume_queue_file_size == 6_000_000


def test_the_default_index_file_has_rocketmqs_size() -> None:
    assert StoreConfig().index_geometry.size == 420_000_040


def test_delay_levels_become_milliseconds() -> None:
    levels = StoreConfig().delay_levels_ms
    assert len(levels) == 18
    assert (levels[0], levels[2], levels[4], levels[17]) == (1000, 10_000, 60_000, 7_200_000)
    assert parse_delay_levels("2d") == (172_800_000,)


@pytest.mark.parametrize("text", ["1", "s", "1x", "1s -2m"])
def test_an_invalid_delay_level_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="delay level"):
        parse_delay_levels(text)
