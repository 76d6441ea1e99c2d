"""The lease as one start of ha sees it, and its writes: one request at a time. Pure.

The replica asks (read, propose, create), the shell sends the request, and every answer comes back
here. The replica decides who may campaign, and when; this module has the rules of one object with
compare-and-set (docs/replication.md, the lease):

- A write names the version that it replaces, and always changes ``renewed``.
- A write that was not answered may be applied now, later or never. It is repeated on the same
  version, with a read before each repetition, until the outcome is known: it was applied, or
  another write moved the version. A read that shows the old version proves nothing, because the
  write may still be under way.
- From then on only the object as read counts (``stored``), not the intended write.
- An object that shows less than was seen before, for example one restored from a backup, is not
  written.

1. A master adds a slave to the in-sync set; the answer to the write is lost.
2. A read shows the old set. Taken as "not added", the master would acknowledge without the slave.
3. The write arrives. The slave is electable now, and lacks what was acknowledged in step 2.

So from the moment it is sent, ``unsettled`` is a set that may be the published one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from services.ha.core.effects import Effect, LeaseCreate, LeaseGet, LeasePut
from services.ha.core.events import LeaseAnswered, LeaseOutcome
from services.ha.lease.value import Holder, Lease, Member, Stored
from shared.cluster.time_rules import TimeRules

JITTER: Final = 0.1
"""Random part of the renewal interval, so that several groups do not renew in step."""
RETRIES_PER_INTERVAL: Final = 4
"""Retries per renewal interval, so that immediate errors do not cause a request each."""
HURRIED_MAX: Final = 8
"""Consecutive conflicts that are answered by another write at once; later ones wait."""
ATTEMPTS_KEPT: Final = 64
"""Send times kept of one write; an older attempt counts as sent with the first one."""
COUNTER_BITS: Final = 32
PROCESS_BITS: Final = 31
"""Together they fit a positive i64."""


class WriteOutcome(NamedTuple):
    """A write is over; ``LeaseSession.stored`` is the object as it is now."""

    wanted: Lease
    applied: bool
    """The object is as this write made it. If not, it may have been for a while, before another
    write. A process that gave up an epoch in this way must not act on it."""
    unanswered: bool = False
    """An attempt had no answer: a write that is not applied now may have been for a while."""


class Answer(NamedTuple):
    """Result of an answer of the lease."""

    effects: list[Effect]
    settled: WriteOutcome | None = None


class _Write:
    """One write and its repetitions, all on the same version."""

    __slots__ = (
        "base",
        "first",
        "first_sent_ms",
        "last",
        "reads_first",
        "sent_ms",
        "unanswered",
        "wanted",
    )

    def __init__(self, base: Stored | None, wanted: Lease, first: int, now_ms: int) -> None:
        self.base = base
        """None: the object is to be created."""
        self.wanted = wanted
        self.first = first
        self.last = first - 1
        self.first_sent_ms = now_ms
        self.sent_ms: dict[int, int] = {}
        """Value of ``renewed`` → when that attempt was sent; the newest attempts only."""
        self.reads_first = False
        """The last attempt was a conflict, or not answered: read before the next one."""
        self.unanswered = False
        """An attempt was not answered."""

    def attempt(self, now_ms: int) -> Lease:
        """Return what the next attempt writes."""
        self.last += 1
        self.sent_ms[self.last] = now_ms
        if len(self.sent_ms) > ATTEMPTS_KEPT:
            del self.sent_ms[next(iter(self.sent_ms))]
        return self.wanted._replace(renewed=self.last)

    def wrote(self, lease: Lease) -> bool:
        """Return whether the object was last written by one of the attempts."""
        if not self.first <= lease.renewed <= self.last:
            return False
        # An operator may have edited the holder and left `renewed` as it was.
        return (lease.holder, lease.epoch) == (self.wanted.holder, self.wanted.epoch)


class LeaseSession:
    """The lease as this start of ha sees it; one for the life of the process."""

    def __init__(
        self, own: Holder, rules: TimeRules, seen: tuple[int, int], random: Callable[[], float]
    ) -> None:
        """Begin without knowledge of the lease.

        seen: the largest (epoch, in-sync version) that this volume has seen, as persisted. random:
        uniform in [0, 1).
        """
        self.own: Final = own
        self._rules = rules
        self._random = random
        self.stored: Stored | None = None
        """The object as last found or written; None: not read yet, or absent."""
        self.absent = False
        """Whether the last answer with an outcome was that there is no object."""
        self.seen = seen
        """Largest (epoch, in-sync version) so far; the replica persists it when it rises."""
        self.backwards = False
        """The object shows less than `seen`, or another set: it is neither taken nor renewed."""
        self._set: tuple[tuple[int, int], tuple[Member, ...]] = (0, 0), ()
        """The newest set that was seen, with its (epoch, in-sync version)."""
        self.given_up = 0
        """Largest epoch that a write of this process carried without holding it then: the write may
        be applied later, and must not be acted on."""
        self.reason = ""
        """Why the last request had no outcome; empty after one that had."""
        self.latency_ms: int | None = None
        """Latency of the last request with an outcome."""
        self.asked_ms: int | None = None
        """When that request was sent."""
        self.conflicts = 0
        self.unknowns = 0
        self.writes = 0
        self._request = 0
        self._outstanding: int | None = None
        self._wrote = False
        """Whether the outstanding request, or the last one, is a write."""
        self._conflicts_in_a_row = 0
        self._started_ms: int | None = None
        self._next_ms: int | None = None
        """Time of the next request; None: none was sent yet."""
        self._write: _Write | None = None
        self._counter = 0
        self._since_ms: int | None = None
        self._renewed_ms: int | None = None
        """Send time of the last write known as applied that named this process."""

    # What is known

    @property
    def free(self) -> bool:
        """Whether no request is outstanding and no write unsettled."""
        return self._outstanding is None and self._write is None

    @property
    def can_write(self) -> bool:
        """Whether `propose` may be called."""
        return self.free and self.stored is not None and not self.backwards

    @property
    def unsettled(self) -> Lease | None:
        """The lease of the write whose outcome is unknown: it may be stored now or later."""
        return None if self._write is None else self._write.wanted

    def note_seen(self, shown: tuple[int, int]) -> None:
        """Note that another node has seen this (epoch, in-sync version) of the lease."""
        self.seen = max(self.seen, shown)

    def holds(self, epoch: int) -> bool:
        """Return whether the object, as last seen, names this process with that epoch."""
        lease = None if self.stored is None else self.stored.lease
        return lease is not None and lease.holder == self.own and lease.epoch == epoch

    def deadline_ms(self, epoch: int) -> int | None:
        """Return until when a master of that epoch may answer (boot-time clock); None: not at all.

        It is the lease time minus the margin after the last renewal *that is known as applied* was
        sent.
        """
        if self._renewed_ms is None or not self.holds(epoch):
            return None
        return self._renewed_ms + self._rules.lease_ms - self._rules.margin_ms

    def unchanged_ms(self, now_ms: int) -> int | None:
        """Return the time since this process first saw the present holder and version; None: never.

        A candidate waits by it: the times in the object are never compared with a clock.
        """
        return None if self._since_ms is None else now_ms - self._since_ms

    # Requests

    def due(self, now_ms: int) -> bool:
        """Return whether the next routine request is due: a read, or the holder's renewal."""
        return self.free and (self._next_ms is None or now_ms >= self._next_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        """Repeat an unsettled write when it is due."""
        if self._write is None or self._outstanding is not None:
            return []
        if self._next_ms is not None and now_ms < self._next_ms:
            return []
        return [self._get(now_ms)] if self._write.reads_first else [self._attempt(now_ms)]

    def read(self, now_ms: int) -> list[Effect]:
        """Read the object, if no other request is open."""
        return [self._get(now_ms)] if self.free else []

    def renew(self, now_ms: int) -> list[Effect]:
        """Write the present lease again, as its holder."""
        assert self.stored is not None
        return self.propose(self.stored.lease, now_ms)

    def propose(self, wanted: Lease, now_ms: int, *, despite: bool = False) -> list[Effect]:
        """Replace the stored lease by `wanted`; its `renewed` is set here.

        despite: also replace an object that went backwards, by an operator's command. Answered by a
        `WriteOutcome` of `answered`, after any number of repetitions.
        """
        assert self.can_write or (despite and self.free and self.stored is not None)
        self._write = _Write(self.stored, wanted, self._counter_next(), now_ms)
        return [self._attempt(now_ms)]

    def create(self, wanted: Lease, now_ms: int) -> list[Effect]:
        """Create the object where there is none. Answered by a `WriteOutcome`."""
        assert self.free
        self._write = _Write(None, wanted, self._counter_next(), now_ms)
        return [self._attempt(now_ms)]

    def abandon(self) -> None:
        """Stop repeating the unsettled write of a term that is over.

        It may still be applied; the process must not act on its epoch any more.
        """
        if self._write is not None:
            self._give_up(self._write)
            self._write = None

    # Answers

    def answered(self, event: LeaseAnswered, now_ms: int) -> Answer:
        """Handle the answer to a request; a late answer is dropped."""
        if event.request != self._outstanding:
            return Answer([])
        assert self._started_ms is not None
        self._outstanding = None
        started_ms = self._started_ms
        if event.outcome is LeaseOutcome.UNKNOWN:
            self.unknowns += 1
            self.reason = event.reason
            self._next_ms = self._retry_ms(now_ms)
            if self._write is not None:
                # Alternate: if answers to writes are lost, only a read shows that one was applied;
                # if the write was lost, only a repetition settles it.
                self._write.reads_first = self._wrote
                self._write.unanswered |= self._wrote
            return Answer([])
        self.reason = ""
        self.latency_ms = now_ms - started_ms
        self.asked_ms = started_ms
        if self._wrote or self._next_ms is None or started_ms >= self._next_ms:
            # An extra read, for a command, does not delay the renewal. Otherwise a command that is
            # repeated more often than the lease is renewed would let the lease expire.
            self._next_ms = started_ms + self._interval_ms()
        match event.outcome:
            case LeaseOutcome.FOUND:
                assert event.stored is not None
                self._take(event.stored, now_ms)
                return Answer([], self._settle_by(event.stored, now_ms))
            case LeaseOutcome.APPLIED:
                assert event.stored is not None
                self.writes += 1
                self._conflicts_in_a_row = 0
                self._take(event.stored, now_ms)
                return Answer([], self._settle_as_applied(event.stored, started_ms))
            case LeaseOutcome.ABSENT:
                self._take_absence()
                if self._write is not None and self._write.base is None:
                    # A creation that was not answered may still be under way.
                    self._write.reads_first = False
                    self._next_ms = now_ms
                    return Answer([])
                return Answer([], self._settle(applied=False))
            case LeaseOutcome.CONFLICT:
                self.conflicts += 1
                self._conflicts_in_a_row += 1
                if self._write is not None:
                    self._write.reads_first = True
                # Read again at once: all that is known is that this was not the first write.
                return Answer([self._get(now_ms)])

    def _settle_by(self, found: Stored, now_ms: int) -> WriteOutcome | None:
        """Return the outcome of the write that a read shows."""
        write = self._write
        if write is None:
            return None
        base = write.base
        if base is not None and (found.uid, found.version) == (base.uid, base.version):
            # The lease is as before the write, which may still arrive: the next attempt decides.
            write.reads_first = False
            self._next_ms = self._hurried_ms(now_ms)
            return None
        if not write.wrote(found.lease):
            # The next attempt follows at once, on this version. Otherwise a process that keeps
            # editing the object would come first every time.
            self._next_ms = self._hurried_ms(now_ms)
            return self._settle(applied=False)
        renewed = found.lease.renewed
        self._note_renewal(found.lease, write.sent_ms.get(renewed, write.first_sent_ms))
        return self._settle(applied=True)

    def _settle_as_applied(self, stored: Stored, sent_ms: int) -> WriteOutcome | None:
        self._note_renewal(stored.lease, sent_ms)
        return self._settle(applied=True)

    def _settle(self, *, applied: bool) -> WriteOutcome | None:
        write = self._write
        if write is None:
            return None
        self._write = None
        if not applied:
            self._give_up(write)
        return WriteOutcome(write.wanted, applied, not applied and write.unanswered)

    def _give_up(self, write: _Write) -> None:
        """Note an epoch that the write would have begun, and that must not be acted on."""
        if write.base is None or write.wanted.epoch > write.base.lease.epoch:
            self.given_up = max(self.given_up, write.wanted.epoch)

    def _take(self, stored: Stored, now_ms: int) -> None:
        """Store the object that was read, and since when it is unchanged; detect an older one."""
        before = self.stored
        if before is None or _identity(before) != _identity(stored):
            self._since_ms = now_ms
        self.stored, self.absent = stored, False
        shown = (stored.lease.epoch, stored.lease.in_sync_version)
        # One epoch and version has one set. Another set means: 1. A group is founded, and the
        # request to create its lease is not answered. 2. It is founded again on other volumes. 3.
        # The lease is deleted. 4. The first request creates it.
        is_another = shown == self._set[0] and stored.lease.in_sync != self._set[1]
        self.backwards = shown < self.seen or is_another
        if shown >= self.seen and not is_another:
            self.seen, self._set = shown, (shown, stored.lease.in_sync)

    def _take_absence(self) -> None:
        self.stored, self.absent, self.backwards = None, True, False
        self._since_ms = None

    def _note_renewal(self, lease: Lease, sent_ms: int) -> None:
        if lease.holder == self.own:
            self._renewed_ms = sent_ms

    def _get(self, now_ms: int) -> Effect:
        return LeaseGet(self._begin(now_ms, writes=False))

    def _attempt(self, now_ms: int) -> Effect:
        write = self._write
        assert write is not None
        lease = write.attempt(now_ms)
        self._counter = max(self._counter, lease.renewed & (1 << COUNTER_BITS) - 1)
        request = self._begin(now_ms, writes=True)
        if write.base is None:
            return LeaseCreate(request, lease)
        return LeasePut(request, lease, write.base)

    def _begin(self, now_ms: int, *, writes: bool) -> int:
        assert self._outstanding is None
        self._request += 1
        self._outstanding, self._started_ms, self._wrote = self._request, now_ms, writes
        return self._request

    def _counter_next(self) -> int:
        """Return the next `renewed`: no other start of any ha writes the same one."""
        process = int(self.own.process, 16) & (1 << PROCESS_BITS) - 1
        return process << COUNTER_BITS | (self._counter + 1)

    def _interval_ms(self) -> int:
        return int(self._rules.renew_ms * (1 - JITTER + 2 * JITTER * self._random()))

    def _hurried_ms(self, now_ms: int) -> int:
        """Return when to continue after a read that followed a write: at once, up to a limit."""
        return now_ms if self._conflicts_in_a_row <= HURRIED_MAX else self._retry_ms(now_ms)

    def _retry_ms(self, now_ms: int) -> int:
        """Return when to repeat a request without an outcome: soon, without overloading the
        server."""
        assert self._started_ms is not None
        return max(now_ms, self._started_ms + self._rules.renew_ms // RETRIES_PER_INTERVAL)


def _identity(stored: Stored) -> tuple[object, ...]:
    return stored.uid, stored.version, stored.lease.holder
