"""What one start of ha knows of the lease, and how it writes it: one request at a time. Pure.

The replica asks (read, propose, create), the shell carries the request out, and every answer comes
back here. Who may campaign, and when, is the replica's business; here are the rules of one object
with compare-and-set (docs/replication.md, the lease):

- A write names the version that it replaces, and always changes ``renewed``.
- A write that was not answered may be applied now, later or never. It is repeated on the same
  version, with a read before each repetition, until it is known: applied, or the version moved by
  another's. A read that shows the old version proves nothing: the write may still be on its way.
- What the object says after that counts, never what was wanted: look at ``stored``.
- An object that shows less than was seen before (restored from a backup) is not written.

1. A master adds a slave to the in-sync set; the write is lost on the way back.
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
"""Renewals of several groups do not stay in step."""
RETRIES_PER_INTERVAL: Final = 4
"""An error that came at once is not asked again at once."""
HURRIED_MAX: Final = 8
"""So many conflicts in a row are answered by another write at once, later ones after a pause."""
ATTEMPTS_KEPT: Final = 64
"""Send times kept of one write; an older attempt counts as sent when the first one was."""
COUNTER_BITS: Final = 32
PROCESS_BITS: Final = 31
"""Together they fit a positive i64."""


class Settled(NamedTuple):
    """A write is over; ``LeaseSession.stored`` says what the object is now."""

    wanted: Lease
    applied: bool
    """The object is as this write made it. If not, it may have been for a while: another write
    came after it. Whoever gave up an epoch in this way must not act on it."""
    unanswered: bool = False
    """An attempt had no answer: if the write is not applied now, it may have been for a while."""


class Answer(NamedTuple):
    """What an answer of the lease leads to."""

    effects: list[Effect]
    settled: Settled | None = None


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
        """By ``renewed``, the newest only."""
        self.reads_first = False
        """The last attempt was a conflict, or was not answered: read before the next one."""
        self.unanswered = False
        """An attempt was not answered."""

    def attempt(self, now_ms: int) -> Lease:
        """What the next attempt writes."""
        self.last += 1
        self.sent_ms[self.last] = now_ms
        if len(self.sent_ms) > ATTEMPTS_KEPT:
            del self.sent_ms[next(iter(self.sent_ms))]
        return self.wanted._replace(renewed=self.last)

    def wrote(self, lease: Lease) -> bool:
        """Whether an object that says this was last written by one of the attempts."""
        if not self.first <= lease.renewed <= self.last:
            return False
        # Somebody's hand may have changed the holder and left `renewed` as it was.
        return (lease.holder, lease.epoch) == (self.wanted.holder, self.wanted.epoch)


class LeaseSession:
    """The lease as this start of ha sees it; one for the life of the process."""

    def __init__(
        self, own: Holder, rules: TimeRules, seen: tuple[int, int], random: Callable[[], float]
    ) -> None:
        """Know nothing yet.

        seen: the largest (epoch, in-sync version) that this volume has seen, as persisted.
        random: uniform in [0, 1).
        """
        self.own: Final = own
        self._rules = rules
        self._random = random
        self.stored: Stored | None = None
        """The object as last found or written; None: not read yet, or absent."""
        self.absent = False
        """The last answer that told anything told that there is no object."""
        self.seen = seen
        """Largest (epoch, in-sync version) so far; the replica persists it when it rises."""
        self.backwards = False
        """The object shows less than `seen`, or another set: nobody campaigns, nobody renews."""
        self._set: tuple[tuple[int, int], tuple[Member, ...]] = (0, 0), ()
        """The newest set that was seen, and of which (epoch, in-sync version) it is."""
        self.given_up = 0
        """Largest epoch that a write of this process carried and did not come to hold: such a
        write may be applied later, and must not be acted on."""
        self.reason = ""
        """Why the last request had no outcome; empty after one that had."""
        self.latency_ms: int | None = None
        """Of the last request that had an outcome."""
        self.answered_ms: int | None = None
        """When that was."""
        self.conflicts = 0
        self.unknowns = 0
        self.writes = 0
        self._request = 0
        self._outstanding: int | None = None
        self._wrote = False
        """The outstanding request, or the last one, is a write."""
        self._conflicts_in_a_row = 0
        self._started_ms: int | None = None
        self._next_ms: int | None = None
        """When to ask again; None: nothing was asked yet."""
        self._write: _Write | None = None
        self._counter = 0
        self._since_ms: int | None = None
        self._renewed_ms: int | None = None
        """Send time of the last write known as applied that named this process."""

    # What is known

    @property
    def free(self) -> bool:
        """Nothing is being asked and no write is unsettled."""
        return self._outstanding is None and self._write is None

    @property
    def can_write(self) -> bool:
        """Whether `propose` may be called."""
        return self.free and self.stored is not None and not self.backwards

    @property
    def unsettled(self) -> Lease | None:
        """What was wanted by the write whose outcome is not known: may be so, now or later."""
        return None if self._write is None else self._write.wanted

    def note_seen(self, shown: tuple[int, int]) -> None:
        """Another node has seen this (epoch, in-sync version) of the lease."""
        self.seen = max(self.seen, shown)

    def holds(self, epoch: int) -> bool:
        """Whether the object, as last seen, names this very process with that epoch."""
        lease = None if self.stored is None else self.stored.lease
        return lease is not None and lease.holder == self.own and lease.epoch == epoch

    def deadline_ms(self, epoch: int) -> int | None:
        """Until when (boot-time clock) a master of that epoch may answer; None: not at all.

        D minus the margin after the last renewal *that is known as applied* was about to be sent.
        """
        if self._renewed_ms is None or not self.holds(epoch):
            return None
        return self._renewed_ms + self._rules.lease_ms - self._rules.margin_ms

    def unchanged_ms(self, now_ms: int) -> int | None:
        """How long ago this process first saw the present holder and version; None: never seen.

        The patience of a candidate: the times in the object are never compared with a clock.
        """
        return None if self._since_ms is None else now_ms - self._since_ms

    # What is asked

    def due(self, now_ms: int) -> bool:
        """Whether it is time for the next routine request: a read, or the holder's renewal."""
        return self.free and (self._next_ms is None or now_ms >= self._next_ms)

    def tick(self, now_ms: int) -> list[Effect]:
        """Repeat an unsettled write when it is time to."""
        if self._write is None or self._outstanding is not None:
            return []
        if self._next_ms is not None and now_ms < self._next_ms:
            return []
        return [self._get(now_ms)] if self._write.reads_first else [self._attempt(now_ms)]

    def read(self, now_ms: int) -> list[Effect]:
        """Read the object, if nothing else is being asked."""
        return [self._get(now_ms)] if self.free else []

    def renew(self, now_ms: int) -> list[Effect]:
        """Write what is there once more, as its holder."""
        assert self.stored is not None
        return self.propose(self.stored.lease, now_ms)

    def propose(self, wanted: Lease, now_ms: int, *, despite: bool = False) -> list[Effect]:
        """Replace what is stored by `wanted`; its `renewed` is set here.

        despite: also an object that went backwards (the operator's order). Answered by a `Settled`
        of `answered`, after any number of repetitions.
        """
        assert self.can_write or (despite and self.free and self.stored is not None)
        self._write = _Write(self.stored, wanted, self._counter_next(), now_ms)
        return [self._attempt(now_ms)]

    def create(self, wanted: Lease, now_ms: int) -> list[Effect]:
        """Make the object where there is none. Answered by a `Settled`."""
        assert self.free
        self._write = _Write(None, wanted, self._counter_next(), now_ms)
        return [self._attempt(now_ms)]

    def abandon(self) -> None:
        """Stop repeating the unsettled write of a term that is over.

        It may still be applied; the epoch that it carries must not be acted on any more.
        """
        if self._write is not None:
            self._give_up(self._write)
            self._write = None

    # What is answered

    def answered(self, event: LeaseAnswered, now_ms: int) -> Answer:
        """Take the answer to a request; what came too late is dropped."""
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
                # In turn: where answers to writes are lost, only a read tells that one was applied;
                # where the write was, only a repetition settles it.
                self._write.reads_first = self._wrote
                self._write.unanswered |= self._wrote
            return Answer([])
        self.reason = ""
        self.latency_ms = now_ms - started_ms
        self.answered_ms = now_ms
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
                    # A creation that was not answered may still be on its way.
                    self._write.reads_first = False
                    self._next_ms = now_ms
                    return Answer([])
                return Answer([], self._settle(applied=False))
            case LeaseOutcome.CONFLICT:
                self.conflicts += 1
                self._conflicts_in_a_row += 1
                if self._write is not None:
                    self._write.reads_first = True
                # Re-read at once: all that is known is that this was not the first write.
                return Answer([self._get(now_ms)])

    def _settle_by(self, found: Stored, now_ms: int) -> Settled | None:
        """What a read says of the write."""
        write = self._write
        if write is None:
            return None
        base = write.base
        if base is not None and (found.uid, found.version) == (base.uid, base.version):
            # It proves nothing, and a refusal was none: the next attempt decides.
            write.reads_first = False
            self._next_ms = self._hurried_ms(now_ms)
            return None
        if not write.wrote(found.lease):
            # At once, from what was just read: whoever edits the object again and again would
            # otherwise be first every time.
            self._next_ms = self._hurried_ms(now_ms)
            return self._settle(applied=False)
        renewed = found.lease.renewed
        self._note_renewal(found.lease, write.sent_ms.get(renewed, write.first_sent_ms))
        return self._settle(applied=True)

    def _settle_as_applied(self, stored: Stored, sent_ms: int) -> Settled | None:
        self._note_renewal(stored.lease, sent_ms)
        return self._settle(applied=True)

    def _settle(self, *, applied: bool) -> Settled | None:
        write = self._write
        if write is None:
            return None
        self._write = None
        if not applied:
            self._give_up(write)
        return Settled(write.wanted, applied, not applied and write.unanswered)

    def _give_up(self, write: _Write) -> None:
        """An epoch that the write would have begun is not to be acted on."""
        if write.base is None or write.wanted.epoch > write.base.lease.epoch:
            self.given_up = max(self.given_up, write.wanted.epoch)

    def _take(self, stored: Stored, now_ms: int) -> None:
        """Remember what the object says, since when, and whether it went backwards."""
        before = self.stored
        if before is None or _identity(before) != _identity(stored):
            self._since_ms = now_ms
        self.stored, self.absent = stored, False
        shown = (stored.lease.epoch, stored.lease.in_sync_version)
        # Of one epoch and version there is one set. Another one: 1. a group is founded, and the
        # request to make its lease is not answered; 2. it is founded anew on other volumes; 3. the
        # lease is deleted; 4. the first request makes it.
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
        """The next `renewed`: no other start of any ha writes the same one."""
        process = int(self.own.process, 16) & (1 << PROCESS_BITS) - 1
        return process << COUNTER_BITS | (self._counter + 1)

    def _interval_ms(self) -> int:
        return int(self._rules.renew_ms * (1 - JITTER + 2 * JITTER * self._random()))

    def _hurried_ms(self, now_ms: int) -> int:
        """After a read that followed a write: at once, unless it goes on and on."""
        return now_ms if self._conflicts_in_a_row <= HURRIED_MAX else self._retry_ms(now_ms)

    def _retry_ms(self, now_ms: int) -> int:
        """After a request without an outcome: soon, but a refusing server is not hammered."""
        assert self._started_ms is not None
        return max(now_ms, self._started_ms + self._rules.renew_ms // RETRIES_PER_INTERVAL)


def _identity(stored: Stored) -> tuple[object, ...]:
    return stored.uid, stored.version, stored.lease.holder
