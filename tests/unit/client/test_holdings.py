from __future__ import annotations

from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidemark.client.holdings import HeldQueue, Hold, Holdings
from tidemark.client.queue_names import Queue

QUEUES: list[Queue] = [("orders", n) for n in range(4)]
ASSIGNMENTS = st.lists(st.sampled_from(QUEUES), unique=True)


class Broker(RuleBasedStateMachine):
    """A member's holdings under every order of assignments, callbacks, work and releases.

    They are checked against what the broker may conclude: a queue that ``holding`` leaves out can
    be given to another member, so none of its messages may be in hand, and the program must have
    been notified.
    """

    def __init__(self) -> None:
        super().__init__()
        self.holdings = Holdings(cast(Any, None))
        self.assigned: set[Queue] = set()
        self.being_notified: list[HeldQueue] = []
        self.notified: set[Queue] = set()
        """Queues that the program believes to have."""
        self.gone: list[HeldQueue] = []
        self.offset = 0

    @rule(assignment=ASSIGNMENTS)
    def assign(self, assignment: list[Queue]) -> None:
        before = {held.queue: held.hold for held in self.holdings}
        change = self.holdings.assign(assignment)
        self.assigned = set(assignment)
        assert {held.queue for held in change.arriving} == self.assigned - before.keys()
        assert change.lost == []
        for held in change.leaving:
            assert held.queue not in self.assigned
            assert before[held.queue] in (Hold.OWNED, Hold.ARRIVING)

    @rule()
    def begin_to_tell(self) -> None:
        for held in self.holdings.of(Hold.ARRIVING):
            if not held.is_notified:
                held.is_notified = True
                self.notified.add(held.queue)
                self.being_notified.append(held)

    @rule()
    def callback_ended(self) -> None:
        self.holdings.own(self.being_notified)
        self.being_notified.clear()

    @rule(data=st.data())
    def hand_out(self, data: st.DataObject) -> None:
        if owned := self.holdings.of(Hold.OWNED):
            held = data.draw(st.sampled_from(owned))
            held.progress.hand(self.offset)
            self.offset += 1

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        busy = [held for held in self.holdings if not held.is_idle]
        if busy:
            held = data.draw(st.sampled_from(busy))
            position = held.progress.position
            assert position is not None
            held.progress.finish(position)

    @rule()
    def release(self) -> None:
        left = [held for held in self.holdings.of(Hold.LEAVING) if held.is_idle]
        for held in left:
            held.is_notified = False
            self.notified.discard(held.queue)
        self.holdings.release(left)
        for held in left:
            assert held.queue not in self.holdings.holding()
            self.gone.append(held)
            self.assigned.discard(held.queue)  # if it came back, the next heartbeat shows it

    @rule(assignment=ASSIGNMENTS, untouched=st.sets(st.sampled_from(QUEUES)))
    def rejoin(self, assignment: list[Queue], untouched: set[Queue]) -> None:
        before = {held.queue: held for held in self.holdings}
        change = self.holdings.rejoined(assignment, untouched)
        self.assigned = set(assignment)
        for held in change.lost:
            assert held.hold is Hold.LOST
            self.notified.discard(held.queue)
            self.gone.append(held)
        kept = {held.queue for held in self.holdings if before.get(held.queue) is held}
        # To go on in place needs both: the broker's confirmation, and no other owner since.
        assert kept == set(assignment) & untouched & before.keys()
        assert all(not self.holdings.get(queue).is_placed for queue in kept)  # type: ignore[union-attr]

    @invariant()
    def what_may_be_given_to_others_is_not_worked_on_here(self) -> None:
        held_by_us = set(self.holdings.holding())
        assert self.assigned <= held_by_us
        for held in self.holdings:
            if held.hold is Hold.OWNED:
                assert held.queue in self.assigned
            if held.queue not in self.assigned:
                assert held.hold is Hold.LEAVING
        assert all(held.hold is Hold.LOST for held in self.gone)
        assert self.notified == {held.queue for held in self.holdings if held.is_notified}


TestHoldings = Broker.TestCase


def test_a_queue_lost_before_its_callback_causes_no_callback() -> None:
    holdings = Holdings(cast(Any, None))
    (held,) = holdings.assign([("orders", 0)]).arriving
    change = holdings.assign([])
    assert change.leaving == change.lost == []
    assert held.hold is Hold.LOST
    assert holdings.holding() == []


def test_a_queue_that_comes_back_while_it_leaves_is_released_first() -> None:
    """1. A queue is lost with a message in hand; 2. it is assigned again; 3. the message is
    finished.

    Going on at once would hand out from a place that was dropped with the buffer.
    """
    holdings = Holdings(cast(Any, None))
    (held,) = holdings.assign([("orders", 0)]).arriving
    held.is_notified = True
    holdings.own([held])
    held.progress.hand(0)
    holdings.assign([])
    assert holdings.assign([("orders", 0)]).arriving == []
    assert held.hold is Hold.LEAVING
    holdings.release([held])
    assert holdings.holding() == [("orders", 0)]  # still under way
    held.progress.finish(0)
    holdings.release([held])
    (again,) = holdings.assign([("orders", 0)]).arriving
    assert again is not held


def test_queues_that_the_broker_rejects_are_lost_once() -> None:
    holdings = Holdings(cast(Any, None))
    (held,) = holdings.assign([("orders", 0)]).arriving
    assert holdings.lose([held]) == [held]
    assert holdings.lose([held]) == []
