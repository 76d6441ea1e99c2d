"""The bounds of what a look may have read: answers from before it began and after it ended."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.lag_observer import Observer, Range


def answer(committed: int, end: int, seconds: float | None) -> dict[str, Any]:
    """A broker's answer about a group with one queue."""
    messages = end - committed
    queue = {"queue": 0, "committed": committed, "max_offset": end, "messages": messages}
    queues = [{**queue, "seconds": seconds}]
    topics = [{"topic": "orders", "queues": queues}]
    return {"generation": 7, "members": [], "lag_objective_ms": 60_000, "topics": topics}


def test_an_answer_from_within_a_look_bounds_nothing() -> None:
    # A look began at 100.0 and stood still for two seconds, as on a loaded machine. Then it read
    # the queue: 20 unread messages. The answer of 100.5 was the first one after its beginning, and
    # says 5 of them: taken as a bound it showed a wrong lag of a broker that was right.
    seen = Observer({("billing", "orders"): str}, 1.0)
    for asked_s, committed, end in ((99.5, 100, 100), (100.5, 100, 105), (102.5, 110, 130)):
        said = answer(committed, end, 1.0 if committed < end else 0.0)
        seen.take("billing", "orders", said, asked_s, asked_s + 0.01)
    look = Range(100.0, 102.1)
    before, after = seen.around("billing", "orders", look)
    assert (before.asked_s, after.asked_s) == (99.5, 102.5)
    assert seen.lag("billing", "orders", look) == Range(0, 30)
    assert seen.queue_lag("billing", "orders", 0, look).holds(20)
    assert seen.age("billing", "orders", look) == Range(0.0, 0.5)


def test_a_message_that_could_not_be_read_yet_is_as_old_as_its_send() -> None:
    # It was stored at 99.57 and readable at 99.61. The answer of 99.60 had nothing unread, and the
    # sample of 99.73 found it 0.16 s old: more than the time since the answer.
    sent_at = {("orders", 0): [(90, 98.0), (100, 99.56), (105, 99.9)]}
    seen = Observer({("billing", "orders"): str}, 1.0, sent_at)
    seen.take("billing", "orders", answer(100, 100, 0.0), 99.6, 99.61)
    seen.take("billing", "orders", answer(100, 105, 0.95), 100.5, 100.51)
    age = seen.age("billing", "orders", Range(99.73, 100.4))
    assert (age.low, age.high) == pytest.approx((0.0, 0.17)), "the sample may not have had it"
    seen.take("billing", "orders", answer(100, 110, 1.0), 101.0, 101.01)
    seen.take("billing", "orders", answer(100, 110, 2.0), 102.0, 102.01)
    age = seen.age("billing", "orders", Range(101.1, 101.9))
    assert (age.low, age.high) == pytest.approx((1.09, 1.1)), "it was there before the sample"


def test_what_cannot_be_read_has_no_age() -> None:
    # With reput stopped, the send of the first hidden message allowed any age for a minute.
    seen = Observer({("billing", "orders"): str}, 1.0, {("orders", 0): [(100, 40.0)]})
    for asked_s in (99.0, 101.0):
        seen.take("billing", "orders", answer(100, 100, 0.0), asked_s, asked_s + 0.01)
    assert seen.age("billing", "orders", Range(100.0, 100.5)) == Range(0.0, 0.0)


def test_an_unknown_age_bounds_nothing() -> None:
    seen = Observer({("billing", "orders"): str}, 1.0)
    for asked_s in (10.0, 20.0):
        seen.take("billing", "orders", answer(5, 9, None), asked_s, asked_s + 0.01)
    assert seen.age("billing", "orders", Range(15.0, 15.1)) == Range(0.0, float("inf"))
