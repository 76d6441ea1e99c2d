"""The events of the core: what ``replica.Replica.handle`` takes. Pure.

Every event is handled with ``now_ms``, the boot-time clock. The core assigns tokens and request
numbers with an effect, and they come back with the event that answers it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from services.ha.lease.value import Member, Stored
from services.ha.wire.frames import Frame
from services.ha.wire.versions import SPOKEN
from tidemark.formats.checkpoint import Trouble


class Tick(NamedTuple):
    """Time passed. Posted at least every 50 ms."""


class NodeSnapshot(NamedTuple):
    """The state of the page and the locks, each slot loaded once. The order of the loads is that of
    the fields, except that ``damaged_at`` follows ``broker_nonce``. Posted on every doorbell, and
    at least every 50 ms."""

    broker_nonce: int
    """Nonce of the broker's start; 0: there is no broker, or its lock byte is free."""
    broker_silent_ms: int
    """Time since its heartbeat."""
    serving_epoch: int
    epoch_record_end: int
    """Loaded after serving_epoch."""
    flushed: int
    """Loaded after epoch_record_end, and before written, so that written is never below it."""
    written: int
    broker_trouble: Trouble = Trouble.NONE
    reput_trouble: Trouble = Trouble.NONE
    first_offset: int = 0
    """Slot MIN of the page: retention removed everything below."""
    foreign: tuple[int, int] = (0, 0)
    """[from, until) that RocketMQ wrote: record CRCs are not checked there."""
    wall_ahead_ms: int | None = None
    """Wall clock minus boot clock, for metrics only; None: unknown."""
    gate_open: bool = False
    """Whether the broker accepts sends, or as a slave reads. Loaded after serving_epoch, so that it
    belongs to the epoch that it shows."""
    dispatched: int = 0
    """End of what consume queues and index cover."""
    reput_alive: bool = True
    """Whether reput's lock byte is held."""
    reput_silent_ms: int = 0
    """Time since reput's heartbeat."""
    damaged_at: int | None = None
    """Offset at which a read of the broker found a record that cannot be trusted; None: it found
    none."""


class LeaseOutcome(Enum):
    """Outcome of a request to the lease."""

    FOUND = "found"
    """A get: ``stored`` is the lease."""
    ABSENT = "absent"
    """A get or a put: there is no such object."""
    APPLIED = "applied"
    """A put or a create: ``stored`` is the lease as it is now."""
    CONFLICT = "conflict"
    """A put or a create: another write was first, and nothing was changed."""
    UNKNOWN = "unknown"
    """No answer in time, or an error that does not show it: the write may be applied now or later.
    """


class LeaseAnswered(NamedTuple):
    """A request to the lease was answered."""

    request: int
    outcome: LeaseOutcome
    stored: Stored | None = None
    reason: str = ""


class LinkUp(NamedTuple):
    """A connection to a peer is established, and the peer is authenticated."""

    link: int
    peer: Member
    outbound: bool
    """Whether this node connected."""
    version: int = SPOKEN.highest
    """Version of the protocol, as agreed in the handshake."""


class LinkDown(NamedTuple):
    """A connection has ended. link 0: a connection to ``node`` could not be made."""

    link: int
    node: str
    reason: str = ""


class Received(NamedTuple):
    """A whole frame with a correct checksum was received."""

    link: int
    frame: Frame


class Copied(NamedTuple):
    """On a slave: whole records are in the log up to end, and on disk up to durable. Posted after
    every sync, and for every MiB written meanwhile."""

    end: int
    durable: int


class CopyFault(NamedTuple):
    """On a slave: bytes could not be copied; the log ends at ``end``."""

    code: str
    detail: str
    end: int


class Done(NamedTuple):
    """An effect with a token was run, durably if the effect promises it."""

    token: int
    end: int = 0
    """End of the log, for effects that settle it: TakeAppendLock, Settle, Cut, Resync."""
    durable: int = 0
    incarnation: str = ""
    """The new incarnation, after Resync."""


class Failed(NamedTuple):
    """An effect with a token failed and will not be tried again."""

    token: int
    code: str
    detail: str


class Command(NamedTuple):
    """A command of an operator; answered by the effect Reply with the same token."""

    token: int
    name: str
    """One of ``control.COMMANDS``."""
    arguments: dict[str, str]


Event = (
    Tick
    | NodeSnapshot
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
