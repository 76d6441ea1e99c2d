"""The confirmed log of the group, record by record: what every consumer and every master has to
see.

``History`` appends bytes as they are confirmed. Queues (P5: dense, ascending, each message once)
and state are derived from these bytes alone, and brokers are compared with them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from services.broker.state import state_replay
from shared.state.records import STATE_TOPIC, EpochRecord
from shared.state.state import BrokerState
from shared.state.values import DelayState, GroupConfig, TopicConfig
from tests.simulation.replication.store_view import FILE_SIZE
from tests.simulation.replication.violation import Violation
from tidemark.formats import native, record
from tidemark.formats.record import Checks
from tidemark.formats.scan import Stop
from tidemark.offsets import PhysicalOffset, Queue

ALL_CHECKS: Final = Checks(body_crc=True, record_crc=True)
RECORDS_AT_ONCE: Final = 4096


class Place(NamedTuple):
    """Extent of one record in the log."""

    start: int
    end: int


class StateContent(NamedTuple):
    """What a broker state says, whichever records it was read from."""

    topics: dict[str, TopicConfig]
    deleted: dict[str, TopicConfig]
    groups: dict[str, GroupConfig]
    offsets: dict[str, dict[Queue, int]]
    delay: DelayState
    start_count: int

    @classmethod
    def of(cls, state: BrokerState) -> StateContent:
        """Copy what a state says now."""
        return cls(
            dict(state.topics),
            dict(state.deleted),
            dict(state.groups),
            {name: dict(pairs) for name, pairs in state.offsets.items()},
            state.delay,
            state.start_count,
        )

    def is_of(self, states: Sequence[StateContent]) -> bool:
        """Whether each topic and group is that of one of these states, and the rest that of the
        last one."""
        last = states[-1]
        if self._replace(topics=last.topics, deleted=last.deleted, groups=last.groups) != last:
            return False
        logged = [each._by_name for each in states]
        return all(
            any(each.get(name) == self._by_name.get(name) for each in logged)
            for name in {**self._by_name, **logged[-1]}
        )

    @property
    def _by_name(self) -> dict[tuple[str, bool], TopicConfig | GroupConfig]:
        """The topics, also those deleted, and the groups: by name, and whether it is a group's."""
        topics = {**self.topics, **self.deleted}
        return {
            **{(name, False): topic for name, topic in topics.items()},
            **{(name, True): group for name, group in self.groups.items()},
        }

    def differences(self, other: StateContent) -> str:
        """Describe what differs."""
        lines = []
        for field, one, two in zip(self._fields, self, other, strict=True):
            if isinstance(one, dict) and isinstance(two, dict):
                names = [name for name in {**one, **two} if one.get(name) != two.get(name)]
                lines += [f"{field} {name} {one.get(name)}, not {two.get(name)}" for name in names]
            elif one != two:
                lines.append(f"{field} {one}, not {two}")
        return "; ".join(lines)


class Confirmed:
    """The confirmed log with its queues and its state. It only grows."""

    def __init__(self) -> None:
        self.log = bytearray()
        self.queues: dict[tuple[str, int], list[Place]] = {}
        self._state = BrokerState()
        self._states = [(0, StateContent.of(self._state))]
        """(end of a state record, the state after it), ascending."""
        self._epoch = 0
        """Last recorded epoch."""
        self._parsed = 0

    def extend(self, data: bytes) -> None:
        """Append confirmed bytes. Raises Violation if the queues are not dense."""
        self.log += data
        for entry in self._walk():
            self._add(entry)

    def _walk(self) -> Iterator[Any]:
        """Yield the whole records from the first one that was not parsed yet on, and note how far
        the log is parsed."""
        log = self.log
        while self._parsed < len(log):
            file_end = self._parsed - self._parsed % FILE_SIZE + FILE_SIZE
            walked = native.walk(
                bytes(log[self._parsed : file_end]),
                at=PhysicalOffset(self._parsed),
                checks=ALL_CHECKS,
                records_max=RECORDS_AT_ONCE,
                delay_levels_ms=(),
            )
            yield from walked.entries
            self._parsed += walked.end
            if walked.stop is Stop.BLANK and file_end <= len(log):
                self._parsed = file_end
            elif walked.stop is Stop.BAD:
                raise Violation(f"the confirmed record at {self._parsed} is bad: {walked.reason}")
            elif not walked.entries:
                return  # The rest of a record is not confirmed yet.

    def seen(self, topic: str, queue: int, end: int) -> Sequence[Place]:
        """The messages of a queue below end, by queue offset."""
        places = self.queues.get((topic, queue), [])
        return places[: bisect_right(places, end, key=lambda place: place.end)]

    def states(self, since: int, end: int) -> Sequence[StateContent]:
        """The state in the log below since, and after each later state record up to end."""
        first, behind = (
            bisect_right(self._states, at, key=lambda entry: entry[0]) for at in (since, end)
        )
        return [state for _, state in self._states[max(0, first - 1) : max(first, behind)]]

    @property
    def now(self) -> StateContent:
        """The state of the whole confirmed log."""
        return self._states[-1][1]

    @property
    def parsed(self) -> int:
        """End of the last whole record."""
        return self._parsed

    def _add(self, entry: Any) -> None:
        places = self.queues.setdefault((entry.topic, entry.queue_id), [])
        if entry.queue_offset != len(places):
            raise Violation(
                f"P5: the confirmed record at {entry.physical_offset} has queue offset "
                f"{entry.queue_offset} of {entry.topic}/{entry.queue_id}, which has {len(places)} "
                "messages before it"
            )
        end = entry.physical_offset + entry.size
        places.append(Place(entry.physical_offset, end))
        if entry.topic == STATE_TOPIC:
            stored = record.decode(bytes(self.log[entry.physical_offset : end]))
            state_record = state_replay.decoded(stored)
            if isinstance(state_record, EpochRecord):
                if state_record.epoch <= self._epoch:
                    raise Violation(
                        f"epoch {state_record.epoch} is recorded after epoch {self._epoch}"
                    )
                self._epoch = state_record.epoch
            snapshots = self._state.snapshots
            self._state.apply(state_record, entry.physical_offset)
            self._states.append((end, StateContent.of(self._state)))
            if self._state.snapshots > snapshots:
                self._must_keep_all(entry.physical_offset)

    def _must_keep_all(self, at: int) -> None:
        """Check that a snapshot contains everything that the records before it say. It may also
        contain offsets and delay progress whose records come after it."""
        before, after = (state for _, state in self._states[-2:])
        changed = (before.topics, before.deleted, before.groups) != after[:3]
        lost = any(
            after.offsets.get(name, {}).get(queue, -1) < offset
            for name, pairs in before.offsets.items()
            for queue, offset in pairs.items()
        )
        if changed or lost or after.start_count < before.start_count:
            raise Violation(
                f"the snapshot that ends at {at} changes the state: {after.differences(before)}"
            )
