"""The checkpoint page: RocketMQ's head and our regions (docs/formats.md, section 6). Pure.

One page of 4096 bytes that all processes of a node map. Its head is RocketMQ's: five big-endian
numbers. Behind it, where RocketMQ writes zeros, each process has a region of little-endian 8-byte
slots; every slot and every head field has exactly one writer. The first half of a region holds
values, the second half the check of each: a value whose check does not fit proves nothing.
Everything here is a hint about where to start looking: a lost, old or damaged page costs time,
never a message.
This module knows layouts; the mapped page is ``shared.files.positions``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

SIZE: Final = 4096
SLOT_SIZE: Final = 8
SLOT_COUNT: Final = SIZE // SLOT_SIZE
HEAD: Final = struct.Struct(">5q")

REGION_LOG: Final = 512
REGION_BROKER: Final = 1024
REGION_REPUT: Final = 1536
REGION_HA: Final = 2048
"""Byte offsets of the regions; a region ends where the next begins, the last at 2560."""
REGION_SIZE: Final = 512
VALUES_PER_REGION: Final = REGION_SIZE // SLOT_SIZE // 2
"""Slots of a region that hold values; as many checks follow. Value and check lie in one sector of
512 bytes: a power cut that tears the page does not part them."""

REGION_FORMAT: Final = 1
REGION_MAGIC: Final = 0x54494445 << 32 | REGION_FORMAT
"""Value of MAGIC_AND_FORMAT in a page whose regions we have written: "TIDE" and the format."""

MIN_TIMESTAMP_MARGIN_MS: Final = 3000
"""How far before the older of the two flush times recovery starts (section 6)."""


class Head(NamedTuple):
    """RocketMQ's five values; 0 = not known. Field n is the n-th 8 bytes of the page."""

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
    """Our slots; the value is the slot's number in the page: byte offset / 8.

    Never renumber: all processes of a node, of one version or of two, meet in these numbers.
    """

    # log: whoever holds the append lock
    WRITTEN = _LOG
    """End of what can be read."""
    FLUSHED = _LOG + 1
    """End of what is on disk."""
    BOOT_ID_HIGH = _LOG + 2
    BOOT_ID_LOW = _LOG + 3
    """The boot in which WRITTEN was published; in another boot it proves nothing."""
    MAGIC_AND_FORMAT = _LOG + 4
    """REGION_MAGIC; 0 in a page that only RocketMQ wrote."""
    LOG_EPOCH = _LOG + 5
    RECOVERED_BY = _LOG + 6
    """``start_id`` of the process that recovered the log last; 0: an offline tool did."""

    # broker
    MIN = _BROKER
    """Start of the log: the first byte of its oldest file."""
    SERVING_EPOCH = _BROKER + 1
    """The epoch under which the broker appends; 0 = not appending."""
    BROKER_HEARTBEAT_MS = _BROKER + 2
    BROKER_PID = _BROKER + 3
    """Which start of which process this is (``start_id``); 0: it has ended in order."""
    GENERATION = _BROKER + 4
    """Raised by every recovery: what was published under a smaller one is void."""
    BROKER_STATE = _BROKER + 5
    """A ``BrokerState``."""
    FOREIGN_FROM = _BROKER + 6
    FOREIGN_UNTIL = _BROKER + 7
    """Records that begin in [from, until) were written by RocketMQ, as far as is known: a record
    CRC property that they carry may be a copy of another record's and is not judged."""
    BROKER_NONCE = _BROKER + 8
    """A random number of this start of the broker, never 0: whom ha grants an epoch to."""
    EPOCH_RECORD_END = _BROKER + 9
    """End of the record that opens SERVING_EPOCH; 0 until it is appended."""
    BROKER_TROUBLE = _BROKER + 10
    """A ``Trouble``: why another node would serve better."""
    DAMAGED_AT = _BROKER + 11
    """1 + the physical offset at which a read met a record that cannot be trusted; 0 = none did."""
    UNIT_CHECK_QUEUE = _BROKER + 12
    """Queue of the unit that reput is asked to compare with the log (``queue_number``)."""
    UNIT_CHECK_OFFSET = _BROKER + 13
    """Queue offset of that unit."""
    UNIT_CHECK_COUNT = _BROKER + 14
    """Raised by each request, after the two slots above."""

    # reput
    DISPATCHED = _REPUT
    """End of what queues and index cover."""
    DISPATCHED_DURABLE = _REPUT + 1
    """End of what queues and index cover on disk; dispatch resumes here."""
    REPUT_HEARTBEAT_MS = _REPUT + 2
    REPUT_PID = _REPUT + 3
    """As of the broker."""
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
    """The boot in which the index was last known whole; 0 = its files are not to be trusted."""
    CLEANED_MIN = _REPUT + 11
    """Queue and index files that hold nothing at or above here are gone."""
    REMOVING_FIRSTS = _REPUT + 12
    """RESUME_FIRSTS may lag behind the files by so much: leading queue files were removed."""
    REMOVING_ENTRIES = _REPUT + 13
    """RESUME_INDEX_ENTRIES may be ahead of the files by so much."""
    RELEASED_MIN = _REPUT + 14
    """Reput has no log file mapped that ends at or below here: their blocks are free."""
    INDEX_BEHIND = _REPUT + 15
    """1 while index files are made again: a key may not be found although DISPATCHED covers it."""
    REPUT_TROUBLE = _REPUT + 16
    """A ``Trouble``: why another node would serve better."""
    RESUMED_BY = _REPUT + 17
    """REPUT_PID of the start that made the queue files whole last; 0: of an earlier version."""
    UNIT_CHECKED = _REPUT + 18
    """2 × the last UNIT_CHECK_COUNT that was dealt with, + 1 if units were replaced."""

    # ha
    CONFIRM = _HA
    """End of what may be seen and acked in a group."""
    ROLE = _HA + 1
    EPOCH = _HA + 2
    LEASE_DEADLINE = _HA + 3
    FENCED = _HA + 4
    HA_BOOT_ID_HIGH = _HA + 5
    HA_BOOT_ID_LOW = _HA + 6
    HA_NONCE = _HA + 7
    HA_HEARTBEAT_MS = _HA + 8
    HA_PID = _HA + 9
    """As of the broker."""
    HA_GENERATION = _HA + 10
    GRANTED_TO = _HA + 11
    """BROKER_NONCE of the start of the broker that may append under EPOCH; 0 = none."""
    IN_SYNC_SIZE = _HA + 12
    """Members of the published in-sync set, this node included; 0 = not known."""
    MIN_IN_SYNC = _HA + 13
    """Fewer members than this may not acknowledge."""
    NEEDED_FROM = _HA + 14
    """Lowest physical offset that a connected slave has yet to copy; 0 = none does."""
    SENDS_HELD = _HA + 15
    """1 while a planned switch lets the slave catch up: sends are refused, and may be repeated."""


