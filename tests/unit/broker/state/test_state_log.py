"""State in the log: read from the newest whole snapshot, summed up at the start of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.log.append import Append, Appended
from services.broker.log.flusher import Flusher
from services.broker.log.queue_offsets import QueueOffsets
from services.broker.state.state_log import StateLog
from services.broker.state.state_replay import next_offsets, replay
from shared.files.commit_log import CommitLogReader
from shared.files.consume_queue import ConsumeQueues
from shared.runtime.clock import SystemClock
from shared.state import records
from shared.state.records import NextOffset, TopicConfig, TopicRecord
from shared.state.state import BrokerState
from tidemark.errors import DamagedFile
from tidemark.formats import batch, record
from tidemark.formats.hosts import Host
from tidemark.formats.queue_unit import Unit
from tidemark.formats.record import Message
from tidemark.formats.runs import Run
from tidemark.offsets import PhysicalOffset, QueueOffset

HOST = Host(b"\x7f\x00\x00\x01", 10911)
FILE_UNITS = 7
END = PhysicalOffset(1 << 40)


@dataclass
class Log:
    """The state queue and its records, from queue offset ``first`` on; counts what is read."""

    bodies: list[bytes]
    first: int = 0
    reads: list[int] = field(default_factory=list)
    min_offset: int = 0
    topic: str = records.STATE_TOPIC

    def get(self, topic: str, queue: int) -> Queue:
        return Queue(self)

    def record(self, offset: int, end: int) -> record.Record:
        self.reads.append(offset)
        return record.decode(memoryview(self._record(offset)))

    def _record(self, index: int) -> bytes:
        message = Message(self.topic, 0, self.bodies[index], HOST, HOST)
        return record.encode(
            message, queue_offset=index, physical_offset=0, store_timestamp_ms=1, record_crc=True
        )


class Queue(NamedTuple):
    log: Log

    def min_offset(self, physical: int) -> int:
        return self.log.first

    def max_offset(self, dispatched: int) -> int:
        return len(self.log.bodies)

    def units(self, at: int, count: int, dispatched: int) -> Sequence[Unit]:
        """As a reader does: none across a file's border."""
        stop = min(at + count, len(self.log.bodies), at - at % FILE_UNITS + FILE_UNITS)
        return [Unit(index, len(self.log._record(index)), 0) for index in range(at, stop)]

    def roll_next(self, at: int) -> int:
        return at - at % FILE_UNITS + FILE_UNITS


def replayed(log: Log) -> BrokerState:
    return replay(cast(ConsumeQueues, log), cast(CommitLogReader, log), END)


def topic(name: str, queues: int) -> bytes:
    return records.encode_topic(TopicRecord(0, TopicConfig(name, queues, queues)))


def applied(bodies: Sequence[bytes]) -> BrokerState:
    state = BrokerState()
    for body in bodies:
        state.apply(records.decode(body))
    return state


def snapshot_of(bodies: Sequence[bytes], snapshot_id: int, part_size: int) -> list[bytes]:
    offsets = [NextOffset("t", queue, queue + snapshot_id) for queue in range(5)]
    return applied(bodies).snapshot_records(
        0, part_size, snapshot_id=snapshot_id, next_offsets=offsets
    )


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["topic", "snapshot", "broken snapshot"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(1, 9),
        st.sampled_from([150, 200, 100_000]),
    ),
    max_size=25,
)


@given(STEPS)
def test_replay_finds_what_applying_everything_finds(
    steps: list[tuple[str, str, int, int]],
) -> None:
    bodies: list[bytes] = []
    for number, (kind, name, queues, part_size) in enumerate(steps):
        if kind == "topic":
            bodies.append(topic(name, queues))
            continue
        parts = snapshot_of(bodies, number + 1, part_size)
        # A topic in between, as sends go on while a large snapshot is written; or a crash.
        bodies += parts[:1]
        bodies.append(topic(name, queues))
        bodies += parts[1:] if kind == "snapshot" else parts[1:-1]
    found, expected = replayed(Log(bodies)), applied(bodies)
    assert found.topics == expected.topics
    assert found.deleted == expected.deleted


