"""Numbers of messages: dense, ascending, never given out twice, no gap after a refused append."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.queue_offsets import QueueBehind, QueueOffsets
from tidemark.offsets import QueueOffset


def test_messages_of_one_queue_get_adjacent_numbers_in_a_mixed_request() -> None:
    offsets = QueueOffsets({("a", 0): QueueOffset(7)})
    numbered = offsets.number([("a", 0), ("b", 3), ("a", 0), ("b", 3)])
    assert numbered.queue_offsets == [7, 0, 8, 1]
    assert offsets.next_of(("a", 0)) == 7, "nothing moves before the append has succeeded"
    offsets.commit(numbered)
    assert (offsets.next_of(("a", 0)), offsets.next_of(("b", 3))) == (9, 2)


def test_a_refused_append_leaves_no_gap() -> None:
    offsets = QueueOffsets({})
    offsets.number([("a", 0)] * 5)
    assert offsets.number([("a", 0)]).queue_offsets == [0]


def test_the_same_numbers_cannot_be_given_out_twice() -> None:
    offsets = QueueOffsets({})
    first = offsets.number([("a", 0)])
    second = offsets.number([("a", 0)])
    offsets.commit(first)
    with pytest.raises(QueueBehind):
        offsets.commit(second)


def test_what_others_know_raises_and_never_lowers() -> None:
    offsets = QueueOffsets({("a", 0): QueueOffset(10)})
    offsets.raise_to(("a", 0), QueueOffset(4))
    assert offsets.next_of(("a", 0)) == 10
    offsets.raise_to(("a", 0), QueueOffset(12))
    assert offsets.next_of(("a", 0)) == 12
    assert dict(offsets.items()) == {("a", 0): 12}


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 3), min_size=1)), max_size=30))
def test_over_any_history_each_queue_is_numbered_without_gap_or_repetition(
    requests: list[tuple[bool, list[int]]],
) -> None:
    offsets = QueueOffsets({})
    given_out: dict[int, list[int]] = {}
    for succeeds, queues in requests:
        numbered = offsets.number([("t", queue) for queue in queues])
        if succeeds:
            offsets.commit(numbered)
            for queue, number in zip(queues, numbered.queue_offsets, strict=True):
                given_out.setdefault(queue, []).append(number)
    for queue, numbers in given_out.items():
        assert numbers == list(range(len(numbers)))
        assert offsets.next_of(("t", queue)) == len(numbers)
