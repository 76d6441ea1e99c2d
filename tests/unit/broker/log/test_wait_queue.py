"""Which waiting sends a flushed offset releases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.broker.log.wait_queue import NO_DEADLINE, WaitQueue
from tidemark.offsets import PhysicalOffset


def test_two_flushes_that_report_out_of_order_do_not_step_back() -> None:
    line: WaitQueue[str] = WaitQueue(PhysicalOffset(0))
    line.advance(PhysicalOffset(200))
    assert line.advance(PhysicalOffset(100)) == []
    assert line.reached == 200


def test_a_sender_that_times_out_leaves_the_line_and_the_order_stays() -> None:
    line: WaitQueue[str] = WaitQueue(PhysicalOffset(0))
    assert line.next_deadline == NO_DEADLINE
    for end, name, deadline in ((100, "a", 9.0), (200, "b", 2.0), (300, "c", NO_DEADLINE)):
        line.join(PhysicalOffset(end), name, deadline)
    assert line.next_deadline == 2.0
    assert line.expire(1.9) == []
    assert line.expire(2.0) == ["b"]
    assert line.next_deadline == 9.0
    assert line.advance(PhysicalOffset(300)) == ["a", "c"]
    assert line.expire(99.0) == []
    assert line.next_deadline == NO_DEADLINE


def test_a_sender_that_joins_late_stands_behind_later_appends() -> None:
    line: WaitQueue[str] = WaitQueue(PhysicalOffset(0))
    line.join(PhysicalOffset(200), "in time")
    assert line.join(PhysicalOffset(100), "late")
    assert line.advance(PhysicalOffset(199)) == []
    assert line.advance(PhysicalOffset(200)) == ["in time", "late"]


def test_a_dissolved_line_releases_no_sender() -> None:
    line: WaitQueue[str] = WaitQueue(PhysicalOffset(0))
    line.join(PhysicalOffset(10), "a")
    assert line.dissolve() == ["a"]
    assert line.advance(PhysicalOffset(10)) == []


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "flush", "time"]), st.integers(0, 50)), max_size=60
)


@given(STEPS)
def test_each_sender_is_released_once_and_not_early(steps: list[tuple[str, int]]) -> None:
    """Each step appends some bytes, or flushes some of what is there, or lets time pass."""
    line: WaitQueue[int] = WaitQueue(PhysicalOffset(0))
    end = reached = 0
    now = 0.0
    left: list[int] = []
    joined: dict[int, float] = {}
    for step, amount in steps:
        match step:
            case "append":
                end += amount
                deadline = now + amount if amount % 2 else NO_DEADLINE
                if line.join(PhysicalOffset(end), end, deadline):
                    joined[end] = min(deadline, joined.get(end, NO_DEADLINE))
                    left.append(end)
                else:
                    assert end <= reached
            case "flush":
                reached = min(end, reached + amount)
                got = line.advance(PhysicalOffset(reached))
                assert got == [each for each in left if each <= reached]
                left = [each for each in left if each > reached]
            case _:
                now += amount
                late = line.expire(now)
                assert line.next_deadline > now
                for each in late:
                    left.remove(each)
                assert all(joined[each] <= now for each in late)
    assert len(line.places) == len(left)
    assert line.advance(PhysicalOffset(end)) == left
