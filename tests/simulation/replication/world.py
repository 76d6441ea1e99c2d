"""The simulated world of one seed: a group, its faults, its healing, and the checks afterwards."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

from services.ha.lease.value import Member
from tests.simulation.replication import page_rules
from tests.simulation.replication.beginnings import Beginning
from tests.simulation.replication.claims import Claims
from tests.simulation.replication.group import Group
from tests.simulation.replication.known_marks import check_damage_is_kept, check_trouble_is_known
from tests.simulation.replication.lease_object import Weather
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import (
    ROUNDS,
    ROUNDS_EVERY,
    SERVICES,
    TIMES,
    Fault,
    draw_plan,
    has_lease_in_directory,
    theme_of,
)
from tests.simulation.replication.seams import simulated
from tests.simulation.replication.strikes import Strikes
from tests.simulation.replication.timeline import Timeline
from tests.simulation.replication.trials import Trials
from tests.simulation.replication.violation import Violation

gc.freeze()
"""Modules stay for good. A collection during a seed need not visit their objects."""

HEAL_MS: Final = 20 * TIMES.lease_ms
"""Time within which a healed group has a master and all nodes in the set."""
SYNC_FAILS: Final = 0.2
LATE_EVERY: Final = 8
LATE_US: Final = 2 * TIMES.lease_ms * 1000
"""In every eighth world one node starts this much later than the others."""
LINKED_US: Final = 3_000_000
"""Twice the longest pause between two attempts to connect, and one failed attempt."""
CHECK_MS: Final = 20
"""Interval at which a healed group is checked to be whole."""
QUIET_SHARE: Final = 0.4
"""Share of the worlds in which the healed group goes through trials."""
TRIALS_BEHIND: Final = 2
"""Number of trials after the faults of a world."""
TRIED_EVERY: Final = 4
TRIALS: Final = 9
"""Every fourth seed goes through this many trials without other faults."""
TRIED_SENDS_PER_S: Final = 15.0
"""A higher rate costs time and shows nothing in a group with one cause at a time."""


class World:
    """One group, from its founding on."""

    def __init__(
        self,
        seed: int,
        *,
        write_trace: Callable[[str], None] | None = None,
        faults: tuple[Fault, ...] = (),
    ) -> None:
        """write_trace: takes the lines of a trace. faults: replace the faults of the seed."""
        self.timeline = Timeline(seed)
        plan = draw_plan(self.timeline.random)
        faults_given = bool(faults)
        faults = faults or theme_of(seed) or plan.faults
        is_tried = not faults_given and seed % TRIED_EVERY == 0
        self._turn = seed // TRIED_EVERY if is_tried else None
        """Which trials come, in a world that has trials instead of faults."""
        self._has_rounds = not faults_given and seed % ROUNDS_EVERY == ROUNDS_EVERY // 2
        self._begins_whole = self._has_rounds or is_tried
        if is_tried:
            plan = plan._replace(sends_per_s=min(plan.sends_per_s, TRIED_SENDS_PER_S))
        plan = plan._replace(faults=faults)
        if has_lease_in_directory(seed):
            weather = plan.weather._replace(sync_fails=SYNC_FAILS)
            plan = plan._replace(lease_in_directory=True, weather=weather)
        self.group = Group(self.timeline, plan, write_trace=write_trace)
        if self._begins_whole:  # An outage of the lease is a fault like the others, and ends.
            self.group.lease.weather = Weather(delay_max_ms=plan.weather.delay_max_ms)
        self.strikes = Strikes(self.group)
        self._claims = Claims(self.group)
        self._late_us = LATE_US if seed % LATE_EVERY == LATE_EVERY - 1 else 0
        self.history = self.group.history
        self.operator_paused = False
        """Whether only the trials give commands."""
        self._left: str | None = None
        """The node whose services are not healed."""
        self._healed_us = 0
        self._heals = 0
        """Number of healings."""
        self._linked_us: dict[tuple[str, str], int] = {}
        """When two nodes were last connected, or could not be."""
        self._confirmed = 0
        """End of the confirmed log at the healing."""
        self._beginning = Beginning(self) if self._begins_whole else None

    def run(self) -> None:
        """Run founding, faults and healing. Raises Violation."""
        with simulated(self.timeline), self.group.lease.simulated():
            try:
                self._run()
            finally:
                self.group.end()

    def _run(self) -> None:
        group = self.group
        group.trace("world", f"{group.plan}")
        self.timeline.after(100_000, self._check_regularly)
        if self._beginning is not None:
            self._beginning.begin()
        else:
            self._boot_all()
        if self._has_rounds:
            whole = self._go_through_rounds()
        elif self._turn is not None:
            whole = self._become_whole()
        else:
            self.strikes.begin()
            self.timeline.run_until(group.plan.duration_ms * 1000)
            whole = self._become_whole()
        if whole and self._left is None:
            trials = Trials(self)
            trials.calm_down()
            if self._turn is not None:
                trials.run(trials.in_turn(self._turn, TRIALS))
            elif self.timeline.random.random() < QUIET_SHARE:
                trials.run(trials.drawn(TRIALS_BEHIND))

    def _go_through_rounds(self) -> bool:
        """Strike with few faults at a time, which later ones do not hide; whether the group is
        whole in the end."""
        whole = self._become_whole()
        for _ in range(ROUNDS):
            if not whole:
                break
            trials = Trials(self)
            trials.await_replies()
            trials.calm_down()
            self.history.replaced.clear()
            self.group.healed = False
            last_ms = self.strikes.strike_few()
            ms = last_ms + self.timeline.random.choice((50, 500, 2_000))
            self.timeline.run_until(self.timeline.now_us + ms * 1000)
            whole = self._become_whole()
        return whole

    def _become_whole(self) -> bool:
        """Heal the group. Raises Violation if it can recover and does not."""
        self._heal()
        acked = len(self.history.acked)
        until_us, whole = self.timeline.now_us + HEAL_MS * 1000, False
        while not whole and self.timeline.now_us < until_us:
            self.timeline.run_until(self.timeline.now_us + CHECK_MS * 1000)
            whole = len(self.history.acked) > acked and self.is_whole()
        self.history.check_equal_histories()
        self.history.check_members("at the end")
        if not whole and self._must_recover():
            why = self.why_not_whole(len(self.history.acked) - acked)
            raise Violation(f"healed for {HEAL_MS} ms: {why}")
        return whole

    def _boot_all(self) -> None:
        *early, last = self.group.machines.values()
        for machine in early:
            self.group.boot(machine)
        if self._late_us:
            self.timeline.after(self._late_us, lambda: self._boot_late(last))
        else:
            self.group.boot(last)

    def _boot_late(self, machine: Machine) -> None:
        if not machine.processes:  # A fault may have started it earlier.
            self.group.boot(machine)

    def _check_regularly(self) -> None:
        self.history.check_equal_histories()
        self._check_links()
        self._claims.check()
        for machine in self.group.machines.values():
            page_rules.check_yields(machine)
            page_rules.check_held(machine)
            page_rules.check_trouble(machine)
            if not self.history.clocks_wrong:
                page_rules.check_deadline(machine)
                page_rules.check_beats(machine)
            broker, service = self.group.broker_of(machine.name), self.group.ha_of(machine.name)
            if broker is not None:
                broker.check_gate()
                broker.check_leaving()
                broker.requests.check_answered()
                broker.requests.check_terms()
                broker.consumer.check_held()
            if service is not None:
                service.commands.check()
                service.check_probes()
                service.noted.check(service)
                check_damage_is_kept(service)
                check_trouble_is_known(service)
                service.check_lease_noted()
                service.check_roles()
                if service.links is not None:
                    service.links.check()
        self.timeline.after(250_000, self._check_regularly)

    def _check_links(self) -> None:
        """Check that nodes which can reach each other are connected soon."""
        now_us = self.timeline.now_us
        running = [ha for name in self.group.machines if (ha := self.group.ha_of(name)) is not None]
        for ha in running:
            for other in running:
                if ha is other or ha.replica is None or other.replica is None:
                    continue
                pair = ha.node, other.node
                begun_us = max(ha.process.resumed_us, other.process.resumed_us, self._healed_us)
                peer = ha.replica.peers.by_node.get(other.node)
                is_there = peer is not None and peer.link is not None
                judged = self.group.healed and not ha.process.paused and not other.process.paused
                judged = judged and not self.group.removed
                if is_there or not judged or begun_us > self._linked_us.get(pair, 0):
                    self._linked_us[pair] = now_us
                elif now_us - self._linked_us[pair] > LINKED_US:
                    raise Violation(
                        f"{ha.node} has no connection to the running node {other.node} for "
                        f"{now_us - self._linked_us[pair]} µs"
                    )

    def is_whole(self) -> bool:
        """Whether every healed node is in the set and serves the confirmed log."""
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
        """Whether enough is left to recover: the disk of a member of the set."""
        history, published = self.history, self.history.published
        if history.went_back and history.replaced:
            return False  # The lost disk may be the only one that knew the object to be old.
        return any(member in published for member in self._able) or not history.epoch

    def expect_all_confirmed(self) -> None:
        """Require the present confirmed log for the group to count as whole."""
        self._confirmed = len(self.history.confirmed)

    def why_not_whole(self, acked: int) -> str:
        now = {name: self.state_of(name) for name in self.group.machines}
        return (
            f"{acked} sends were acknowledged since; the set is "
            f"{[member.node for member in self.history.published]}, the holder "
            f"{self.history.holder and self.history.holder.node}; shown of {self._confirmed} is "
            f"{ {name: self.shown(name) for name in self.group.machines} }; {now}"
        )

    def shown(self, name: str) -> int | None:
        broker = self.group.broker_of(name)
        return None if broker is None else broker.shows

    def state_of(self, name: str) -> str:
        service = self.group.ha_of(name)
        if service is None or service.replica is None:
            return "no replica"
        status = service.replica.status(self.group.machines[name].clock.now_ms())
        own: dict[str, object] = next((n for n in status["nodes"] if n["node"] == name), {})
        return f"{own.get('state')}: {own.get('reason')}"

    def _operate(self, heals: int) -> None:
        """Operate the healed group: resume automatic failover, and recreate a missing lease."""
        if heals != self._heals or not self.group.healed:
            return  # This belongs to an earlier healing.
        group, random = self.group, self.timeline.random
        stored = group.lease.stored
        machine = random.choice([m for m in group.machines.values() if m.name != self._left])
        if self.operator_paused:
            pass
        elif stored is None or self.history.went_back:
            # Nodes that started since then have not seen the set, so the operator's own list
            # counts.
            members = [m.node for m in group.members if m in self.history.published]
            named = {"in_sync": ",".join(members)} if random.random() < 0.5 else {}
            group.command("recreate-lease", named, machine)
        elif stored.lease.paused:
            group.command("resume", {}, machine)
        elif group.removed:
            group.add_node(group.removed[0])
        self.timeline.after(700_000, lambda: self._operate(heals))

    def _heal(self) -> None:
        """Repair everything and stop all faults."""
        group = self.group
        group.trace("world", "heal")
        group.healed, self._healed_us = True, self.timeline.now_us
        self._heals += 1
        heals = self._heals
        self.timeline.after(1_500_000, lambda: self._operate(heals))
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
        if self.history.epoch and not self.history.deleted and not self._begins_whole:
            self._leave_unhealed()

    def _leave_unhealed(self) -> None:
        """Leave services of one node unhealed, while the other nodes are enough."""
        left, group, holder = self.group.plan.left, self.group, self.history.holder
        if left is None or group.removed:
            return  # The nodes that remain may be exactly the minimum.
        master = holder.node if holder is not None else next(iter(group.machines))
        others = [name for name in group.machines if name != master]
        self._left = name = master if left.at_master else self.timeline.random.choice(others)
        group.trace("world", f"{left} of {name}")
        for service in left.services:
            process = group.machines[name].processes.get(service)
            if left.gone:
                group.gone.add((name, service))
            if process is not None and process.alive:
                process.end() if left.gone else process.pause()
