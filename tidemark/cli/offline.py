"""Reads a store's files without a broker, for ``tidemark store``. Read-only.

It works on any store, including one written by RocketMQ or in use by a running node: sizes come
from tidemark.json or from the files themselves, and nothing is locked, created or repaired. The end
of the log is determined by the rules of recovery (docs/formats.md, section 8), for the whole log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from shared.files.consume_queue import EVERYTHING, ConsumeQueueReader
from shared.files.disk import Disk, read_whole
from shared.files.foreign_ranges import recorded_ranges
from shared.files.log_start import read_log_start
from shared.files.log_walk import (
    Break,
    LogFiles,
    Range,
    last_nonzero,
    state_flushed_after,
    what_stands,
)
from shared.files.os_disk import OsDisk
from shared.files.queue_files import COPIED_MAX, QueueFiles
from shared.files.store_config import StoreConfig, config_of
from shared.files.store_dir import StoreDir
from shared.files.unit_witness import proven_end
from shared.files.valid_end import (
    AfterEnd,
    Decision,
    Evidence,
    Marks,
    Origin,
    Verdict,
    Witness,
    decide,
    start_of_walk,
)
from shared.runtime.clock import SystemClock, boot_id
from shared.state import records
from shared.state.json_cache import JsonCache
from shared.state.records import STATE_TOPIC, StateRecordUnreadable
from shared.state.state import BrokerState
from tidemark.errors import DamagedFile, StoreMissing
from tidemark.formats import native, record
from tidemark.formats.checkpoint import (
    REGION_MAGIC,
    SIZE,
    SLOT_SIZE,
    Slot,
    check_slot,
    damaged_slots,
    decode_head,
    min_timestamp,
    proven,
)
from tidemark.formats.queue_unit import EXTENSION_ADDRESS_MAX, UNIT, Unit, batch_range
from tidemark.formats.record import Checks
from tidemark.formats.scan import Entry, Stop
from tidemark.offsets import UNIT_SIZE, PhysicalOffset

RECORDS_AT_ONCE = 2048
UNITS_AT_ONCE = 4096
HEARTBEAT_AGE_MAX_MS = 5_000
UNQUEUED = (record.TRANSACTION_PREPARED, record.TRANSACTION_ROLLBACK)
"""Transaction types of records for which dispatch creates no queue unit."""


class Window(NamedTuple):
    """Consecutive valid records of one file."""

    view: memoryview
    """The file's bytes; valid until the next window is requested."""
    file_start: int
    entries: list[Entry]

    def at(self, entry: Entry) -> int:
        """Return the position in ``view`` at which the entry's record starts."""
        return entry.physical_offset - self.file_start


class LogEnd(NamedTuple):
    """Where the chain of records ends, and the verdict about that end."""

    end: int
    decision: Decision
    reason: str
    """Why no record starts there; "" at the end of the files."""
    last_byte: int | None
    """Offset of the last non-zero byte after the end; None if there is none."""


