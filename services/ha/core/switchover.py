"""A planned switch to a slave in the set (docs/replication.md, becoming master). Pure.

1. Sends are held: refused as repeatable, while those under way are confirmed.
2. The broker is fenced, the append lock taken: the log's end is fixed.
3. The target has all of it on disk: no tail is left behind.
4. The lease is released for the target, which is told to take it.

Before step 2 a switch that fails changes nothing. Behind it the term is over: this node campaigns
again as soon as it has the log, unless another one was faster. Step before: an operator, or trouble
of this node. Step after: ``campaign`` at the target.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from services.ha.core.effects import Fence, Publish
from services.ha.core.failover import Trigger
from services.ha.core.own import Own
from services.ha.core.peers import Peers
from services.ha.lease.session import Settled
from services.ha.lease.value import Lease, Member
from services.ha.wire.payloads import CampaignNow
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from services.ha.core.mastership import Mastership

STABLE_MS: Final = 20
"""The log must stand still, wholly confirmed, for so long: what was being appended is in."""
HOLD_MS_MAX: Final = 1000
FENCE_MS_MAX: Final = 2000
"""A broker whose disk hangs keeps the log: the lease, renewed until then, must get free."""
DRAIN_MS_MAX: Final = 1000


class _Stage(Enum):
    HOLDING = "holding"
    FENCING = "fencing"
    DRAINING = "draining"
    RELEASING = "releasing"
    OVER = "over"


class Switchover:
    """One planned switch within a term."""

    def __init__(
        self,
        own: Own,
        peers: Peers,
        term: Mastership,
        target: Member,
        *,
        failed: Callable[[str, bool, bool], None],
        released: Callable[[str], None],
    ) -> None:
        """Either is called once. failed: why, whether the broker was fenced already, and whether
        the lease may have been released all the same. released: for which node."""
        self._own, self._peers, self._term, self.target = own, peers, term, target
        self._failed, self._released = failed, released
        self._stage = _Stage.HOLDING
        self._since_ms = own.now_ms
        self._stable: tuple[int, int] | None = None
        own.out.put(Publish(((Slot.SENDS_HELD, 1),)))

    @property
    def fenced(self) -> bool:
        """Whether the broker's part is over: only the target is still served."""
        return self._stage is not _Stage.HOLDING

    @property
    def releasing(self) -> bool:
        """Whether the lease is being released."""
        return self._stage is _Stage.RELEASING

    def turn(self) -> None:
        """The log, what is confirmed of it, or the target's end may have moved."""
        own, term = self._own, self._term
        durable = self._durable()
        if self._stage is _Stage.HOLDING:
            if durable is None:
                self._fail(f"{self.target.node} does not follow any more")
            elif term.confirm.value < own.end or durable < own.end:
                self._stable = None
            elif self._stable is None or self._stable[0] != own.end:
                self._stable = own.end, own.now_ms
            elif own.now_ms - self._stable[1] >= STABLE_MS:
                self._fence()
        elif self._stage is _Stage.DRAINING and durable == own.end:
            self._enter(_Stage.RELEASING)
            self._release()

    def go_on(self) -> None:
        """The broker is gone: nothing more comes, and nobody waits for an answer."""
        if self._stage is _Stage.HOLDING:
            self._fence()

    def tick(self) -> None:
        """Time passed."""
        elapsed_ms = self._own.now_ms - self._since_ms
        self.turn()
        if self._stage is _Stage.HOLDING and elapsed_ms > HOLD_MS_MAX:
            self._fail(f"the log was not confirmed to its end within {HOLD_MS_MAX} ms")
        elif self._stage is _Stage.FENCING and elapsed_ms > FENCE_MS_MAX:
            self._fail(f"the broker did not give the log back within {FENCE_MS_MAX} ms")
        elif self._stage is _Stage.DRAINING and elapsed_ms > DRAIN_MS_MAX:
            self._fail(f"{self.target.node} did not get the log's end within {DRAIN_MS_MAX} ms")
        elif self._stage is _Stage.RELEASING:
            self._release()

    def answered(self, settled: Settled | None) -> None:
        """The lease was written or read, while it is being released."""
        if settled is None or settled.wanted.holder is not None:
            return
        # The target may have been faster than our own read of what we wrote.
        if settled.applied or self._taken_over():
            self._stage = _Stage.OVER
            self._tell()
            self._released(self.target.node)

    def deposed(self, reason: str) -> None:
        """The term ends by itself: so does the switch.

        Whether it has failed is not known while the lease is being released: 1. The release is
        applied, and its answer is lost. 2. The target takes the lease. 3. Its epoch is heard of
        before the lease is read again.
        """
        if self._stage is not _Stage.OVER:
            self._fail(reason, perhaps_released=self.releasing)

    def _taken_over(self) -> bool:
        stored = self._own.session.stored
        holder = None if stored is None else stored.lease.holder
        return holder is not None and holder.member == self.target

    def _durable(self) -> int | None:
        for link in self._term.links.values():
            if link.peer == self.target:
                return link.counts
        return None

    def _enter(self, stage: _Stage) -> None:
        self._stage, self._since_ms = stage, self._own.now_ms

    def _fence(self) -> None:
        own = self._own
        self._enter(_Stage.FENCING)
        self._term.serving = False
        own.out.put(Fence())
        own.move(Trigger.DEPOSED, f"planned switch to {self.target.node}")
        self._term.take_lock(self._taken)

    def _taken(self) -> None:
        self._enter(_Stage.DRAINING)
        self._term.turn()
        self.turn()

    def _release(self) -> None:
        own, session = self._own, self._own.session
        if not session.can_write or session.stored is None:
            return
        wanted = released(session.stored.lease, own, self.target.node)
        own.out.put(*session.propose(wanted, own.now_ms))

    def _tell(self) -> None:
        for link in self._term.links.values():
            if link.peer == self.target:
                self._peers.send(link.link, self._term.epoch, CampaignNow(self._own.end))

    def _fail(self, reason: str, *, perhaps_released: bool = False) -> None:
        fenced, self._stage = self.fenced, _Stage.OVER
        self._failed(reason, fenced, perhaps_released)


def released(lease: Lease, own: Own, target: str) -> Lease:
    """The lease without a holder, for target to take at once.

    A process that is about to end leaves the set with it, if enough members remain: its successor
    would wait for it, until it counts as dead, before the first acknowledgement.
    """
    in_sync = lease.in_sync
    if own.stopping:
        remaining = tuple(member for member in in_sync if member != own.member)
        if len(remaining) >= lease.min_in_sync:
            in_sync = remaining
    return lease._replace(
        holder=None,
        handover_to=target,
        master_address="",
        in_sync=in_sync,
        in_sync_version=lease.in_sync_version + (in_sync != lease.in_sync),
    )
