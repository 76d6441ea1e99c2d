"""Replay: any suffix that starts at a snapshot gives the same state; half a snapshot gives none."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from shared.state import records
from shared.state.records import (
    DelayRecord,
    DelayState,
    DrainRecord,
    EpochRecord,
    ForeignRange,
    ForeignRecord,
    GroupConfig,
    GroupRecord,
    NextOffset,
    OffsetsRecord,
    StateRecord,
    TimerMark,
    TopicConfig,
    TopicRecord,
)
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
        assert suffix.deleted_below == live.deleted_below


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=8), st.booleans())
def test_a_record_applied_twice_in_a_row_counts_once(names: list[str], parted: bool) -> None:
    log: list[StateRecord] = [
        TopicRecord(n, topic(name, n + 1, deleted=n % 3 == 2)) for n, name in enumerate(names)
    ]
    full = replay(log)
    log += [records.decode(body) for body in full.snapshot_records(9, 150 if parted else 9999)]
    doubled = replay([record for record in log for _ in range(2)])
    assert served(doubled) == served(full)


# -- groups, offsets, delay progress ---------------------------------------------------------------


def everything(state: BrokerState) -> dict[str, object]:
    """All contents of a state."""
    return {
        "topics": state.topics,
        "deleted": state.deleted,
        "deleted_below": state.deleted_below,
        "groups": state.groups,
        "offsets": {group: pairs for group, pairs in state.offsets.items() if pairs},
        "delay": state.delay,
        "foreign": sorted(state.foreign),
        "start_count": state.start_count,
        "drained": state.drained_since_ms,
    }


NAMES = st.sampled_from(["a", "b", "c"])
SMALL = st.integers(0, 5)
CHANGES = st.one_of(
    st.builds(
        lambda flushed, name, deleted: TopicRecord(flushed, topic(name, deleted=deleted)),
        SMALL,
        NAMES,
        st.booleans(),
    ),
    st.builds(
        lambda name, retry, deleted: GroupRecord(
            0, GroupConfig(name, retry_max=retry, deleted=deleted)
        ),
        NAMES,
        SMALL,
        st.booleans(),
    ),
    st.builds(
        lambda group, queue, offset: OffsetsRecord(0, {group: {("t", queue): offset}}),
        NAMES,
        SMALL,
        SMALL,
    ),
    st.builds(
        lambda level, at, mark, cancelled: DelayRecord(
            0, {level: at} if at else {}, mark, cancelled
        ),
        st.integers(1, 3),
        SMALL,
        st.none() | st.builds(TimerMark, SMALL, SMALL, SMALL),
        st.dictionaries(st.tuples(st.integers(0, 3), SMALL), SMALL, max_size=2),
    ),
    st.builds(lambda count: EpochRecord(0, 0, count), SMALL),
    st.builds(lambda at: ForeignRecord(0, ForeignRange(at, at + 1)), SMALL),
    st.builds(lambda since: DrainRecord(0, since), st.none() | SMALL),
)


def never_back(changes: list[StateRecord]) -> list[StateRecord]:
    """The changes with the progress of delivery made to rise, as it does in a broker."""
    levels: dict[int, int] = {}
    at, read_to = (0, 0), 0
    risen: list[StateRecord] = []
    for change in changes:
        if isinstance(change, DelayRecord):
            for level, offset in change.levels.items():
                levels[level] = max(offset, levels.get(level, 0))
            if (mark := change.timer) is not None:
                at, read_to = max(at, mark[:2]), max(read_to, mark.read_to)
                mark = TimerMark(*at, read_to)
            change = change._replace(
                levels={each: levels[each] for each in change.levels}, timer=mark
            )
        risen.append(change)
    return risen


def test_a_cancellation_that_comes_after_delivery_is_forgotten_at_once() -> None:
    # A snapshot between the two would lose it, a replay of all records would not.
    replayed = replay([DelayRecord(0, {1: 1}), DelayRecord(0, {}, None, {(1, 0): 0, (1, 1): 0})])
    assert dict(replayed.delay.cancelled) == {(1, 1): 0}


@given(st.lists(CHANGES, max_size=12), st.lists(CHANGES, max_size=6), st.integers(0, 900))
def test_a_snapshot_with_changes_between_its_parts_is_as_good_as_all_records(
    before: list[StateRecord], between: list[StateRecord], part_bytes_max: int
) -> None:
    changes = never_back([*before, *between])
    before, between = changes[: len(before)], changes[len(before) :]
    live = replay(before)
    parts = [records.decode(body) for body in live.snapshot_records(1, part_bytes_max)]
    log = parts[:1]
    for number, part in enumerate(parts[1:]):
        log += between[number : number + 1]
        log.append(part)
    log += between[len(parts) - 1 :]
    for change in between:
        live.apply(change)
    assert everything(replay(log)) == everything(live)
    copied = live.copy()
    assert everything(copied) == everything(live)
    copied.apply(OffsetsRecord(0, {"new": {("t", 0): 1}}))
    assert "new" not in live.offsets


def test_a_group_deleted_and_made_again_between_the_parts_has_no_offsets_of_before() -> None:
    full = replay([GroupRecord(0, GroupConfig("g")), OffsetsRecord(0, {"g": {("t", 0): 5}})])
    parts = [records.decode(body) for body in full.snapshot_records(0, 100)]
    assert len(parts) > 1
    changes: list[StateRecord] = [
        GroupRecord(0, GroupConfig("g", deleted=True)),
        GroupRecord(0, GroupConfig("g", order=True)),
        OffsetsRecord(0, {"g": {("t", 1): 1}}),
    ]
    state = replay([parts[0], *changes, *parts[1:]])
    assert state.groups == {"g": GroupConfig("g", order=True)}
    assert state.offsets == {"g": {("t", 1): 1}}


def test_progress_drops_the_cancellations_that_it_passed_and_no_other() -> None:
    cancelled = {(3, 4): 100, (3, 5): 101, (0, 7): 50, (0, 8): 60, (0, 30): 40, (2, 9): 1}
    state = replay([DelayRecord(0, cancelled=cancelled)])
    state.apply(DelayRecord(0, {3: 5}, TimerMark(50, 7, 20)))
    assert state.delay == DelayState(
        {3: 5},
        TimerMark(50, 7, 20),
        {(3, 5): 101, (0, 8): 60, (0, 30): 40, (2, 9): 1},
    )


def places(state: BrokerState) -> tuple[int | None, int | None]:
    return state.snapshot_at, state.delay_recorded_at


def test_the_places_of_progress_and_snapshot_records_are_known() -> None:
    state = BrokerState()
    assert places(state) == (None, None)
    state.apply(DelayRecord(0, {1: 2}), 100)
    state.apply(DelayRecord(0, cancelled={(1, 9): 5}), 200)
    assert places(state) == (None, 100)  # a cancellation records no delivery
    parts = [records.decode(body) for body in state.snapshot_records(0, 0)]
    for number, part in enumerate(parts):
        state.apply(part, 300 + number)
    assert places(state) == (300, 300)
    for number, part in enumerate(parts):
        if number == 1:
            state.apply(DelayRecord(0, {1: 3}), 450)
        state.apply(part, 400 + 100 * number)
    assert places(state) == (400, 450)
    assert state.delay.levels == {1: 3}


def test_the_newest_command_to_drain_counts_in_records_and_snapshots() -> None:
    full = replay([GroupRecord(0, GroupConfig("g")), DrainRecord(0, 7)])
    assert full.drained_since_ms == 7
    parts = [records.decode(body) for body in full.snapshot_records(0, 100)]
    assert replay(parts).drained_since_ms == 7
    ended = DrainRecord(0, None)
    assert replay([*parts, ended]).drained_since_ms is None
    # Between the parts of a snapshot, and in the next one.
    assert replay([parts[0], ended, *parts[1:]]).drained_since_ms is None
    full.apply(ended)
    open_again = [records.decode(body) for body in full.snapshot_records(1, 100)]
    assert replay([*parts, *open_again]).drained_since_ms is None


def test_ranges_that_the_log_no_longer_holds_are_left_out_of_a_snapshot() -> None:
    state = replay([ForeignRecord(0, ForeignRange(at, at + 10)) for at in (0, 50, 90)])
    replayed = replay(
        [records.decode(body) for body in state.snapshot_records(0, 99, foreign_from=60)]
    )
    assert replayed.foreign == [ForeignRange(90, 100)]


def test_it_is_known_below_what_a_topic_that_was_made_again_is_another() -> None:
    log = [
        TopicRecord(5, topic("a")),
        TopicRecord(9, topic("a", deleted=True)),
        TopicRecord(12, topic("a")),
        TopicRecord(12, topic("b")),
    ]
    state = replay([*log])
    assert state.deleted_below == {"a": 9}
    state.apply(TopicRecord(20, topic("a", deleted=True)))
    state.apply(TopicRecord(21, topic("a", 8)))
    assert state.deleted_below == {"a": 20}
    for foreign_from, kept in ((0, {"a": 20}), (20, {})):
        parts = state.snapshot_records(30, 99, foreign_from=foreign_from)
        assert replay([records.decode(body) for body in parts]).deleted_below == kept


def test_every_holder_of_a_state_sees_its_replacement() -> None:
    held, other = replay([TopicRecord(0, topic("a"))]), replay([GroupRecord(0, GroupConfig("g"))])
    held.become(other)
    assert everything(held) == everything(other)
    other.apply(OffsetsRecord(0, {"g": {("t", 0): 1}}))
    assert held.offsets == {}
