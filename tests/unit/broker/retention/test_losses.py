"""What groups lose with a log file: each message once, and none that was read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.broker.retention.losses import Losses, Reading, unread

QUEUE = ("orders", 3)


def test_without_members_what_is_not_committed_is_lost() -> None:
    losses = Losses()
    count = losses.moved_up("g", QUEUE, committed=40, old_min=0, new_min=100, reading=None)
    assert count == 60
    assert losses.moved_up("g", QUEUE, committed=40, old_min=100, new_min=130, reading=None) == 30
    assert losses.moved_up("g", QUEUE, committed=200, old_min=130, new_min=150, reading=None) == 0
    assert losses.waiting == []


def test_messages_in_hand_are_lost_only_when_the_queue_changes_its_owner() -> None:
    losses = Losses()
    reading = Reading("m1", 55)
    count = losses.moved_up("g", QUEUE, committed=40, old_min=0, new_min=100, reading=reading)
    assert count == 45
    assert losses.waiting == [("g", QUEUE)]
    assert losses.settle("g", QUEUE, committed=40, holder="m1") == 0
    assert losses.settle("g", QUEUE, committed=50, holder="m1") == 0
    assert losses.settle("g", QUEUE, committed=50, holder="m2") == 5
    assert losses.waiting == []


def test_messages_that_a_member_commits_later_are_not_lost() -> None:
    losses = Losses()
    losses.moved_up("g", QUEUE, committed=40, old_min=0, new_min=100, reading=Reading("m1", 55))
    # It learned that the queue begins at 100 now, and went on from there.
    count = losses.moved_up(
        "g", QUEUE, committed=40, old_min=100, new_min=200, reading=Reading("m1", 130)
    )
    assert count == 70
    assert losses.settle("g", QUEUE, committed=130, holder="m1") == 0
    assert losses.waiting == []


def test_a_group_that_was_deleted_loses_nothing_more() -> None:
    losses = Losses()
    losses.moved_up("g", QUEUE, committed=0, old_min=0, new_min=9, reading=Reading("m1", 9))
    assert losses.settle("g", QUEUE, committed=None, holder=None) == 0
    assert losses.waiting == []


def test_ranges_in_hand_are_bounded() -> None:
    losses = Losses(in_hands_max=1)
    held = Reading("m1", 9)
    for number, lost in ((0, 0), (1, 9)):
        queue = ("orders", number)
        count = losses.moved_up("g", queue, committed=0, old_min=0, new_min=9, reading=held)
        assert count == lost


@given(st.data())
def test_every_message_is_read_or_lost_and_never_both(data: st.DataObject) -> None:
    """A member reads, commits and is replaced while the queue's minimum moves up."""
    losses, lost, read = Losses(), 0, set[int]()
    begin = committed = cursor = 0
    owner = "m0"
    in_hands = set[int]()
    for step in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["fetch", "commit", "expire", "replace"])):
            case "fetch":
                cursor = max(cursor, begin)
                count = data.draw(st.integers(0, 20))
                in_hands |= set(range(cursor, cursor + count))
                cursor += count
            case "commit":
                read |= in_hands
                in_hands = set()
                committed = max(committed, cursor)
            case "expire":
                new_min = begin + data.draw(st.integers(0, 20))
                lost += losses.moved_up(
                    "g",
                    QUEUE,
                    committed=committed,
                    old_min=begin,
                    new_min=new_min,
                    reading=Reading(owner, cursor),
                )
                begin = new_min
            case _:
                owner = f"m{step + 1}"
                in_hands, cursor = set(), max(committed, begin)
        lost += losses.settle("g", QUEUE, committed=committed, holder=owner)
    lost += losses.settle("g", QUEUE, committed=committed, holder=None)
    gone = set(range(begin))
    assert lost == len(gone - read)


def test_unread_is_what_lies_behind_the_commit() -> None:
    assert unread(5, 0, 9) == 4
    assert unread(0, 3, 9) == 6
    assert unread(9, 0, 9) == 0
    assert unread(50, 0, 9) == 0
