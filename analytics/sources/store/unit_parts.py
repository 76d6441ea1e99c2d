"""Units of the consume queues, decoded with one array operation per file.

The units of a queue have a fixed size, so the position of a unit gives its queue offset
(docs/formats.md, section 4). Units are valid while they are written, in order, and point below the
confirm offset. Pre-blank units are left out. Small files share a part.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from analytics.schema import Gap
from analytics.sources.gap_rows import Hole, hole_batch
from analytics.sources.record_columns import repeated
from analytics.sources.store.files import StoreFiles
from analytics.sources.store.options import OFFSET_MAX, StoreOptions
from shared.files.os_disk import OsDisk
from tidemark.formats import native
from tidemark.formats.queue_unit import PRE_BLANK_SIZE, UNIT
from tidemark.offsets import UNIT_SIZE

UNITS: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
"""``queue_unit.UNIT`` as a numpy type."""
assert UNITS.itemsize == UNIT_SIZE

PART_FILES_MAX: Final = 64
"""Maximum number of queue files for one task; each is at most 6 MB."""


class UnitFile(NamedTuple):
    """One file of one queue."""

    topic: str
    queue: int
    start: int
    """Its position in the queue in bytes: the first unit has the queue offset start / 20."""
    path: str
    is_last: bool


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
        UnitFile(topic, queue, start, str(path), number == len(listed) - 1)
        for topic, queue in files.directory.queues()
        if options.topics is None or topic in options.topics
        for listed in [files.queue_files(topic, queue)]
        for number, (start, path) in enumerate(listed)
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
        count, _ = native.leading_units(raw, end=0, end_max=part.end)
        units = np.frombuffer(raw, UNITS, count)
        is_message = (units["size"] != PRE_BLANK_SIZE) | (units["physical_offset"] != 0)
        numbers = (unit_file.start // UNIT_SIZE + np.arange(count, dtype=np.int64))[is_message]
        offsets = units["physical_offset"].astype("=i8")
        asked = is_message & (offsets >= options.from_offset) & (offsets < options.to_offset)
        if not np.array_equal(asked, is_message):
            numbers = numbers[asked[is_message]]
        units = units[asked]
        if len(units):
            yield _batch(part, unit_file, units, numbers, schema)
        why = _unread(raw, count, part.end, is_last=unit_file.is_last)
        if why:
            yield hole_batch(_hole(part, unit_file, count, Gap.DAMAGED, why), schema)


def _bytes_of(unit_file: UnitFile) -> bytes | None:
    try:
        file = OsDisk().open(Path(unit_file.path), writable=False)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.data_end(), 0)
    finally:
        file.close()


def _unread(raw: bytes, count: int, end: int, *, is_last: bool) -> str:
    """Return why the unit after the last valid one is damaged; "" if it is not."""
    at = count * UNIT_SIZE
    if len(raw) - at < UNIT_SIZE:
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
    units: np.ndarray[tuple[int], np.dtype[np.void]],
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]],
    schema: pa.Schema,
) -> pa.RecordBatch:
    count = len(units)
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
                arrays.append(pa.array(numbers))
            case "gap" | "gap_detail":
                arrays.append(pa.nulls(count, pa.string()))
            case _:
                kind = UNITS[name].newbyteorder("=")
                arrays.append(pa.array(units[name].astype(kind)))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _hole(part: UnitPart, unit_file: UnitFile, count: int, reason: Gap, why: str) -> Hole:
    queue_offset = unit_file.start // UNIT_SIZE + count
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