def test_only_what_follows_the_newest_whole_snapshot_is_read() -> None:
    old = [topic(f"t{number}", 1) for number in range(2000)]
    bodies = [*old, *snapshot_of(old[:50], 1, 100_000), topic("new", 3)]
    log = Log(bodies)
    state = replayed(log)
    assert set(state.topics) == {f"t{number}" for number in range(50)} | {"new"}
    assert len(log.reads) < 600


def test_a_log_that_lost_its_beginning_is_read_from_where_it_begins() -> None:
    old = [topic("gone", 1), topic("also", 2)]
    bodies = [*old, *snapshot_of(old, 1, 100_000), topic("new", 3)]
    assert set(replayed(Log(bodies, first=2)).topics) == {"gone", "also", "new"}


@pytest.mark.parametrize("garbage", [b"", b"hello", b"\xc1", b"\x90", b"\x81\xa1v\x01"])
def test_a_body_that_is_no_state_record_is_logged_and_skipped(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    # A client of RocketMQ can send anything to this topic while RocketMQ has the store. It once
    # ended the broker at every start, and made all other messages unreachable.
    state = replayed(Log([topic("before", 1), garbage, topic("behind", 2)]))
    assert set(state.topics) == {"before", "behind"}
    assert state.unknown == {"state-record-unreadable": 1}
    assert "queue offset 1" in caplog.text


def test_a_unit_that_leads_to_a_foreign_record_is_damage_with_a_name() -> None:
    with pytest.raises(DamagedFile, match=r"orders/0.*store rebuild"):
        replayed(Log([topic("a", 1)], topic="orders"))


def test_the_larger_of_recovery_and_snapshot_counts() -> None:
    state = applied(snapshot_of([topic("t", 5)], 10, 100_000))
    table = next_offsets({("t", 0): QueueOffset(99), ("t", 1): QueueOffset(3)}, state)
    assert table.next_of(("t", 0)) == 99
    assert table.next_of(("t", 1)) == 11
    assert table.next_of(("t", 4)) == 14


class Sink:
    """Appends into a list; everything is durable at once."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def append(self, runs: Sequence[Run], *, own: bool = False) -> Appended:
        assert own
        start = PhysicalOffset(len(self.bodies))
        self.bodies += bodies_of(runs)
        return Appended([], start, b"", 1, PhysicalOffset(len(self.bodies)))

    async def durable(self, end: PhysicalOffset) -> bool:
        return True


def bodies_of(runs: Sequence[Run]) -> list[bytes]:
    """The messages' bodies, which are as many as the runs say."""
    found = [bytes(entry.body) for run in runs for entry in batch.iterate(run.entries)]
    assert len(found) == sum(run.message_count for run in runs)
    return found


def state_log(sink: Sink, *, file_size: int, offsets: QueueOffsets | None = None) -> StateLog:
    log = StateLog(
        BrokerState(),
        offsets or QueueOffsets({}),
        SystemClock(),
        HOST,
        flushed=lambda: 77,
        file_size=file_size,
    )
    log.connect(cast(Append, sink), cast(Flusher, sink))
    return log


async def test_a_snapshot_has_appended_records_flushed_or_not() -> None:
    sink = Sink()
    log = state_log(sink, file_size=1 << 20, offsets=QueueOffsets({("orders", 0): QueueOffset(5)}))
    await log.append_state(topic("orders", 2))
    snapshot = bodies_of(log.snapshot())
    state = applied(snapshot)
    assert state.topics["orders"].queues == 2
    assert state.next_queue_offsets == {("orders", 0): 5}
    assert state.flushed == 77


async def test_a_large_snapshot_goes_out_in_slices_and_not_at_every_file() -> None:
    sink = Sink()
    log = state_log(sink, file_size=4096)
    for number in range(60):
        await log.append_state(topic(f"topic-{number}", 1))
    before = len(sink.bodies)
    first = bodies_of(log.snapshot())
    assert len(first) == 1
    log.snapshot_placed(PhysicalOffset(before), 1)
    assert log.snapshot() == [], "the rest is still going out"
    while log._slices:
        await log._append_slice()
    rest = sink.bodies[before:]
    assert all(len(body) <= 4096 // 4 for body in first + rest)
    assert applied(first + rest).topics.keys() == {f"topic-{number}" for number in range(60)}
    assert log.snapshot() == [], "files in between go without"
