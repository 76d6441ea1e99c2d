"""A request cut by queue: nothing lost, nothing doubled, each message's place known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.send.queue_choice import choose, cut
from tidemark.errors import UnknownQueue
from tidemark.formats import batch, hashing
from tidemark.formats.batch import WireMessage


def test_a_queue_out_of_range_is_named_by_its_message() -> None:
    with pytest.raises(UnknownQueue, match=r"messages\[1\].queue is 4; topic t has 4 queues"):
        choose("t", 4, [0, 4, 9], turn=0)
    assert choose("t", 4, [3], turn=0) == [3]


def test_named_queues_sharding_keys_and_turns_are_distinguished() -> None:
    keys = ["a", "user-7", "polygenelubricants", "größe", ""]
    assert choose("t", 4, [3, None, *keys, None, 0], turn=2) == [
        3,
        2,
        *(abs(hashing.string_hash(key)) % 4 for key in keys),
        2,
        0,
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=9), st.binary(max_size=9))))
def test_every_message_is_found_where_its_position_says(
    messages: list[tuple[int, bytes, bytes]],
) -> None:
    entries = batch.encode(WireMessage(body, raw, queue) for queue, body, raw in messages)
    shares, positions = cut(entries, [queue for queue, _, _ in messages])
    assert sum(share.message_count for share in shares) == len(messages)
    stored = [
        (share.queue, bytes(entry.body), bytes(entry.properties), entry.flag)
        for share in shares
        for entry in batch.iterate(share.entries)
    ]
    assert sorted(positions) == list(range(len(messages)))
    for (queue, body, raw), position in zip(messages, positions, strict=True):
        assert stored[position] == (queue, body, raw, queue)
    for share in shares:
        own = [
            at for at, (queue, _, _) in zip(positions, messages, strict=True) if queue == share[0]
        ]
        assert own == list(range(own[0], own[0] + share.message_count)), "adjacent, in order"
