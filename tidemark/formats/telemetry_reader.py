"""Puts the parts of telemetry records together to snapshots. Pure; state in one object.

Records come in the order of their queue offsets. A snapshot that lacks a part, or whose predecessor
is missing, is passed over with all deltas after it, up to the next keyframe. Step before:
``telemetry`` decodes a record. Step after: ``analytics.sources.telemetry`` makes samples.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from tidemark.formats.telemetry import (
    AT_MS,
    BadTelemetry,
    Column,
    Head,
    Kind,
    Numbers,
    Part,
    Section,
)


class Rows:
    """One table of a snapshot. A row's place is its local id."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """Of each row, in a table whose rows have names."""
        self.keys: dict[str, Numbers] = {}
        self.values: dict[str, Numbers] = {}
        """By column; 0 where the value is absent."""
        self.absent: dict[str, bytearray] = {}
        """By column and row: 0, or the number of ``telemetry.Absent``."""
        self.present = bytearray()
        """By row: 1, or 0 if it no longer exists."""

    def apply(self, section: Section) -> None:
        """Change the table as a section of the next snapshot says. Raises BadTelemetry."""
        ids = section.ids
        if section.kind is Kind.NEW:
            self._extend(section)
            return
        if ids and not 0 <= ids[0] <= ids[-1] < len(self.present):
            raise BadTelemetry(f"row {ids[-1]} of {section.table}, which has {len(self.present)}")
        if section.kind is Kind.GONE:
            for place in ids:
                self.present[place] = 0
            return
        for name, column in section.columns.items():
            if name not in self.values:
                raise BadTelemetry(f"column {name} of {section.table} is not in its keyframe")
            self._change(name, ids, column)

    def _change(self, name: str, ids: Numbers, column: Column) -> None:
        values, absent = self.values[name], self.absent[name]
        is_time = name.endswith(AT_MS)
        try:
            for place, number in zip(ids, column.values, strict=True):
                values[place] = number if is_time else values[place] + number
        except OverflowError as error:
            raise BadTelemetry(f"column {name}: {error}") from error
        for place, reason in zip(ids, column.absent or bytes(len(ids)), strict=True):
            absent[place] = reason

    def _extend(self, section: Section) -> None:
        before, count = len(self.present), len(section.ids)
        if count and section.ids[0] != before:
            raise BadTelemetry(f"row {section.ids[0]} of {section.table} comes after {before} rows")
        if not before:
            self.keys = {name: array("q") for name in section.keys}
            self.values = {name: array("q") for name in section.columns}
            self.absent = {name: bytearray() for name in section.columns}
        if section.keys.keys() != self.keys.keys() or section.columns.keys() != self.values.keys():
            raise BadTelemetry(f"new rows of {section.table} have other columns than the others")
        self.names += section.names
        for name, key in section.keys.items():
            self.keys[name] += key
        for name, column in section.columns.items():
            self.values[name] += column.values
            self.absent[name] += column.absent or bytes(count)
        self.present += b"\x01" * count


class Snapshot:
    """All rows of one instant."""

    def __init__(self, head: Head) -> None:
        self.head = head
        """Of its last part."""
        self.tables: dict[str, Rows] = {}

    def apply(self, parts: Sequence[Part]) -> None:
        """Become the next snapshot, which has these parts. Raises BadTelemetry."""
        self.head = parts[-1].head
        for part in parts:
            for section in part.sections:
                self.tables.setdefault(section.table, Rows()).apply(section)


class SnapshotReader:
    """Reads one journal."""

    def __init__(self) -> None:
        self._last: Snapshot | None = None
        """The last whole snapshot; None: a keyframe must come first."""
        self._parts: list[Part] = []
        """Parts of the snapshot that is not whole yet."""

    def feed(self, part: Part) -> Snapshot | None:
        """Take the next part; return the snapshot that it completes, if any.

        The snapshot is valid until the next call. Raises BadTelemetry for rows that do not fit to
        the ones before; the reader goes on at the next keyframe, as after a part that is missing.
        """
        head = part.head
        if head.part == 0:
            self._parts = []
        elif not self._parts or not _is_next_part(head, self._parts[-1].head):
            self._parts = []
            return None  # an earlier part is missing
        self._parts.append(part)
        if head.part + 1 < head.parts:
            return None
        parts, self._parts = self._parts, []
        last, self._last = self._last, None
        if head.is_keyframe:
            last = Snapshot(head)
        elif last is None or not _is_next(head, last.head):
            return None
        last.apply(parts)
        self._last = last
        return last


def _is_next_part(head: Head, before: Head) -> bool:
    """Return whether a part follows another one of the same snapshot."""
    same = (before.started_ms, before.epoch, before.number, before.part + 1, before.parts)
    return (head.started_ms, head.epoch, head.number, head.part, head.parts) == same


def _is_next(head: Head, before: Head) -> bool:
    """Return whether a snapshot is the next one of the same chain."""
    same = (before.started_ms, before.epoch, before.number + 1)
    return (head.started_ms, head.epoch, head.number) == same
