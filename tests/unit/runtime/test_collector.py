"""The garbage collector stays out of the way of answers, and is not off for good."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from shared.runtime import collector

pytestmark = pytest.mark.usefixtures("as_before")


@pytest.fixture
def as_before() -> Iterator[None]:
    """The garbage collector, as it was before afterwards."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def collections() -> list[int]:
    return [each["collections"] for each in gc.get_stats()]


class Knot:
    """Needs the collector to go."""

    def __init__(self) -> None:
        self.itself = self


def test_a_request_full_of_objects_does_not_run_the_collector() -> None:
    collector.settle()
    before = collections()
    for _ in range(100):
        request = [{"body": [number]} for number in range(4096)]
        assert len(request) == 4096
    assert collections() == before
    assert gc.isenabled(), "cycles are still found"


def test_what_is_made_meanwhile_is_not_walked_before_or_after() -> None:
    collector.settle()
    waiting = collector.Waiting()
    before = collections()
    with waiting.one_more():
        kept = [[number] for number in range(collector.MEANWHILE_MAX // 2)]
        with waiting.one_more():
            assert waiting.count == 2
        assert gc.get_threshold()[0] == collector.MEANWHILE_MAX
    assert waiting.count == 0
    assert gc.get_threshold() == collector.THRESHOLDS
    more = [[number] for number in range(collector.THRESHOLDS[0] // 2)]
    assert collections() == before
    assert kept
    assert more


def test_memory_is_bounded_while_somebody_never_ends() -> None:
    collector.settle()
    with collector.Waiting().one_more():
        before = collections()
        knot = weakref.ref(Knot())
        kept = [[number] for number in range(collector.MEANWHILE_MAX + 1)]
        assert collections()[0] > before[0]
        assert knot() is None
    assert kept


def test_a_cycle_that_was_left_meanwhile_is_found_later() -> None:
    collector.settle()
    with collector.Waiting().one_more():
        knot = weakref.ref(Knot())
    assert knot() is not None
    gc.collect()
    assert knot() is None
