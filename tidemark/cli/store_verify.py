"""``tidemark store verify``: checks all files of a store against each other. Read-only.

It makes one pass over the log in physical order. Every record is validated, and its unit in the
consume queue and its entries in the index are compared with it; units and entries that are left
over have no record. *Damage* is what no start repairs or what should be impossible. A *remark* is
what the next start repairs, such as a torn tail.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple

from shared.files.consume_queue import EVERYTHING, ConsumeQueueReader
from shared.files.store_config import described_delay_levels, parse_delay_levels
from shared.files.valid_end import Verdict
from shared.state.state import BrokerState
from tidemark.cli.damage import DamagedRange, walk
from tidemark.cli.index_check import IndexCheck
from tidemark.cli.offline import UNQUEUED, LogEnd, OfflineStore, apply_state, described, units_of
from tidemark.formats import json_dialect, record
from tidemark.formats.checkpoint import SIZE, SLOT_SIZE, Slot
from tidemark.formats.filenames import offset_name
from tidemark.formats.hashing import SCHEDULE_TOPIC
from tidemark.formats.inner_batch import INNER_BATCH
from tidemark.formats.plan import unit_of
from tidemark.formats.queue_unit import Unit, is_pre_blank
from tidemark.formats.scan import Entry
from tidemark.offsets import BATCH_UNIT_SIZE, Queue

READERS_MAX: Final = 256
DAMAGES_MAX: Final = 1000
"""Maximum number of listed damages; others are only counted. A file of zeros has a million."""


class Damage(NamedTuple):
    """One damaged place."""

    where: str
    """Path below the store."""
    byte: int | None
    """Offset in the file; None if the file as a whole is damaged."""
    problem: str


@dataclass(slots=True)
class Checked:
    """What a verification read."""

    log_min_offset: int = 0
    log_end: int = 0
    records: int = 0
    record_bytes: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_entries: int = 0
    not_dispatched: int = 0
    """Number of records whose unit is not created yet."""


@dataclass(slots=True)
class Report:
    """The result of a verification."""

    checked: Checked
    damages: list[Damage] = field(default_factory=list)
    damages_not_named: int = 0
    remarks: list[str] = field(default_factory=list)

    def damage(self, where: str, byte: int | None, problem: str) -> None:
        """Add a damage; beyond the maximum it is only counted."""
        if len(self.damages) < DAMAGES_MAX:
            self.damages.append(Damage(where, byte, problem))
        else:
            self.damages_not_named += 1

    @property
    def damage_count(self) -> int:
        """Number of all damages, listed or not."""
        return len(self.damages) + self.damages_not_named


def verify(
    offline: OfflineStore,
    *,
    index_slots: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Check the whole store. index_slots: slots per index file if the store does not record it."""
    checked = Checked(log_min_offset=offline.min_offset)
    report = Report(checked)
    # Read before the log, so that records dispatched meanwhile do not count as missing.
    _check_start(offline, report)
    queues = _QueueCheck(offline, report)
    index = IndexCheck(offline, report.damage, report.remarks.append, slots=index_slots)
    for found in walk(offline, progress):
        match found:
            case DamagedRange():
                where = f"physical offsets {found.start} to {found.end}"
                problem = f"no record can be read in {where}: {found.reason}"
                _log_damage(offline, report, found.start, problem)
                queues.lost_records = index.lost_records = True
            case LogEnd():
                _note_end(offline, report, found)
            case _:
                for entry in found.entries:
                    checked.records += 1
                    checked.record_bytes += entry.size
                    apply_state(queues.state, found, entry)
                    queues.record(entry)
                    index.record(entry)
    queues.finish(checked.log_end)
    index.finish(checked.log_end)
    checked.index_files, checked.index_entries = index.files, index.entries
    _check_small_files(offline, report)
    if checked.not_dispatched:
        report.remarks.append(
            f"{checked.not_dispatched} records are not dispatched yet; reput does that at its "
            "next start"
        )
    return report


def _log_damage(offline: OfflineStore, report: Report, at: int, problem: str) -> None:
    """Add a damage of the commit log at a physical offset."""
    start = offline.files.start_of(at)
    report.damage(f"commitlog/{offset_name(start)}", at - start, problem)


def _check_start(offline: OfflineStore, report: Report) -> None:
    missing = offline.missing_start()
    if missing is not None:
        found = f"now starts at {offline.min_offset}" if offline.files.starts else "has no file"
        report.damage(
            f"commitlog/{offset_name(missing)}",
            None,
            f"the log started at {missing} and {found}: files are missing",
        )


def _note_end(offline: OfflineStore, report: Report, found: LogEnd) -> None:
    report.checked.log_end = found.end
    if found.decision.verdict is Verdict.CORRUPTION:
        _log_damage(
            offline,
            report,
            found.end,
            f"the log ends at physical offset {found.end}: {found.reason or 'no file follows'}; "
            f"{found.decision.reason}",
        )
    elif (text := described(found)) is not None:
        report.remarks.append(text)


