"""The state that a slave keeps up, and that a new master reads to the log's last byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from services.broker.log.open_store import OpenStore
from services.broker.replication import followed_state
from services.broker.replication.followed_state import FollowedState
from shared.state import records
from shared.state.records import (
    STATE_QUEUE,
    STATE_TOPIC,
    EpochRecord,
    NextOffset,
    TopicConfig,
    TopicRecord,
)
from shared.state.state import BrokerState
from tests.support.small_broker import SmallBroker
from tidemark.errors import DamagedFile
from tidemark.formats.checkpoint import Slot
from tidemark.offsets import UNIT_SIZE, PhysicalOffset


class Store:
    """What it needs of an open store."""

    def __init__(self, broker: SmallBroker) -> None:
        self.directory = broker.store
        self.positions = broker.positions


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SmallBroker]:
    made = SmallBroker(tmp_path)
    yield made
    made.close()


@pytest.fixture
def followed(broker: SmallBroker) -> FollowedState:
    return FollowedState(cast(OpenStore, Store(broker)))


def make_topic(broker: SmallBroker, name: str) -> None:
    body = records.encode(TopicRecord(0, TopicConfig(name, 1, 1)))
    broker.append_offsets_now([body])


def test_records_are_taken_in_as_they_are_dispatched(
    broker: SmallBroker, followed: FollowedState
) -> None:
    make_topic(broker, "a")
    broker.dispatch()
    assert followed.is_far_behind(broker.dispatched()), "nothing was read yet"
    followed.replay(broker.dispatched())
    state = followed.state
    make_topic(broker, "b")
    assert followed.follow(broker.dispatched()) == 0
    broker.dispatch()
    assert followed.follow(broker.dispatched()) == 1
    assert state.topics.keys() == {"a", "b"}
    assert state is followed.state, "what serves with it sees it change"
    assert followed.follow(broker.dispatched()) == 0


def test_a_new_master_reads_on_where_no_queue_leads(
    broker: SmallBroker, followed: FollowedState
) -> None:
    make_topic(broker, "a")
    broker.send("a", b"dispatched")
    followed.replay(broker.dispatched())
    dispatched = broker.dispatched()
    for number in range(3000):  # over the border of a file
        if number % 100 == 0:
            make_topic(broker, f"t{number}")
        broker.append_offsets_now([records.encode(EpochRecord(0, 1, number))])
    end = broker.appender.appended
    assert end > 1 << 18
    state = followed.to_end(dispatched, end, 3031)
    assert state.topics.keys() == {"a", *(f"t{number}" for number in range(0, 3000, 100))}
    assert state.start_count == 2999
    assert followed.state.topics.keys() == {"a"}, "a slave shows what is confirmed"


def test_far_behind_the_newest_snapshot_is_the_shorter_way(
    broker: SmallBroker, followed: FollowedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_state, "BEHIND_MAX", 3)
    followed.replay(broker.dispatched())
    for name in "abcd":
        make_topic(broker, name)
    broker.dispatch()
    assert followed.is_far_behind(broker.dispatched())
    state = followed.to_end(broker.dispatched(), broker.appender.appended, 0)
    assert state.topics.keys() == set("abcd")


def test_a_snapshot_in_the_tail_counts(broker: SmallBroker, followed: FollowedState) -> None:
    followed.replay(broker.dispatched())
    written = BrokerState()
    written.apply(TopicRecord(0, TopicConfig("a", 1, 1)))
    parts = written.snapshot_records(0, 400, next_offsets=[NextOffset("a", 0, 9)])
    broker.append_offsets_now(parts)
    state = followed.to_end(broker.dispatched(), broker.appender.appended, 0)
    assert state.next_queue_offsets == {("a", 0): 9}
    assert state.snapshot_at == 0


def test_a_log_that_begins_above_0_has_no_whole_state_before_its_first_snapshot(
    broker: SmallBroker, followed: FollowedState
) -> None:
    # A slave that was copied anew listed no topics until the copy had reached that snapshot.
    followed.replay(broker.dispatched())
    assert followed.is_whole(), "the log has all that was ever written"
    make_topic(broker, "a")
    broker.positions.publish(Slot.MIN, broker.appender.appended)
    broker.dispatch()
    followed.follow(broker.dispatched())
    assert not followed.is_whole()
    parts = BrokerState().snapshot_records(0, 400, next_offsets=[NextOffset("a", 0, 9)])
    for part in parts:
        assert not followed.is_whole()
        broker.append_offsets_now([part])
        broker.dispatch()
        followed.follow(broker.dispatched())
    assert followed.is_whole()


def test_queue_ends_are_read_from_the_units(broker: SmallBroker, followed: FollowedState) -> None:
    for _ in range(3):
        broker.send("a", b"x")
    assert followed.queue_ends(broker.dispatched())["a", 0] == 3
    assert followed.queue_ends(PhysicalOffset(0))["a", 0] == 0


def hide(broker: SmallBroker, number: int) -> bytes:
    """Flip the sign of a unit of the state's queue; return what it was."""
    path = broker.store.queue_directory(STATE_TOPIC, STATE_QUEUE).path / f"{0:020}"
    with path.open("r+b") as file:
        file.seek(number * UNIT_SIZE)
        unit = file.read(UNIT_SIZE)
    put(broker, number, bytes([unit[0] ^ 0x80]) + unit[1:])
    return unit


