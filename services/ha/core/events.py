"""What happens to a replica: the events of the core (``replica.Replica.handle``). Pure.

Every event is handled with ``now_ms``, the boot-time clock. Tokens and request numbers are given
out by the core with an effect and come back with the event that answers it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from services.ha.lease.value import Member, Stored
from services.ha.wire.frames import Frame
from services.ha.wire.versions import SPOKEN
from tidemark.formats.checkpoint import Trouble


class Tick(NamedTuple):
    """Time passed. At least every 50 ms."""


class Sensed(NamedTuple):
    """What page and locks say, each slot loaded once in this order. On every doorbell, and at
    least every 50 ms."""

    broker_nonce: int
    """0: no broker, or its lock byte is free."""
    broker_silent_ms: int
    """Since its heartbeat."""
    serving_epoch: int
    epoch_record_end: int
    """Loaded after serving_epoch."""
    flushed: int
    """Loaded after epoch_record_end; written after flushed: the end is never below what is on
    disk."""
    written: int
    broker_trouble: Trouble = Trouble.NONE
    reput_trouble: Trouble = Trouble.NONE
    first_offset: int = 0
    """The page's MIN: retention removed what lies below."""
    foreign: tuple[int, int] = (0, 0)
    """[from, until) in which RocketMQ wrote: record CRCs are not judged there."""
    wall_ahead_ms: int | None = None
    """Wall clock minus boot clock; for metrics, no rule asks it. None: not known."""
    gate_open: bool = False
    """The broker takes sends, or reads of a slave. Loaded after serving_epoch: with that of a term
    it speaks of the term."""
    dispatched: int = 0
    """End of what queues and index cover."""
    reput_alive: bool = True
    """Its lock byte is held."""
    reput_silent_ms: int = 0
    """Since its heartbeat."""
    damaged_at: int | None = None
    """Where a read of the broker met a record that it could not trust; None: none did."""


class LeaseOutcome(Enum):
    """How a request to the lease ended."""

    FOUND = "found"
    """A get: ``stored`` is what it says."""
    ABSENT = "absent"
    """A get, or a put: there is no such object."""
    APPLIED = "applied"
    """A put or create: ``stored`` is what it says now."""
    CONFLICT = "conflict"
    """A put or create: another write was first; nothing was changed."""
    UNKNOWN = "unknown"
    """No answer in time, or an error that does not say: it may be applied now or later."""


class LeaseAnswered(NamedTuple):
    """A request to the lease ended."""

    request: int
    outcome: LeaseOutcome
    stored: Stored | None = None
    reason: str = ""


class LinkUp(NamedTuple):
    """A connection to a peer is there, and the peer has proved who it is."""

    link: int
    peer: Member
    outbound: bool
    """This node connected."""
    version: int = SPOKEN.highest
    """Of the protocol, as agreed in the handshake."""


class LinkDown(NamedTuple):
    """It is gone, or could not be made. link 0: a connection to ``node`` that never was."""

    link: int
    node: str
    reason: str = ""


class Received(NamedTuple):
    """A whole frame with a right checksum."""

    link: int
    frame: Frame


class Copied(NamedTuple):
    """Follower: bytes are in the log, and on disk up to durable. After every sync; whole records
    only."""

    end: int
    durable: int


class CopyFault(NamedTuple):
    """Follower: bytes could not be copied; nothing behind ``end`` was."""

    code: str
    detail: str
    end: int


class Done(NamedTuple):
    """An effect with a token was carried out, durably if it says so."""

    token: int
    end: int = 0
    """End of the log, where the effect settles it: TakeAppendLock, Settle, Cut, Resync."""
    durable: int = 0
    incarnation: str = ""
    """The new one, after Resync."""


class Failed(NamedTuple):
    """An effect with a token could not be carried out and will not be tried again."""

    token: int
    code: str
    detail: str


class Command(NamedTuple):
    """An operator asks; answered by the effect Reply with the same token."""

    token: int
    name: str
    """switchover, failover, pause, resume, remove-member, recreate-lease, resync, adopt."""
    arguments: dict[str, str]


Event = (
    Tick
    | Sensed
    | LeaseAnswered
    | LinkUp
    | LinkDown
    | Received
    | Copied
    | CopyFault
    | Done
    | Failed
    | Command
)
