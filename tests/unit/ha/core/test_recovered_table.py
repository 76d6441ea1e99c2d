"""Which epoch table fits which log."""

from __future__ import annotations

import pytest

from services.ha.core.recovered_table import contradiction, without_bytes_dropped
from tidemark.formats.epochs import EpochStart
from tidemark.offsets import Epoch, PhysicalOffset


def table(*pairs: tuple[int, int]) -> tuple[EpochStart, ...]:
    return tuple(EpochStart(Epoch(epoch), PhysicalOffset(start)) for epoch, start in pairs)


@pytest.mark.parametrize(
    ("end", "kept"), [(0, 1), (9, 1), (10, 2), (19, 2), (20, 4), (21, 4), (1000, 4)]
)
def test_trailing_entries_above_the_end_are_dropped_and_no_others(end: int, kept: int) -> None:
    entries = table((1, 0), (2, 10), (3, 20), (5, 20))
    assert without_bytes_dropped(entries, end) == entries[:kept]


def test_an_empty_table_contradicts_nothing() -> None:
    assert without_bytes_dropped((), 5) == ()
    assert contradiction((), first_offset=0, end=5, is_border=lambda offset: False) is None


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        (((1, 0),), None),
        (((1, 0), (2, 10), (7, 30)), None),
        (((1, 0), (2, 100)), None),  # its first byte has not come yet
        (((1, 0), (1, 10)), "epoch 1 begins at 10, after epoch 1 at 0"),
        (((2, 0), (1, 10)), "epoch 1 begins at 10"),
        (((1, 10), (2, 10)), "epoch 2 begins at 10"),
        (((1, 20), (2, 10)), "epoch 2 begins at 10, after epoch 1 at 20"),
        (((1, 0), (2, 15)), "epoch 2 begins at 15, where no record begins"),
        (((1, 0), (2, 3), (3, 10)), "epoch 2 begins at 3"),
    ],
)
def test_what_contradicts_the_log_is_said(
    entries: tuple[tuple[int, int], ...], fault: str | None
) -> None:
    found = contradiction(
        table(*entries), first_offset=0, end=100, is_border=lambda offset: offset % 10 == 0
    )
    assert found == fault if fault is None else found is not None and fault in found


def test_what_has_expired_is_not_looked_at() -> None:
    def is_border(offset: int) -> bool:
        assert offset >= 50
        return offset == 60

    entries = table((1, 0), (2, 33), (3, 60))
    assert contradiction(entries, first_offset=50, end=100, is_border=is_border) is None
