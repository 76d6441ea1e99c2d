"""Rules for the end of a term: when it may end, and when it must.

A term that ends without a reason breaks no promise: the group has a new master a second later. A
term that goes on without a reason keeps the others from having a master.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from services.ha.core.mastership import Mastership
from services.ha.core.replica import Replica
from services.ha.lease.value import Member
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha

LATELY_US: Final = 2 * TIMES.lease_ms * 1000
"""Time for which a fault of a service counts, since ha may notice it late."""
GONE_US: Final = 300_000
"""Time within which a broker that is gone is missed."""


class TermsEnded:
    """The ends of terms at one start of ha."""

    def __init__(self, ha: Ha, replica: Replica) -> None:
        self._ha, self._replica = ha, replica
        self._term: Mastership | None = None
        """The term before the present decision."""
        self._switches = 0
        """Number of its completed switches then."""
        self._was_fenced = False
        """Whether a switch had ended the grant then."""
        self._released_to: Member | None = None
        """Member for which a switch was releasing the lease then."""
        self._granted_us: int | None = None
        """When the term was granted."""

    def handled(self) -> None:
        """Check a decision of the replica after it was made."""
        term, before = self._replica.leadership.term, self._term
        if before is not None and term is not before:
            self._must_have_a_reason(before)
        now_us = self._ha.machine.timeline.now_us
        if term is None or term.granted is None:
            self._granted_us = None
        elif term is not before or self._granted_us is None:
            self._granted_us = now_us
        self._term, self._switches = term, self._replica.context.count.switchovers
        switch = None if term is None else term.switch
        self._was_fenced = switch is not None and switch.fenced
        self._released_to = None if switch is None or not switch.releasing else switch.target
        if term is not None and self._granted_us is not None and not self._was_fenced:
            self._must_have_its_broker(term)

    def _must_have_a_reason(self, term: Mastership) -> None:
        own, ha, history = self._replica.context, self._ha, self._ha.history
        if own.count.switchovers > self._switches or history.clocks_wrong:
            return
        stored = own.session.stored
        holder = None if stored is None else stored.lease.holder
        if holder is not None and holder.member == self._released_to:
            raise Violation(
                f"{ha.node} has released the lease for {holder.node}, which has it, but counts its "
                "own term as deposed"
            )
        if self._was_fenced:
            return
        if not own.session.holds(term.epoch) or self._replica.promises.highest > term.epoch:
            return
        if own.stopping or own.halted or own.ending or own.damage or own.count.resyncs:
            return
        late = term.deadline_ms is None or own.now_ms >= term.deadline_ms
        if late or self._has_fault or (not term.gate_open and self._has_others):
            return
        raise Violation(f"{ha.node} ends its own epoch {term.epoch} without a reason")

    @property
    def _has_fault(self) -> bool:
        """Whether its disk or its broker has, or recently had, a fault that ends a term."""
        machine = self._ha.machine
        now_us, broker = machine.timeline.now_us, machine.processes.get("broker")
        if machine.is_full or machine.has_failed or now_us - machine.roomy_us < LATELY_US:
            return True
        if broker is None or not broker.alive or broker.paused:
            return True
        begun_us = max(self._ha.process.resumed_us, broker.resumed_us, broker.begun_us)
        return now_us - begun_us < LATELY_US or not machine.slot(Slot.SERVING_EPOCH)

    @property
    def _has_others(self) -> bool:
        """Whether another node runs, to which a term that is not opened is left."""
        now_us = self._ha.machine.timeline.now_us
        for other in self._ha.history.others(self._ha.machine):
            process = other.processes.get("ha")
            if process is None:
                if now_us - other.off_us < LATELY_US:
                    return True
            elif (process.alive and not process.paused) or now_us - process.idle_us < LATELY_US:
                return True
        return False

    def _must_have_its_broker(self, term: Mastership) -> None:
        """Check that the start of the broker that holds the grant still runs."""
        ha, broker = self._ha, self._ha.machine.processes.get("broker")
        if broker is None or self._granted_us is None:
            return
        if broker.begun_us > self._granted_us:
            gone_us = broker.begun_us
        elif broker.alive:
            return
        else:
            gone_us = broker.idle_us
        late_us = ha.machine.timeline.now_us - max(gone_us, ha.process.resumed_us)
        if late_us > GONE_US:
            raise Violation(
                f"{ha.node} goes on with epoch {term.epoch}, but the broker that serves it is gone "
                f"for {late_us} µs"
            )
