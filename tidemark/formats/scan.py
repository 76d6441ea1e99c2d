"""Scans the records of a buffer, for dispatch and recovery (docs/formats.md, 2.14, 3). Pure.

The rules are those of ``record.validate``, written out for speed: a valid record costs one unpack
and a few searches; for an invalid one ``validate`` is called for the reason. Nothing is skipped:
the scan ends at the first byte that is not a complete, valid record. The native implementation is
``speedups.walk``; ``native`` chooses.

Read path, step 1: reput reads up to the confirm offset, this module finds the records, and ``plan``
derives the units and index rows.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, cast

from tidemark.formats import hashing, properties, record
from tidemark.formats.inner_batch import INNER_BATCH, message_count
from tidemark.formats.record_check import Checks, Kind, record_crc_fault, validate
from tidemark.formats.record_layout import MAGIC_V1, MAGIC_V2, SHAPES
from tidemark.offsets import PhysicalOffset

# Bytes copied out of the view at a time: slices and searches of bytes are several times faster than
# those of a memoryview, and a copy cannot be changed by another process.
_CHUNK_SIZE: Final = 256 * 1024

# size, magic, body crc, queue id, queue offset, physical offset, sys flag, store time, body size
_FIELDS: Final = tuple(struct.Struct(f">iiii4xqqi8x{born}xq{store}x12xi") for born, store in SHAPES)
_V4: Final = _FIELDS[0]
_CRC_SLOT_SIZE: Final = properties.CRC_SLOT_SIZE
_CRC_SLOT_NAME: Final = properties.CRC_SLOT_NAME


class Entry(NamedTuple):
    """The fields of a record that dispatch needs."""

    physical_offset: PhysicalOffset
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    """For the queue unit: tags hash, or the due time of a delayed record."""
    store_timestamp_ms: int
    sys_flag: int
    unique_id: str | None
    keys: str
    """The KEYS property as stored, not split; "" if it is missing."""
    batch_size: int = 0
    """Number of messages of an inner batch; 0 if the record is one message."""

    @property
    def message_count(self) -> int:
        """Number of messages in the record."""
        return self.batch_size or 1

    @property
    def next_queue_offset(self) -> int:
        """Queue offset after the record's last message."""
        return self.queue_offset + self.message_count


class Stop(Enum):
    """Why a scan ended."""

    VIEW_END = auto()
    """The view is used up, or the next record is not complete in it."""
    BLANK = auto()
    """The file's records end here: continue at the next file's start."""
    BAD = auto()
    """The next bytes are not a valid record."""
    LIMIT = auto()
    """The requested number of records was read."""


class Walk(NamedTuple):
    """The records found, and where and why the scan ended."""

    entries: list[Entry]
    end: int
    """Offset in the view after the last valid record; before the filler if stop is BLANK."""
    stop: Stop
    reason: str
    """The reason for BAD and for an incomplete record."""


@functools.lru_cache(maxsize=8192)
def _tags_code(raw: bytes) -> int:
    return hashing.string_hash(properties.text(raw))


_entry: Final = cast(Callable[[tuple[object, ...]], Entry], functools.partial(tuple.__new__, Entry))


