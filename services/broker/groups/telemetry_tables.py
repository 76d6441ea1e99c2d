"""Tables of a telemetry snapshot: which rows are new, changed or gone since the last one. Pure.

Between two keyframes a row keeps its local id, which is its place in its table. Rows are kept as
bytes and arrays of numbers, never as tuples: a hundred thousand new tuples per snapshot would start
garbage collections of 60 ms. Step before: ``telemetry_rows`` puts the rows of a sample. Step after:
``tidemark.formats.telemetry`` packs the sections.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Hashable, Iterator, Sequence
from operator import sub
from typing import Final, NamedTuple

from tidemark.formats.telemetry import AT_MS, Absent, Column, Kind, Numbers, Section

ROWS_AT_ONCE: Final = 512
"""Rows of a section: making one and packing it takes about a quarter of a millisecond."""
_ABSENT: Final = -(1 << 63)
"""Numbers from here on stand for reasons of ``Absent``; no value is as low."""
_REASONS: Final = 256

Row = tuple[int, ...]
"""Values of a row: numbers, or ``absent``."""


def absent(reason: Absent) -> int:
    """Return what stands in a row for a value that has no number."""
    return _ABSENT + int(reason.value)


class TableShape(NamedTuple):
    """The definition of a table."""

    name: str
    keys: tuple[str, ...]
    """Columns that name a row by ids of other tables and a queue number; none: it has a name."""
    columns: tuple[str, ...]


TOPIC: Final = TableShape("topic", (), ("messages_in_total", "received_bytes_total"))
GROUP: Final = TableShape(
    "group", (), ("members", "objective_ms", "consume_enabled", "broadcasting")
)
QUEUE: Final = TableShape("queue", ("topic", "queue"), ("min_offset", "max_offset"))
PAIR: Final = TableShape(
    "pair",
    ("group", "topic"),
    (
        "subscribed",
        "unknown_queues",
        "inflight",
        "oldest_undelivered_at_ms",
        "oldest_uncommitted_at_ms",
        "awaiting_delivery_at_ms",
        "redelivered_total",
        "consumed_total",
        "expired_total",
        "reset_forward_total",
        "reset_backward_total",
    ),
)
POSITION: Final = TableShape(
    "position", ("pair", "queue"), ("commit_offset", "head_at_ms", "member")
)


class TrackedTable:
    """One table since the last keyframe.

    Either every existing row is ``put`` in each snapshot, and ``sweep`` removes the others. Or only
    rows that may have changed are put, and the owner removes those that are gone.
    """

    def __init__(self, shape: TableShape) -> None:
        self._shape = shape
        self._pack = struct.Struct(f"{len(shape.columns)}q").pack
        self._ids: dict[Hashable, int] = {}
        self._keys: Numbers = array("q")
        """Of the new rows of this snapshot, row after row."""
        self._names: list[str] = []
        """The same in a table whose rows have names."""
        self._rows: list[bytes] = []
        """By local id: the values of the last snapshot or of this one; empty: it is gone."""
        self._seen: Numbers = array("q")
        """By local id: number of the last snapshot in which the row was put."""
        self._number = 0
        self._put_count = 0
        """Rows that were put in this snapshot."""
        self._new_from = 0
        self._changed: dict[int, bytes] = {}
        """Local id → values of the last snapshot."""
        self._gone: list[int] = []

    def __len__(self) -> int:
        """Return the number of existing rows."""
        return len(self._ids)

    def put(self, key: Hashable, row: Row, keys: tuple[int, ...] = (), name: str = "") -> int:
        """Take the values of a row in this snapshot; return its local id.

        key: identifies it in this object. keys, name: identify it in the journal; a row has either.
        """
        values, place = self._pack(*row), self._ids.get(key)
        if place is None:
            place = self._ids[key] = len(self._rows)
            self._rows.append(values)
            self._seen.append(-1)
            if self._shape.keys:
                self._keys.extend(keys)
            else:
                self._names.append(name)
        else:
            before = self._rows[place]
            if before != values:
                if place < self._new_from:
                    self._changed.setdefault(place, before)
                self._rows[place] = values
        if self._seen[place] != self._number:
            self._seen[place] = self._number
            self._put_count += 1
        return place

    def find(self, key: Hashable) -> int | None:
        """Return the local id of a row that was put in this snapshot already; None without one."""
        place = self._ids.get(key)
        return place if place is not None and self._seen[place] == self._number else None

    def remove(self, key: Hashable) -> None:
        """Take a row that no longer exists; nothing happens if there is none."""
        place = self._ids.pop(key, None)
        if place is not None:
            self._rows[place] = b""
            self._changed.pop(place, None)
            self._gone.append(place)

    def sweep(self) -> Iterator[None]:
        """Remove the rows that were not put in this snapshot; yields now and then."""
        if self._put_count == len(self._ids):
            return
        for number, (key, place) in enumerate(list(self._ids.items())):
            if self._seen[place] != self._number:
                self.remove(key)
            if number % ROWS_AT_ONCE == 0:
                yield

    def sections(self) -> Iterator[Section]:
        """Yield this snapshot's sections, each of ROWS_AT_ONCE rows at most; only once."""
        name = self._shape.name
        for places in _pieces(sorted(self._changed)):
            yield Section(name, Kind.CHANGED, array("q", places), columns=self._moved(places))
        for places in _pieces(range(self._new_from, len(self._rows))):
            yield self._new(places)
        # Last: a row may be new and gone in one snapshot.
        for places in _pieces(sorted(self._gone)):
            yield Section(name, Kind.GONE, array("q", places))

    def _moved(self, places: Sequence[int]) -> dict[str, Column]:
        now = self._columns([self._rows[place] for place in places])
        # Popped: freed all at once, tens of thousands of rows would take milliseconds.
        before = self._columns([self._changed.pop(place) for place in places])
        for name, column in now.items():
            if not name.endswith(AT_MS):
                difference = array("q", map(sub, column.values, before[name].values))
                now[name] = column._replace(values=difference)
        return now

    def _new(self, places: Sequence[int]) -> Section:
        begin, end = places[0] - self._new_from, places[-1] + 1 - self._new_from
        nothing = self._pack(*[absent(Absent.NONE)] * len(self._shape.columns))
        width = len(self._shape.keys)
        keys = self._keys[begin * width : end * width]
        return Section(
            self._shape.name,
            Kind.NEW,
            array("q", places),
            self._names[begin:end],
            {name: keys[at::width] for at, name in enumerate(self._shape.keys)},
            self._columns([self._rows[place] or nothing for place in places]),
        )

    def _columns(self, rows: Sequence[bytes]) -> dict[str, Column]:
        numbers, width = array("q", b"".join(rows)), len(self._shape.columns)
        return {name: _column(numbers[at::width]) for at, name in enumerate(self._shape.columns)}

    def written(self) -> None:
        """Begin the next snapshot: this one is in the log."""
        self._number += 1
        self._put_count = 0
        self._new_from = len(self._rows)
        self._keys, self._names = array("q"), []
        self._changed, self._gone = {}, []

    def release(self) -> Iterator[None]:
        """Free the memory in small steps: at once, 100,000 rows take milliseconds."""
        while self._ids:
            for _ in range(min(ROWS_AT_ONCE, len(self._ids))):
                self._ids.popitem()
            yield
        while self._rows:
            del self._rows[-ROWS_AT_ONCE:]
            yield


def _pieces(places: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(places), ROWS_AT_ONCE):
        yield places[start : start + ROWS_AT_ONCE]


def _column(stored: Numbers) -> Column:
    """Return a column of rows; each number from _ABSENT on becomes a reason."""
    if min(stored) >= _ABSENT + _REASONS:
        return Column(stored, b"")
    reasons = bytes([number - _ABSENT if number < _ABSENT + _REASONS else 0 for number in stored])
    values = [0 if reason else number for number, reason in zip(stored, reasons, strict=True)]
    return Column(array("q", values), reasons)
