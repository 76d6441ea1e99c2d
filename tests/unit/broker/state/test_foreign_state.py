"""RocketMQ's files become the state: exactly what they contain, and nothing else of their kind."""

from __future__ import annotations

from services.broker.state.foreign_state import adopt_groups, adopt_levels, adopt_offsets
from shared.state.records import DelayRecord, GroupConfig, GroupRecord, OffsetsRecord, TimerMark
from shared.state.state import BrokerState


def state() -> BrokerState:
    made = BrokerState()
    for name in ("kept", "gone"):
        made.apply(GroupRecord(0, GroupConfig(name)))
        made.apply(OffsetsRecord(0, {name: {("t", 0): 5}}))
    made.apply(DelayRecord(0, {3: 7, 4: 1}, TimerMark(9, 9, 9), {(3, 8): 100, (4, 2): 200}))
    return made


def test_groups_are_changed_made_and_deleted_with_their_offsets() -> None:
    taken = state()
    theirs = [GroupConfig("kept", retry_max=3), GroupConfig("new")]
    assert adopt_groups(taken, theirs) == 3
    assert sorted(taken.groups.values()) == sorted(theirs)
    assert taken.offsets == {"kept": {("t", 0): 5}}
    assert adopt_groups(taken, theirs) == 0


def test_offsets_are_theirs_back_or_forth_and_make_a_group_known() -> None:
    taken = state()
    theirs = {"kept": {("t", 0): 2, ("t", 1): 4}, "unlisted": {("u", 0): 1}}
    assert adopt_offsets(taken, theirs) == 3
    assert taken.offsets == theirs
    assert taken.groups["unlisted"] == GroupConfig("unlisted")
    assert adopt_offsets(taken, theirs) == 0


def test_delay_levels_move_and_drop_the_cancellations_they_passed() -> None:
    taken = state()
    assert adopt_levels(taken, {3: 9, 4: 1, 18: 2}) == 2
    assert taken.delay.levels == {3: 9, 4: 1, 18: 2}
    assert taken.delay.timer == TimerMark(9, 9, 9)
    assert taken.delay.cancelled == {(4, 2): 200}
