"""What a replica wants done: the effects of the core (``replica.Replica.handle``). Pure.

Carried out in their order; those with a token answer with ``Done`` or ``Failed``. The page slots of
one ``Publish`` are stored one after another, and a crash may come between any two.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from services.ha.lease.value import Lease, Stored
from services.ha.wire.frames import Frame
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart


class LeaseGet(NamedTuple):
    """Read the lease, never from a cache."""

    request: int


class LeasePut(NamedTuple):
    """Replace what ``base`` says by ``lease``, if its version and uid still stand."""

    request: int
    lease: Lease
    base: Stored


class LeaseCreate(NamedTuple):
    """Make the object, if there is none."""

    request: int
    lease: Lease


class Connect(NamedTuple):
    """Connect to a node, unless a connection to it is there or being made; LinkUp or LinkDown."""

    node: str


class Send(NamedTuple):
    """Send a frame; the link buffers a bounded number of bytes and is closed beyond."""

    link: int
    frame: Frame


class Stream(NamedTuple):
    """Send an APPEND frame whose bytes come from the log's mapping: [offset, offset + size)."""

    link: int
    frame: Frame
    """APPEND without its bytes."""
    offset: int
    size: int


class Close(NamedTuple):
    """Close a link, after sending what is buffered; LinkDown follows."""

    link: int
    reason: str


class Copy(NamedTuple):
    """Follower: put bytes at the end of the log in order; Copied after the next sync.

    Bytes may end inside a record: the rest comes with the next ones. first: these begin a new
    stretch, what was left of a half record before is dropped.
    """

    offset: int
    data: bytes | memoryview
    first: bool


class Settle(NamedTuple):
    """Finish what is being copied and synced, drop half records; then Done with end and durable."""

    token: int


class PersistPromise(NamedTuple):
    """Write ``ha/promise`` durably: promised epoch, and the largest (epoch, version) seen."""

    token: int
    promised: int
    seen_epoch: int
    seen_version: int


class PersistTable(NamedTuple):
    """Write the epoch table durably."""

    token: int
    entries: tuple[EpochStart, ...]


class PersistConfirm(NamedTuple):
    """Write ``ha/confirm`` durably: nothing below may ever be cut automatically. No answer."""

    confirm: int


class TakeAppendLock(NamedTuple):
    """Take byte 0 (waiting for the broker to give it back), find the log's end; Done with it."""

    token: int


class ReleaseAppendLock(NamedTuple):
    """Close the log and give byte 0 back; Done."""

    token: int


class Publish(NamedTuple):
    """Store slots of the page, in this order, and ring broker and reput."""

    slots: tuple[tuple[Slot, int], ...]


class Fence(NamedTuple):
    """``grant.fence``: end whatever grant there is."""


class Grant(NamedTuple):
    """``grant.grant``: let that start of the broker append under epoch."""

    epoch: int
    nonce: int
    deadline_ms: int


class Cut(NamedTuple):
    """Cut the log at ``point``, crash-safe, the tail kept (``cutting``); then Done."""

    token: int
    point: int
    table: tuple[EpochStart, ...]
    """After the cut."""


class Resync(NamedTuple):
    """Empty the store and begin a new incarnation, crash-safe (broker and reput end); then Done."""

    token: int
    first_offset: int
    """Where the master's log begins."""
    reason: str


class CheckLog(NamedTuple):
    """Read the log file around an offset, record by record; CopyFault if one is damaged."""

    at: int


class Reply(NamedTuple):
    """The answer to an operator's command."""

    token: int
    ok: bool
    body: dict[str, Any]


class Level(IntEnum):
    """How much a line of the log matters; the numbers are those of ``logging``."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Note(NamedTuple):
    """Say something in the log, and raise or clear the alarm of that code."""

    level: int
    event: str
    sentence: str
    facts: dict[str, Any]
    alarm: bool | None = None
    """True: /ready and status name it until it is cleared; None: only said."""


class Ended(NamedTuple):
    """Nothing further can be done here by this process: it ends, with this error's code."""

    code: str
    detail: str


FileEffect = PersistPromise | PersistConfirm
"""Files that the replica alone writes: in an order of their own."""
LogEffect = Copy | Settle | PersistTable | TakeAppendLock | ReleaseAppendLock | Cut | Resync
"""What belongs to the log: one after the other."""
DiskEffect = FileEffect | LogEffect | CheckLog

Effect = (
    LeaseGet
    | LeasePut
    | LeaseCreate
    | Connect
    | Send
    | Stream
    | Close
    | DiskEffect
    | Publish
    | Fence
    | Grant
    | Reply
    | Note
    | Ended
)
