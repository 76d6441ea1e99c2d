from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidemark.client.commits import CommitLedger
from tidemark.client.queue_names import Queue

QUEUES: list[Queue] = [("orders", 0), ("orders", 1), ("%RETRY%billing", 0)]
INTERVAL_MS = 100.0


class Ledger(RuleBasedStateMachine):
    """Positions move, requests succeed, fail or are answered late, queues come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = CommitLedger(INTERVAL_MS)
        self.now_ms = 0.0
        self.reached: dict[Queue, int] = {}
        self.broker: dict[Queue, int] = {}
        self.under_way: Mapping[Queue, int] = {}
        self.last_taken_ms: float | None = None

    @rule(queue=st.sampled_from(QUEUES), step=st.integers(0, 5))
    def move(self, queue: Queue, step: int) -> None:
        self.reached[queue] = self.reached.get(queue, 0) + step
        self.ledger.offer(queue, self.reached[queue])

    @rule(ms=st.floats(0, 150))
    def wait(self, ms: float) -> None:
        self.now_ms += ms

    @rule()
    def request(self) -> None:
        wait_ms = self.ledger.wait_ms(self.now_ms)
        if wait_ms != 0.0:
            return
        assert not self.under_way, "two requests at once"
        if self.last_taken_ms is not None:
            assert self.now_ms >= self.last_taken_ms + INTERVAL_MS
        self.last_taken_ms = self.now_ms
        self.under_way = self.ledger.take(self.now_ms)
        assert self.under_way
        for queue, position in self.under_way.items():
            assert position == self.reached[queue], "an old position leaves"
            assert position > self.broker.get(queue, -1), "what the broker has leaves again"

    @rule()
    def succeed(self) -> None:
        if self.under_way:
            self.broker.update(self.under_way)
            self.ledger.accepted()
            self.under_way = {}

    @rule()
    def fail(self) -> None:
        if self.under_way:
            self.ledger.failed()
            self.under_way = {}

    @rule(queue=st.sampled_from(QUEUES))
    def lose(self, queue: Queue) -> None:
        self.ledger.forget([queue])
        self.reached.pop(queue, None)
        self.broker.pop(queue, None)
        self.under_way = {each: at for each, at in self.under_way.items() if each != queue}

    @invariant()
    def everything_moved_is_on_its_way_or_acknowledged(self) -> None:
        for queue, position in self.reached.items():
            assert self.ledger.acknowledged(queue) == self.broker.get(queue)
            is_known = self.broker.get(queue, -1) >= position
            assert self.ledger.settled(queue) == is_known


TestLedger = Ledger.TestCase


def test_committed_positions_are_not_sent_again() -> None:
    ledger = CommitLedger(INTERVAL_MS)
    ledger.know(("orders", 0), 5)
    ledger.offer(("orders", 0), 5)
    assert ledger.wait_ms(0) is None
    assert ledger.take(0) == {}
    ledger.offer(("orders", 0), 6)
    assert ledger.take(0) == {("orders", 0): 6}


def test_a_hurried_commit_does_not_wait_for_the_interval() -> None:
    ledger = CommitLedger(INTERVAL_MS)
    ledger.offer(("orders", 0), 1)
    ledger.take(0)
    ledger.accepted()
    ledger.offer(("orders", 0), 2)
    assert ledger.wait_ms(30) == 70
    assert ledger.take(30) == {("orders", 0): 2}


def test_a_position_that_moves_while_a_request_is_under_way_leaves_with_the_next() -> None:
    ledger = CommitLedger(0)
    ledger.offer(("orders", 0), 1)
    ledger.take(0)
    ledger.offer(("orders", 0), 2)
    assert ledger.wait_ms(0) is None
    assert ledger.take(0) == {}
    ledger.accepted()
    assert ledger.take(0) == {("orders", 0): 2}


@given(st.floats(max_value=-0.001, allow_nan=False, allow_infinity=False))
def test_an_interval_below_0_is_refused(interval_ms: float) -> None:
    with pytest.raises(ValueError, match="commit_interval_ms"):
        CommitLedger(interval_ms)
