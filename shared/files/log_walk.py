"""Recovery's reader of the commit log: files, records, and the bytes after the last record.

It only reads, in constant memory, and decides nothing: ``valid_end`` decides what a break of the
record chain means, and ``recovery`` acts on it. Every record is validated with both CRCs and its
position (docs/formats.md, sections 2.14 and 8).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

import msgpack

from shared.files.disk import Disk, File, MappedRegion
from shared.files.last_nonzero import last_nonzero_in
from shared.files.torn_record import unwritten_at
from shared.files.valid_end import FirstRecord
from tidemark.errors import CorruptRecord, StrayFile, WrongFileSize
from tidemark.formats import native, record
from tidemark.formats.filenames import RUNNING_SIGN, offset_name, parse_offset_name
from tidemark.formats.plan import Plan
from tidemark.formats.record import Checks, Kind
from tidemark.formats.scan import Entry, Stop
from tidemark.offsets import PhysicalOffset, QueueOffset

STATE_TOPIC: Final = "rmq_sys_tidemark_state"
"""Records of this topic contain the flushed offset that was known when they were appended."""
CHUNK_SIZE: Final = 1 << 20
NEVER: Final = 2**63 - 1
RECORDS_AT_ONCE: Final = 16_384
SUMMED_SIZE: Final = 16 << 20
"""Bytes processed between two checks whether the process is to end."""
PROGRESS_BYTES: Final = 64 << 20
MAGICS: Final = tuple(
    magic.to_bytes(4, "big", signed=True) for magic in (record.MAGIC_V1, record.MAGIC_V2)
)
_MAGIC: Final = re.compile(b"|".join(map(re.escape, MAGICS)))
"""No magic overlaps another one, so no match hides one. A lookahead takes 25 times as long."""
_MAGIC_AT: Final = 4
PHYSICAL_OFFSET_AT: Final = 28
"""Position of a record's own physical offset in the record (docs/formats.md, section 2)."""
_ZEROS: Final = bytes(CHUNK_SIZE)
_NO_HEAD: Final = bytes(record.BLANK_SIZE)
"""Size and magic of a place that was never written."""
_UNQUEUED: Final = (record.TRANSACTION_PREPARED, record.TRANSACTION_ROLLBACK)

Range = tuple[int, int]
"""Physical offsets [low, high)."""
Progress = Callable[[int, int], None]
"""Called with (bytes done, total bytes)."""


