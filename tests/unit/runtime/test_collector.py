"""The garbage collector does not delay answers, and is not off for good."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shared.runtime import collector

pytestmark = pytest.mark.usefixtures("as_before")
LIBRARY = (700, 10, 10)


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the thresholds, and keep the objects of all collected tests frozen: a collection
    that traverses them takes a second."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


def collections() -> list[int]:
    return [each["collections"] for each in gc.get_stats()]


class Knot:
    """An object that only the garbage collector can free."""

    def __init__(self) -> None:
        self.itself = self


def test_a_request_full_of_objects_does_not_run_the_collector() -> None:
    collector.settle()
    before = collections()
    for _ in range(10):
        request = [{"body": [number]} for number in range(4096)]
        assert len(request) == 4096
    assert collections() == before
    assert gc.isenabled(), "cycles are still found"


def test_nothing_is_collected_meanwhile() -> None:
    collector.settle()
    before = collections()
    with collector.waits():
        made = [[number] for number in range(collector.MEANWHILE_MAX // 2)]
        assert collections() == before
        del made
    assert collections() == before
    assert gc.get_threshold() == collector.THRESHOLDS


def test_memory_is_bounded_while_one_never_ends() -> None:
    collector.settle()
    with collector.waits():
        before = collections()
        knot = weakref.ref(Knot())
        kept = [[number] for number in range(collector.MEANWHILE_MAX + 1)]
        assert collections()[0] > before[0]
        assert knot() is None
    assert kept


def test_cycles_left_by_many_scrapes_are_found_without_being_looked_for() -> None:
    collector.settle()
    knots = []
    for _ in range(100):
        with collector.waits():
            knots += [weakref.ref(Knot()) for _ in range(10)]
    kept = [[number] for number in range(collector.THRESHOLDS[0])]
    assert not any(knot() for knot in knots)
    assert kept


@pytest.mark.parametrize("first", [0, 1])
def test_the_last_of_several_brings_the_thresholds_back(first: int) -> None:
    gc.set_threshold(*LIBRARY)
    stacks = [ExitStack(), ExitStack()]
    for each in stacks:
        each.enter_context(collector.waits())
    stacks[first].close()
    assert gc.get_threshold()[0] == collector.MEANWHILE_MAX
    stacks[1 - first].close()
    assert gc.get_threshold() == LIBRARY


def test_a_process_that_begins_to_serve_meanwhile_is_settled_afterwards() -> None:
    gc.set_threshold(*LIBRARY)
    with collector.waits():
        collector.settle()
        assert gc.get_threshold()[0] == collector.MEANWHILE_MAX
    assert gc.get_threshold() == collector.THRESHOLDS
    assert gc.get_freeze_count() > 0


@pytest.mark.parametrize("has_settled", [False, True])
def test_only_a_later_role_traverses_what_was_frozen_before(
    monkeypatch: pytest.MonkeyPatch, *, has_settled: bool
) -> None:
    """What a program imported stays frozen; what a role leaves behind is found by the next."""
    unfrozen: list[None] = []
    monkeypatch.setattr(gc, "unfreeze", lambda: unfrozen.append(None))
    monkeypatch.setattr(collector._waits, "has_settled", has_settled)
    collector.settle()
    assert len(unfrozen) == has_settled
    collector.settle()
    assert len(unfrozen) == has_settled + 1
