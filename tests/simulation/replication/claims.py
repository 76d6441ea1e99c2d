"""Checks of what a node reports about itself while the group is not whole.

Each claim may be late by the time that it takes to read the lease, or to miss a node.
"""

from __future__ import annotations

from typing import Final

from services.ha.core.states import State
from services.ha.core.status import BELOW_MINIMUM
from services.ha.core.switch_orders import SHORT_LEASES
from tests.simulation.replication.group import Group
from tests.simulation.replication.ha import Ha
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

LEARNED_US: Final = (2 * TIMES.renew_ms + 3 * TIMES.request_timeout_ms) * 1000
"""Time within which a node with access to the lease has read it, also if one or two requests get no
answer."""
FREED_US: Final = 300_000
"""Longest time for which sends are held after the end of a switch."""
SHORT_US: Final = SHORT_LEASES * TIMES.lease_ms * 1000
RAISED_US: Final = 500_000
"""ha evaluates its alarms within this time, also with a slow disk or lease."""


class Claims:
    """The claims of the nodes of one group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._since_us: dict[tuple[str, str], int] = {}
        """By node and claim: since when the claim is wrong."""

    def check(self) -> None:
        """Raise Violation if a running node has reported something wrong for too long."""
        for name in self._group.machines:
            ha = self._group.ha_of(name)
            runs = ha is not None and ha.replica is not None and not ha.process.paused
            if ha is None or not runs or ha.stop.is_set():
                for claim in [claim for claim in self._since_us if claim[0] == name]:
                    del self._since_us[claim]
                continue
            self._check_place(ha)
            self._check_held(ha)
            self._check_minimum(ha)

    def _check_place(self, ha: Ha) -> None:
        """Check that a slave reports its membership: an operator decides by it which node to stop
        next."""
        group, history, replica = self._group, self._group.history, ha.replica
        assert replica is not None
        state, is_in = replica.context.state, ha.member in history.published
        is_cut = {ha.node} & (group.lease.unreachable | group.lease.deaf)
        reads = group.healed and not is_cut and group.lease.stored and not history.went_back
        wrong = (state is State.IN_SYNC and not is_in) or (state is State.CATCHUP and is_in)
        self._must_end_soon(
            (ha.node, "place"),
            bool(reads and wrong),
            LEARNED_US,
            f"{ha.node} reports the state {state.value}, but it is {'' if is_in else 'not '}in the "
            "published set",
        )

    def _check_held(self, ha: Ha) -> None:
        """Check that sends are held only during a switch."""
        assert ha.replica is not None
        term, page = ha.replica.leadership.term, ha.machine
        switches = term is None or term.switch is not None or term.granted is None
        self._must_end_soon(
            (ha.node, "held"),
            bool(page.slot(Slot.SENDS_HELD)) and not switches,
            FREED_US,
            f"{ha.node} holds sends without a switch under way",
        )

    def _check_minimum(self, ha: Ha) -> None:
        """Check that a master that refuses sends because too few members answer reports it, and
        that no other node does."""
        assert ha.replica is not None
        own, term, page = ha.replica.context, ha.replica.leadership.term, ha.machine
        is_granted = term is not None and term.granted is not None and not page.slot(Slot.FENCED)
        few = page.slot(Slot.IN_SYNC_SIZE) < page.slot(Slot.MIN_IN_SYNC)
        is_reported = BELOW_MINIMUM in own.alarms
        changed_us = page.changed_us.get(Slot.IN_SYNC_SIZE, 0)
        # Each term counts anew how long it has had too few members.
        epoch = 0 if term is None else term.epoch
        self._must_end_soon(
            (ha.node, f"few in epoch {epoch}"),
            is_granted and few and not is_reported,
            SHORT_US + RAISED_US,
            f"{ha.node} refuses sends for too few members, but raises no alarm",
            not_before_us=changed_us,
        )
        self._must_end_soon(
            (ha.node, "enough"),
            is_reported and (term is None or (is_granted and not few)),
            RAISED_US,
            f"{ha.node} has enough members, or is no master, but has the alarm",
            not_before_us=changed_us,
        )

    def _must_end_soon(
        self, claim: tuple[str, str], wrong: bool, us: int, why: str, *, not_before_us: int = 0
    ) -> None:
        now_us = self._group.timeline.now_us
        if not wrong:
            self._since_us.pop(claim, None)
            return
        since_us = max(self._since_us.setdefault(claim, now_us), not_before_us)
        if now_us - since_us > us:
            raise Violation(f"{why}, for {now_us - since_us} µs")
