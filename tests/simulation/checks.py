"""Conditions on a store's files, read here without the store's own code.

Each check takes a disk (or an image of one) and the history, and raises Violation. Layouts are
spelled out a second time on purpose: a mistake shared with the code under test would stay hidden.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.simulation.history import History, Sent, Violation
from tests.support.sim_disk import SimDisk

UNIT: Final = struct.Struct(">qiq")
UNIT_SIZE: Final = 20
BATCH_UNIT: Final = struct.Struct(">qiqqqhii")
QUEUES: Final = {"consumequeue": UNIT_SIZE, "batchconsumequeue": 46}
"""Directories of queues, and the sizes of their units."""
HEAD: Final = struct.Struct(">Ii")
BLANK: Final = 0xCBD43194 - (1 << 32)
WRITTEN_AT: Final = 512
FLUSHED_AT: Final = 512 + 8
DISPATCHED_DURABLE_AT: Final = 1536 + 8


def slot(disk: SimDisk, root: Path, at: int) -> int:
    """One little-endian number of the checkpoint page; 0 without a page."""
    page = disk.peek(root / "checkpoint") or b""
    return int.from_bytes(page[at : at + 8], "little")


def log_files(disk: SimDisk, root: Path) -> list[tuple[int, bytes]]:
    """(start, bytes) of every commit log file, ascending."""
    found = []
    for entry in disk.list_directory(root / "commitlog"):
        raw = disk.peek(root / "commitlog" / entry.name)
        if raw is not None and len(entry.name) == 20 and entry.name.isdigit():
            found.append((int(entry.name), raw))
    return found


def walk_log(disk: SimDisk, root: Path, end: int) -> list[tuple[int, bytes]]:
    """(physical offset, bytes) of the records below end, which must be a record's border."""
    files = dict(log_files(disk, root))
    found = []
    at = min(files, default=0)
    while at < end:
        start = max((start for start in files if start <= at), default=at)
        raw = files.get(start, b"")
        if at - start + HEAD.size > len(raw):
            raise Violation(f"the log ends at {end}, but there is no byte at {at}")
        size, magic = HEAD.unpack_from(raw, at - start)
        if magic == BLANK:
            at = start + len(raw)
            continue
        if not 0 < size <= len(raw) - (at - start) or at + size > end:
            raise Violation(f"no whole record at {at} below the log's end {end}: size {size}")
        found.append((at, raw[at - start : at - start + size]))
        at += size
    return found


def check_nothing_behind(disk: SimDisk, root: Path, end: int) -> None:
    """Check that the log is zero behind its end, also on the disk, so that nothing can come
    back."""
    for start, cached in log_files(disk, root):
        durable = disk.durable_bytes(root / "commitlog" / f"{start:020}")
        for raw, where in ((cached, "cache"), (durable, "disk")):
            rest = raw[max(0, end - start) :]
            if rest.strip(b"\0"):
                at = max(start, end) + len(rest) - len(rest.lstrip(b"\0"))
                raise Violation(f"the log ends at {end}; in the {where} byte {at} is not zero")


def check_durable(disk: SimDisk, root: Path, history: History, end: int) -> None:
    """Check that the flushed part is on the disk: bytes, lengths and names."""
    files = {start: disk.durable_bytes(root / "commitlog" / f"{start:020}")
             for start, _ in log_files(disk, root)}  # fmt: skip
    for sent in history.sent:
        if sent.end > end:
            break
        start = max((start for start in files if start <= sent.start), default=0)
        at = sent.start - start
        if files.get(start, b"")[at : at + sent.size] != sent.raw:
            raise Violation(f"the record at {sent.start} is called flushed and is not on the disk")


def unit_bytes(sent: Sent) -> bytes:
    """The unit that dispatch must make of a record."""
    if not sent.message_count:
        return UNIT.pack(*sent.unit)
    batch = sent.store_timestamp_ms, sent.queue_offset, sent.message_count, -1, 0
    return BATCH_UNIT.pack(*sent.unit, *batch)


def units_of(disk: SimDisk, root: Path, topic: str, queue: int) -> Iterator[tuple[int, bytes]]:
    """(number, bytes) of every unit that is not zero, ascending; a queue is of one kind only."""
    for parent, unit_size in QUEUES.items():
        directory = root / parent / topic / str(queue)
        for entry in disk.list_directory(directory):
            raw = disk.peek(directory / entry.name) or b""
            first = int(entry.name) // unit_size
            for number in range(len(raw) // unit_size):
                unit = raw[number * unit_size : (number + 1) * unit_size]
                if any(unit):
                    yield first + number, unit


def check_durable_units(image: SimDisk, root: Path, history: History) -> int:
    """Check the image after a power cut: every unit below ``dispatched_durable`` exists.

    Units above may exist or not, in part or mixed up; the restart has to remove them. Returns the
    mark.
    """
    mark = slot(image, root, DISPATCHED_DURABLE_AT)
    for (topic, queue), messages in history.queues().items():
        units: dict[int, bytes] | None = None
        for number, sent in enumerate(messages):
            if sent.end > mark:
                break
            if units is None:
                units = dict(units_of(image, root, topic, queue))
            if units.get(number) != unit_bytes(sent):
                raise Violation(
                    f"dispatched_durable is {mark}, but the unit of {topic}/{queue} "
                    f"{sent.queue_offset} (record {sent.start}) was not on the disk"
                )
    return mark


def check_units(
    disk: SimDisk, root: Path, history: History, dispatched: int, *, exact: bool
) -> None:
    """Check that every queue has the units of its dispatched messages, and none of a lost message.

    exact: nor of messages above dispatched.
    """
    queues = history.queues()
    for directory in (root / parent for parent in QUEUES):
        for topic in disk.list_directory(directory):
            for queue in disk.list_directory(directory / topic.name):
                queues.setdefault((topic.name, int(queue.name)), [])
    for (topic_name, number), messages in queues.items():
        units = list(enumerate(map(unit_bytes, messages)))
        visible = sum(sent.end <= dispatched for sent in messages)
        found = list(units_of(disk, root, topic_name, number))
        if found[:visible] != units[:visible]:
            missing = next((unit for unit in units[:visible] if unit not in found), None)
            raise Violation(
                f"queue {topic_name}/{number} holds {len(found)} units; up to {dispatched} there "
                f"should be {visible}; missing: {missing}"
            )
        rest = found[visible:]
        if rest and (exact or any(unit not in units for unit in rest)):
            raise Violation(
                f"queue {topic_name}/{number} holds {len(rest)} units beyond {dispatched}, of "
                f"{[UNIT.unpack_from(unit)[0] for _, unit in rest][:5]}"
            )


def queue_images(disk: SimDisk, root: Path) -> dict[Path, bytes]:
    """Every queue file without its trailing zeros; files of nothing but zeros are left out."""
    return {
        path: raw.rstrip(b"\0")
        for path, raw in disk.files()
        if path.relative_to(root).parts[0] in QUEUES and raw.strip(b"\0")
    }
