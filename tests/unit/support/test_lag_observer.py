"""The bounds of what a look may have read: answers from before it began and after it ended."""

from __future__ import annotations

from typing import Any

from tests.support.lag_observer import Observer, Range


def answer(committed: int, end: int, seconds: float | None) -> dict[str, Any]:
    """Of a broker, of a group with one queue."""
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


def test_an_unknown_age_bounds_nothing() -> None:
    seen = Observer({("billing", "orders"): str}, 1.0)
    for asked_s in (10.0, 20.0):
        seen.take("billing", "orders", answer(5, 9, None), asked_s, asked_s + 0.01)
    assert seen.age("billing", "orders", Range(15.0, 15.1)) == Range(0.0, float("inf"))
