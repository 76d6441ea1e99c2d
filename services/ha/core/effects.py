"""The effects of the core: what ``replica.Replica.handle`` returns for the shell to run. Pure.

Effects run in their order; those with a token are answered with ``Done`` or ``Failed``. The slots
of one ``Publish`` are stored one after another, and a crash may come between any two.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from services.ha.lease.value import Lease, Stored
from services.ha.wire.frames import Frame
from shared.cluster.nodes import Node
from tidemark.formats.checkpoint import Slot
from tidemark.formats.epochs import EpochStart


class LeaseGet(NamedTuple):
    """Read the lease, never from a cache."""

    request: int


class LeasePut(NamedTuple):
    """Replace ``base`` by ``lease``, if its version and uid are still current."""

    request: int
    lease: Lease
    base: Stored


class LeaseCreate(NamedTuple):
    """Create the lease object if there is none."""

    request: int
    lease: Lease


class UseNodes(NamedTuple):
    """Accept links of these nodes, and connect to them, from now on."""

    nodes: tuple[Node, ...]


class Connect(NamedTuple):
    """Connect to a node unless a connection exists or is being made; LinkUp or LinkDown follows."""

    node: str


class Send(NamedTuple):
    """Send a frame. The link buffers a bounded number of bytes and is closed beyond it."""

    link: int
    frame: Frame


class Stream(NamedTuple):
    """Send an APPEND frame with bytes of the log's mapping: [offset, offset + size)."""

    link: int
    frame: Frame
    """APPEND without its bytes."""
    offset: int
    size: int


class Close(NamedTuple):
    """Close a link after sending what is buffered; LinkDown follows."""

    link: int
    reason: str


class Copy(NamedTuple):
    """Append bytes to a slave's log in order; Copied follows after the next sync, and
    for every MiB written meanwhile.

    The bytes may end inside a record; the rest comes with the next ones. first: these bytes begin a
    new stretch, and the rest of an incomplete record before them is dropped.
    """

    offset: int
    data: bytes | memoryview
    first: bool


class Settle(NamedTuple):
    """Finish copying and syncing and drop incomplete records; Done with end and durable end."""

    token: int


class PersistPromise(NamedTuple):
    """Write ``ha/promise`` durably: the promised epoch, and the largest (epoch, version) seen."""

    token: int
    promised: int
    seen_epoch: int
    seen_version: int


class PersistTable(NamedTuple):
    """Write the epoch table durably."""

    token: int
    entries: tuple[EpochStart, ...]


class PersistConfirm(NamedTuple):
    """Write ``ha/confirm`` durably: nothing below it may be cut automatically. No event follows."""

    confirm: int


class TakeAppendLock(NamedTuple):
    """Take the append lock once the broker has released it, and find the end of the log; Done has
    the end."""

    token: int


class ReleaseAppendLock(NamedTuple):
    """Close the log and release the append lock; Done follows."""

    token: int


class Publish(NamedTuple):
    """Store slots of the page, in this order, and ring the broker, and reput if ROLE or CONFIRM is
    among them."""

    slots: tuple[tuple[Slot, int], ...]


class Fence(NamedTuple):
    """Run ``grant.fence``: end the present grant, if there is one."""


class Grant(NamedTuple):
    """Run ``grant.grant``: let that start of the broker append under epoch."""

    epoch: int
    nonce: int
    deadline_ms: int


class Cut(NamedTuple):
    """Cut the log at ``point``, crash-safe, and keep the tail (``cutting``); then Done."""

    token: int
    point: int
    table: tuple[EpochStart, ...]
    """The table after the cut."""


class Resync(NamedTuple):
    """Empty the store and begin a new incarnation, crash-safe (broker and reput end); then Done."""

    token: int
    intended: int
    """Token of an earlier Done: from there on the next start would empty the store, too."""
    first_offset: int
    """First offset of the master's log."""
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
    """Severity of a log line; the numbers are those of ``logging``."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Note(NamedTuple):
    """Write a log line, and raise or clear the alarm with the code of its event."""

    level: int
    event: str
    sentence: str
    facts: dict[str, Any]
    alarm: bool | None = None
    """True: raise an alarm, shown by /ready and the status until it is cleared. None: only log."""


class Ended(NamedTuple):
    """End this process with this error code, because it cannot continue."""

    code: str
    detail: str


FileEffect = PersistPromise | PersistConfirm
"""Files that only the replica writes, in an order of their own."""
LogEffect = Copy | Settle | PersistTable | TakeAppendLock | ReleaseAppendLock | Cut | Resync
"""Changes of the log and its table, one after the other."""
DiskEffect = FileEffect | LogEffect | CheckLog

Effect = (
    LeaseGet
    | LeasePut
    | LeaseCreate
    | UseNodes
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
