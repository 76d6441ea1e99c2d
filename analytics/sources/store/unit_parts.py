"""Units of the consume queues, decoded with one array operation per file.

The units of a queue have a fixed size. In an ordinary queue the position of a unit gives its queue
offset (docs/formats.md, section 4); in a batch queue the unit stores it. Units are valid while they
are written, in order, and point below the confirm offset. Pre-blank units are left out. Small files
share a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analytics.schema import Gap
from analytics.sources.gap_rows import Hole, hole_batch
from analytics.sources.record_columns import repeated
from analytics.sources.store.files import StoreFiles
from analytics.sources.store.options import OFFSET_MAX, StoreOptions
from shared.files.os_disk import OsDisk
from shared.files.queue_files import QueueFiles
from shared.files.store_dir import QueueDirectory
from tidemark.formats import native
from tidemark.formats.filenames import offset_name
from tidemark.formats.queue_unit import PRE_BLANK_SIZE, UNIT
from tidemark.offsets import BATCH_UNIT_SIZE, UNIT_SIZE

_FIELDS: Final = [("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")]
UNITS: Final = np.dtype(_FIELDS)
"""``queue_unit.UNIT`` as a numpy type."""
BATCH_UNITS: Final = np.dtype(
    [*_FIELDS, ("store_ts", ">i8"), ("base", ">i8"), ("message_count", ">i2"), ("rest", "V8")]
)
"""``queue_unit.BATCH_UNIT`` as a numpy type."""
assert (UNITS.itemsize, BATCH_UNITS.itemsize) == (UNIT_SIZE, BATCH_UNIT_SIZE)

PART_FILES_MAX: Final = 64
"""Maximum number of queue files for one task; each is at most 6 MB."""


Units = npt.NDArray[np.void]
Numbers = npt.NDArray[np.int64]


class UnitFile(NamedTuple):
    """One file of one queue."""

    topic: str
    queue: int
    directory: QueueDirectory
    start: int
    """Its position in the queue in bytes."""
    is_last: bool

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.directory.path / offset_name(self.start)

    @property
    def number(self) -> int:
        """Number of its first unit; in an ordinary queue, the unit's queue offset."""
        return self.start // self.directory.unit_size


class UnitPart(NamedTuple):
    """Work of one task."""

    broker: str
    end: int
    """Units whose records end at or below it are read."""
    files: tuple[UnitFile, ...]


