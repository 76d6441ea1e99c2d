"""The simulated world of one seed: a group, its faults, its healing, and what must be so then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from services.ha.lease.value import Member
from services.ha.operator import STALLED
from tests.simulation.replication import page_rules
from tests.simulation.replication.group import Group
from tests.simulation.replication.lease_object import Weather
from tests.simulation.replication.plan import SERVICES, TIMES, Fault, draw_plan, theme_of
from tests.simulation.replication.seams import simulated
from tests.simulation.replication.strikes import Strikes
from tests.simulation.replication.timeline import Timeline
from tests.simulation.replication.violation import Violation

HEAL_MS: Final = 20 * TIMES.lease_ms
"""Within this a healed group has a master, and everybody is in the set."""
LOOK_MS: Final = 20
"""Between two looks at whether it has."""
QUIET_SHARE: Final = 0.3
"""Of the worlds in which the healed group is watched for a while."""
SETTLE_MS: Final = 4 * TIMES.lease_ms
"""What was ordered before the healing is over by then."""
QUIET_MS: Final = TIMES.lease_ms
QUIET_LOOKS: Final = 3
"""How often that long."""
HANDED_OVER: Final = "handed-over"
TAKEN_US: Final = 200_000
"""Whoever gets the lease is told so, and does not wait for its next look."""
SWITCH_MS: Final = 2_000
"""The longest that a planned switch takes (design, replication)."""


class World:
    """One group, from its bootstrap on."""

    def __init__(
        self,
        seed: int,
        *,
        say: Callable[[str], None] | None = None,
        faults: tuple[Fault, ...] = (),
    ) -> None:
        """say: takes the lines of a trace. faults: what happens, instead of what the seed says."""
        self.timeline = Timeline(seed)
        plan = draw_plan(self.timeline.random)
        faults = faults or theme_of(seed) or plan.faults
        self.group = Group(self.timeline, plan._replace(faults=faults), say=say)
        self.strikes = Strikes(self.group)
        self.history = self.group.history
        self._left: str | None = None
        """The node of which services are not healed."""
        self._confirmed = 0
        """End of what was confirmed before the healing."""

    def run(self) -> None:
        """Bootstrap, faults, healing. Raises Violation."""
        with simulated(self.timeline):
            try:
                self._run()
            finally:
                self.group.end()

    def _run(self) -> None:
        group = self.group
        group.tell("world", f"{group.plan}")
        for machine in group.machines.values():
            group.boot(machine)
        self.strikes.begin()
        self.timeline.after(100_000, self._check_now_and_then)
        self.timeline.run_until(group.plan.duration_ms * 1000)
        self._heal()
        acked = len(self.history.acked)
        until_us, whole = self.timeline.now_us + HEAL_MS * 1000, False
        while not whole and self.timeline.now_us < until_us:
            self.timeline.run_until(self.timeline.now_us + LOOK_MS * 1000)
            whole = len(self.history.acked) > acked and self._is_whole()
        self.history.check_equal_histories()
        self.history.check_members("at the end")
        if not whole and self._must_recover():
            raise Violation(self._why_not_whole(len(self.history.acked) - acked))
        if whole and self._left is None and self.timeline.random.random() < QUIET_SHARE:
            self._stay_whole()

    def _stay_whole(self) -> None:
        """Nothing happens: nobody takes the lease anew, the set stays as it is, no alarm stands."""
        history, timeline, group = self.history, self.timeline, self.group
        timeline.run_until(timeline.now_us + SETTLE_MS * 1000)
        if any([self._alarms(name) for name in group.machines]):
            return  # what stood still lately hands over as soon as a sound node can take over
        epoch, published = history.epoch, set(history.published)
        states = {name: self._state_of(name).partition(":")[0] for name in group.machines}
        if sorted(states.values()) != ["in-sync"] * (len(states) - 1) + ["master"]:
            raise Violation(f"without a fault the nodes are {states}")
        for _ in range(QUIET_LOOKS):
            acked, confirmed = len(history.acked), len(history.confirmed)
            timeline.run_until(timeline.now_us + QUIET_MS * 1000)
            shown = {name: self._shown(name) for name in group.machines}
            if len(history.acked) == acked or min(end or 0 for end in shown.values()) < confirmed:
                raise Violation(
                    f"in {QUIET_MS} ms without a fault {len(history.acked) - acked} sends are "
                    f"acknowledged, and of {confirmed} bytes {shown} are shown"
                )
        if history.epoch != epoch or set(history.published) != published:
            raise Violation(
                f"without a fault epoch {epoch} of {published} became {history.epoch} of "
                f"{history.published}"
            )
        self._switch_once()

    def _alarms(self, name: str) -> set[str]:
        """Of a node that had no fault for a while."""
        service = self.group.ha_of(name)
        assert service is not None, "it would not be whole"
        assert service.replica is not None, "it would not be whole"
        alarms = set(service.replica.own.alarms)
        # What stood still lately is a bad master for a while, and the alarms say so.
        if alarms - ({STALLED, HANDED_OVER} if STALLED in alarms else set()):
            raise Violation(f"{name} has alarms without a fault: {sorted(alarms)}")
        shown = {reason.code for reason in service.health.reasons}
        if shown != alarms:
            raise Violation(
                f"the probes of {name} say {sorted(shown)}, its alarms {sorted(alarms)}"
            )
        return alarms

    def _switch_once(self) -> None:
        """A planned switch succeeds where nothing hinders it, and the group goes on."""
        history, timeline, group = self.history, self.timeline, self.group
        master = history.holder
        assert master is not None, "it would not be whole"
        others = sorted(name for name in group.machines if name != master.node)
        to, acked, service = timeline.random.choice(others), 0, group.ha_of(master.node)
        token = group.order("switchover", {"to": to})
        assert service is not None
        assert token is not None
        until_us = timeline.now_us + SWITCH_MS * 1000
        while token not in service.replies and timeline.now_us < until_us:
            timeline.run_until(timeline.now_us + LOOK_MS * 1000)
            acked = len(history.acked)
        timeline.run_until(timeline.now_us + QUIET_MS * 1000)
        reply, holder = service.replies.get(token), history.holder
        if reply is None or not reply.ok or holder is None or holder.node != to:
            raise Violation(
                f"without a fault a planned switch from {master.node} to {to} ends so: {reply}, "
                f"the holder is {holder and holder.node}"
            )
        waited_us = history.won_us - history.released_us
        if waited_us > TAKEN_US:
            raise Violation(
                f"{to} takes the lease {waited_us} µs after {master.node} has given it to it"
            )
        if len(history.acked) == acked or not self._is_whole():
            raise Violation(f"{len(history.acked) - acked} sends follow on a planned switch")

    def _check_now_and_then(self) -> None:
        self.history.check_equal_histories()
        for machine in self.group.machines.values():
            page_rules.check_yields(machine)
            page_rules.check_held(machine)
            if not self.history.clocks_lie:
                page_rules.check_deadline(machine)
                page_rules.check_beats(machine)
            service = self.group.ha_of(machine.name)
            if service is not None:
                service.check_answered()
                service.check_probes()
        self.timeline.after(250_000, self._check_now_and_then)

    def _is_whole(self) -> bool:
        """Every node that was healed is in the set, and shows its consumers what was confirmed."""
        published = self.history.published
        if not all(member in published for member in self._able):
            return False
        for member in self._able:
            broker = self.group.broker_of(member.node)
            if broker is None or broker.shows < max(1, self._confirmed):
                return False
            if self.group.machines[member.node].has_intent:
                return False
        return True

    @property
    def _able(self) -> list[Member]:
        return [member for member in self.group.members if member.node != self._left]

    def _must_recover(self) -> bool:
        """Whether what is left is enough: the disk of a member of the set."""
        history, published = self.history, self.history.published
        if history.went_back and history.replaced:
            return False  # the only one that knew the object to be old may be the lost disk
        return any(member in published for member in self._able) or not history.epoch

    def _why_not_whole(self, acked: int) -> str:
        now = {name: self._state_of(name) for name in self.group.machines}
        return (
            f"healed for {HEAL_MS} ms: {acked} sends were acknowledged since; the set is "
            f"{[member.node for member in self.history.published]}, the holder "
            f"{self.history.holder and self.history.holder.node}; shown of {self._confirmed} is "
            f"{ {name: self._shown(name) for name in self.group.machines} }; {now}"
        )

    def _shown(self, name: str) -> int | None:
        broker = self.group.broker_of(name)
        return None if broker is None else broker.shows

    def _state_of(self, name: str) -> str:
        service = self.group.ha_of(name)
        if service is None or service.replica is None:
            return "no replica"
        status = service.replica.status(self.group.machines[name].clock.now_ms())
        own: dict[str, object] = next((n for n in status["nodes"] if n["node"] == name), {})
        return f"{own.get('state')}: {own.get('reason')}"

    def _operate(self) -> None:
        """What an operator does behind it all: failover is automatic again, the lease is there."""
        group, random = self.group, self.timeline.random
        stored = group.lease.stored
        machine = random.choice([m for m in group.machines.values() if m.name != self._left])
        if stored is None or self.history.went_back:
            # Nodes that started since have not seen the set: the operator's own list counts then.
            members = [m.node for m in group.members if m in self.history.published]
            named = {"in_sync": ",".join(members)} if random.random() < 0.5 else {}
            group.order("recreate-lease", named, machine)
        elif stored.lease.paused:
            group.order("resume", {}, machine)
        self.timeline.after(700_000, self._operate)

    def _heal(self) -> None:
        """Everything works again, and nothing new happens."""
        group = self.group
        group.tell("world", "heal")
        group.healed = True
        self.timeline.after(1_500_000, self._operate)
        group.lease.weather = Weather()
        group.lease.unreachable.clear()
        group.lease.deaf.clear()
        group.lease.late_change = None
        group.network.heal()
        group.network.spike = 0.0
        for machine in group.machines.values():
            machine.disk_us = 2_000
            machine.calm()
            if not machine.is_on:
                group.boot(machine)
            for service in SERVICES:
                process = machine.processes.get(service)
                if process is not None and process.alive:
                    process.calm()
                else:
                    group.start_later(machine, service, 50)
        self._confirmed = len(self.history.confirmed)
        if self.history.epoch and not self.history.deleted:
            self._leave_some()

    def _leave_some(self) -> None:
        """Services of one node are not healed: the others are enough."""
        left, group, holder = self.group.plan.left, self.group, self.history.holder
        if left is None:
            return
        master = holder.node if holder is not None else next(iter(group.machines))
        others = [name for name in group.machines if name != master]
        self._left = name = master if left.at_master else self.timeline.random.choice(others)
        group.tell("world", f"{left} of {name}")
        for service in left.services:
            process = group.machines[name].processes.get(service)
            if left.gone:
                group.gone.add((name, service))
            if process is not None and process.alive:
                process.end() if left.gone else process.pause()
