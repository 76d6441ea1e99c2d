"""Trials of what a broker reports about its group, and serves, while something is out of order.

Each checks answers as clients get them: the master or why it is unknown, the probes, and the
outcome of requests that wait for the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from services.broker.log.ack_levels import AckLevel
from tests.simulation.replication.broker import Broker
from tests.simulation.replication.lease_object import Weather
from tests.simulation.replication.loop import CLIENT
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import SERVICES, TIMES
from tests.simulation.replication.trying import AGAIN_MS, CHECK_MS, QUIET_MS, STATE_DAMAGED, Trying
from tests.simulation.replication.violation import Violation
from tidemark.errors import AckTimeout, TidemarkError
from tidemark.formats.checkpoint import NodeRole, Slot

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

ANSWER_MS: Final = 1_000
"""Time within which GET /v1/cluster is answered, also if ha does not answer (``cluster_view``)."""
SEEN_MS: Final = 2 * TIMES.lease_ms
"""Time within which every node has read the lease and the status of its holder."""
SHUT_MS: Final = 1_000
"""A broker checks its role twenty times a second."""
LONG_MS: Final = 6 * TIMES.ack_limit_ms
"""A send waits longer than a lease that is renewed late."""
SHORT_MS: Final = 100
STORED_MS: Final = 150
"""Time within which a send is in the log."""
BRIEF_MS: Final = 50
"""With STORED_MS, shorter than a link may be silent."""
LATE_MS: Final = 10, 80
"""After the deadline of a lease and, with two requests, before another node takes it."""
SLOW_LEASE_MS: Final = 40
"""Longer than a slave takes to write and acknowledge a record."""
ENDED_MS: Final = 3_000
"""Time within which a restarted ha has fenced its broker, and waiting requests are answered."""
SENDS: Final = (None, None, AckLevel.REPLICATED)


class Serving(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            *(self._lose_sight, self._lose_a_master_for_good, self._start_without_reput),
            *(self._wait_for_members, self._renew_late, self._rise_damaged),
        )

    def _lose_sight(self) -> None:
        """A broker whose ha is gone, paused or just starting names no master, whatever happens
        meanwhile. The other nodes name the master."""
        group, master = self._group, self._master()
        node, how = self._any_machine(), self._random.choice(("gone", "hangs", "starts"))
        process = node.processes["ha"]
        if how == "gone":
            self._lose(node, ["ha"])
        elif how == "hangs":
            process.pause()
        else:
            node.arm(Slot.ROLE, lambda: node.processes["ha"].pause())
            process.end()
            self._until(lambda: node.processes["ha"].paused, AGAIN_MS)
        others = [each for each in group.machines.values() if each is not node]
        if node is master and self._may_lose_one:
            self._must_move_from(node, AGAIN_MS, f"its ha {how}")
            self._must_name(others, self._master().name, SEEN_MS)
        elif node is not master and len(others) > 1 and self._may_lose_one:
            to = self._any_but_these(node, master)
            self._until(lambda: not self._is_member(node), AGAIN_MS)
            self._command("switchover", {"to": to.name})
            self._must_name(others, to.name, SEEN_MS)
        self._must_name([node], None, ANSWER_MS)
        if how == "starts":
            self._must_be_shut(node, "its ha is still starting")
        self._wait(self._random.choice((0, QUIET_MS)))
        self._bring_back()
        node.processes["ha"].resume()
        self._must_be_whole_again(f"ha of {node.name} {how}")
        self._must_all_agree()

    def _lose_a_master_for_good(self) -> None:
        """No node takes over while failover is paused, and the slaves soon report that there is no
        master."""
        master, group = self._master(), self._group
        slaves = [each for each in group.machines.values() if each is not master]
        self._world.operator_paused = True
        self._command("pause", {})
        self._lose(master, SERVICES)
        self._must_name(slaves, None, SEEN_MS)
        self._wait(QUIET_MS)
        self._must_name(slaves, None, ANSWER_MS)
        self._bring_back()
        self._must_be_whole_again(f"{master.name} was gone while failover was paused")
        self._command("resume", {})
        self._world.operator_paused = False
        self._must_all_agree()

    def _start_without_reput(self) -> None:
        """A node whose reput has not started in this boot serves no queue, since queues could be
        too short."""
        group, slave = self._group, self._any_but(self._master())
        group.gone.add((slave.name, "reput"))
        group.cut_power(slave)
        self._wait(BRIEF_MS)
        group.boot(slave)
        self._until(lambda: slave.slot(Slot.ROLE) == NodeRole.FOLLOWER, AGAIN_MS)
        self._wait(SHUT_MS)
        self._must_be_shut(slave, "its reput has not started")
        self._bring_back()
        self._must_be_whole_again(f"{slave.name} started without reput")
        self._must_all_agree()

    def _wait_for_members(self) -> None:
        """Requests wait for silent members: until these answer again, until the set continues
        without them, or until the term ends."""
        master, broker = self._master(), self._broker(self._master())
        epoch, least = self._history.epoch, self._group.plan.min_in_sync
        slaves = [each for each in self._group.machines.values() if each is not master]
        how = self._random.choice(("back", "ends", "alone" if least == 1 else "ends"))
        begun_us = self._timeline.now_us
        for slave in slaves:
            slave.processes["ha"].pause()
        asked = [self._send(broker, level, LONG_MS) for level in SENDS]
        if how == "alone":
            asked += [self._send(broker, AckLevel.REPLICATED, SHORT_MS) for _ in SENDS]
        self._call(broker, broker.client.begin_change)
        self._wait(STORED_MS)
        if how == "ends":
            master.processes["ha"].end()
        elif how == "alone":
            self._until(lambda: master.slot(Slot.IN_SYNC_SIZE) == 1, AGAIN_MS)
        else:
            self._wait(BRIEF_MS)
            self._resume(slaves)
        change = broker.client.change

        def is_answered() -> bool:
            return all(asked) and (change is None or change.done())

        if not self._until(is_answered, ENDED_MS) and broker.process.alive:
            raise Violation(
                f"requests at {master.name} that wait for members are never answered: {how}"
            )
        if how == "back" and self._history.epoch == epoch and broker.process.alive:
            self._must_have_succeeded(
                master, asked, begun_us, "its slaves were silent for a moment"
            )
        self._resume(slaves)
        self._must_be_whole_again(f"requests at {master.name} waited for its slaves: {how}")

    def _renew_late(self) -> None:
        """A master that renews its lease after the deadline answers what waited meanwhile. Its
        slaves acknowledge while it is paused."""
        group, master = self._group, self._master()
        epoch, broker, process = self._history.epoch, self._broker(master), master.processes["ha"]
        slave = self._any_but(master)
        renewed: list[bool] = []
        master.arm(Slot.LEASE_DEADLINE, lambda: renewed.append(True))
        self._until(lambda: bool(renewed), AGAIN_MS)
        begun_us = self._timeline.now_us
        slave.arm(Slot.WRITTEN, process.pause)
        asked = [self._send(broker, level, LONG_MS) for level in SENDS]
        self._call(broker, broker.client.begin_change)
        is_stopped = self._until(lambda: process.paused, STORED_MS)
        slave.calm()
        calm, group.lease.weather = group.lease.weather, Weather(delay_max_ms=SLOW_LEASE_MS)
        if is_stopped:
            left_ms = master.slot(Slot.LEASE_DEADLINE) - master.boot_ms()
            self._wait(max(0, left_ms) + self._random.randint(*LATE_MS))
            process.resume()
        self._until(lambda: all(asked), LONG_MS + ANSWER_MS)
        group.lease.weather = calm
        goes_on = not master.slot(Slot.FENCED) and self._history.epoch == epoch
        if goes_on and master.slot(Slot.SERVING_EPOCH) == epoch:
            self._must_have_succeeded(master, asked, begun_us, "it renewed its lease late")
        self._must_be_whole_again(f"{master.name} renewed its lease late")

    def _rise_damaged(self) -> None:
        """A node that cannot read its state while it becomes master leaves the lease to another
        one, and serves again when it can."""
        node = self._any_but(self._master())
        broker = self._broker(node)
        assert broker.node is not None, "the group is whole"
        self._history.unreadable.add(node.name)
        with self._fails_once(broker.node._followed, "to_end", STATE_DAMAGED) as has_failed:
            self._group.command("switchover", {"to": node.name})
            is_met = self._until(has_failed, AGAIN_MS)
        if is_met and self._may_lose_one:
            self._must_move_from(node, AGAIN_MS, "it cannot read its state")
        self._history.unreadable.clear()
        if is_met and self._group.plan.min_in_sync == 1 and self._random.random() < 0.5:
            self._lead_alone(node, broker)
        node.processes["reput"].end()
        self._must_be_whole_again(f"{node.name} could not read its state")

    def _lead_alone(self, machine: Machine, broker: Broker) -> None:
        """The node can read its state again and no other node is left. The earlier error no longer
        counts, and its answers end with its lease."""
        for other in self._group.machines.values():
            if other is not machine:
                self._lose(other, SERVICES)
        self._until(lambda: bool(broker.epoch and broker.shows), AGAIN_MS)
        machine.processes["ha"].pause()
        self._wait(QUIET_MS)
        machine.processes["ha"].resume()
        self._bring_back()

    # -- checks of answers -----------------------------------------------------------------

    def _must_all_agree(self) -> None:
        """Check that every node names the master and its epoch, and that the probes have one
        primary."""
        master, machines = self._master().name, list(self._group.machines.values())
        self._must_name(machines, master, SEEN_MS)
        for machine in machines:
            broker, ha = self._broker(machine), self._group.ha_of(machine.name)
            assert broker.node is not None, "the group is whole"
            assert ha is not None, "the group is whole"
            leads = machine.name == master
            so = (leads, not leads)
            of_broker = (broker.node.is_master, broker.node.is_slave)
            of_ha = (ha.probes.is_primary, ha.probes.is_replica)
            if not of_broker == of_ha == so or broker.hindrances:
                raise Violation(
                    f"{master} is the master; GET /primary and /replica of {machine.name} return "
                    f"{of_broker} and {of_ha}, /ready {broker.hindrances}"
                )

    def _must_name(self, machines: Iterable[Machine], master: str | None, within_ms: int) -> None:
        """Check that GET /v1/cluster of these nodes soon names that master."""
        for machine in machines:
            answer: dict[str, Any] | None = None

            def is_named(machine: Machine = machine) -> bool:
                nonlocal answer
                answer = self._group_of(machine)
                if answer is None or answer["master"] != master:
                    return False
                return master is None or answer["epoch"] == self._history.epoch

            if not self._until(is_named, within_ms):
                raise Violation(
                    f"the master is {master} of epoch {self._history.epoch}, but GET /v1/cluster "
                    f"of {machine.name} returns {answer}"
                )

    def _must_be_shut(self, machine: Machine, why: str) -> None:
        broker = self._broker(machine)
        assert broker.node is not None, "the group is whole"

        def is_shut() -> bool:
            assert broker.node is not None
            return not broker.shows and not broker.node.is_slave and bool(broker.hindrances)

        if not self._until(is_shut, SHUT_MS):
            raise Violation(f"{machine.name} serves although {why}: {broker.hindrances}")

    def _must_have_succeeded(
        self, machine: Machine, asked: list[list[TidemarkError | None]], begun_us: int, why: str
    ) -> None:
        """Check that all stored sends succeeded, unless a member has left the set meanwhile."""
        errors = [error for outcome in asked for error in outcome if isinstance(error, AckTimeout)]
        has_changed = machine.changed_us.get(Slot.IN_SYNC_SIZE, 0) >= begun_us
        if (errors and not has_changed) or not all(asked):
            raise Violation(f"{why}, but sends at {machine.name} failed: {errors}")

    # -- requests --------------------------------------------------------------------------

    def _group_of(self, machine: Machine) -> dict[str, Any] | None:
        broker, answers = self._broker(machine), list[dict[str, Any] | None]()

        async def ask() -> None:
            answers.append(await broker.client.group())

        self._call(broker, lambda: broker.loop.create_task(ask(), name=CLIENT))
        self._until(lambda: bool(answers) or not broker.process.alive, ANSWER_MS)
        return answers[0] if answers else None

    def _any_but_these(self, *machines: Machine) -> Machine:
        return next(each for each in self._group.machines.values() if each not in machines)

    def _resume(self, machines: Iterable[Machine]) -> None:
        for machine in machines:
            machine.processes["ha"].resume()
        self._wait(CHECK_MS)
