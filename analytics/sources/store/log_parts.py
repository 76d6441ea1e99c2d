"""Records of the commit log: which task reads which bytes, and how (docs/formats.md, section 2).

A part is a range of one file; a record belongs to the part with its first byte. Records are
followed by their sizes. Where that fails, the part ends with a gap that names the physical offset;
the records before it remain. The end filler is not a gap. No byte at or after the confirm offset is
read. An inner batch is one row per message. Memory: one window, and twice the columns of a batch.

Step before: ``files``. Step after: the columns of ``record_columns``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from analytics.schema import Gap
from analytics.sources.gap_rows import Hole, SourceGap, hole_batch
from analytics.sources.record_columns import RecordColumns, repeated
from analytics.sources.store.cuts import RECORD_SIZE_MAX, Cuts
from analytics.sources.store.files import StoreFiles
from analytics.sources.store.options import StoreOptions
from shared.files.last_nonzero import last_nonzero_in
from shared.files.os_disk import OsDisk, OsFile
from tidemark.errors import ReadFailed
from tidemark.formats import native
from tidemark.formats.record import BLANK_SIZE, Checks, peek_size
from tidemark.formats.scan import Stop

I32_MAX: Final = (1 << 31) - 1
MAPPED_SIZE: Final = 8 << 20
"""Bytes of the log mapped at a time. With 2 MiB a record takes a quarter longer: a window costs as
much as a thousand records."""
BATCH_ROWS: Final = 16_384
BATCH_SIZE: Final = 8 << 20
"""Rows, or bytes of columns, in a batch. A batch costs Spark as much as hundreds of rows, and a
window of large records has only few."""


class LogPart(NamedTuple):
    """Work of one task: records whose first byte is in [start, end) of one file."""

    path: str
    broker: str
    file_start: int
    start: int
    """First byte of a record."""
    end: int
    limit: int
    """No byte from here on is read."""
    proven: int
    """Up to here there must be records: zeros before it are damage, after it the end of the log."""
    closed: bool
    """Another part begins at ``end``, so a record beyond it is an error."""
    foreign: tuple[int, int]
    """Records that begin here have no record CRC to compare."""
    lost: str = ""
    """Why there is nothing to read, if planning found that."""

    @property
    def file(self) -> str:
        """Name of the file."""
        return Path(self.path).name


def plan(files: StoreFiles, options: StoreOptions) -> list[LogPart]:
    """The parts of a read, in physical order: at least one per file."""
    broker = files.broker if options.broker is None else options.broker
    first, last = options.from_offset, min(options.to_offset, files.end)
    published = files.published
    foreign = (0, 1 << 63) if files.is_foreign or published is None else published.foreign
    starts = list(files.log_sizes) or [max(0, files.end - 1) // files.file_size * files.file_size]
    count = max(1, sum(start + files.file_size > first and start < last for start in starts))
    pieces = max(1, -(-options.split_min // count))
    cuts = Cuts(files)
    parts: list[LogPart] = []
    for start in _gapless(starts, files.file_size, last):
        low, high = max(first, start), min(last, start + files.file_size)
        if low >= high:
            continue

        def part(at: int, end: int, *, closed: bool, lost: str = "", start: int = start) -> LogPart:
            return LogPart(
                path=str(files.log_path(start)),
                broker=broker,
                file_start=start,
                start=at,
                end=end,
                limit=min(files.end, start + files.file_size),
                proven=files.proven,
                closed=closed,
                foreign=foreign,
                lost=lost,
            )

        if start not in files.log_sizes:
            parts.append(part(low, high, closed=False, lost="the file is missing"))
            continue
        begin = cuts.at_or_after(low, files.end)
        if begin is None:
            why = "no start of a record is found at or after it: what lies before is damaged"
            parts.append(part(low, high, closed=False, lost=why))
            continue
        bounds = [begin, *_between(cuts, begin, high, options.split_bytes, pieces), high]
        for at, end in itertools.pairwise(bounds):
            if at < end:
                parts.append(part(at, end, closed=end != high))
    return parts


def _gapless(starts: list[int], file_size: int, last: int) -> Iterator[int]:
    """Starts of the expected files; a missing one between two is a gap."""
    yield from range(starts[0], max(starts[-1] + 1, last), file_size)


def _between(cuts: Cuts, low: int, high: int, split_bytes: int, pieces: int) -> list[int]:
    """Starts of records that cut [low, high) into about equal pieces, ascending."""
    count = max(pieces, -(-(high - low) // split_bytes))
    found: list[int] = []
    for number in range(1, count):
        wanted = low + (high - low) * number // count
        at = cuts.at_or_after(max(wanted, low + 1), high, found[-1] if found else low)
        if at is not None and low < at < high and (not found or at > found[-1]):
            found.append(at)
    return found


def read(part: LogPart, options: StoreOptions) -> Iterator[pa.RecordBatch]:
    """Yield the part's records. Raises SourceGap for a gap if the column ``gap`` is not
    requested."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    try:
        for each in _batches(part, options):
            gathered.append(each)
            rows, size = rows + len(each), size + each.nbytes
            if rows >= BATCH_ROWS or size >= BATCH_SIZE:
                whole = pa.concat_batches(gathered)
                gathered, rows, size = [], 0, 0
                yield whole
    except SourceGap:
        if gathered:
            yield pa.concat_batches(gathered)
        raise
    if gathered:
        yield pa.concat_batches(gathered)


