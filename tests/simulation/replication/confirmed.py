"""The confirmed log of the group, record by record: what every consumer and every master has to
see.

``History`` appends bytes as they are confirmed. Queues (P5: dense, ascending, each message once)
and state are derived from these bytes alone, and brokers are compared with them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from services.broker.state import state_replay
from shared.state.records import STATE_TOPIC, EpochRecord
from shared.state.state import BrokerState
from shared.state.values import TopicConfig
from tests.simulation.replication.store_view import FILE_SIZE
from tests.simulation.replication.violation import Violation
from tidemark.formats import native, record
from tidemark.formats.record import Checks
from tidemark.formats.scan import Stop
from tidemark.offsets import PhysicalOffset

ALL_CHECKS: Final = Checks(body_crc=True, record_crc=True)
RECORDS_AT_ONCE: Final = 4096


class Place(NamedTuple):
    """Extent of one record in the log."""

    start: int
    end: int


class Confirmed:
    """The confirmed log with its queues and its state. It only grows."""

    def __init__(self) -> None:
        self.log = bytearray()
        self.queues: dict[tuple[str, int], list[Place]] = {}
        self._state = BrokerState()
        self._topics: list[tuple[int, dict[str, TopicConfig]]] = []
        """(end of a state record, topics after it), ascending."""
        self._epoch = 0
        """Last recorded epoch."""
        self._parsed = 0

    def extend(self, data: bytes) -> None:
        """Append confirmed bytes. Raises Violation if the queues are not dense."""
        self.log += data
        while self._parsed < len(self.log):
            file_end = self._parsed - self._parsed % FILE_SIZE + FILE_SIZE
            walked = native.walk(
                bytes(self.log[self._parsed : file_end]),
                at=PhysicalOffset(self._parsed),
                checks=ALL_CHECKS,
                records_max=RECORDS_AT_ONCE,
                delay_levels_ms=(),
            )
            for entry in walked.entries:
                self._add(entry)
            self._parsed += walked.end
            if walked.stop is Stop.BLANK and file_end <= len(self.log):
                self._parsed = file_end
            elif walked.stop is Stop.BAD:
                raise Violation(f"the confirmed record at {self._parsed} is bad: {walked.reason}")
            elif not walked.entries:
                return  # The rest of a record is not confirmed yet.

    def seen(self, topic: str, queue: int, end: int) -> Sequence[Place]:
        """The messages of a queue below end, by queue offset."""
        places = self.queues.get((topic, queue), [])
        return places[: bisect_right(places, end, key=lambda place: place.end)]

    def topics_at(self, end: int) -> Mapping[str, TopicConfig]:
        """The topics in the log below end."""
        index = bisect_right(self._topics, end, key=lambda entry: entry[0])
        return self._topics[index - 1][1] if index else {}

    def configs_of(self, name: str, end: int) -> Sequence[TopicConfig | None]:
        """Configuration of a topic at end, and after each later state record."""
        index = max(0, bisect_right(self._topics, end, key=lambda entry: entry[0]) - 1)
        return [topics.get(name) for _, topics in self._topics[index:]]

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
            self._state.apply(state_record, entry.physical_offset)
            self._topics.append((end, dict(self._state.topics)))