def queue_number(topic: str, queue: int) -> int:
    """A queue as the number in UNIT_CHECK_QUEUE; several may have the same."""
    return zlib.crc32(topic.encode()) << 32 | queue


class BrokerState(IntEnum):
    """Values of Slot.BROKER_STATE."""

    STARTING = 0
    RECOVERING = 1
    SERVING = 2
    UNREADY = 3


class NodeRole(IntEnum):
    """Values of Slot.ROLE: what ha lets this node be. Void unless ``shared.cluster.grant`` says
    otherwise."""

    VOID = 0
    """Starting, or between two roles."""
    FOLLOWER = 1
    PROMOTING = 2
    """The broker takes the append lock and opens the epoch; nobody is served."""
    MASTER = 3
    RESYNC = 4
    """The store is about to be emptied: broker and reput end, and start again when it is over."""
    HALTED = 5
    """Needs an operator; never electable."""


class Trouble(IntEnum):
    """Values of Slot.BROKER_TROUBLE and Slot.REPUT_TROUBLE."""

    NONE = 0
    DISK_FULL = 1
    DAMAGED = 2
    """The log or what dispatch needs is damaged."""
    STOPPING = 3
    """The process was asked to end and waits, for a moment, until another node serves."""


_RESUME: Final = struct.Struct("<3Q")


