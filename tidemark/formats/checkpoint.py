"""The checkpoint page: RocketMQ's head and Tidemark's regions (docs/formats.md, section 6). Pure.

It is one page of 4096 bytes that all processes of a node map. Its head is RocketMQ's: five
big-endian numbers. After it, where RocketMQ writes zeros, are four regions of little-endian 8-byte
slots: one for the log, and one for each process. Every slot and every head field has one writer at
a time, named at its region or at the slot; ha also resets slots of the others while it empties the
store and holds their lock bytes. The first half of a region holds values, the second half the check
of each value. A value that does not match its check is ignored. All values only tell where to start
a search: a lost, old or damaged page costs time, never a message.

This module defines the layout; the mapped page is ``shared.files.positions``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

SIZE: Final = 4096
SLOT_SIZE: Final = 8
HEAD: Final = struct.Struct(">5q")

REGION_LOG: Final = 512
REGION_BROKER: Final = 1024
REGION_REPUT: Final = 1536
REGION_HA: Final = 2048
"""Byte offsets of the regions; a region ends where the next starts, the last at 2560."""
REGION_SIZE: Final = 512
VALUES_PER_REGION: Final = REGION_SIZE // SLOT_SIZE // 2
"""Number of value slots of a region; as many checks follow. A value and its check are in one sector
of 512 bytes, so a power failure that tears the page does not separate them."""

REGION_FORMAT: Final = 1
REGION_MAGIC: Final = 0x54494445 << 32 | REGION_FORMAT
"""Value of MAGIC_AND_FORMAT in a page whose regions Tidemark wrote: "TIDE" and the format."""

MIN_TIMESTAMP_MARGIN_MS: Final = 3000
"""How long before the older of the two flush times recovery starts (section 6)."""


class Head(NamedTuple):
    """RocketMQ's five values; 0 = unknown. Field n is the n-th 8 bytes of the page."""

    physic_timestamp_ms: int = 0
    """Store time of a record up to which the commit log is on disk."""
    logics_timestamp_ms: int = 0
    """Store time of the last dispatched record."""
    index_timestamp_ms: int = 0
    """End time of the last index file that was filled."""
    master_flushed_offset: int = 0
    confirm_offset: int = 0


_LOG: Final = REGION_LOG // SLOT_SIZE
_BROKER: Final = REGION_BROKER // SLOT_SIZE
_REPUT: Final = REGION_REPUT // SLOT_SIZE
_HA: Final = REGION_HA // SLOT_SIZE