def report_facts(report: Report) -> dict[str, object]:
    """Return a report for output as JSON."""
    return {
        **asdict(report.checked),
        "damage_count": report.damage_count,
        "damages": [damage._asdict() for damage in report.damages],
        "remarks": report.remarks,
    }


class _Missing:
    """Records of a queue without a unit: their number and the last of them."""

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[tuple[int, int]] = deque(maxlen=DAMAGES_MAX)
        """Pairs of (queue offset, physical offset)."""

    def add(self, entry: Entry) -> None:
        """Add a record."""
        self.count += 1
        self.last.append((entry.queue_offset, entry.physical_offset))


class _QueueCheck:
    """Compares units with records. It reads each queue's files along with their records."""

    def __init__(self, offline: OfflineStore, report: Report) -> None:
        self._offline = offline
        self._report = report
        self._readers: OrderedDict[Queue, ConsumeQueueReader] = OrderedDict()
        self._next: dict[Queue, int] = {}
        """Expected queue offset of the next record of a queue."""
        self._matched: dict[Queue, int] = {}
        self._levels = [
            parse_delay_levels(text)
            for text in described_delay_levels(offline.disk, offline.store.description_path)
        ]
        self._due_unknown = 0
        """Units of delayed messages whose due time cannot be checked."""
        self.state = BrokerState()
        """State after the state records read so far."""
        self._missing: dict[Queue, _Missing] = {}
        """Records without a unit: damage unless a later record shows that the topic was deleted."""
        self._named: set[tuple[Queue, int]] = set()
        """Units whose damage was already reported together with their record."""
        self.lost_records = False
        """Whether some records could not be read; then gaps in queue offsets are not reported."""
        clean_foreign = offline.is_foreign and offline.store.was_clean
        self._complete_until = (
            EVERYTHING if clean_foreign else offline.slot(Slot.DISPATCHED_DURABLE)
        )

    def record(self, entry: Entry) -> None:
        """Compare a record with its unit."""
        if entry.sys_flag & record.TRANSACTION_MASK in UNQUEUED:
            return
        key = entry.topic, entry.queue_id
        reader = self._reader(key)
        if bool(entry.sys_flag & INNER_BATCH) != (entry.batch_size > 0) or (
            not entry.batch_size and reader.unit_size == BATCH_UNIT_SIZE
        ):
            # An inner batch without its numbers and a single message in a batch queue, both by
            # RocketMQ, have no unit; the queue offset of the next record is not known.
            self._next.pop(key, None)
            return
        self._check_order(key, entry)
        unit = reader.unit(entry.queue_offset)
        expected = Unit(entry.physical_offset, entry.size, entry.tags_code)
        if unit is not None and (
            reader.stored_unit(entry.queue_offset) == unit_of(entry)
            or self._offline.has_extension(unit, expected)
            or self._is_due_by_other_levels(entry, unit, expected)
        ):
            self._matched[key] = self._matched.get(key, 0) + 1
            self._report.checked.units += 1
        elif (
            unit is not None
            and unit.size > 0
            and not is_pre_blank(unit)
            and self._was_dispatched(entry)
        ):
            problem = f"the unit is {_shown(unit)}, the record {_shown(expected)}"
            if unit == expected:
                problem = "the unit has another store time, queue offset or size than the batch"
            self._damage(key, entry.queue_offset, problem)
        elif self._was_dispatched(entry):
            missing = self._missing.get(key)
            if missing is None:
                missing = self._missing[key] = _Missing()
            missing.add(entry)
        else:
            self._report.checked.not_dispatched += 1

    def _is_due_by_other_levels(self, entry: Entry, unit: Unit, expected: Unit) -> bool:
        """Whether the unit of a delayed message differs only in its due time, and legitimately.

        The due time is the store time plus the delay of the level when the unit was created. If
        tidemark.json records no levels, the old levels are not known.
        """
        level = entry.queue_id
        current = self._offline.config.delay_levels_ms
        if (
            entry.topic != SCHEDULE_TOPIC
            or unit._replace(tags_code=expected.tags_code) != expected
            or not 0 <= level < len(current)
        ):
            return False
        if not self._levels:
            self._due_unknown += 1
            return True
        stored_ms = expected.tags_code - current[level]
        delays = (levels[level] for levels in self._levels if level < len(levels))
        return unit.tags_code - stored_ms in delays

    def _was_dispatched(self, entry: Entry) -> bool:
        return entry.physical_offset + entry.size <= self._complete_until

    def _check_order(self, key: Queue, entry: Entry) -> None:
        expected = self._next.get(key)
        if expected is not None and entry.queue_offset != expected and not self.lost_records:
            _log_damage(
                self._offline,
                self._report,
                entry.physical_offset,
                f"the record has queue offset {entry.queue_offset} of topic {key[0]} queue "
                f"{key[1]}; the one before it had {expected - 1}",
            )
        self._next[key] = entry.next_queue_offset

    def finish(self, log_end: int) -> None:
        """Report units that belong to no record, and records without a unit."""
        if self._due_unknown:
            self._report.remarks.append(
                f"{self._due_unknown} delayed messages have due times that differ from the current "
                "delay levels. This store does not record its levels, so these times were not "
                "checked. A broker of this version records the levels when it starts"
            )
        for key, missing in self._missing.items():
            self._judge_missing(key, missing)
        keys = set(self._offline.queues())
        self._report.checked.queues = len(keys)
        for key in sorted(keys):
            self._check_rest(key, log_end)
        while self._readers:
            self._readers.popitem()[1].close()

    def _judge_missing(self, key: Queue, missing: _Missing) -> None:
        """Report the records without a unit that are visible in their topic."""
        topic = self.state.find(key[0])
        begins = 0 if topic is None else topic.min_offsets.get(key[1], 0)
        for queue_offset, physical_offset in missing.last:
            if queue_offset >= begins:
                self._damage(
                    key,
                    queue_offset,
                    f"there is no unit for the record at physical offset {physical_offset}",
                )
        before = missing.last[0][0]
        self._report.damages_not_named += max(
            0, min(missing.count - len(missing.last), before - begins)
        )

    def _check_rest(self, key: Queue, log_end: int) -> None:
        reader = self._reader(key)
        end = reader.max_offset(log_end)
        behind = reader.max_offset(EVERYTHING) - end
        if behind and not self._offline.in_use:
            self._report.remarks.append(
                f"topic {key[0]} queue {key[1]}: {behind} messages are beyond the log's end; the "
                "next start removes their units"
            )
        first = reader.min_offset(self._offline.min_offset)
        in_log = sum(
            not is_pre_blank(unit) and unit.physical_offset >= self._offline.min_offset
            for _, unit in units_of(reader, first, end, log_end)
        )
        if in_log == self._matched.get(key, 0) or self.lost_records:
            return
        for number, unit in units_of(reader, first, end, log_end):
            if (
                not is_pre_blank(unit)
                and (key, number) not in self._named
                and not self._has_record(key, number, unit)
            ):
                self._damage(key, number, f"the unit {_shown(unit)} does not point to its record")

    def _has_record(self, key: Queue, number: int, unit: Unit) -> bool:
        if unit.physical_offset < self._offline.min_offset:
            return True  # expired, so it cannot be checked
        files = self._offline.files
        start = files.start_of(unit.physical_offset)
        if start not in files.starts:
            return False
        view, at = files.view(start), unit.physical_offset - start
        try:
            stored = record.decode(view[: at + unit.size], at)
        except record.UndecodableRecord:
            return False
        return (stored.topic, stored.queue_id, stored.queue_offset) == (*key, number)

    def _damage(self, key: Queue, queue_offset: int, problem: str) -> None:
        if len(self._named) < DAMAGES_MAX:
            self._named.add((key, queue_offset))
        path, in_file = self._reader(key).location(queue_offset)
        where = path.relative_to(self._offline.store.root)
        self._report.damage(str(where), in_file, f"queue offset {queue_offset}: {problem}")

    def _reader(self, key: Queue) -> ConsumeQueueReader:
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = self._offline.reader(*key)
            while len(self._readers) > READERS_MAX:
                self._readers.popitem(last=False)[1].close()
        else:
            self._readers.move_to_end(key)
        return reader


def _shown(unit: Unit) -> str:
    return f"({unit.physical_offset}, {unit.size} bytes, tags code {unit.tags_code})"


def _check_small_files(offline: OfflineStore, report: Report) -> None:
    """Check the checkpoint page and the JSON files; all of them can be recreated."""
    facts = offline.disk.stat(offline.store.checkpoint_path)
    if facts is not None and facts.size != SIZE:
        report.damage("checkpoint", None, f"{facts.size} bytes, not {SIZE}; it is recreated")
    for slot in offline.damaged_slots():
        report.damage(
            "checkpoint",
            slot * SLOT_SIZE,
            f"{slot.name} is not the published value: its check does not match; it is ignored",
        )
    for entry in offline.disk.list_directory(offline.store.config_dir):
        if not entry.name.endswith(".json"):
            continue
        path = offline.store.config_dir / entry.name
        file = offline.disk.open(path, writable=False)
        try:
            json_dialect.loads(file.pread(file.size, 0).decode())
        except ValueError as error:
            report.damage(f"config/{entry.name}", None, f"it is not JSON: {error}")
        finally:
            file.close()
