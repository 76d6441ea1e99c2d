"""How a group is founded, and how stores and members join a group.

Every world that begins whole is founded in one of these ways. The trials give a node of a whole
group a store that it has to adopt, or force an election.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from services.ha.core.leadership import UNADOPTED
from services.ha.lease.value import Lease, Member
from tests.simulation.replication.alone import write_alone
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import SERVICES, TIMES
from tests.simulation.replication.store_view import IDENTITY, PROMISE, TABLE
from tests.simulation.replication.trying import AGAIN_MS, QUIET_MS, Trying
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

APART_MS: Final = 0, 0, 300, 2_000
"""Time between the starts of two nodes."""
WAITED_MS: Final = 2_000
"""A node that waits longer than this for another one reports it."""
REPORTING_US: Final = 1_500_000
"""A node that has run for this long reports it. Restarted nodes wait anew."""
ANSWERING_MS: Final = 1_000
"""A running node that did not answer for a moment may be reported instead. Within this time it is
connected again, and has read the lease."""
FOUNDED_MS: Final = 10 * TIMES.lease_ms
"""Time within which running nodes found their group, including a restart of the founder."""
STRUCK_MS: Final = 1_000
"""Time within which the founder writes its first files."""
MISSING: Final = "lease-missing"


class Beginning(Trying):
    """The founding of one world: which stores hold records, which node starts when, and what
    fails."""

    def __init__(self, world: World) -> None:
        """Write the stores, before the world's time begins."""
        super().__init__(world)
        machines, random = list(self._group.machines.values()), self._random
        self._holding = random.sample(machines, random.choice((0, 0, 1, 1, 1, 2)))
        for machine in self._holding:
            write_alone(machine, random)
        self._made: list[Lease] = []

    def begin(self) -> None:
        """Start all nodes and wait for the group. Raises Violation."""
        group, random = self._group, self._random
        group.on_made.append(self._made.append)
        machines = list(group.machines.values())
        founder = self._holding[0] if self._holding else machines[0]
        if len(self._holding) < 2:
            self._arm(founder)
            self._take_as_confirmed(founder)
        waiting = random.sample(machines, len(machines))
        group.is_struck = True  # Nodes report that they wait for each other for long.
        while waiting:
            group.boot(waiting.pop())
            waited_ms = random.choice(APART_MS) if waiting else 0
            self._wait(waited_ms)
            self._must_wait(waiting, waited_ms)
        if len(self._holding) > 1:
            founder = self._empty_one()
        if not self._until(lambda: bool(self._made), FOUNDED_MS):
            raise Violation(f"all nodes run, but {founder.name} does not found the group")
        self._must_begin_with(founder, self._made[0])
        self._wait(STRUCK_MS)
        founder.calm()
        group.on_made.clear()
        group.is_struck = False

    def _take_as_confirmed(self, machine: Machine) -> None:
        """Take the log of a store from before the group as confirmed: it must not be lost."""
        self._history.records.extend(machine.log(0, machine.flushed))

    def _arm(self, founder: Machine) -> None:
        """Arm a kill or a power cut of the founder at one of the steps of its first term."""
        group, random = self._group, self._random

        def strike() -> None:
            self._timeline.after(random.randint(0, 20_000), lose)

        def lose() -> None:
            if not founder.is_on:
                return
            if random.random() < 0.5:
                founder.processes["ha"].end()
                return
            group.cut_power(founder)
            self._timeline.after(100_000, lambda: group.boot(founder))

        match random.randrange(8):
            case 0:
                founder.arm_file(IDENTITY.name, strike)
            case 1:
                founder.arm_file(PROMISE.name, strike)
            case 2:
                founder.arm_file(TABLE.name, strike)
            case 3:
                group.on_made.append(lambda _: strike())

    def _must_wait(self, waiting: list[Machine], waited_ms: int) -> None:
        """Check that no node founds a group before all have started, and that it reports which one
        is missing."""
        if not waiting:
            return
        if self._made:
            raise Violation(f"the group is founded before {waiting[0].name} has started")
        if waited_ms < WAITED_MS:
            return
        names = [machine.name for machine in waiting]

        def wrong() -> dict[str, str]:
            reports = {}
            for machine in self._group.machines.values():
                report, ha = self._alarms_of(machine).get(MISSING, ""), machine.processes.get("ha")
                begun_us = self._timeline.now_us if ha is None or not ha.alive else ha.begun_us
                waits = self._timeline.now_us - begun_us > REPORTING_US
                if waits and not any(name in report for name in names):
                    reports[machine.name] = report
            return reports

        if not self._until(lambda: not wrong(), ANSWERING_MS):
            raise Violation(f"for {waited_ms} ms nodes wait for {names}, but report {wrong()}")

    def _empty_one(self) -> Machine:
        """Check that no node founds a group while two stores hold records, then empty one of them;
        return the other, which founds the group."""
        group = self._group
        names = [machine.name for machine in self._holding]

        def reported() -> dict[str, str]:
            machines = group.machines.values()
            return {each.name: self._alarms_of(each).get(MISSING, "") for each in machines}

        def is_reported() -> bool:
            return all(name in sentence for name in names for sentence in reported().values())

        if not self._until(is_reported, FOUNDED_MS) or self._made:
            raise Violation(
                f"{names} hold records; the lease is {self._made}, and they report {reported()}"
            )
        emptied = self._random.choice(self._holding)
        (founder,) = (machine for machine in self._holding if machine is not emptied)
        self._take_as_confirmed(founder)
        group.cut_power(emptied)
        emptied.replace_volume()
        group.boot(emptied)
        return founder

    def _must_begin_with(self, founder: Machine, lease: Lease) -> None:
        group, holder = self._group, lease.holder
        so = (
            holder is not None and holder.node == founder.name,
            lease.epoch == lease.in_sync_version == 1,
            len(lease.in_sync) == 1,
            lease.replicas == tuple(group.machines),
            lease.min_in_sync == group.plan.min_in_sync,
            not lease.paused and lease.handover_to is None,
        )
        if not all(so):
            raise Violation(f"{founder.name} was to found the group, but the lease is {lease}")


