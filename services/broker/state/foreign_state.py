"""Merges the content of RocketMQ's JSON files into a state. Pure.

RocketMQ loads the files that we wrote and writes them back with its changes. So its files are
complete, and an entry that is missing in them was deleted. ``config_files`` reads the files before
this step; after it the state is appended as one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shared.state.records import DelayRecord, GroupConfig, GroupRecord, OffsetsRecord
from shared.state.state import BrokerState
from shared.state.values import TimerMark
from tidemark.offsets import Queue


def adopt_groups(state: BrokerState, foreign: Iterable[GroupConfig]) -> int:
    """Replace the groups by RocketMQ's; return the number of changed groups.

    A removed group loses its offsets.
    """
    theirs = {group.name: group for group in foreign}
    gone = [group for name, group in state.groups.items() if name not in theirs]
    changes = [group for group in theirs.values() if state.groups.get(group.name) != group]
    for group in (*changes, *(each._replace(deleted=True) for each in gone)):
        state.apply(GroupRecord(0, group))
    return len(changes) + len(gone)


def adopt_offsets(state: BrokerState, foreign: Mapping[str, Mapping[Queue, int]]) -> int:
    """Replace the consumer offsets by RocketMQ's; return the number of groups with changes.

    A group with offsets and without settings gets the default settings: RocketMQ creates such
    groups automatically, and may be killed before it writes their settings.
    """
    before = {name: dict(pairs) for name, pairs in state.offsets.items()}
    state.offsets.clear()
    state.apply(OffsetsRecord(0, foreign))
    for name in foreign:
        if name not in state.groups:
            state.apply(GroupRecord(0, GroupConfig(name)))
    return sum(before.get(name) != state.offsets.get(name) for name in {*before, *state.offsets})


def adopt_timer(state: BrokerState, mark: TimerMark) -> bool:
    """Take over the progress of RocketMQ's timer; return whether it was ahead of ours.

    A mark of RocketMQ that is behind ours in either of its two parts is not reliable, so ours is
    kept. Messages that RocketMQ delivered may then be delivered again.
    """
    known = state.delay.timer
    if mark == known or mark.due_ms < known.due_ms or mark.read_to < known.read_to:
        return False
    state.apply(DelayRecord(0, {}, mark))
    return True


def adopt_levels(state: BrokerState, foreign: Mapping[int, int]) -> int:
    """Replace the progress of the delay levels by RocketMQ's; return the number of changes."""
    known = state.delay.levels
    moved = {level: at for level, at in foreign.items() if known.get(level) != at}
    if moved:
        state.apply(DelayRecord(0, moved))
    return len(moved)