def resume_check(dispatched_durable: int, units: int, index_entries: int) -> int:
    """The value of RESUME_CHECK: CRC-32 over the three as little-endian u64.

    The four slots are stored one after another; a kill in between leaves a check that fails.
    """
    return zlib.crc32(_RESUME.pack(dispatched_durable, units, index_entries))


_VALUE: Final = struct.Struct("<QQ")
_CHECK_BITS: Final = 32
READS_MAX: Final = 3


def check_slot(slot: int) -> int:
    """Number of the slot that holds the check of a value's slot."""
    return slot + VALUES_PER_REGION


def check_of(slot: int, value: int, before: int) -> int:
    """The check of a slot that is about to change from ``before`` to ``value``.

    It covers both and is stored first: a kill between the two stores leaves a value that fits.
    """
    return _sum_of(slot, value) << _CHECK_BITS | _sum_of(slot, before)


def fits(slot: int, value: int, check: int) -> bool:
    """Whether value is one of the two that the check covers; 0 is no check: nothing is known."""
    found = _sum_of(slot, value)
    return found in (check >> _CHECK_BITS, check & (1 << _CHECK_BITS) - 1)


def _sum_of(slot: int, value: int) -> int:
    return zlib.crc32(_VALUE.pack(slot, value))


def proven(slot: Slot, at: Callable[[int], int]) -> int:
    """The value of a slot, 0 if its check says that it is damaged. at: reads a slot by number.

    A page of an earlier version has no checks: its values count as they are. Read again where they
    do not fit: the slot's owner may have published twice between the two reads.
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
    """The slots whose value is not the one that was published. at: as for ``proven``."""
    if not at(check_slot(Slot.MAGIC_AND_FORMAT)):
        return []
    return [slot for slot in Slot if at(slot) and not proven(slot, at)]


def encode_head(head: Head) -> bytes:
    """The first 40 bytes of the page. Raises struct.error for numbers out of i64 (our own bug)."""
    return HEAD.pack(*head)


def decode_head(page: memoryview | bytes | bytearray) -> Head:
    """The head of a page. Every 40 bytes decode. Raises ValueError if there are fewer."""
    if len(page) < HEAD.size:
        raise ValueError(f"a checkpoint head needs {HEAD.size} bytes, the page has {len(page)}")
    return Head._make(HEAD.unpack_from(page))


def encode_page(head: Head) -> bytes:
    """A whole page as RocketMQ writes it: the head, then zeros."""
    return encode_head(head).ljust(SIZE, b"\0")


def min_timestamp(head: Head) -> int:
    """Store time from which recovery after an unclean stop must look (ms; 0 = everything)."""
    return max(0, min(head.physic_timestamp_ms, head.logics_timestamp_ms) - MIN_TIMESTAMP_MARGIN_MS)


PID_BITS: Final = 22
"""Linux gives no larger process id than 2**22 - 1 (proc(5), kernel/pid_max: at most 2**22)."""


def start_id(pid: int, salt: int) -> int:
    """One start of a process: its id, and above it a number drawn at the start, at most 40 bits.

    In a container every process is number 1, again after a restart: the id alone tells nothing.
    """
    return (salt & ((1 << 40) - 1)) << PID_BITS | (pid & ((1 << PID_BITS) - 1))


def pid_of(start: int) -> int:
    """The process id in a start's number, as seen in its own namespace."""
    return start & ((1 << PID_BITS) - 1)