class Beginnings(Trying):
    """Trials of adoption and of forced elections."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            *(self._adopt_a_store, self._force_the_last, self._lose_one_after_another),
        )

    # -- adoption --------------------------------------------------------------------------

    def _adopt_a_store(self) -> None:
        """A store from before the group stays unchanged until a command adopts or empties it."""
        if not self._may_lose_one:
            return
        group, history, slave = self._group, self._history, self._any_but(self._master())
        self._note_foreign_store(slave)
        group.cut_power(slave)
        slave.replace_volume()
        write_alone(slave, self._random)
        end = slave.flushed
        before = slave.log(0, end)
        group.boot(slave)
        if not self._until(lambda: self._is_unadopted(slave), AGAIN_MS):
            raise Violation(f"{slave.name} has the store of no group, but is {self._state(slave)}")
        acked = len(history.acked)
        self._wait(QUIET_MS)
        is_changed = slave.log(0, end) != before or slave.incarnation or slave.promised
        if is_changed or not self._is_unadopted(slave):
            raise Violation(f"{slave.name} has the store of no group, but it was changed")
        if len(history.acked) == acked:
            raise Violation(f"{slave.name} has the store of no group, and no send is acknowledged")
        if self._random.random() < 0.5:
            named = self._random.choice((IDENTITY.name, PROMISE.name))
            slave.arm_file(named, slave.processes["ha"].end)
        self._adopt(slave, end)
        self._must_be_whole_again(f"the store of {slave.name} was adopted")
        history.foreign_stores.clear()

    def _note_foreign_store(self, machine: Machine) -> None:
        self._history.replaced.add(machine.name)
        self._history.foreign_stores.add(machine.name)

    def _adopt(self, slave: Machine, end: int) -> None:
        """Give the command, and repeat it if ha ended before the adoption was durable."""
        group, order = self._group, self._random.choice(("adopt", "adopt", "resync"))
        arguments = {"group": "g0"} if order == "resync" else {}
        token: int | None = None

        def is_adopted() -> bool:
            nonlocal token
            service = group.ha_of(slave.name)
            reply = None if service is None or token is None else service.replies.get(token)
            if reply is not None and not reply.ok:
                raise Violation(f"{slave.name} has the store of no group and replies {reply}")
            if reply is not None and order == "adopt" and reply.body.get("log_end") != end:
                raise Violation(f"{slave.name} adopts a store that ends at {end}: {reply}")
            if self._is_unadopted(slave):
                token = group.command(order, arguments, slave)
            return bool(slave.incarnation and slave.promised)

        if not self._until(is_adopted, AGAIN_MS):
            raise Violation(f"{slave.name} does not adopt its store: {self._state(slave)}")

    def _is_unadopted(self, machine: Machine) -> bool:
        is_halted = self._state(machine).startswith("halted")
        return is_halted and UNADOPTED in self._alarms_of(machine)

    def _state(self, machine: Machine) -> str:
        return self._world.state_of(machine.name)

    # -- elections -------------------------------------------------------------------------

    def _force_the_last(self) -> None:
        """A node outside the set becomes the master by force, once it is the last one and the lease
        has run out. The others follow it."""
        if not self._may_lose_one:
            return
        group, history, slave = self._group, self._history, self._any_but(self._master())
        history.producers_paused = self._world.operator_paused = True
        self._wait(QUIET_MS)
        self._lose_from_set(slave, ["ha"])
        others = [each for each in group.machines.values() if each is not slave]
        for other in others:
            self._lose(other, SERVICES)
        group.gone -= {(slave.name, service) for service in SERVICES}
        group.start_later(slave, "ha", 50)
        self._until(lambda: self._state(slave).startswith("follower"), AGAIN_MS)
        epoch, confirmed = history.epoch, len(history.confirmed)
        loss = {
            "estimated_loss_bytes": 0,
            "own_end": slave.end,
            "known_from": [slave.name],
        }
        dry = self._reply_to("failover", {"dry_run": "true"}, slave)
        self._must_answer(slave, dry, ok=True, body=loss)
        stopped = {"group": "g0", "old_master_stopped": "true"}
        early = self._reply_to("failover", stopped, slave)
        self._must_answer(slave, early, ok=False, body=loss)
        self._lose(slave, ["broker"])
        self._wait(2 * TIMES.lease_ms)
        self._must_answer(slave, self._reply_to("failover", stopped, slave), ok=False, body={})
        group.gone.discard((slave.name, "broker"))
        group.start_later(slave, "broker", 50)
        history.is_forced = True
        reply = early

        def is_forced() -> bool:
            nonlocal reply
            reply = self._reply_to("failover", stopped, slave)
            return reply is not None and reply.ok

        self._until(is_forced, AGAIN_MS)
        self._must_answer(slave, reply, ok=True, body={**loss, "master": slave.name})
        if history.published != (Member(slave.name, slave.incarnation),) or history.epoch <= epoch:
            raise Violation(
                f"{slave.name} was forced to be the master, but the set is {history.published}"
            )
        history.producers_paused = self._world.operator_paused = False
        self._bring_back()
        self._must_be_whole_again(f"{slave.name} was forced to be the master")
        history.is_forced = False
        if len(history.confirmed) < confirmed:
            raise Violation(
                f"{slave.name} had all records and was forced to be the master, but records are "
                "lost"
            )

    def _must_answer(self, machine: Machine, reply: Any, *, ok: bool, body: dict[str, Any]) -> None:
        reported = None if reply is None else {name: reply.body.get(name) for name in body}
        if reply is None or reply.ok != ok or reported != body:
            raise Violation(f"{machine.name} was to reply {body} and replied {reply}")

    def _lose_one_after_another(self) -> None:
        """A set at its minimum keeps its members, and each of them can be elected. A removed member
        cannot, even if it is the only node left."""
        group, history, random = self._group, self._history, self._random
        first = self._master()
        if group.plan.nodes - group.plan.min_in_sync > 1 or (
            group.plan.nodes > 2 and self._may_lose_one
        ):
            self._lose_from_set(self._any_but(first), ["ha"])
        epoch = history.epoch
        self._lose(first, SERVICES)
        if not self._until(lambda: history.epoch > epoch, AGAIN_MS):
            raise Violation(f"{first.name} is gone, but no other node takes the lease")
        second = self._master()
        self._wait(random.choice((0, 100, QUIET_MS)))
        self._lose(second, SERVICES)
        epoch = history.epoch
        group.gone -= {(first.name, service) for service in SERVICES}
        for service in SERVICES:
            group.start_later(first, service, 50)
        if self._is_member(first):
            self._until(lambda: history.epoch > epoch, AGAIN_MS)
        else:
            self._wait(2 * TIMES.lease_ms + 4 * TIMES.wait_random_ms)
        if self._is_member(first) != (history.epoch > epoch):
            raise Violation(
                f"only {first.name} of the set {history.published} is left; the epoch is "
                f"{history.epoch} after {epoch}"
            )
        self._bring_back()
        self._must_be_whole_again(f"{first.name} and {second.name} were killed one after the other")
