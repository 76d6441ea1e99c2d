"""What every trial of a whole group needs: to wait, to order, and to see all whole again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from services.ha.core.failover import State
from services.ha.core.handover import STALLED
from services.ha.core.liveness import FORGIVEN_PER_MS, STALLED_LEASES_MAX
from services.ha.core.replica import Replica
from tests.simulation.replication.ha import Ha
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

LOOK_MS: Final = 20
"""Interval at which a condition is checked."""
QUIET_MS: Final = TIMES.lease_ms
UNHEARD_MS: Final = 2 * TIMES.link_dead_ms + TIMES.heartbeat_ms
"""A node that ended is missed by then."""
HANDED_OVER: Final = "handed-over"
SETTLE_MS: Final = 4 * TIMES.lease_ms
"""What was ordered before the healing is over by then."""
FORGOTTEN_MS: Final = (FORGIVEN_PER_MS * STALLED_LEASES_MAX + 2) * TIMES.lease_ms
"""The longest that stalls are remembered, and the time in which nobody can take over."""
CALM_MS: Final = SETTLE_MS
AGAIN_MS: Final = 10 * TIMES.lease_ms
"""What was taken from a group is there again by then."""


class Trying:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world, self._group, self._history = world, world.group, world.history
        self._timeline, self._random = world.timeline, world.timeline.random

    def must_be_forgotten(self) -> None:
        """What stood still is a bad master for a while, and no longer."""

        def is_forgotten() -> bool:
            services = [self._group.ha_of(name) for name in self._group.machines]
            if any(service is None or service.replica is None for service in services):
                return False  # it begins anew
            return not any([self._alarms(name) for name in self._group.machines])

        if not self._until(is_forgotten, FORGOTTEN_MS):
            said = {name: sorted(self._alarms(name)) for name in self._group.machines}
            raise Violation(f"nothing stood still for {FORGOTTEN_MS} ms, and these say so: {said}")
        self._must_be_whole_again("what stood still is forgotten")

    def calm_down(self) -> None:
        """What an alarm says is over soon."""
        if not self._until(lambda: not any(map(self._all_said, self._group.machines)), CALM_MS):
            alarms = {name: self._all_said(name) for name in self._group.machines}
            raise Violation(f"all is whole for {CALM_MS} ms, and these alarms stay: {alarms}")
        if not self._until(lambda: not any(map(self._troubles, self._group.machines)), CALM_MS):
            troubles = {name: self._troubles(name) for name in self._group.machines}
            raise Violation(f"all is whole for {CALM_MS} ms, and these troubles stay: {troubles}")

    def _troubles(self, name: str) -> dict[str, int]:
        """What broker and reput of a node publish that hinders them."""
        slots = (Slot.BROKER_TROUBLE, Slot.REPUT_TROUBLE)
        found = {slot.name: self._group.machines[name].slot(slot) for slot in slots}
        return {slot: trouble for slot, trouble in found.items() if trouble}

    def _order(self, name: str, arguments: dict[str, str]) -> None:
        """Give the master an order, which succeeds."""
        service = self._group.ha_of(self._master().name)
        token = self._group.order(name, arguments)
        assert service is not None, "it would not be whole"
        assert token is not None, "it would not be whole"
        self._until(lambda: token in service.replies, AGAIN_MS)
        reply = service.replies.get(token)
        if reply is None or not reply.ok:
            raise Violation(f"without a fault {name} is answered so: {reply}")

    def _lose(self, machine: Machine, services: Iterable[str]) -> None:
        """Kill services, which stay away until ``_bring_back``."""
        for service in services:
            self._group.gone.add((machine.name, service))
            machine.processes[service].end()

    def _bring_back(self) -> None:
        """Start what was lost."""
        lost, gone = sorted(self._group.gone), self._group.gone
        gone.clear()
        for name, service in lost:
            self._group.start_later(self._group.machines[name], service, 50)

    @property
    def _may_lose_one(self) -> bool:
        """Whether all but one node are enough to take sends."""
        return self._group.plan.nodes - 1 >= self._group.plan.min_in_sync

    def _master(self) -> Machine:
        holder = self._history.holder
        assert holder is not None, "it would not be whole"
        return self._group.machines[holder.node]

    def _must_move_from(self, machine: Machine, within_ms: int, why: str) -> None:
        """Another node takes the lease, and senders are answered."""
        acked = len(self._history.acked)

        def is_moved() -> bool:
            holder = self._history.holder
            is_other = holder is not None and holder.node != machine.name
            return is_other and len(self._history.acked) > acked

        if not self._until(is_moved, within_ms):
            raise Violation(
                f"{machine.name} is the master for {within_ms} ms, and {why}: "
                f"{self._world.why_not_whole(len(self._history.acked) - acked)}"
            )

    def _must_be_whole_again(self, since: str) -> None:
        """All are in the set, sends are acknowledged, and no alarm stands."""
        acked = len(self._history.acked)
        self._world.expect_all_confirmed()
        whole = self._until(
            lambda: len(self._history.acked) > acked and self._world.is_whole(), AGAIN_MS
        )
        if not whole:
            raise Violation(f"{since}, and {self._world.why_not_whole(0)}")
        self.calm_down()

    def _all_said(self, name: str) -> dict[str, str]:
        alarms = self._said(self._group.machines[name])
        return {} if STALLED in alarms else alarms

    def _alarms(self, name: str) -> set[str]:
        """Of a node that had no fault for a while."""
        service = self._group.ha_of(name)
        assert service is not None, "it would not be whole"
        assert service.replica is not None, "it would not be whole"
        alarms = set(service.replica.context.alarms)
        # What stood still lately is a bad master for a while, and the alarms say so.
        if alarms - ({STALLED, HANDED_OVER} if STALLED in alarms else set()):
            raise Violation(f"{name} has alarms without a fault: {sorted(alarms)}")
        shown = {reason.code for reason in service.health.reasons}
        if shown != alarms:
            raise Violation(
                f"the probes of {name} say {sorted(shown)}, its alarms {sorted(alarms)}"
            )
        return alarms

    def _any_machine(self) -> Machine:
        return self._random.choice(list(self._group.machines.values()))

    def _any_but(self, machine: Machine) -> Machine:
        others = [other for other in self._group.machines.values() if other is not machine]
        return self._random.choice(others)

    def _wait(self, ms: int) -> None:
        self._timeline.run_until(self._timeline.now_us + ms * 1000)

    def _until(self, is_so: Callable[[], bool], ms: int) -> bool:
        """Look again and again for so long; whether it came to be so."""
        until_us = self._timeline.now_us + ms * 1000
        while not is_so():
            if self._timeline.now_us >= until_us:
                return False
            self._wait(LOOK_MS)
        return True

    def _said(self, machine: Machine) -> dict[str, str]:
        service = self._group.ha_of(machine.name)
        return {} if service is None or service.replica is None else service.replica.context.alarms

    def _ha(self, machine: Machine) -> Ha:
        service = self._group.ha_of(machine.name)
        assert service is not None, "it would not be whole"
        return service

    @property
    def _published(self) -> list[str]:
        return [member.node for member in self._history.published]

    def _replica(self, ha: Ha) -> Replica:
        assert ha.replica is not None, "it would not be whole"
        return ha.replica

    def _link_of(self, slave: Machine) -> int | None:
        link = self._replica(self._ha(slave)).following.link
        return None if link is None else link.link

    def _must_be(self, machine: Machine, state: State, why: str) -> None:
        said = self._world.state_of(machine.name)
        if said.partition(":")[0] != state.value:
            raise Violation(f"{machine.name} {why}, and is {said}")