class LogFiles:
    """The files in the commit log's directory. Creating it may raise StrayFile, WrongFileSize."""

    def __init__(self, disk: Disk, directory: Path, file_size: int) -> None:
        self.disk = disk
        self.directory = directory
        self.file_size = file_size
        self.starts: list[int] = []
        """Start of every file of full size, ascending."""
        self.empty: list[int] = []
        """Start of every file of length 0: its creation was killed, or it was never synced."""
        self._mapped: tuple[int, MappedRegion] | None = None
        for entry in disk.list_directory(directory):
            if not entry.is_directory and entry.name != RUNNING_SIGN:
                self._take(entry.name)

    def _take(self, name: str) -> None:
        path = self.directory / name
        start = parse_offset_name(name)
        if start is None or start % self.file_size:
            raise StrayFile(
                f"{path} is not a commit log file: names are 20 digits, multiples of "
                f"{self.file_size}. Nothing was changed.",
                "Move it out of the directory; RocketMQ does not start with it either.",
                path=path,
            )
        facts = self.disk.stat(path)
        size = 0 if facts is None else facts.size
        if size not in (0, self.file_size):
            raise WrongFileSize(
                f"{path} has {size} bytes; log files of this store have {self.file_size}. "
                "Nothing was changed.",
                "Copy the file from another replica or a backup. Without one, give it its size: "
                f"`truncate -s {self.file_size} {path}`. What is missing then is damage that "
                "`tidemark store repair` names and can cut off.",
                path=path,
                size=size,
                expected=self.file_size,
            )
        (self.starts if size else self.empty).append(start)

    @property
    def end(self) -> int:
        """End of the last file."""
        return self.starts[-1] + self.file_size if self.starts else 0

    def path(self, start: int) -> Path:
        """Return the path of the file with that start."""
        return self.directory / offset_name(start)

    def start_of(self, offset: int) -> int:
        """Return the start of the file that holds offset."""
        return offset - offset % self.file_size

    def view(self, start: int) -> memoryview:
        """Return the file's bytes, borrowed until another file is requested."""
        if self._mapped is None or self._mapped[0] != start:
            self.close()
            with closing(self.open(start, writable=False)) as file:
                self._mapped = start, file.map(writable=False)
        return self._mapped[1].view

    def open(self, start: int, *, writable: bool) -> File:
        """Open the file with that start."""
        return self.disk.open(self.path(start), writable=writable)

    def close(self) -> None:
        """Unmap the mapped file."""
        if self._mapped is not None:
            self._mapped[1].close()
            self._mapped = None

    def first_record(self, start: int) -> FirstRecord | None:
        """Return the record at the file's start; None if there is no valid one."""
        view = self.view(start)
        checks = Checks(record_crc=False)  # RocketMQ copies that property like any other
        if record.validate(view, 0, at=start, checks=checks).kind is not Kind.VALID:
            return None
        found = record.decode(view)
        return FirstRecord(found.physical_offset, found.store_timestamp_ms)

    def misnamed(self) -> dict[int, int]:
        """Return renamed files: file start by name → start according to the file's records."""
        found: dict[int, int] = {}
        for start in self.starts:
            # Read, not mapped: with thousands of files each mapping would read ahead.
            with closing(self.open(start, writable=False)) as file:
                head = file.pread(PHYSICAL_OFFSET_AT + 8, 0)
            said = int.from_bytes(head[PHYSICAL_OFFSET_AT:], "big")
            if said == start or said % self.file_size or head[4:8] not in MAGICS:
                continue
            if self._is_renamed(start, said):
                found[start] = said
        return found

    def _is_renamed(self, start: int, said: int) -> bool:
        """Whether the file's records belong at ``said``. The second record is checked, too:
        after one flipped bit only the first would say so."""
        view, checks = self.view(start), Checks(record_crc=False)
        first = record.validate(view, 0, at=said, checks=checks)
        if first.kind is not Kind.VALID:
            return False
        at_name, at_said = (
            record.validate(view, first.size, at=base + first.size, checks=checks)
            for base in (start, said)
        )
        if Kind.VALID in (at_name.kind, at_said.kind):
            return at_said.kind is Kind.VALID
        return record.validate(view, 0, at=said, checks=Checks()).kind is Kind.VALID


class Break(Enum):
    """What follows the last record of the chain."""

    NO_FILE = "no-file"
    """The log's files end there."""
    MISSING_FILE = "missing-file"
    """A file is missing, and later files exist."""
    ZEROS = "zeros"
    """The first bytes are zeros, like space that was never written."""
    UNWRITTEN_SECTOR = "unwritten-sector"
    """A valid record with a sector that never reached the disk."""
    RECORD_CRC = "record-crc"
    """A record of which only the record CRC property is wrong: RocketMQ may have copied the
    property from another record."""
    NO_RECORD = "no-record"


def what_stands(view: memoryview, start: int, at: int) -> Break:
    """Classify the bytes at view[start] (physical offset ``at``), where no whole valid record
    begins."""
    if view[start : start + len(_NO_HEAD)] == _NO_HEAD:
        return Break.ZEROS
    checks = Checks(record_crc=False)
    is_valid = record.validate(view, start, at=at, checks=checks).kind is Kind.VALID
    return Break.RECORD_CRC if is_valid else Break.NO_RECORD


class WalkResult(NamedTuple):
    """The end of the record chain, and data collected on the way."""

    end: int
    """End of the last valid record; a file's start if the chain ends with a filler."""
    found: Break
    """What follows."""
    reason: str
    """Why no record starts there, for people; "" if the files end there."""
    next_queue_offsets: dict[tuple[str, int], QueueOffset]
    last_store_timestamp_ms: int
    records: int


