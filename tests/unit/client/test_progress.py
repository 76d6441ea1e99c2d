from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.client.progress import QueueProgress


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What may happen to a queue: (step, offset), with gaps, finished in any order."""
    steps: list[tuple[str, int]] = []
    under_way: list[int] = []
    at = draw(st.integers(0, 5))
    for _ in range(draw(st.integers(0, 40))):
        kinds = ["hand", "cover"] + ["finish", "finish", "give up"] * bool(under_way)
        match kind := draw(st.sampled_from(kinds)):
            case "hand":
                at += draw(st.integers(0, 3))
                under_way.append(at)
                steps.append((kind, at))
                at += 1
            case "cover":
                at += draw(st.integers(0, 4))
                steps.append((kind, at))
            case _:
                offset = draw(st.sampled_from(under_way))
                under_way.remove(offset)
                steps.append((kind, offset))
    return steps


@given(histories())
def test_the_position_is_the_lowest_that_is_not_done(steps: list[tuple[str, int]]) -> None:
    """Against a model that remembers everything."""
    progress = QueueProgress()
    open_offsets: set[int] = set()
    given_up: set[int] = set()
    reached: int | None = None
    last: int | None = None
    for kind, offset in steps:
        match kind:
            case "hand":
                progress.hand(offset)
                open_offsets.add(offset)
                reached = offset + 1
            case "cover":
                progress.cover(offset)
                reached = max(offset, reached or 0)
            case "finish":
                progress.finish(offset)
                open_offsets.remove(offset)
            case _:
                progress.give_up(offset)
                open_offsets.remove(offset)
                given_up.add(offset)
        held_back = open_offsets | given_up
        assert progress.position == (min(held_back) if held_back else reached)
        assert progress.reached == reached
        assert progress.in_progress == len(open_offsets)
        assert progress.is_idle == (not open_offsets)
        if last is not None:
            assert progress.position is not None
            assert progress.position >= last
        last = progress.position


def test_a_queue_that_was_not_begun_has_no_position() -> None:
    assert QueueProgress().position is None
    assert QueueProgress(7).position == 7


@given(st.integers(1, 50))
def test_a_finished_message_waits_for_unfinished_ones_before_it(count: int) -> None:
    progress = QueueProgress(0)
    progress.hand_all(range(count))
    for offset in range(count - 1, 0, -1):
        progress.finish(offset)
        assert progress.position == 0
    progress.finish(0)
    assert progress.position == count


def test_an_impossible_step_is_refused() -> None:
    progress = QueueProgress(3)
    with pytest.raises(ValueError, match="queue offset 2 after 3"):
        progress.hand(2)
    progress.hand_all([3, 5, 6])
    for offset in (2, 7):
        with pytest.raises(ValueError, match=f"{offset} is not in progress"):
            progress.finish(offset)
    progress.finish(5)
    with pytest.raises(ValueError, match="5 is not in progress"):
        progress.finish(5)
    progress.finish(3)
    assert progress.position == 6


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_finishing_several_is_finishing_each(gaps: list[int], data: st.DataObject) -> None:
    offsets = [sum(gaps[: number + 1]) + number for number in range(len(gaps))]
    one, several = QueueProgress(), QueueProgress()
    one.hand_all(offsets)
    several.hand_all(offsets)
    left = list(offsets)
    while left:
        some = sorted(data.draw(st.sets(st.sampled_from(left), min_size=1)))
        left = [offset for offset in left if offset not in some]
        for offset in some:
            one.finish(offset)
        several.finish_all(some)
        assert (several.position, several.in_progress) == (one.position, one.in_progress)
        assert several.span == one.span


@pytest.mark.parametrize("again", [[0], [0, 1], [1, 2], [0, 1, 2]])
def test_finishing_several_that_are_not_in_progress_is_refused(again: list[int]) -> None:
    progress = QueueProgress()
    progress.hand_all([0, 1, 2])
    progress.finish_all([0, 1])
    with pytest.raises(ValueError, match="not in progress"):
        progress.finish_all(again)