def _batches(part: LogPart, options: StoreOptions) -> Iterator[pa.RecordBatch]:
    """Yield one batch per window, and per gap."""
    schema = options.schema
    for found in walk(part, options):
        if isinstance(found, Hole):
            yield hole_batch(found, schema)
            continue
        arrays = [
            repeated({"broker": part.broker, "file": part.file}[name], len(found))
            if name in ("broker", "file")
            else pa.nulls(len(found), pa.string())
            if name in ("gap", "gap_detail")
            else found.column(name)
            for name in schema.names
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def walk(part: LogPart, options: StoreOptions) -> Iterator[RecordColumns | Hole]:
    """Yield the columns of the part's messages, made on access, and the gaps."""
    if part.lost:
        yield _hole(part, part.start, Gap.VANISHED, part.lost)
        return
    try:
        file = OsDisk().open(Path(part.path), writable=False)
    except FileNotFoundError:
        yield _hole(part, part.start, Gap.VANISHED, "the file is gone since the read was planned")
        return
    try:
        yield from _walk_file(file, part, options)
    finally:
        file.close()


def _walk_file(
    file: OsFile, part: LogPart, options: StoreOptions
) -> Iterator[RecordColumns | Hole]:
    schema, at, window = options.schema, part.start, MAPPED_SIZE
    room = min(part.limit, part.file_start + file.size)
    while at < part.end:
        try:
            raw = file.borrow(max(0, min(window, room - at)), at - part.file_start)
        except (OSError, ReadFailed) as error:
            yield _hole(part, at, Gap.DAMAGED, f"reading failed: {error}")
            return
        until, checks = _judged(part, at, options)
        found = native.outline_records(
            raw,
            at=at,
            until=until - at,
            records_max=len(raw),
            verify=checks,
            topics=options.topics,
        )
        if found.rows:
            columns = RecordColumns(raw, found)
            torn = columns.never_written()
            if torn.any():
                yield from _holes(part, at, columns.only(torn), Gap.TORN, "its end is zeros")
                columns = columns.only(~torn)
            messages, broken = columns.unpacked()
            if broken.any():
                why = "its body does not hold the messages of the batch"
                yield from _holes(part, at, columns.only(broken), Gap.DAMAGED, why)
                columns = columns.only(~broken)
            yield messages
            if "gap" in schema.names or "crc_ok" not in schema.names:
                yield from _unsound(part, at, columns)
        at += found.end
        match found.stop:
            case Stop.LIMIT:
                window = MAPPED_SIZE
            case Stop.BLANK:
                return
            case Stop.VIEW_END if found.end and at < room:
                window = MAPPED_SIZE
            case Stop.VIEW_END if (
                0 < len(raw) < (size := peek_size(raw, 0)) <= min(RECORD_SIZE_MAX, room - at)
            ):
                window = size
            case _:
                reason = found.reason or "the file ends"
                hole = _end(file, part, at, reason, cut=found.stop is Stop.VIEW_END)
                if hole is not None:
                    yield hole
                return
    if part.closed and at != part.end:
        yield _hole(part, at, Gap.DAMAGED, f"a record runs past {part.end}, where another begins")


def _judged(part: LogPart, at: int, options: StoreOptions) -> tuple[int, Checks | None]:
    """Return the end of the records with the same kinds of CRC as the one at ``at``, and the
    kinds."""
    if not options.verify:
        return part.end, None
    low, high = part.foreign
    if low <= at < high:
        return min(part.end, high), Checks(record_crc=False, position=False)
    return (min(part.end, low) if at < low else part.end), Checks(position=False)


def _unsound(part: LogPart, base: int, columns: RecordColumns) -> Iterator[Hole]:
    """Yield a gap for each record with a wrong CRC; its rows are kept, but are not reliable."""
    bad = columns.only(columns.rows["sound"] == 0)
    return _holes(part, base, bad, Gap.DAMAGED, "body or record CRC does not fit")


def _holes(
    part: LogPart, base: int, columns: RecordColumns, reason: Gap, why: str
) -> Iterator[Hole]:
    """Yield a gap for each record in ``columns``. base: physical offset of the view that contains
    the records."""
    rows = columns.rows
    for start, size in zip(rows["start"].tolist(), rows["size"].tolist(), strict=True):
        yield _hole(part, base + start, reason, why, size=size)


def _end(file: OsFile, part: LogPart, at: int, reason: str, *, cut: bool) -> Hole | None:
    """Return the gap at ``at``, where no whole record begins; None: the records end there.
    cut: whether the first bytes of a record are there."""
    left = part.file_start + _whole_size(part, file) - at
    if at >= part.limit or left < BLANK_SIZE:
        return None  # all readable bytes are read, or no filler fits after the last record
    if at < part.proven:
        return _hole(part, at, Gap.TORN if cut else Gap.DAMAGED, reason)
    last = last_nonzero_in(file, at - part.file_start)
    if last is None:
        return None  # never written
    behind = f"{reason}; bytes up to {part.file_start + last} are not zero"
    return _hole(part, at, Gap.TORN, behind)


def _whole_size(part: LogPart, file: OsFile) -> int:
    """Expected length of the file."""
    return max(file.size, part.limit - part.file_start)


def _hole(part: LogPart, at: int, reason: Gap, why: str, *, size: int | None = None) -> Hole:
    lost = part.end - at if size is None else size
    return Hole(
        reason,
        f"{part.path}, physical offset {at}: {why}",
        {
            "broker": part.broker,
            "file": part.file,
            "physical_offset": at,
            "size": min(max(0, lost), I32_MAX),
        },
    )
