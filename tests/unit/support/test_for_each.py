"""A test over many values that is one item of pytest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.for_each import for_each


def test_values_are_taken_when_the_test_first_runs_and_all_are_used_in_each_run() -> None:
    made: list[int] = []
    used: list[int] = []

    def values() -> Iterator[int]:
        made.append(1)
        yield from range(3)

    @for_each("value", values())
    def item(value: int) -> None:
        used.append(value)

    assert made == []
    item()
    item()
    assert made == [1]
    assert used == [0, 1, 2, 0, 1, 2]


def test_the_first_failure_ends_it_and_names_its_value() -> None:
    @for_each(("one", "other"), [(1, 1), (1, 2), (2, 3)])
    def item(one: int, other: int) -> None:
        assert one == other

    with pytest.raises(AssertionError) as failure:
        item()
    assert failure.value.__notes__ == ["with one, other = 1, 2"]