def put(broker: SmallBroker, number: int, unit: bytes) -> None:
    path = broker.store.queue_directory(STATE_TOPIC, STATE_QUEUE).path / f"{0:020}"
    with path.open("r+b") as file:
        file.seek(number * UNIT_SIZE)
        file.write(unit)


@pytest.mark.parametrize("in_tail", [False, True])
def test_a_new_master_names_a_unit_that_hides_state_records(
    broker: SmallBroker, followed: FollowedState, in_tail: bool
) -> None:
    """The queue silently ended there, and the contents of the hidden records were lost."""
    for name in "ab":
        make_topic(broker, name)
    broker.dispatch()
    dispatched = broker.dispatched()
    if in_tail:
        make_topic(broker, "c")
    unit = hide(broker, 1)
    end, next_offset = broker.appender.appended, 3 if in_tail else 2
    with pytest.raises(DamagedFile) as caught:
        followed.to_end(dispatched, end, next_offset)
    assert caught.value.facts["queue_offset"] == 1
    put(broker, 1, unit)
    state = followed.to_end(dispatched, end, next_offset)
    assert state.topics.keys() == set("abc" if in_tail else "ab")


def test_a_slave_names_a_unit_that_hides_state_records(
    broker: SmallBroker, followed: FollowedState
) -> None:
    for name in "ab":
        make_topic(broker, name)
    broker.dispatch()
    unit = hide(broker, 1)
    followed.replay(broker.dispatched())
    with pytest.raises(DamagedFile) as caught:
        followed.follow(broker.dispatched())
    assert caught.value.facts["queue_offset"] == 1
    put(broker, 1, unit)
    assert followed.follow(broker.dispatched()) == 1
    assert followed.state.topics.keys() == set("ab")


def test_a_unit_whose_record_is_not_dispatched_yet_hides_nothing(
    broker: SmallBroker, followed: FollowedState
) -> None:
    make_topic(broker, "a")
    broker.dispatch()
    before = broker.dispatched()
    make_topic(broker, "b")
    broker.dispatch()
    followed.replay(before)
    assert followed.follow(before) == 0
    assert followed.to_end(before, broker.appender.appended, 2).topics.keys() == set("ab")
    assert followed.follow(broker.dispatched()) == 1


def test_queue_files_of_another_start_of_reput_are_looked_at_anew(
    broker: SmallBroker, followed: FollowedState
) -> None:
    make_topic(broker, "a")
    broker.dispatch()
    followed.replay(broker.dispatched())
    broker.positions.publish(Slot.REPUT_PID, 4711)
    make_topic(broker, "b")
    broker.dispatch()
    assert followed.follow(broker.dispatched()) == 1
