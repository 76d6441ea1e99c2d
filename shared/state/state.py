"""The node's state: what all state records up to a point of the log add up to. Pure.

Applied in the order of the log. A snapshot says everything at once, so that any suffix of the log
that starts at one is enough; it counts only when all its parts have been seen, and stands for the
moment of its first part: what was appended between its parts comes after it.
Step before: ``shared.state.records`` decodes. Step after: the broker serves topics from here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from shared.state.records import (
    NextOffset,
    OtherRecord,
    SnapshotPart,
    StateRecord,
    TopicConfig,
    TopicRecord,
    encode_snapshot,
)


class BrokerState:
    """Topics and next queue offsets. Has one writer: whoever applies the records."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicConfig] = {}
        """Existing topics by name."""
        self.deleted: dict[str, TopicConfig] = {}
        """Topics that were deleted: a new one of the same name goes on with their offsets."""
        self.next_queue_offsets: dict[tuple[str, int], int] = {}
        """As of the newest complete snapshot; the log and the queues may know larger ones."""
        self.flushed = 0
        """The largest durable mark that any record carried."""
        self.records = 0
        """Records applied, unknown ones included."""
        self.snapshots = 0
        """Complete snapshots applied."""
        self.unknown: Counter[str] = Counter()
        """Kind -> records that this version does not understand; they change nothing."""
        self._parts: list[SnapshotPart] = []
        self._since_first_part: dict[str, TopicConfig] = {}

    def apply(self, record: StateRecord) -> None:
        """The next state record of the log. Applying one twice in a row changes nothing."""
        self.records += 1
        self.flushed = max(self.flushed, record.flushed)
        match record:
            case TopicRecord(_, topic):
                self._put(topic)
                if self._parts:
                    self._since_first_part[topic.name] = topic
            case SnapshotPart():
                self._take_part(record)
            case OtherRecord(_, kind, version):
                self.unknown[kind if version == 1 else f"{kind} (version {version})"] += 1

    def copy(self) -> BrokerState:
        """The same state, to be changed on its own."""
        twin = BrokerState()
        twin.topics, twin.deleted = dict(self.topics), dict(self.deleted)
        twin.next_queue_offsets = dict(self.next_queue_offsets)
        twin.flushed, twin.records, twin.snapshots = self.flushed, self.records, self.snapshots
        twin.unknown = Counter(self.unknown)
        twin._parts = list(self._parts)
        twin._since_first_part = dict(self._since_first_part)
        return twin

    @property
    def is_known(self) -> bool:
        """The log has told at least one topic, or a whole snapshot."""
        return bool(self.topics or self.deleted or self.snapshots)

    def find(self, name: str) -> TopicConfig | None:
        """An existing or deleted topic; None if there never was one."""
        return self.topics.get(name) or self.deleted.get(name)

    def snapshot_records(
        self,
        flushed: int,
        part_bytes_max: int,
        *,
        snapshot_id: int | None = None,
        next_offsets: Iterable[NextOffset] | None = None,
    ) -> list[bytes]:
        """Bodies of a snapshot of this moment, to be appended in order.

        snapshot_id: by default ``flushed``. next_offsets: of every queue that ever had a message;
        by default those of the last snapshot, which is right only if nothing was sent since.
        """
        if next_offsets is None:
            next_offsets = (
                NextOffset(topic, queue, offset)
                for (topic, queue), offset in sorted(self.next_queue_offsets.items())
            )
        everything = {**self.topics, **self.deleted}
        return encode_snapshot(
            (topic for _, topic in sorted(everything.items())),
            next_offsets,
            flushed=flushed,
            snapshot_id=flushed if snapshot_id is None else snapshot_id,
            part_bytes_max=part_bytes_max,
        )

    def _put(self, topic: TopicConfig) -> None:
        mine, other = (self.deleted, self.topics) if topic.deleted else (self.topics, self.deleted)
        mine[topic.name] = topic
        other.pop(topic.name, None)

    def _take_part(self, part: SnapshotPart) -> None:
        if part.part == 0:
            # Also when one was begun: a crash cut it off, and this is the next attempt.
            self._parts, self._since_first_part = [part], {}
        elif self._parts and (part.id, part.parts, part.part) == (
            self._parts[0].id,
            self._parts[0].parts,
            len(self._parts),
        ):
            self._parts.append(part)
        elif not self._parts or part != self._parts[-1]:
            # The beginning lies before where we started reading, or was lost.
            self._parts, self._since_first_part = [], {}
        if self._parts and len(self._parts) == part.parts:
            self._restore()

    def _restore(self) -> None:
        parts, since = self._parts, self._since_first_part
        self._parts, self._since_first_part = [], {}
        self.topics, self.deleted = {}, {}
        for part in parts:
            for topic in part.topics:
                self._put(topic)
            for topic_name, queue, offset in part.next_offsets:
                key = (topic_name, queue)
                # Never lower: offsets are not given out twice (promise P5).
                self.next_queue_offsets[key] = max(offset, self.next_queue_offsets.get(key, 0))
        for topic in since.values():
            self._put(topic)
        self.snapshots += 1