def walk(
    view: bytes | bytearray | memoryview,
    *,
    at: PhysicalOffset,
    checks: Checks,
    records_max: int,
    delay_levels_ms: Sequence[int],
) -> Walk:
    """Read records from view[0] on, whose physical offset is ``at``. Never raises for any bytes.

    view: from a record's start to the end of what may be read, within one file. records_max:
    maximum number of records. delay_levels_ms: [0] is the delay of level 1. Entries are in physical
    order and do not borrow from the view.
    """
    check_body, check_record, check_position, require_record = checks
    check_record = check_record or require_record
    # Local names, because global and attribute lookups are a tenth of the loop.
    v4_size, unpack, crc32, topic_text = _V4.size, _V4.unpack_from, zlib.crc32, record.topic_text
    tags_code_of, entry = _tags_code, _entry
    entries: list[Entry] = []
    append = entries.append
    view_size = len(view)
    base = 0  # offset in the view of data[0]
    data = bytes(view[:_CHUNK_SIZE])
    data_size = len(data)
    start = 0  # offset in data of the current record
    left = records_max
    while left > 0:
        # The largest fixed part has 112 bytes; near the end of a chunk, load the next one first.
        if data_size - start < 112 and base + data_size < view_size:
            base += start
            data = bytes(view[base : base + _CHUNK_SIZE])
            data_size, start = len(data), 0
        if data_size - start < v4_size:
            break
        (
            size,
            magic,
            body_crc,
            queue_id,
            queue_offset,
            physical_offset,
            sys_flag,
            store_timestamp_ms,
            body_size,
        ) = unpack(data, start)
        end = start + size
        if end > data_size:
            if base + end > view_size:
                break
            base += start
            data = bytes(view[base : base + max(size, _CHUNK_SIZE)])
            data_size, start, end = len(data), 0, size
        body_at = start + v4_size
        if sys_flag & 0x30:
            fields = _FIELDS[sys_flag >> 4 & 3]
            body_at = start + fields.size
            if body_at > end:
                break
            store_timestamp_ms, body_size = fields.unpack_from(data, start)[7:]
        topic_at = body_at + body_size + 1
        if body_size < 0 or topic_at + 2 > end:
            break
        topic_size = data[topic_at - 1]
        if magic != MAGIC_V1:
            if magic != MAGIC_V2:
                break
            topic_size = topic_size << 8 | data[topic_at]
            topic_at += 1
            if topic_size > 32_767:
                break
        elif topic_size > 127:
            break
        topic_end = topic_at + topic_size
        properties_at = topic_end + 2
        if properties_at > end:
            break
        if (
            data[topic_end] << 8 | data[topic_end + 1]
        ) != end - properties_at or end - properties_at > 32_767:
            break
        if check_position and physical_offset != at + base + start:
            break
        if (
            check_body
            and body_size
            and crc32(data[body_at : body_at + body_size]) & 0x7FFFFFFF != body_crc
        ):
            break
        if check_record:
            slot_at = end - _CRC_SLOT_SIZE
            if slot_at >= properties_at and data.startswith(_CRC_SLOT_NAME, slot_at):
                crc = crc32(data[start:slot_at]) & 0x7FFFFFFF
                sound = data.startswith((b"\x02%010d" % crc)[::-1], slot_at + 9)
            else:
                sound = False
            if not sound and record_crc_fault(
                data, start, size, end - properties_at, required=require_record
            ):
                break
        topic = topic_text(data[topic_at:topic_end])

        tags_code = 0
        unique_id: str | None = None
        keys = ""
        if properties_at != end:
            # properties.find, inlined: the common case is one hit or none.
            found = data.rfind(b"TAGS\x01", properties_at, end)
            if found >= 0:
                value_end = data.find(b"\x02", found, end)
                if value_end < 0:
                    value_end = end
                if (found == properties_at or data[found - 1] == 2) and value_end > found + 5:
                    tags_code = tags_code_of(data[found + 5 : value_end])
                else:
                    tags_code = _slow_tags_code(data[properties_at:end])
            found = data.rfind(b"UNIQ_KEY\x01", properties_at, end)
            if found >= 0:
                value_end = data.find(b"\x02", found, end)
                if value_end < 0:
                    value_end = end
                if (found == properties_at or data[found - 1] == 2) and value_end > found + 9:
                    unique_id = _text(data[found + 9 : value_end])
                else:
                    unique_id = _find(data[properties_at:end], b"UNIQ_KEY")
            found = data.rfind(b"KEYS\x01", properties_at, end)
            if found >= 0:
                value_end = data.find(b"\x02", found, end)
                if value_end < 0:
                    value_end = end
                if (found == properties_at or data[found - 1] == 2) and value_end > found + 5:
                    keys = _text(data[found + 5 : value_end])
                else:
                    keys = _find(data[properties_at:end], b"KEYS") or ""
            if topic == hashing.SCHEDULE_TOPIC:
                due = hashing.delivery_time_code(
                    _find(data[properties_at:end], b"DELAY"), store_timestamp_ms, delay_levels_ms
                )
                if due is not None:
                    tags_code = due
        append(
            entry(
                (
                    at + base + start,
                    size,
                    topic,
                    queue_id,
                    queue_offset,
                    tags_code,
                    store_timestamp_ms,
                    sys_flag,
                    unique_id,
                    keys,
                    sys_flag & INNER_BATCH
                    and message_count(sys_flag, data[properties_at:end], queue_offset),
                )
            )
        )
        start = end
        left -= 1
    else:
        return Walk(entries, base + start, Stop.LIMIT, "")
    return stopped(view, base + start, at, checks, entries)


_text: Final = properties.text


def _find(raw: bytes, name: bytes) -> str | None:
    value = properties.find(raw, name)
    return None if value is None else properties.text(value)


def _slow_tags_code(raw: bytes) -> int:
    value = properties.find(raw, b"TAGS")
    return 0 if value is None else _tags_code(value)


def stopped(
    view: bytes | bytearray | memoryview,
    end: int,
    at: PhysicalOffset,
    checks: Checks,
    entries: list[Entry],
) -> Walk:
    """Return the scan's result, with the reason from ``validate`` for the bytes at view[end]."""
    if end == len(view):
        return Walk(entries, end, Stop.VIEW_END, "")
    outcome = validate(view, end, at=at + end, checks=checks)
    match outcome.kind:
        case Kind.BLANK:
            return Walk(entries, end, Stop.BLANK, "")
        case Kind.INCOMPLETE:
            return Walk(entries, end, Stop.VIEW_END, outcome.reason)
        case Kind.BAD | Kind.INCONSISTENT:
            return Walk(entries, end, Stop.BAD, outcome.reason)
        case Kind.VALID:
            # The bytes changed between the two reads (a reader ahead of its published end). The
            # record is not taken this time; the caller will read again.
            return Walk(entries, end, Stop.VIEW_END, "changed while it was read")
