"""Queue offsets: dense, ascending, never used twice, no gap after a refused append."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.log.queue_offsets import QueueBehind, QueueOffsets
from tidemark.formats.hosts import Host
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset, QueueOffset

HOST = Host(b"\x7f\x00\x00\x01", 10911)


def run(topic: str, queue: int, count: int = 1) -> Run:
    """Numbers look at no entry."""
    return Run(topic, queue, b"", count, HOST, HOST)


def test_the_same_numbers_cannot_be_given_out_twice() -> None:
    offsets = QueueOffsets({})
    first = offsets.number([run("a", 0)])
    second = offsets.number([run("a", 0)])
    offsets.commit(first, PhysicalOffset(900))
    with pytest.raises(QueueBehind):
        offsets.commit(second, PhysicalOffset(950))


def test_queues_that_got_messages_are_known_with_the_end_of_the_log_behind_them() -> None:
    offsets = QueueOffsets({("a", 0): QueueOffset(7), ("c", 0): QueueOffset(1)})
    assert offsets.ends == {}
    offsets.commit(offsets.number([run("a", 0), run("b", 3)]), PhysicalOffset(900))
    offsets.commit(offsets.number([run("b", 3)]), PhysicalOffset(950))
    assert offsets.ends == {("a", 0): 900, ("b", 3): 950}


def test_offsets_from_other_sources_only_raise_the_number() -> None:
    offsets = QueueOffsets({("a", 0): QueueOffset(10)})
    offsets.raise_to(("a", 0), QueueOffset(4))
    assert offsets.next_of(("a", 0)) == 10
    offsets.raise_to(("a", 0), QueueOffset(12))
    assert offsets.next_of(("a", 0)) == 12
    assert dict(offsets.items()) == {("a", 0): 12}


REQUESTS = st.lists(
    st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1)),
    max_size=30,
)


@given(REQUESTS)
def test_over_any_history_each_queue_is_numbered_without_gap_or_repetition(
    requests: list[tuple[bool, list[tuple[int, int]]]],
) -> None:
    offsets = QueueOffsets({})
    given_out: dict[int, list[int]] = {}
    for succeeds, shares in requests:
        numbered = offsets.number([run("t", queue, count) for queue, count in shares])
        if succeeds:
            offsets.commit(numbered, PhysicalOffset(900))
            for (queue, count), first in zip(shares, numbered.firsts, strict=True):
                given_out.setdefault(queue, []).extend(range(first, first + count))
    for queue, numbers in given_out.items():
        assert numbers == list(range(len(numbers)))
        assert offsets.next_of(("t", queue)) == len(numbers)
