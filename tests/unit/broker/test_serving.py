"""What the broker does to its own process before it serves."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from services.broker.serving import settle_collector


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector, as it was before afterwards."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_a_request_full_of_objects_does_not_run_the_collector(collector: None) -> None:
    settle_collector()
    before = [each["collections"] for each in gc.get_stats()]
    for _ in range(100):
        request = [{"body": [number]} for number in range(4096)]
        assert len(request) == 4096
    assert [each["collections"] for each in gc.get_stats()] == before
    assert gc.isenabled(), "cycles are still found"
