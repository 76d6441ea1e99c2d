"""Identity, offsets and state of a replica, shared by the parts of its core, and its effects. Pure.

Everything here belongs to this start of ha. It is read from disk at the start, and updated by the
events that report what was done. Effects are run in the order in which they are put; an effect that
is answered carries the continuation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from services.ha.core.counters import Counters
from services.ha.core.effects import Level, Note, Publish, UseNodes
from services.ha.core.events import NodeSnapshot
from services.ha.core.liveness import Liveness
from services.ha.core.outbox import Outbox
from services.ha.core.recovered_table import without_bytes_dropped
from services.ha.core.setup import Found, Halt, LogBytes, Setup
from services.ha.core.states import State, Trigger, next_state
from services.ha.lease.session import LeaseSession
from services.ha.lease.value import Holder, Lease, Member, Membership
from tidemark.formats.checkpoint import NodeRole, Slot, Trouble
from tidemark.formats.epochs import EpochStart

_NOTHING_SENSED = NodeSnapshot(0, 1 << 40, 0, 0, 0, 0)


DAMAGE: Final = "corrupt-record"
"""Code of a damaged record in this node's log, below the confirm offset."""
ENDING: Final = frozenset({"disk-full", "flush-failed", "read-only-disk", "write-failed"})
"""Codes of failed writes after which no open file of this process can be trusted."""


TABLE_LONG: Final = 1000
"""Epochs of a long table; as many as a HELLO carries."""
REWORD_MS: Final = 60_000
"""Interval at which an alarm that stays raised with changing text is logged again; the status shows
the newest text."""
STEP_BACK_PAUSES: Final = 3
"""Lease times for which a replica that cannot lead does not campaign."""
RETRIED_FAULTS: Final = frozenset(
    {"bad-stream", "disk-full", "file-not-ready", "not-serving", "read-only-disk"}
)
"""Codes of faults of the log and its marks that may not occur again."""
BROKER_STOPS: Final = Trouble.STOPPING.name.lower()
"""Trouble of a node whose broker waits for a moment until another node serves."""
PROMISE: Final = "promise of the epoch"
TABLE: Final = "table of epochs"
LOGS_DIFFER: Final = "logs-differ"
"""Alarm of a slave whose confirmed bytes differ from the master's."""


