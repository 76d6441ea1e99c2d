"""Which waiting sends a flushed offset releases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.broker.group_commit import GroupCommit
from tidemark.offsets import PhysicalOffset


def test_one_flush_releases_everybody_below_it_and_nobody_above() -> None:
    line: GroupCommit[str] = GroupCommit(PhysicalOffset(0))
    for end, name in ((100, "a"), (200, "b"), (300, "c")):
        assert line.join(PhysicalOffset(end), name)
    assert line.advance(PhysicalOffset(199)) == ["a"]
    assert line.advance(PhysicalOffset(300)) == ["b", "c"]
    assert len(line) == 0


def test_who_comes_after_the_flush_does_not_wait() -> None:
    line: GroupCommit[str] = GroupCommit(PhysicalOffset(500))
    assert not line.join(PhysicalOffset(500), "there already")
    assert line.join(PhysicalOffset(501), "one byte more")


def test_two_flushes_that_report_out_of_order_do_not_step_back() -> None:
    line: GroupCommit[str] = GroupCommit(PhysicalOffset(0))
    line.advance(PhysicalOffset(200))
    assert line.advance(PhysicalOffset(100)) == []
    assert line.durable == 200


def test_a_dissolved_line_released_nobody() -> None:
    line: GroupCommit[str] = GroupCommit(PhysicalOffset(0))
    line.join(PhysicalOffset(10), "a")
    assert line.dissolve() == ["a"]
    assert line.advance(PhysicalOffset(10)) == []


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=60))
def test_nobody_is_released_early_forgotten_or_twice(steps: list[tuple[bool, int]]) -> None:
    """Each step appends some bytes, or flushes some of what is there."""
    line: GroupCommit[int] = GroupCommit(PhysicalOffset(0))
    end = durable = 0
    released: list[int] = []
    joined: list[int] = []
    for appends, amount in steps:
        if appends:
            end += amount
            if line.join(PhysicalOffset(end), end):
                joined.append(end)
            else:
                assert end <= durable
        else:
            durable = min(end, durable + amount)
            got = line.advance(PhysicalOffset(durable))
            assert all(each <= durable for each in got)
            released += got
    released += line.advance(PhysicalOffset(end))
    assert released == joined