class Slot(IntEnum):
    """Tidemark's slots; the value is the slot's number in the page: byte offset / 8.

    Never renumber: all processes of a node, even of different versions, use these numbers.
    """

    # log: written by the holder of the append lock, the broker or ha
    WRITTEN = _LOG
    """End of the readable log."""
    FLUSHED = _LOG + 1
    """End of the log on disk."""
    BOOT_ID_HIGH = _LOG + 2
    BOOT_ID_LOW = _LOG + 3
    """The boot in which WRITTEN was published; in another boot WRITTEN is ignored."""
    MAGIC_AND_FORMAT = _LOG + 4
    """REGION_MAGIC; 0 in a page that only RocketMQ wrote."""
    LOG_EPOCH = _LOG + 5
    RECOVERED_BY = _LOG + 6
    """``start_id`` of the process that recovered the log last; 0 for an offline tool."""

    # broker: written by the broker unless a slot says otherwise
    MIN = _BROKER
    """Start of the log: the first byte of its oldest file. Recovery writes it, too."""
    SERVING_EPOCH = _BROKER + 1
    """The epoch under which the broker appends; 0 = not appending."""
    BROKER_HEARTBEAT_MS = _BROKER + 2
    BROKER_PID = _BROKER + 3
    """``start_id`` of the running process; 0 if it has ended cleanly."""
    GENERATION = _BROKER + 4
    """Incremented by every recovery: values published under a smaller one are void. Written by the
    holder of the append lock."""
    BROKER_STATE = _BROKER + 5
    """A ``BrokerPhase``."""
    FOREIGN_FROM = _BROKER + 6
    FOREIGN_UNTIL = _BROKER + 7
    """Records that start in [from, until) were written by RocketMQ, as far as is known: their
    record CRC property may be a copy of another record's and is not checked. Recovery writes
    both slots, and on a slave also ha, which gets them from the master."""
    BROKER_NONCE = _BROKER + 8
    """Random number of this start of the broker, never 0; ha grants an epoch to it."""
    EPOCH_RECORD_END = _BROKER + 9
    """End of the record that opens SERVING_EPOCH; 0 until it is appended."""
    BROKER_TROUBLE = _BROKER + 10
    """A ``Trouble``: the reason to prefer another node as master."""
    DAMAGED_AT = _BROKER + 11
    """1 + the physical offset at which a read found a damaged record; 0 = none."""
    UNIT_CHECK_QUEUE = _BROKER + 12
    """Queue of the unit that reput shall compare with the log (``queue_number``)."""
    UNIT_CHECK_OFFSET = _BROKER + 13
    """Queue offset of that unit."""
    UNIT_CHECK_COUNT = _BROKER + 14
    """Incremented by each request, after the two slots above."""

    # reput: written by reput
    DISPATCHED = _REPUT
    """End of the log that queues and index cover."""
    DISPATCHED_DURABLE = _REPUT + 1
    """End of the log that queues and index cover on disk; dispatch resumes here."""
    REPUT_HEARTBEAT_MS = _REPUT + 2
    REPUT_PID = _REPUT + 3
    """Like BROKER_PID."""
    REPUT_GENERATION = _REPUT + 4
    RESUME_UNITS = _REPUT + 5
    """Sum of the max queue offsets of all queues at DISPATCHED_DURABLE."""
    RESUME_INDEX_ENTRIES = _REPUT + 6
    """Index entries in all files at DISPATCHED_DURABLE."""
    RESUME_CHECK = _REPUT + 7
    """CRC-32 over DISPATCHED_DURABLE, RESUME_UNITS, RESUME_INDEX_ENTRIES; see ``resume_check``."""
    RESUME_FIRSTS = _REPUT + 8
    """Sum of the queue offsets at which the first file of each queue starts."""
    REPUT_BOOT_ID_HIGH = _REPUT + 9
    REPUT_BOOT_ID_LOW = _REPUT + 10
    """The boot in which the index was last known complete; 0 = its files are not trusted."""
    CLEANED_MIN = _REPUT + 11
    """Queue and index files without entries at or above this physical offset are deleted."""
    REMOVING_FIRSTS = _REPUT + 12
    """By how much RESUME_FIRSTS may lag behind the files, because queue files were removed."""
    REMOVING_ENTRIES = _REPUT + 13
    """By how much RESUME_INDEX_ENTRIES may be ahead of the files."""
    RELEASED_MIN = _REPUT + 14
    """Reput has no log file mapped that ends at or below this: their blocks are free."""
    INDEX_BEHIND = _REPUT + 15
    """1 while index files are rebuilt: a key below DISPATCHED may not be found."""
    REPUT_TROUBLE = _REPUT + 16
    """A ``Trouble``: the reason to prefer another node as master."""
    RESUMED_BY = _REPUT + 17
    """REPUT_PID of the last start that completed the queue files; 0: an earlier version did."""
    UNIT_CHECKED = _REPUT + 18
    """2 × the last processed UNIT_CHECK_COUNT, + 1 if units were replaced."""

    # ha: written by ha
    CONFIRM = _HA
    """Confirm offset of a group: records that end at or below it may be read, and their senders
    answered."""
    ROLE = _HA + 1
    EPOCH = _HA + 2
    LEASE_DEADLINE = _HA + 3
    FENCED = _HA + 4
    HA_BOOT_ID_HIGH = _HA + 5
    HA_BOOT_ID_LOW = _HA + 6
    HA_NONCE = _HA + 7
    HA_HEARTBEAT_MS = _HA + 8
    HA_PID = _HA + 9
    """Like BROKER_PID."""
    HA_GENERATION = _HA + 10
    GRANTED_TO = _HA + 11
    """BROKER_NONCE of the broker start that may append under EPOCH; 0 = none."""
    IN_SYNC_SIZE = _HA + 12
    """Members of the published in-sync set, including this node; 0 = unknown."""
    MIN_IN_SYNC = _HA + 13
    """Minimum number of in-sync members for an acknowledgement."""
    NEEDED_FROM = _HA + 14
    """Lowest physical offset that a connected slave still has to copy; 0 = none."""
    SENDS_HELD = _HA + 15
    """1 while a switchover lets the slave catch up: sends are rejected and may be repeated."""


def queue_number(topic: str, queue: int) -> int:
    """Number of a queue in UNIT_CHECK_QUEUE; several queues may have the same number."""
    return zlib.crc32(topic.encode()) << 32 | queue


class BrokerPhase(IntEnum):
    """Values of Slot.BROKER_STATE."""

    STARTING = 0
    RECOVERING = 1
    SERVING = 2
    UNREADY = 3