def walk(
    files: LogFiles,
    start: int,
    *,
    unjudged: Sequence[Range] = (),
    unproven_from: int,
    progress: Progress,
) -> WalkResult:
    """Validate every record from start on, across files, up to the first invalid one.

    unjudged: ranges in which a record's CRC property is not checked. unproven_from: no mark proves
    that records from there on were written completely. A record there that contains a sector of
    zeros ends the walk, because valid records contain none.
    """
    offsets: dict[tuple[str, int], QueueOffset] = {}
    newest = records = 0
    total = max(0, files.end - start)
    reported = start
    progress(0, total)
    known = set(files.starts)
    at = start
    crossed = -1
    broken, reason = Break.NO_FILE, ""
    while at < files.end:
        file_start = files.start_of(at)
        if file_start not in known:
            broken = Break.MISSING_FILE
            reason = f"commit log file {files.path(file_start).name} is missing or empty"
            break
        view = files.view(file_start)[at - file_start :]
        judged = not any(low <= at < high for low, high in unjudged)
        border = min((side for span in unjudged for side in span if side > at), default=NEVER)
        limited = crossed < border < at + len(view)
        if limited:
            view = view[: border - at]
        crosses = crossed == border
        summed = None if crosses else _summed(view, at, judged, unproven_from)
        if summed is not None:
            for run in summed.plan.runs:
                key, behind = (run.topic, run.queue), run.offset_of(run.unit_count)
                if behind > offsets.get(key, 0):
                    offsets[key] = QueueOffset(behind)
            newest = max(newest, summed.plan.unit_timestamp_ms)
            records += summed.plan.records
            at += summed.size
            if at - reported >= PROGRESS_BYTES:
                progress(at - start, total)
                reported = at
            continue
        found = native.walk(
            view,
            at=PhysicalOffset(at),
            checks=Checks(record_crc=judged),
            records_max=1 if crosses else RECORDS_AT_ONCE,
            delay_levels_ms=(),
        )
        whole, torn_at = _whole(found.entries, view, at, unproven_from)
        for entry in whole:
            if entry.sys_flag & record.TRANSACTION_MASK in _UNQUEUED:
                continue
            key = entry.topic, entry.queue_id
            if entry.next_queue_offset > offsets.get(key, 0):
                offsets[key] = QueueOffset(entry.next_queue_offset)
        if whole:
            newest = max(newest, whole[-1].store_timestamp_ms)
            records += len(whole)
        if torn_at is not None:
            at = found.entries[len(whole)].physical_offset
            broken = Break.UNWRITTEN_SECTOR
            reason = f"the bytes from {torn_at} on were never written"
            break
        at += found.end
        if limited and found.stop is Stop.VIEW_END:
            crossed = border  # the record across the border is checked like those before it
        elif found.stop is Stop.BLANK:
            at = file_start + files.file_size
        elif found.stop is Stop.BAD or (found.stop is Stop.VIEW_END and found.end < len(view)):
            broken, reason = what_stands(view, found.end, at), found.reason
            break
        if at - reported >= PROGRESS_BYTES:
            progress(at - start, total)
            reported = at
    progress(total, total)
    return WalkResult(at, broken, reason, offsets, newest, records)


class _Summed(NamedTuple):
    """Some valid records, summarized by queue."""

    plan: Plan
    size: int
    """Bytes of log that the records occupy."""


def _summed(view: memoryview, at: int, judged: bool, unproven_from: int) -> _Summed | None:
    """Summarize the first records of view in one pass; None if they must be read one by one.

    One pass is sufficient if the records are proven complete, by their position or by their own
    record CRC, each of them has a unit, and its topic is valid as a directory name.
    """
    proven = unproven_from - at
    if proven <= 0 and not judged:
        return None
    try:
        planned = native.plan_range(
            view[: min(SUMMED_SIZE, proven) if proven > 0 else SUMMED_SIZE],
            at=PhysicalOffset(at),
            # After the marks only the record CRC proves a record; one without it ends this pass.
            checks=Checks(record_crc=judged, require_record_crc=proven <= 0),
            records_max=RECORDS_AT_ONCE,
            delay_levels_ms=(),
            index=False,
        )
    except CorruptRecord:
        return None  # dispatch will refuse a topic's name; the record itself may be valid
    plan = planned.plan
    return _Summed(plan, planned.end) if 0 < plan.records == plan.units else None


