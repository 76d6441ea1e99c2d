"""Replay: any suffix that starts at a snapshot gives the same state; half a snapshot gives none."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from shared.state import records
from shared.state.records import NextOffset, StateRecord, TopicConfig, TopicRecord
from shared.state.state import BrokerState


def topic(name: str, queues: int = 4, *, deleted: bool = False) -> TopicConfig:
    return TopicConfig(name, queues, queues, min_offsets={0: 9} if deleted else {}, deleted=deleted)


def replay(log: list[StateRecord]) -> BrokerState:
    state = BrokerState()
    for record in log:
        state.apply(record)
    return state


def served(state: BrokerState) -> tuple[dict[str, TopicConfig], dict[str, TopicConfig]]:
    return state.topics, state.deleted


def test_a_deleted_topic_is_remembered_and_a_new_one_takes_its_place() -> None:
    state = replay([TopicRecord(5, topic("a")), TopicRecord(9, topic("a", deleted=True))])
    assert state.topics == {}
    assert state.deleted == {"a": topic("a", deleted=True)}
    assert state.find("a") == topic("a", deleted=True)
    assert state.find("b") is None
    state.apply(TopicRecord(7, topic("a", 8)))
    assert served(state) == ({"a": topic("a", 8)}, {})
    assert state.flushed == 9
    assert state.records == 3


def test_unknown_kinds_are_counted_and_change_nothing() -> None:
    state = replay([TopicRecord(0, topic("a"))])
    state.apply(records.OtherRecord(3, "group", 1))
    state.apply(records.OtherRecord(4, "topic", 2))
    assert state.unknown == {"group": 1, "topic (version 2)": 1}
    assert served(state) == ({"a": topic("a")}, {})
    assert state.flushed == 4


def test_half_a_snapshot_changes_nothing() -> None:
    full = replay([TopicRecord(0, topic(f"t{n}")) for n in range(20)])
    bodies = full.snapshot_records(50, 300)
    assert len(bodies) > 3
    parts = [records.decode(body) for body in bodies]
    for missing in range(len(parts)):
        state = replay([TopicRecord(0, topic("a")), *parts[:missing], *parts[missing + 1 :]])
        assert served(state) == ({"a": topic("a")}, {})
        assert state.snapshots == 0
    again = replay([TopicRecord(0, topic("a")), *parts[:2], *parts])
    assert served(again) == served(full)


def test_a_change_between_the_parts_comes_after_the_snapshot() -> None:
    full = replay([TopicRecord(0, topic(f"t{n}")) for n in range(20)])
    parts = [records.decode(body) for body in full.snapshot_records(50, 300)]
    change = TopicRecord(60, topic("t0", deleted=True))
    for place in range(1, len(parts)):
        state = replay([*parts[:place], change, *parts[place:]])
        assert "t0" not in state.topics
        assert state.deleted == {"t0": topic("t0", deleted=True)}
        assert len(state.topics) == 19


def test_next_offsets_come_from_the_newest_snapshot_and_never_fall() -> None:
    state = BrokerState()
    for offsets in ([NextOffset("a", 0, 7), NextOffset("a", 1, 3)], [NextOffset("a", 0, 5)]):
        for body in state.snapshot_records(0, 1000, next_offsets=offsets):
            state.apply(records.decode(body))
    assert state.next_queue_offsets == {("a", 0): 7, ("a", 1): 3}
    again = replay([records.decode(body) for body in state.snapshot_records(1, 1000)])
    assert again.next_queue_offsets == state.next_queue_offsets


@given(st.randoms(use_true_random=False), st.integers(0, 40), st.integers(150, 2000))
def test_any_suffix_that_starts_at_a_snapshot_gives_the_same_state(
    source: random.Random, changes: int, part_bytes_max: int
) -> None:
    """A log of changes, with snapshots whose parts other changes come in between."""
    log: list[StateRecord] = []
    live = BrokerState()
    starts = [0]
    pending: list[bytes] = []
    for n in range(changes):
        if not pending and source.random() < 0.2:
            offsets = [NextOffset(name, 0, n) for name in live.topics]
            pending = live.snapshot_records(n, part_bytes_max, snapshot_id=n, next_offsets=offsets)
            starts.append(len(log))
        if pending and source.random() < 0.7:
            record: StateRecord = records.decode(pending.pop(0))
        else:
            name = f"topic-{source.randrange(6)}"
            deleted = name in live.topics and source.random() < 0.5
            record = TopicRecord(n, topic(name, source.randint(1, 9), deleted=deleted))
        log.append(record)
        live.apply(record)
    for body in pending:
        log.append(records.decode(body))
        live.apply(log[-1])
    for start in starts:
        suffix = replay(log[start:])
        assert served(suffix) == served(live)


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=8), st.booleans())
def test_a_record_applied_twice_in_a_row_counts_once(names: list[str], parted: bool) -> None:
    log: list[StateRecord] = [
        TopicRecord(n, topic(name, n + 1, deleted=n % 3 == 2)) for n, name in enumerate(names)
    ]
    full = replay(log)
    log += [records.decode(body) for body in full.snapshot_records(9, 150 if parted else 9999)]
    doubled = replay([record for record in log for _ in range(2)])
    assert served(doubled) == served(full)