class NodeRole(IntEnum):
    """Values of Slot.ROLE: the role that ha grants to this node. ``shared.cluster.grant`` checks
    whether it is still valid."""

    VOID = 0
    """Starting, or between two roles."""
    FOLLOWER = 1
    PROMOTING = 2
    """The broker takes the append lock and opens the epoch; no request is served."""
    MASTER = 3
    RESYNC = 4
    """The store is about to be emptied: broker and reput end, and start again afterwards."""
    HALTED = 5
    """Needs an operator; cannot be elected."""


class Trouble(IntEnum):
    """Values of Slot.BROKER_TROUBLE and Slot.REPUT_TROUBLE."""

    NONE = 0
    DISK_FULL = 1
    DAMAGED = 2
    """The log or data that dispatch needs is damaged."""
    STOPPING = 3
    """The process was asked to end and waits briefly until another node serves."""


_RESUME: Final = struct.Struct("<3Q")


def resume_check(dispatched_durable: int, units: int, index_entries: int) -> int:
    """Return the value of RESUME_CHECK: CRC-32 over the three as little-endian u64.

    The four slots are stored one after another; a kill in between leaves a wrong check.
    """
    return zlib.crc32(_RESUME.pack(dispatched_durable, units, index_entries))


_VALUE: Final = struct.Struct("<QQ")
_CHECK_BITS: Final = 32
READS_MAX: Final = 3


def check_slot(slot: int) -> int:
    """Number of the slot that holds the check of a value's slot."""
    return slot + VALUES_PER_REGION


def check_of(slot: int, value: int, before: int) -> int:
    """Return the check of a slot that is about to change from ``before`` to ``value``.

    It covers both values and is stored first, so that a kill between the two stores leaves a
    matching value.
    """
    after = zlib.crc32(_VALUE.pack(slot, value))
    return after << _CHECK_BITS | zlib.crc32(_VALUE.pack(slot, before))


def publish(slots: memoryview, slot: int, value: int) -> None:
    """Store the check of a slot, then its value, each by one aligned 8-byte access.

    slots: the writable page as numbers (``cast("Q")``). value: 0…2**64 - 1. Raises IndexError if
    the page has no such slot. The native implementation is ``speedups.checksum``.
    """
    slots[check_slot(slot)] = check_of(slot, value, slots[slot])
    slots[slot] = value


def fits(slot: int, value: int, check: int) -> bool:
    """Whether value is one of the two that the check covers; a check of 0 matches none."""
    found = zlib.crc32(_VALUE.pack(slot, value))
    return found in (check >> _CHECK_BITS, check & (1 << _CHECK_BITS) - 1)


def proven(slot: Slot, at: Callable[[int], int]) -> int:
    """Return the value of a slot, 0 if it does not match its check. at: reads a slot by number.

    A page of an earlier version has no checks, and its values are accepted. A mismatch is read
    again, because the slot's owner may have published twice between the two reads.
    """
    value = at(slot)
    if not at(check_slot(Slot.MAGIC_AND_FORMAT)):
        return value
    for _ in range(READS_MAX):
        value = at(slot)
        if fits(slot, value, at(check_slot(slot))):
            return value
    return 0


def damaged_slots(at: Callable[[int], int]) -> list[Slot]:
    """Return the slots whose value does not match its check. at: as for ``proven``."""
    if not at(check_slot(Slot.MAGIC_AND_FORMAT)):
        return []
    return [slot for slot in Slot if at(slot) and not proven(slot, at)]


def encode_head(head: Head) -> bytes:
    """Encode the first 40 bytes of the page. Raises struct.error for numbers out of i64 (a bug)."""
    return HEAD.pack(*head)


def decode_head(page: memoryview | bytes | bytearray) -> Head:
    """Decode the head of a page; any 40 bytes are valid. Raises ValueError for fewer."""
    if len(page) < HEAD.size:
        raise ValueError(f"a checkpoint head needs {HEAD.size} bytes, the page has {len(page)}")
    return Head._make(HEAD.unpack_from(page))


def min_timestamp(head: Head) -> int:
    """Store time [ms] from which recovery after an unclean stop must read; 0 = everything."""
    return max(0, min(head.physic_timestamp_ms, head.logics_timestamp_ms) - MIN_TIMESTAMP_MARGIN_MS)


PID_BITS: Final = 22
"""Linux assigns no process id above 2**22 - 1 (proc(5), kernel/pid_max: at most 2**22)."""


def start_id(pid: int, salt: int) -> int:
    """Identify one start of a process: its id, and above it a random number of 40 bits.

    The process id alone is not enough: in a container it is 1 after every restart.
    """
    return (salt & ((1 << 40) - 1)) << PID_BITS | (pid & ((1 << PID_BITS) - 1))


def pid_of(start: int) -> int:
    """Return the process id of a start, as seen in its own namespace."""
    return start & ((1 << PID_BITS) - 1)