def _whole(
    entries: list[Entry], view: memoryview, at: int, unproven_from: int
) -> tuple[list[Entry], int | None]:
    """Return the entries before the first partially written one, and its first missing byte."""
    if not entries or entries[-1].physical_offset < unproven_from:
        return entries, None
    for number, entry in enumerate(entries):
        if entry.physical_offset >= unproven_from:
            torn_at = unwritten_at(view, entry.physical_offset - at, entry.physical_offset)
            if torn_at is not None:
                return entries[:number], torn_at
    return entries, None


# -- after the last record ----------------------------------------------------------------------


def last_nonzero(files: LogFiles, start: int) -> int | None:
    """Return the last non-zero byte at or after start, in any file; None if all are zero."""
    for file_start in reversed(files.starts):
        if file_start + files.file_size <= start:
            return None
        low = max(0, start - file_start)
        with closing(files.open(file_start, writable=False)) as file:
            found = last_nonzero_in(file, low)
        if found is not None:
            return file_start + found
    return None


def chunks(files: LogFiles, start: int, end: int) -> Iterator[bytes]:
    """Yield the log's bytes [start, end); zeros where a file is missing."""
    known = set(files.starts)
    at = start
    while at < end:
        file_start = files.start_of(at)
        stop = min(end, file_start + files.file_size)
        if file_start not in known:
            while at < stop:
                size = min(CHUNK_SIZE, stop - at)
                yield _ZEROS[:size]
                at += size
            continue
        with closing(files.open(file_start, writable=False)) as file:
            while at < stop:
                chunk = file.pread(min(CHUNK_SIZE, stop - at), at - file_start)
                if not chunk:
                    return
                yield chunk
                at += len(chunk)


def sound_records(files: LogFiles, start: int) -> Iterator[int]:
    """Yield the physical offset of every valid record at or after start, ascending. Every byte
    position is tried, because the starts of records after a break are unknown."""
    for file_start in files.starts:
        if file_start + files.file_size <= start:
            continue
        view = files.view(file_start)
        for at in _record_starts(view, max(0, start - file_start)):
            offset = file_start + at
            stored = view[at + PHYSICAL_OFFSET_AT : at + PHYSICAL_OFFSET_AT + 8]
            # Bodies may be full of magics, and a CRC for each takes too long.
            if int.from_bytes(stored, "big") != offset:
                continue
            if record.validate(view, at, at=offset, checks=Checks()).kind is Kind.VALID:
                yield offset


def _record_starts(view: memoryview, low: int) -> Iterator[int]:
    """Yield every position at or after low that has a record's magic at the right distance."""
    base = low
    while base < len(view):
        chunk = bytes(view[base : base + CHUNK_SIZE + len(MAGICS[0]) - 1])
        if chunk.count(0) != len(chunk):
            for match in _MAGIC.finditer(chunk):
                if match.start() < CHUNK_SIZE and base + match.start() - _MAGIC_AT >= low:
                    yield base + match.start() - _MAGIC_AT
        base += CHUNK_SIZE


def state_flushed_after(files: LogFiles, start: int, *, enough: int) -> int:
    """Return the largest flushed offset in a valid state record after start; 0 if there is none.
    The search ends at the first record with more than ``enough``."""
    largest = 0
    for offset in sound_records(files, start):
        file_start = files.start_of(offset)
        found = record.decode(files.view(file_start), offset - file_start)
        if found.topic == STATE_TOPIC:
            largest = max(largest, _flushed_in(found.body, offset))
            if largest > enough:
                return largest
    return largest


def _flushed_in(body: memoryview, physical_offset: int) -> int:
    """Return the flushed offset in a state record's body; 0 if it has none."""
    try:
        fields = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException):
        return 0
    flushed = fields.get("flushed") if isinstance(fields, dict) else None
    # A record is encoded before anything after it is flushed. A larger value is therefore forged,
    # for example inside a message's body, and would make a torn tail count as corruption.
    return flushed if type(flushed) is int and 0 < flushed <= physical_offset else 0