class OfflineStore:
    """A store directory opened for reading. Raises StoreMissing, StrayFile, WrongFileSize."""

    def __init__(self, root: Path, config: StoreConfig | None = None) -> None:
        self.disk: Disk = OsDisk()
        if self.disk.stat(root / "commitlog") is None:
            raise StoreMissing(
                f"{root} contains no store: it has no commitlog/. Nothing was created.",
                "Give the directory that contains commitlog/.",
                path=root,
            )
        self.config = config_of(self.disk, root, config or StoreConfig())
        self.store = StoreDir(self.disk, root, self.config)
        self.files = LogFiles(
            self.disk, self.store.commit_log_dir, self.config.commit_log_file_size
        )
        self._page = read_whole(self.disk, self.store.checkpoint_path) or b""
        self.is_foreign = self.disk.stat(self.store.description_path) is None
        self._foreign_ranges: list[Range] | None = None
        self._next_offsets: dict[tuple[str, int], int] = {}
        """Queue offset after the last record of each queue that ``windows`` has yielded."""

    def __enter__(self) -> OfflineStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.files.close()

    @property
    def min_offset(self) -> PhysicalOffset:
        """Start of the oldest file."""
        return PhysicalOffset(self.files.starts[0] if self.files.starts else 0)

    def slot(self, slot: Slot) -> int:
        """Return a published position; 0 if the checkpoint has none of Tidemark's."""
        return proven(slot, self._slot_at) if self._is_tidemark_page else 0

    @property
    def _is_tidemark_page(self) -> bool:
        return len(self._page) == SIZE and self._slot_at(Slot.MAGIC_AND_FORMAT) == REGION_MAGIC

    def _slot_at(self, number: int) -> int:
        return int.from_bytes(self._page[number * SLOT_SIZE :][:SLOT_SIZE], "little")

    def damaged_slots(self) -> list[Slot]:
        """Return the positions whose value differs from the published one."""
        return damaged_slots(self._slot_at) if self._is_tidemark_page else []

    def missing_start(self) -> int | None:
        """Return where the log should start if its first file starts later, or all files are
        missing; else None."""
        recorded = self._recorded_start()
        if self.is_foreign or self.rocketmq_wrote:
            return None
        if not self.files.starts:
            return (recorded or 0) if self.start_after_all() else None
        return None if recorded is None or recorded >= self.min_offset else recorded

    def start_after_all(self) -> int:
        """Return the first start of a file at which no record has been: an empty log can start
        there if all files are missing. 0: the store is new."""
        ends = (Slot.FLUSHED, Slot.WRITTEN, Slot.CONFIRM)
        known = max(self._recorded_start() or 0, self._queue_end(), *map(self.slot, ends))
        return -(-known // self.files.file_size) * self.files.file_size

    def _recorded_start(self) -> int | None:
        """Return the start of the log at the last removal of its oldest file; None if unknown."""
        recorded = read_log_start(self.disk, self.store.log_start_path)
        if self._is_tidemark_page and self._slot_at(check_slot(Slot.MIN)):
            recorded = max(recorded or 0, self.slot(Slot.MIN))
        return recorded

    @property
    def rocketmq_wrote(self) -> bool:
        """Whether RocketMQ created this store, or has used it since Tidemark wrote it last."""
        if self.is_foreign:
            return True
        try:
            return JsonCache(self.disk, self.store.config_dir).is_foreign
        except DamagedFile:
            return False  # no evidence; verify reports the damaged file separately

    def has_extension(self, unit: Unit, expected: Unit) -> bool:
        """Whether RocketMQ stores the tags code of a record's unit in consumequeue_ext.

        Dispatch recreates such units from their records, so no record below its offset has one.
        """
        return (
            unit.tags_code <= EXTENSION_ADDRESS_MAX
            and unit[:2] == expected[:2]
            and expected.end > self.slot(Slot.DISPATCHED_DURABLE)
            and self.disk.stat(self.store.extensions_dir) is not None
        )

    @property
    def in_use(self) -> bool:
        """Whether a broker was serving this store a moment ago."""
        beat_ms = self.slot(Slot.BROKER_HEARTBEAT_MS)
        return beat_ms > 0 and SystemClock().boot_ms() - beat_ms < HEARTBEAT_AGE_MAX_MS

    @property
    def written_same_boot(self) -> int:
        """The published written offset if it was published in this boot; else 0."""
        try:
            boot = boot_id()
        except (OSError, ValueError):
            return 0
        if (self.slot(Slot.BOOT_ID_HIGH), self.slot(Slot.BOOT_ID_LOW)) != boot:
            return 0
        return self.slot(Slot.WRITTEN)

    def windows(
        self, start: int | None = None, progress: Callable[[int], None] | None = None
    ) -> Iterator[Window | LogEnd]:
        """Yield every valid record from start on, in physical order, and finally the log's end.

        start: first byte of a record; None for the oldest. progress: called with the bytes done. In
        a store that is in use the records end at the current written offset, because the record
        after it may be only half written.
        """
        limit = self.written_same_boot if self.in_use else 0
        files = self.files
        known = set(files.starts)
        at = self.min_offset if start is None else start
        judged = not self.is_foreign
        crossing = False
        reason = ""
        while at < (limit or files.end):
            file_start = files.start_of(at)
            if file_start not in known:
                reason = f"commit log file {files.path(file_start).name} is missing or empty"
                break
            view = files.view(file_start)
            rest = view[at - file_start : limit - file_start if limit else None]
            found = native.walk(
                rest,
                at=PhysicalOffset(at),
                checks=Checks(record_crc=judged and not crossing),
                records_max=1 if crossing else RECORDS_AT_ONCE,
                delay_levels_ms=self.config.delay_levels_ms,
            )
            for entry in found.entries:
                self._next_offsets[entry.topic, entry.queue_id] = entry.next_queue_offset
            if found.entries:
                yield Window(view, file_start, found.entries)
            at += found.end
            if progress is not None:
                progress(at)
            crossing = (
                judged
                and found.stop is Stop.BAD
                and what_stands(rest, found.end, at) is Break.RECORD_CRC
                and self._is_rocketmqs(at)
            )
            if crossing:
                continue  # only this record is not checked for the CRC property
            if found.stop is Stop.BLANK:
                at = file_start + files.file_size
            elif found.stop is Stop.BAD or (found.stop is Stop.VIEW_END and found.end < len(rest)):
                reason = found.reason
                break
        if limit and at >= limit:
            yield LogEnd(at, Decision(Verdict.CLEAN, ""), "", None)
        else:
            yield self._judge(at, reason)

    def _is_rocketmqs(self, at: int) -> bool:
        """Whether RocketMQ wrote the record at ``at`` into a store of Tidemark."""
        if self.slot(Slot.FOREIGN_FROM) <= at < self.slot(Slot.FOREIGN_UNTIL):
            return True
        if self._foreign_ranges is None:
            # The checkpoint may have been lost.
            self._foreign_ranges = recorded_ranges(self.files, at)
        return any(low <= at < high for low, high in self._foreign_ranges)

    def _judge(self, at: int, reason: str) -> LogEnd:
        """Decide what it means that no valid record starts at ``at``."""
        last_byte = last_nonzero(self.files, at)
        marks = Marks(
            flushed=self.slot(Slot.FLUSHED),
            written_same_boot=self.written_same_boot,
            queue_end=self._proven_queue_end(at) if self._queues_bind else 0,
            state_flushed=self._state_flushed_after(at) if last_byte is not None else 0,
            confirm=self.slot(Slot.CONFIRM) if self._is_replica else 0,
        )
        after_end = AfterEnd.NOTHING if last_byte is None else AfterEnd.BYTES
        unmarked = Witness.CLEAN_STOP if self._was_closed_after(at) else Witness.NONE
        decision = decide(at, marks, after_end, unmarked)
        if self.is_foreign and at < (proven := self._proven_by_rocketmq()):
            text = f"RocketMQ's checkpoint and queues prove that the log was kept up to {proven}"
            decision = Decision(Verdict.CORRUPTION, text)
        return LogEnd(at, decision, reason, last_byte)

    @property
    def _is_replica(self) -> bool:
        return self.config.visible_after == "confirmed"

    def _state_flushed_after(self, at: int) -> int:
        """Return the flushed offset from state records after ``at``; 0 in a group, where those
        records refer to the disk of the master that wrote them."""
        return 0 if self._is_replica else state_flushed_after(self.files, at, enough=at)

    def _proven_by_rocketmq(self) -> int:
        """Return where RocketMQ's own recovery would start: it trusts earlier data (8.2, 8.3)."""
        if not self.files.starts:
            return 0
        head = decode_head(self._page.ljust(SIZE, b"\0"))
        clean = self.store.was_clean
        evidence = Evidence(
            origin=Origin.FOREIGN_CLEAN if clean else Origin.FOREIGN_UNCLEAN,
            log_min=self.min_offset,
            flushed=0,
            dispatched_durable=None,
            queues_end=self._queue_end() or -1,
            min_timestamp_ms=min_timestamp(head),
        )
        return start_of_walk(evidence, self.files.starts, self.files.first_record)

    @property
    def _queues_bind(self) -> bool:
        """Whether a queue unit proves that its record was on disk.

        RocketMQ dispatches records that are not flushed, so after an unclean stop its units prove
        nothing. Tidemark dispatches flushed records only, unless configured otherwise.
        """
        if self.is_foreign:
            return self.store.was_clean
        return self.config.visible_after != "written"

    def _was_closed_after(self, at: int) -> bool:
        """Whether Tidemark closed the store cleanly with more in the log than up to ``at``."""
        return (
            self.store.was_clean
            and not self.is_foreign
            and not at == self.slot(Slot.FLUSHED) == self.slot(Slot.WRITTEN)
            and not self.rocketmq_wrote
        )

    def _proven_queue_end(self, at: int) -> int:
        """Return the farthest record end that units prove, for a log that ends at ``at``."""
        farthest = self._queue_end()
        if self.is_foreign or farthest <= at:
            return farthest
        queues = [
            ((topic, queue), partial(self._files, topic, queue)) for topic, queue in self.queues()
        ]
        return proven_end(self.files, at, queues, self._next_offsets)

    def _files(self, topic: str, queue: int) -> QueueFiles:
        directory = self.store.queue_directory(topic, queue)
        return QueueFiles(self.disk, directory, copied_max=COPIED_MAX)

    def _queue_end(self) -> int:
        """Return the farthest record end to which a queue unit points."""
        return max((self._last_end(topic, queue) for topic, queue in self.queues()), default=0)

    def _last_end(self, topic: str, queue: int) -> int:
        with closing(self.reader(topic, queue)) as reader:
            return reader.last_record_end(EVERYTHING) or 0

    def queues(self) -> list[tuple[str, int]]:
        """Every (topic, queue) that has a directory, sorted."""
        return self.store.queues()

    def reader(self, topic: str, queue: int) -> ConsumeQueueReader:
        """Open a reader of one queue's files. The caller closes it."""
        return ConsumeQueueReader(self.store, topic, queue, _NoTimes(self.min_offset))


class _NoTimes(NamedTuple):
    """The part of the log that a queue reader needs if no times are requested."""

    min_offset: PhysicalOffset

    def store_timestamp(self, offset: PhysicalOffset, size: int, end: PhysicalOffset) -> int | None:
        return None


def units_of(
    reader: ConsumeQueueReader, first: int, end: int, log_end: int
) -> Iterator[tuple[int, Unit]]:
    """Yield the units from first to end with the queue offsets of their first messages, without
    those whose file is missing."""
    at, unit_size = first, reader.unit_size
    while at < end:
        view = reader.view(at, UNITS_AT_ONCE, log_end)
        if not view:
            if unit_size != UNIT_SIZE:
                return  # the reader has passed missing files already
            at = reader.roll_next(at)
            continue
        for start in range(0, len(view) // unit_size * unit_size, unit_size):
            number, after = at, at + 1
            if unit_size != UNIT_SIZE:
                number, after = batch_range(view, start)
            yield number, Unit._make(UNIT.unpack_from(view, start))
            at = after


def described(end: LogEnd) -> str | None:
    """Describe the end of the log for a person; None if it is clean."""
    match end.decision.verdict:
        case Verdict.CLEAN:
            return None
        case Verdict.TORN_TAIL:
            assert end.last_byte is not None
            return (
                f"the log ends at physical offset {end.end} with a torn tail: {end.reason}; "
                f"bytes up to {end.last_byte} were never acknowledged "
                f"({end.decision.reason}). The next start keeps them in cut/ and continues from "
                f"{end.end}."
            )
        case Verdict.CORRUPTION:
            return f"{end.reason}; {end.decision.reason}"


def apply_state(state: BrokerState, window: Window, entry: Entry) -> None:
    """Apply a record of the log to state if it is a readable state record."""
    if entry.topic == STATE_TOPIC:
        with suppress(StateRecordUnreadable):
            body = bytes(record.decode(window.view, window.at(entry)).body)
            state.apply(records.decode(body), entry.physical_offset)