class ReplicaContext:
    """One replica: identity, offsets, state."""

    def __init__(self, setup: Setup, found: Found, log: LogBytes, session: LeaseSession) -> None:
        self.setup, self.times, self.log, self.session = setup, setup.times, log, session
        self.out = Outbox(self.failed)
        self.count = Counters()
        self.incarnation = found.incarnation
        self.state = State.RECOVERING
        self.state_reason = ""
        """Why it is in this state, in a sentence; empty: there is nothing to explain."""
        self.halted: Halt | None = None
        self.damage = found.damage
        """Damage in this node's log, found while it did not follow, or by an earlier start; empty:
        none."""
        self.ending: Halt | None = None
        """Why this process ends: a write failed, and may succeed in a new start."""
        self.table = found.table
        self.stopping = False
        """This process is about to end; it no longer campaigns."""
        self.table_writes = 0
        """Table writes under way. Until they are done, nothing begins that reads or cuts the table.
        """
        self._unwritten_ms: dict[str, int] = {}
        """Since when a file of ha is to be written, by what it contains."""
        self.first_offset = found.first_offset
        self.end = found.end
        self.durable = found.end
        self.confirm = found.confirm
        """This node's checkpoint: what is known to be confirmed and is on its disk."""
        self.initialised = found.initialised
        self.snapshot = _NOTHING_SENSED
        self.liveness = Liveness(setup.times)
        self.now_ms = 0
        """Time of the event that is being handled."""
        self.paused_until_ms = 0
        """This replica does not campaign before this time."""
        self.cannot_lead: str | None = None
        """Why a term has to end now."""
        self.differs_at: int | None = None
        """Last confirmed byte that may differ from the master's; None: the logs agree."""
        self.alarms: dict[str, str] = {}
        self._alarm_said_ms: dict[str, int] = {}
        self.known_lease: Lease | None = None
        """The lease as last seen, even if it is gone since; None: none was seen."""
        self.members = Membership(0, setup.nodes)
        """The nodes of the group as last seen; they never go back to an earlier version."""

    @property
    def name(self) -> str:
        """Name of this node."""
        return self.setup.own.name

    @property
    def member(self) -> Member:
        """This replica as a member of the in-sync set."""
        return Member(self.name, self.incarnation)

    @property
    def known_in_sync(self) -> tuple[Member, ...]:
        """The published set as last seen."""
        return () if self.known_lease is None else self.known_lease.in_sync

    @property
    def known_in_sync_at(self) -> tuple[int, int]:
        """(epoch, version) of the set as last seen; (0, 0): none was seen."""
        lease = self.known_lease
        return (0, 0) if lease is None else (lease.epoch, lease.in_sync_version)

    @property
    def is_spare(self) -> bool:
        """Whether a master would remove this replica from the set if it ended: it is a member, and
        enough others remain."""
        lease = self.known_lease
        return (
            lease is not None
            and self.member in lease.in_sync
            and len(lease.in_sync) > lease.min_in_sync
        )

    @property
    def holder(self) -> Holder:
        """This start of ha as a holder of the lease."""
        return Holder(self.name, self.incarnation, self.setup.process)

    def ends_at(self, end: int) -> None:
        """Set the end of the log, and remove epochs without a byte in the log from the table.

        1. A slave writes the entry of a new epoch while earlier bytes are still being copied.
        2. Those bytes cannot be copied. 3. With the entry, the next link would continue in the new
        epoch, and refuse the bytes that are missing.
        """
        self.end = end
        self.table = without_bytes_dropped(self.table, end)

    @property
    def holds_records(self) -> bool:
        """Whether the log has any record."""
        return self.end > self.first_offset

    @property
    def data_epoch(self) -> int:
        """Epoch of the newest entry of the table; 0: the table is empty."""
        return self.table[-1].epoch if self.table else 0

    @property
    def wall_ms(self) -> int:
        """The wall clock, for people only; 0: unknown."""
        ahead_ms = self.snapshot.wall_ahead_ms
        return 0 if ahead_ms is None else max(0, self.now_ms + ahead_ms)

    @property
    def others(self) -> tuple[str, ...]:
        """The other nodes to connect to; none if this one was removed from the group."""
        return () if self.is_removed else tuple(n for n in self.names if n != self.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the group's nodes in ordinal order."""
        return tuple(node.name for node in self.members.nodes)

    @property
    def is_removed(self) -> bool:
        """Whether an operator removed this node from the group, or has not added it yet.

        A node of the same name with another replication address is another machine: if this one
        starts again, it must not be taken for it.
        """
        own = (self.name, self.setup.own.host, self.setup.own.port)
        return own not in ((node.name, node.host, node.port) for node in self.members.nodes)

    def note_members(self, lease: Lease) -> bool:
        """Take later nodes from the lease, and use them for links; return whether there are."""
        if lease.members is None or lease.members.version <= self.members.version:
            return False
        self.members = lease.members
        self.out.put(UseNodes(self.members.nodes))
        self.say(
            "nodes-changed",
            f"the group has the nodes {', '.join(self.names)}",
            version=self.members.version,
        )
        return True

    def members_to_write(self) -> Membership | None:
        """Return the nodes for a lease: None while they are the configured ones."""
        return self.members if self.members.version else None

    @property
    def broker_serves(self) -> bool:
        """Whether a broker runs here that could take a grant, or keeps one."""
        still_ms = self.liveness.broker.still_ms
        return self.snapshot.broker_nonce != 0 and still_ms < self.times.broker_silent_ms

    @property
    def idle_service(self) -> str:
        """Name of a service without which no epoch can be opened here, and which is missing or
        stalls; empty: there is none."""
        if not self.broker_serves:
            return "broker"
        still_ms = self.liveness.reput.still_ms
        moves = self.snapshot.reput_alive and still_ms < self.times.broker_silent_ms
        return "" if moves else "reput"

    @property
    def cannot_open(self) -> str:
        """Why no epoch could be opened here now, in words; empty: it could."""
        if self.idle_service:
            return f"{self.idle_service} is not there, or does not move"
        limit_ms = self.now_ms - self.times.broker_silent_ms
        what = next((what for what, since in self._unwritten_ms.items() if since <= limit_ms), "")
        return f"ha's disk does not write the {what}" if what else ""

    @property
    def trouble(self) -> str:
        """What makes this node unfit as a master, for example ``disk_full``; empty: nothing."""
        stalling = self.liveness.stalling
        return self._store_trouble or (f"{stalling}_stalls" if stalling else "")

    @property
    def unfit(self) -> str:
        """Why this node should not lead now, in words; empty: it can."""
        if self.cannot_open:
            return self.cannot_open
        stalling = self.liveness.stalling
        if self.stalls_are_over:
            return f"{stalling} recently stalled too long or too often: other nodes come first"
        if self.trouble == BROKER_STOPS:
            return "its broker was asked to stop"
        return f"this node has trouble: {self.trouble}" if self.trouble else ""

    @property
    def stalls_are_over(self) -> bool:
        """Whether the only trouble is stalls of services that have all recovered.

        Such a node takes the lease only on an operator's command.
        """
        return self.only_stalls and not self.idle_service

    @property
    def only_stalls(self) -> bool:
        """Whether all trouble is stalls of a service."""
        return bool(self.liveness.stalling and not self._store_trouble)

    @property
    def _store_trouble(self) -> str:
        """Trouble that is not a stall. Damage takes precedence: while it is known, no other node
        may empty its store to copy this node's log, whatever else is wrong here."""
        found = self.snapshot.broker_trouble, self.snapshot.reput_trouble
        if self.damage or Trouble.DAMAGED in found:
            return Trouble.DAMAGED.name.lower()
        return next((each.name.lower() for each in found if each is not Trouble.NONE), "")

    def must_write(self, what: str) -> None:
        """Note that a file of ha is to be written, unless that is noted already."""
        self._unwritten_ms.setdefault(what, self.now_ms)

    def wrote(self, what: str) -> None:
        """Note that the file is on disk, or need not be written any more."""
        self._unwritten_ms.pop(what, None)

    def begin_table_write(self) -> None:
        """Note that a write of the epoch table begins."""
        self.table_writes += 1
        self.must_write(TABLE)

    def end_table_write(self) -> None:
        """Note that a write of the epoch table has ended."""
        self.table_writes -= 1
        if not self.table_writes:
            self.wrote(TABLE)

    def move(self, trigger: Trigger, reason: str = "") -> bool:
        """Move to the state that follows, and log it; return whether it is another one."""
        before, self.state = self.state, next_state(self.state, trigger)
        if self.state is before:
            return False
        self.state_reason = reason
        self.say(
            "role-changed",
            f"{before.value} → {self.state.value}" + (f": {reason}" if reason else ""),
            before=before.value,
            state=self.state.value,
            because=trigger.value,
        )
        if self.state is State.HALTED:
            self.out.put(Publish(((Slot.ROLE, NodeRole.HALTED),)))
        return True

    def halt(self, code: str, detail: str) -> None:
        """Stop all changes of this volume. A running term is ended first."""
        if code == DAMAGE:
            detail = damage_sentence(detail)
        if self.halted is None or self.state is State.RESYNC:  # a resync replaces an earlier reason
            self.halted = Halt(code, detail)
        self.alarm(code, detail)
        self.move(Trigger.DAMAGED, detail)

    def failed(self, code: str, detail: str) -> None:
        """Handle a failed write: end this process if a new start may succeed, else halt."""
        if code in ENDING:
            self.ending = Halt(code, detail)
        else:
            self.halt(code, detail)

    def no_room(self, code: str, detail: str) -> None:
        """Handle a full disk while a mark must be durable: others may lead, this replica may not
        yet.

        1. A node with a full disk takes the lease that names it. 2. It cannot promise the epoch. 3.
        If it took the lease again at once, no other node would ever get it.
        """
        self.alarm(code, detail)
        self.step_back(detail)

    def step_back(self, reason: str, *, times: int = 1) -> None:
        """End the term or the campaign, and let others take the lease first.

        times: factor of this replica's usual pause.
        """
        self.paused_until_ms = self.now_ms + times * STEP_BACK_PAUSES * self.times.lease_ms
        self.cannot_lead = reason

    def logs_differ(self, start: int, end: int) -> None:
        """Raise the alarm that confirmed bytes differ from the master's: one of the logs is
        damaged."""
        self.differs_at = end - 1
        self.alarm(
            LOGS_DIFFER,
            f"the master's log and this one differ between {start} and {end}, which is confirmed. "
            "Nothing was cut. Both nodes check these bytes, and the damaged one says so; if none "
            "does, one log is another group's: `tidemark cluster resync` gives this one up.",
        )

    def logs_agree(self) -> None:
        """Clear that alarm: this log is the beginning of the master's, or the master's itself."""
        self.differs_at = None
        self.calm(LOGS_DIFFER)

    @property
    def refused_at(self) -> int | None:
        """Offset at which the master's log may be damaged; None: none is known."""
        return self.end if "bad-stream" in self.alarms else self.differs_at

    def writes_again(self) -> None:
        """Clear the alarms of failed writes: bytes or marks are on disk again."""
        for code in [code for code in self.alarms if code in RETRIED_FAULTS]:
            self.calm(code)

    def say(self, event: str, sentence: str, *, level: int = Level.INFO, **facts: Any) -> None:
        """Write a log line."""
        self.out.put(Note(level, event, sentence, facts))

    def alarm(self, event: str, sentence: str, **facts: Any) -> None:
        """Raise the alarm of that name, unless it is raised with the same text.

        A new text goes to status and probes at once, and to the log once a minute: an unreachable
        lease gives another reason at every try.
        """
        if self.alarms.get(event) == sentence:
            return
        level, said_ms = Level.WARNING, self._alarm_said_ms.get(event)
        if event in self.alarms and said_ms is not None and self.now_ms - said_ms < REWORD_MS:
            level = Level.DEBUG
        else:
            self._alarm_said_ms[event] = self.now_ms
        self.alarms[event] = sentence
        self.out.put(Note(level, event, sentence, facts, alarm=True))

    def calm(self, event: str) -> None:
        """Clear the alarm of that name, if it is raised."""
        if self.alarms.pop(event, None) is not None:
            self.out.put(Note(Level.INFO, event, f"{event} is over", {}, alarm=False))

    def renew_identity(self, incarnation: str, random: Callable[[], float]) -> None:
        """Continue as another member after the volume was emptied, with a new lease session. No
        request of the old session may be under way."""
        assert self.session.free
        self.incarnation = incarnation
        self.session = LeaseSession(self.holder, self.times, self.session.seen, random)

    def set_log_end(self, end: int, durable: int) -> None:
        """Store the end of this node's log, and its durable end, from an event."""
        self.end, self.durable = end, durable

    def note_confirm(self, confirm: int) -> None:
        """Update the checkpoint: it covers the confirmed bytes that are on this node's disk."""
        self.confirm = max(self.confirm, min(confirm, self.durable))


def damage_sentence(detail: str) -> str:
    """Return the damage as a sentence with the remedy."""
    return f"{detail.rstrip('.')}. An operator has it copied anew: `tidemark cluster resync`."


def with_entry(table: tuple[EpochStart, ...], entry: EpochStart) -> tuple[EpochStart, ...]:
    """Return the table with a new last entry, which replaces one with the same start.

    Every term has an entry: equal (epoch, start) means equal history.
    """
    kept = tuple(old for old in table if old.start < entry.start)
    return (*kept, entry)


def without_gone(table: tuple[EpochStart, ...], first_offset: int) -> tuple[EpochStart, ...]:
    """Return a long table without its oldest epochs, whose records are removed: no slave continues
    from them."""
    gone = 0
    while len(table) - gone >= TABLE_LONG and table[gone + 1].start <= first_offset:
        gone += 1
    return table[gone:]
