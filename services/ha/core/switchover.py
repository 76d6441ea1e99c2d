"""A planned switch to a slave in the set (docs/replication.md, becoming master). Pure.

1. Sends are held: refused as retriable, while those under way are confirmed.
2. The broker is fenced and the append lock taken: the end of the log is fixed.
3. The target has all of it on disk: no tail is left behind.
4. The lease is released for the target, which is asked to take it.

Before step 2 a failed switch changes nothing. After it the term is over: this node campaigns again
as soon as it has the log, unless another one was faster. Step before: an operator, or trouble of
this node. Step after: ``campaign`` at the target.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from services.ha.core.effects import Fence, Publish
from services.ha.core.peers import Peers
from services.ha.core.replica_context import ReplicaContext
from services.ha.core.states import Trigger
from services.ha.lease.session import WriteOutcome
from services.ha.lease.value import Lease, Member
from services.ha.wire.payloads import CampaignNow
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from services.ha.core.mastership import Mastership

STABLE_MS: Final = 20
"""The completely confirmed log must not grow for this time; then no append is in progress."""
HOLD_MS_MAX: Final = 1000
FENCE_MS_MAX: Final = 2000
"""Limit of the wait for the append lock. A broker whose disk hangs keeps it, and the lease, which
is renewed until then, must become free."""
DRAIN_MS_MAX: Final = 1000
NOT_CONFIRMED: Final = "the log was not confirmed to its end"
"""Reason of a switch that failed because a slave, or the own disk, was slow."""


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
        context: ReplicaContext,
        peers: Peers,
        term: Mastership,
        target: Member,
        *,
        failed: Callable[[str, bool, bool], None],
        released: Callable[[str], None],
    ) -> None:
        """One of the callbacks is called once. failed: with the reason, whether the broker was
        fenced already, and whether the lease may have been released. released: with the target
        node."""
        self._context, self._peers, self._term, self.target = context, peers, term, target
        self._failed, self._released = failed, released
        self._stage = _Stage.HOLDING
        self._since_ms = context.now_ms
        self._stable: tuple[int, int] | None = None
        context.out.put(Publish(((Slot.SENDS_HELD, 1),)))

    @property
    def fenced(self) -> bool:
        """Whether the broker is fenced already, so that only the target is still served."""
        return self._stage is not _Stage.HOLDING

    @property
    def releasing(self) -> bool:
        """Whether the lease is being released."""
        return self._stage is _Stage.RELEASING

    def turn(self) -> None:
        """Go to the next step if the log, the confirm offset or the target's end moved far
        enough."""
        context, term = self._context, self._term
        durable = self._durable()
        if self._stage is _Stage.HOLDING:
            if durable is None:
                self._fail(f"{self.target.node} does not follow any more")
            elif term.in_sync.peer(self.target).leaving:
                self._fail(f"{self.target.node} is about to end")
            elif term.confirm.value < context.end or durable < context.end:
                self._stable = None
            elif self._stable is None or self._stable[0] != context.end:
                self._stable = context.end, context.now_ms
            elif context.now_ms - self._stable[1] >= STABLE_MS:
                self._fence()
        elif self._stage is _Stage.DRAINING and durable == context.end:
            self._enter(_Stage.RELEASING)
            self._release()

    def go_on(self) -> None:
        """Go to the next step because the broker is gone: nothing more is appended."""
        if self._stage is _Stage.HOLDING:
            self._fence()

    def tick(self) -> None:
        """Check the limits of the present step."""
        elapsed_ms = self._context.now_ms - self._since_ms
        self.turn()
        if self._stage is _Stage.HOLDING and elapsed_ms > HOLD_MS_MAX:
            self._fail(f"{NOT_CONFIRMED} within {HOLD_MS_MAX} ms")
        elif self._stage is _Stage.FENCING and elapsed_ms > FENCE_MS_MAX:
            self._fail(f"the broker did not release the log within {FENCE_MS_MAX} ms")
        elif self._stage is _Stage.DRAINING and elapsed_ms > DRAIN_MS_MAX:
            self._fail(f"{self.target.node} did not get the log's end within {DRAIN_MS_MAX} ms")
        elif self._stage is _Stage.RELEASING:
            self._release()

    def answered(self, settled: WriteOutcome | None) -> None:
        """Handle an answer to a lease request while the lease is being released."""
        if settled is None or settled.wanted.holder is not None:
            return
        # The target may take the lease before this node reads its own write.
        if settled.applied or self._taken_over():
            self._stage = _Stage.OVER
            self._tell()
            self._released(self.target.node)

    def deposed(self, reason: str) -> None:
        """End the switch, because the term ends for another reason.

        While the lease is being released, the outcome is unknown: 1. The release is applied, and
        its answer is lost. 2. The target takes the lease. 3. This node hears of its epoch before it
        reads the lease again.
        """
        if self._stage is not _Stage.OVER:
            self._fail(reason, perhaps_released=self.releasing)

    def _taken_over(self) -> bool:
        stored = self._context.session.stored
        holder = None if stored is None else stored.lease.holder
        return holder is not None and holder.member == self.target

    def _durable(self) -> int | None:
        for link in self._term.links.values():
            if link.peer == self.target:
                return link.acked_end
        return None

    def _enter(self, stage: _Stage) -> None:
        self._stage, self._since_ms = stage, self._context.now_ms

    def _fence(self) -> None:
        context = self._context
        self._enter(_Stage.FENCING)
        self._term.stop_serving()
        context.out.put(Fence())
        context.move(Trigger.DEPOSED, f"planned switch to {self.target.node}")
        self._term.take_lock(self._taken)

    def _taken(self) -> None:
        self._enter(_Stage.DRAINING)
        self._term.turn()
        self.turn()

    def _release(self) -> None:
        context, session = self._context, self._context.session
        if not session.can_write or session.stored is None:
            return
        wanted = released(session.stored.lease, context, self.target.node)
        context.out.put(*session.propose(wanted, context.now_ms))

    def _tell(self) -> None:
        for link in self._term.links.values():
            if link.peer == self.target:
                self._peers.send(link.link, self._term.epoch, CampaignNow(self._context.end))

    def _fail(self, reason: str, *, perhaps_released: bool = False) -> None:
        fenced, self._stage = self.fenced, _Stage.OVER
        self._failed(reason, fenced, perhaps_released)


def released(lease: Lease, context: ReplicaContext, target: str) -> Lease:
    """Return the lease without a holder, for target to take at once.

    A process that is about to end also leaves the set if enough members remain. Otherwise its
    successor would wait for it before the first acknowledgement, until it counts as dead.
    """
    in_sync = lease.in_sync
    if context.stopping:
        remaining = tuple(member for member in in_sync if member != context.member)
        if len(remaining) >= lease.min_in_sync:
            in_sync = remaining
    return lease._replace(
        holder=None,
        handover_to=target,
        master_address="",
        in_sync=in_sync,
        in_sync_version=lease.in_sync_version + (in_sync != lease.in_sync),
    )
