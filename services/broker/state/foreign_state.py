"""What RocketMQ left in its JSON files, made part of a state. Pure.

RocketMQ loads what we wrote and writes it back with its changes, so its files say everything they
are for: what is not in them is gone. Before: ``config_files`` has read them. After: one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shared.state.records import DelayRecord, GroupConfig, GroupRecord, OffsetsRecord, Queue
from shared.state.state import BrokerState
from shared.state.values import TimerMark


def adopt_groups(state: BrokerState, foreign: Iterable[GroupConfig]) -> int:
    """Make the groups those that RocketMQ left; return how many that changes.

    A group that is gone loses its offsets.
    """
    theirs = {group.name: group for group in foreign}
    gone = [group for name, group in state.groups.items() if name not in theirs]
    changes = [group for group in theirs.values() if state.groups.get(group.name) != group]
    for group in (*changes, *(each._replace(deleted=True) for each in gone)):
        state.apply(GroupRecord(0, group))
    return len(changes) + len(gone)


def adopt_offsets(state: BrokerState, foreign: Mapping[str, Mapping[Queue, int]]) -> int:
    """Make the consumer offsets those that RocketMQ left; return of how many groups they change.

    A group that has offsets and no settings gets the usual ones: RocketMQ makes such groups by
    itself, and may be killed before it has listed them.
    """
    before = {name: dict(pairs) for name, pairs in state.offsets.items()}
    state.offsets.clear()
    state.apply(OffsetsRecord(0, foreign))
    for name in foreign:
        if name not in state.groups:
            state.apply(GroupRecord(0, GroupConfig(name)))
    return sum(before.get(name) != state.offsets.get(name) for name in {*before, *state.offsets})


def adopt_timer(state: BrokerState, mark: TimerMark) -> bool:
    """Take over what RocketMQ's timer has delivered; whether that is more than was known.

    A mark that is not behind the known one in both its parts says nothing for certain: the known
    one stays, and what RocketMQ has delivered may be delivered again.
    """
    known = state.delay.timer
    if mark == known or mark.due_ms < known.due_ms or mark.read_to < known.read_to:
        return False
    state.apply(DelayRecord(0, {}, mark))
    return True


def adopt_levels(state: BrokerState, foreign: Mapping[int, int]) -> int:
    """Make the progress of the delay levels RocketMQ's; return how many levels that moves."""
    known = state.delay.levels
    moved = {level: at for level, at in foreign.items() if known.get(level) != at}
    if moved:
        state.apply(DelayRecord(0, moved))
    return len(moved)
