"""The broker state: the sum of all state records up to a point of the log. Pure.

Records are applied in log order. A snapshot contains the whole state, so any suffix of the log that
starts at a snapshot is sufficient. A snapshot counts only when all its parts have been seen, and
represents the moment of its first part: records appended between its parts are applied on top.
Step before: ``shared.state.records`` decodes. Step after: the broker serves topics, groups and
offsets from here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from shared.state.records import (
    DelayRecord,
    DrainRecord,
    NextOffset,
    OtherRecord,
    SnapshotPart,
    StateRecord,
    encode_snapshot,
)
from shared.state.tables import Tables
from shared.state.values import Delayed, DelayState, TopicConfig
from tidemark.offsets import Queue


class BrokerState(Tables):
    """The tables and the next queue offsets. Its only writer is the code that applies records."""

    def __init__(self) -> None:
        super().__init__()
        self.next_queue_offsets: dict[Queue, int] = {}
        """Values of the newest complete snapshot; the log and the queues may be further."""
        self.flushed = 0
        """The largest durable mark of any record."""
        self.records = 0
        """Number of records applied, including unknown ones."""
        self.snapshots = 0
        """Number of complete snapshots applied."""
        self.snapshot_at: int | None = None
        """Physical offset of the first part of the newest complete snapshot, if known."""
        self.unknown: Counter[str] = Counter()
        """Kind -> number of records that this version does not understand; they have no effect."""
        self._parts: list[SnapshotPart] = []
        self._parts_at: int | None = None
        self._since = Tables()
        """Changes since the first of ``_parts``."""

    def apply(self, record: StateRecord, at: int | None = None) -> None:
        """Apply the next state record of the log. Applying one twice in a row changes nothing.

        at: the record's physical offset; needed for ``snapshot_at`` and ``delay_recorded_at``.
        """
        self.records += 1
        self.flushed = max(self.flushed, record.flushed)
        match record:
            case SnapshotPart():
                self._take_part(record, at)
            case OtherRecord(_, kind, version):
                self.unknown[kind if version == 1 else f"{kind} (version {version})"] += 1
            case _:
                self.change(record, at)
                self.dropped.clear()  # used only for changes after a snapshot's first part
                if self._parts:
                    self._since.change(record, at)

    def copy(self) -> BrokerState:
        """Return an independent copy."""
        twin = BrokerState()
        vars(twin).update(self.contents())
        twin._since = Tables()
        vars(twin._since).update(self._since.contents())
        return twin

    def become(self, other: BrokerState) -> None:
        """Take over the contents of another state; all holders of this object see the change."""
        vars(self).update(vars(other.copy()))

    @property
    def is_known(self) -> bool:
        """Whether the log provided at least one topic or group, or a whole snapshot."""
        return bool(self.topics or self.deleted or self.groups or self.snapshots)

    def find(self, name: str) -> TopicConfig | None:
        """Return an existing or deleted topic; None if there never was one."""
        return self.topics.get(name) or self.deleted.get(name)

    def snapshot_records(
        self,
        flushed: int,
        part_bytes_max: int,
        *,
        snapshot_id: int | None = None,
        next_offsets: Iterable[NextOffset] | None = None,
        offsets: Mapping[str, Mapping[Queue, int]] | None = None,
        delay: DelayState | None = None,
        foreign_from: int = 0,
    ) -> list[bytes]:
        """Encode a snapshot of the present state; the bodies are to be appended in order.

        snapshot_id: ``flushed`` by default. next_offsets: next offset of every queue that ever had
        a message; by default those of the last snapshot, which is correct only if nothing was sent
        since. offsets, delay: the values being served, if they are ahead of the records applied
        here. foreign_from: start of the log. Foreign ranges and deletion marks before it are left
        out, because they are no longer needed.
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
            groups=(group for _, group in sorted(self.groups.items())),
            offsets=self.offsets if offsets is None else offsets,
            delay=self.delay if delay is None else delay,
            foreign=(each for each in self.foreign if each.end > foreign_from),
            deleted_below={
                name: offset
                for name, offset in sorted(self.deleted_below.items())
                if offset > foreign_from
            },
            drained_since_ms=self.drained_since_ms,
            start_count=self.start_count,
            flushed=flushed,
            snapshot_id=flushed if snapshot_id is None else snapshot_id,
            part_bytes_max=part_bytes_max,
        )

    def _take_part(self, part: SnapshotPart, at: int | None) -> None:
        if part.part == 0:
            # This also replaces an incomplete snapshot, which a crash cut off.
            self._parts, self._parts_at, self._since = [part], at, Tables()
        elif self._parts and (part.id, part.parts, part.part) == (
            self._parts[0].id,
            self._parts[0].parts,
            len(self._parts),
        ):
            self._parts.append(part)
        elif not self._parts or part != self._parts[-1]:
            # The first part lies before the start of reading, or was lost.
            self._forget_parts()
        if self._parts and len(self._parts) == part.parts:
            self._restore()

    def _forget_parts(self) -> None:
        self._parts, self._parts_at, self._since = [], None, Tables()

    def _restore(self) -> None:
        parts, at, since = self._parts, self._parts_at, self._since
        self._forget_parts()
        restored = Tables()
        levels: dict[int, int] = {}
        cancelled: dict[Delayed, int] = {}
        for part in parts:
            for topic in part.topics:
                restored.put_topic(topic)
            restored.groups.update((group.name, group) for group in part.groups)
            for name, pairs in part.offsets:
                restored.offsets.setdefault(name, {}).update(pairs)
            levels.update(part.levels)
            cancelled.update(part.cancelled)
            for foreign in part.foreign:
                restored.put_foreign(foreign)
            for name, offset in part.deleted_below:
                restored.put_deleted_below(name, offset)
            for topic_name, queue, offset in part.next_offsets:
                key = (topic_name, queue)
                # Never lower it: queue offsets are not assigned twice (promise P5).
                self.next_queue_offsets[key] = max(offset, self.next_queue_offsets.get(key, 0))
        restored.start_count = parts[0].start_count
        if parts[0].drained_since_ms is not None:
            restored.drain = DrainRecord(0, parts[0].drained_since_ms)
        restored.change(DelayRecord(0, levels, parts[0].timer, cancelled), at)
        restored.add(since)
        vars(self).update(restored.contents())
        self.snapshots += 1
        self.snapshot_at = at