def plan(files: StoreFiles, options: StoreOptions) -> list[UnitPart]:
    """Parts by topic, queue and start; at least two if there are two files."""
    broker = files.broker if options.broker is None else options.broker
    found = [
        UnitFile(topic, queue, directory, start, start == starts[-1])
        for topic, queue in files.directory.queues()
        if options.topics is None or topic in options.topics
        for directory, starts in [files.queue_files(topic, queue)]
        for start in starts
    ]
    end = OFFSET_MAX if files.published is None else files.published.confirm
    each = max(1, min(PART_FILES_MAX, -(-len(found) // options.split_min)))
    return [
        UnitPart(broker, end, tuple(found[first : first + each]))
        for first in range(0, len(found), each)
    ]


def read(part: UnitPart, options: StoreOptions) -> Iterator[pa.RecordBatch]:
    """Yield one batch per file, and one per gap. Raises SourceGap as ``log_parts.read`` does."""
    schema = options.schema
    for unit_file in part.files:
        raw = _bytes_of(unit_file)
        if raw is None:
            yield hole_batch(_hole(part, unit_file, 0, Gap.VANISHED, "the file is gone"), schema)
            continue
        found = _units_of(unit_file, raw, part.end)
        offsets = found.units["physical_offset"]
        asked = (found.units["size"] != PRE_BLANK_SIZE) | (offsets != 0)
        asked &= (offsets >= options.from_offset) & (offsets < options.to_offset)
        if asked.any():
            yield _batch(part, unit_file, found.only(asked), schema)
        why = found.disorder or _unread(unit_file, raw, len(found.units), part.end)
        if why:
            hole = _hole(part, unit_file, len(found.units), Gap.DAMAGED, why)
            yield hole_batch(hole, schema)


class _Units(NamedTuple):
    """The valid units at the start of a file."""

    units: Units
    first: Numbers
    """Queue offset of each unit's first message."""
    after: Numbers
    """Queue offset after its last one."""
    disorder: str
    """Why the queue offsets of the next unit are damaged; "" if they are not."""

    def only(self, wanted: npt.NDArray[np.bool_]) -> _Units:
        """Return the wanted units."""
        return self._replace(
            units=self.units[wanted], first=self.first[wanted], after=self.after[wanted]
        )


def _units_of(unit_file: UnitFile, raw: bytes, end: int) -> _Units:
    """Return the units whose records are in order and end at or below end."""
    unit_size = unit_file.directory.unit_size
    count, _ = native.leading_units(raw, end=0, end_max=end, unit_size=unit_size)
    if unit_size == UNIT_SIZE:
        numbers = unit_file.number + np.arange(count, dtype=np.int64)
        return _Units(np.frombuffer(raw, UNITS, count), numbers, numbers + 1, "")
    units = np.frombuffer(raw, BATCH_UNITS, count)
    first = units["base"].astype(np.int64)
    after = first + units["message_count"]
    bad = (first < np.concatenate(([0], after[:-1]))) | (after <= first)
    found = _Units(units, first, after, "")
    if not bad.any():
        return found
    at = int(bad.argmax())
    why = f"unit of {after[at] - first[at]} messages from {first[at]} on, out of order"
    return found.only(np.arange(count) < at)._replace(disorder=why)


def _bytes_of(unit_file: UnitFile) -> bytes | None:
    try:
        file = OsDisk().open(unit_file.path, writable=False)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.data_end(), 0)
    finally:
        file.close()


def _unread(unit_file: UnitFile, raw: bytes, count: int, end: int) -> str:
    """Return why the unit after the last valid one is damaged; "" if it is not."""
    unit_size, is_last = unit_file.directory.unit_size, unit_file.is_last
    at = count * unit_size
    if len(raw) - at < unit_size:
        cut = raw[at:].strip(b"\0")
        return "the file ends amid a unit" if cut and is_last else ""
    offset, size, _ = UNIT.unpack_from(raw, at)
    if size <= 0:
        if any(raw[at:]):
            return f"unit of size {size}, with others after it"
        return "" if is_last else "no more units, and the queue goes on in another file"
    if offset >= 0 and offset + size > end:
        return ""  # not confirmed yet
    return f"unit points to {size} bytes at {offset}, before its predecessor's end"


def _batch(
    part: UnitPart,
    unit_file: UnitFile,
    found: _Units,
    schema: pa.Schema,
) -> pa.RecordBatch:
    count = len(found.units)
    arrays = []
    for name in schema.names:
        match name:
            case "broker":
                arrays.append(repeated(part.broker, count))
            case "topic":
                arrays.append(repeated(unit_file.topic, count))
            case "queue":
                arrays.append(pa.array(np.full(count, unit_file.queue, np.int32)))
            case "queue_offset":
                arrays.append(pa.array(found.first))
            case "next_offset":
                arrays.append(pa.array(found.after))
            case "gap" | "gap_detail":
                arrays.append(pa.nulls(count, pa.string()))
            case _:
                kind = UNITS[name].newbyteorder("=")
                arrays.append(pa.array(found.units[name].astype(kind)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _hole(part: UnitPart, unit_file: UnitFile, count: int, reason: Gap, why: str) -> Hole:
    files = QueueFiles(OsDisk(), unit_file.directory)
    queue_offset = files.next_offset(unit_file.number + count)
    files.close()
    return Hole(
        reason,
        f"{unit_file.path}, queue offset {queue_offset}: {why}",
        {
            "broker": part.broker,
            "topic": unit_file.topic,
            "queue": unit_file.queue,
            "queue_offset": queue_offset,
        },
    )
