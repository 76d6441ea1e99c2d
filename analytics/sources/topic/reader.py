"""Read a topic without Spark: plan partitions, read each as Arrow batches.

    reader = TopicReader(TopicOptions(urls=("http://localhost:8080",), topic="orders"))
    for part in reader.plan():
        for batch in reader.read(part):
            ...

Every offset that was planned is in the result: as a message, or inside a gap with the reason.
Memory: one answer of the broker, 4 MiB or one larger message, and its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from analytics.schema import Gap
from analytics.sources.gap_rows import Hole, hole_batch
from analytics.sources.record_columns import RecordColumns
from analytics.sources.topic import offsets
from analytics.sources.topic.offsets import QueuePart
from analytics.sources.topic.options import TopicOptions
from analytics.sources.topic.pull import TopicClient, TopicUnreadable
from tidemark.client.messages import RawPull
from tidemark.formats import native, properties
from tidemark.formats.record import Checks

CHECKS: Final = Checks(record_crc=False, position=False)
"""Compares the CRC of the body with the stored one."""


class TopicReader:
    """One read of one topic. Holds nothing open."""

    def __init__(self, options: TopicOptions) -> None:
        self.options = options

    @property
    def schema(self) -> pa.Schema:
        """Schema of every batch."""
        return self.options.schema

    def plan(self) -> Sequence[QueuePart]:
        """Parts for tasks; the ends of queues are read now. Raises TopicUnreadable."""
        with TopicClient(self.options) as client:
            ranges = client.ranges(self.options.queues)
        start = offsets.begin(self.options, ranges)
        end = offsets.end_of(self.options, ranges)
        return list(offsets.cut(start, end, self.options.split_messages))

    def read(self, part: QueuePart) -> Iterator[pa.RecordBatch]:
        """Yield one part's messages, by queue offset. Raises TopicUnreadable; SourceGap for missing
        offsets if the column ``gap`` is not requested."""
        at = part.low
        with TopicClient(self.options) as client:
            while at < part.high:
                pulled = client.pull(part.queue, at, part.high - at)
                for found in self._parts_of(pulled, part, at):
                    if isinstance(found, Hole):
                        yield hole_batch(found, self.schema)
                        at = found.at["next_offset"]
                    else:
                        yield self._batch(found)
                        at = int(_numbers(found)[-1]) + 1

    def table(self) -> pa.Table:
        """Read everything in this process; for tools and tests."""
        batches = (batch for part in self.plan() for batch in self.read(part))
        return pa.Table.from_batches(batches, schema=self.schema)

    def _parts_of(
        self, pulled: RawPull, part: QueuePart, at: int
    ) -> Iterator[RecordColumns | Hole]:
        """Yield the parts of the answer to a pull at ``at``: runs of adjacent messages, and
        holes."""
        columns = self._decoded(pulled, part, at)
        numbers = _numbers(columns)
        if not len(columns):
            yield self._hole(part, at, min(pulled.next_offset, part.high), pulled)
            return
        mine = numbers < part.high
        for run in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers) > 1) + 1):
            first = min(int(numbers[run[0]]), part.high)
            if first > at:
                yield self._hole(part, at, first, pulled)
            wanted = np.zeros(len(numbers), bool)
            wanted[run] = True
            if (wanted & mine).any():
                yield columns.only(wanted & mine)
            at = int(numbers[run[-1]]) + 1

    def _decoded(self, pulled: RawPull, part: QueuePart, at: int) -> RecordColumns:
        """Return the messages at or after ``at``."""
        view = bytes(pulled.records)
        found = native.outline_records(
            view, at=None, until=len(view), records_max=len(view), verify=CHECKS
        )
        columns = RecordColumns(view, found)
        if found.end != len(view):
            raise self._broken(part, at, f"byte {found.end} of the answer is not a message")
        if (columns.rows["sound"] != 1).any():
            raise self._broken(part, at, "a body in the broker's answer does not match its CRC")
        messages, broken = columns.unpacked()
        if broken.any():
            raise self._broken(part, at, "a batch in the broker's answer lacks messages")
        # A batch is handed out whole: the first may begin before the offset, and goes beyond it.
        numbers, of_first = _numbers(messages), messages.starts == messages.starts[:1]
        if (np.diff(numbers) <= 0).any() or (of_first.any() and numbers[of_first][-1] < at):
            raise self._broken(part, at, "the broker's answer is not in the queue's order")
        return messages.only(numbers >= at)

    def _batch(self, columns: RecordColumns) -> pa.RecordBatch:
        arrays = []
        for field in self.schema:
            match field.name:
                case "next_offset":
                    arrays.append(pa.array(_numbers(columns) + 1))
                case "properties":
                    pairs = [
                        list(properties.parse(bytes(raw)).items())
                        for raw in columns.stored("properties")
                    ]
                    arrays.append(pa.array(pairs, field.type))
                case "gap" | "gap_detail":
                    arrays.append(pa.nulls(len(columns), field.type))
                case name:
                    arrays.append(columns.column(name))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _hole(self, part: QueuePart, low: int, high: int, pulled: RawPull) -> Hole:
        topic, least = self.options.topic, pulled.min_offset
        expired = low < least
        reason = Gap.EXPIRED if expired else Gap.HIDDEN
        why = f"the queue begins at {least}" if expired else f"status {pulled.status}"
        return Hole(
            reason,
            f"topic {topic}, queue {part.queue}, queue offsets {low} to {high - 1}: {why}",
            {"topic": topic, "queue": part.queue, "queue_offset": low, "next_offset": high},
        )

    def _broken(self, part: QueuePart, at: int, reason: str) -> TopicUnreadable:
        return TopicUnreadable(self.options.topic, reason, queue=part.queue, offset=at)


def _numbers(columns: RecordColumns) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = columns.column("queue_offset").to_numpy()
    return found
