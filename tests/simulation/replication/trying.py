"""Base of all trials of a whole group: waits, admin commands, and the checks that all is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from services.broker.log.ack_levels import AckLevel
from services.ha.core.effects import Reply
from services.ha.core.liveness import FORGIVEN_PER_MS, STALLED_LEASES_MAX
from services.ha.core.replica import Replica
from services.ha.core.states import State
from services.ha.core.status import own_status
from services.ha.core.switch_orders import STALLED
from services.ha.lease.value import Lease
from services.ha.metrics import skews
from services.ha.shell.lease_client import ANNOUNCE_PAUSE_MAX_S
from tests.simulation.replication.broker import Broker
from tests.simulation.replication.ha import Ha
from tests.simulation.replication.loop import CLIENT
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.store_view import FILE_SIZE
from tests.simulation.replication.violation import Violation
from tidemark.errors import DamagedFile, TidemarkError
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

CHECK_MS: Final = 20
"""Interval at which a condition is checked."""
QUIET_MS: Final = TIMES.lease_ms
UNHEARD_MS: Final = 2 * TIMES.link_dead_ms + TIMES.heartbeat_ms
"""A node that ended counts as silent after this time."""
HANDED_OVER: Final = "handed-over"
SETTLE_MS: Final = 4 * TIMES.lease_ms
"""Commands that were given before the healing have ended after this time, and what a trial has left
behind has shown itself."""
FORGOTTEN_MS: Final = (FORGIVEN_PER_MS * STALLED_LEASES_MAX + 2) * TIMES.lease_ms
"""Longest time for which stalls are remembered, plus the time without a possible successor."""
SHOWN_MS: Final = int(ANNOUNCE_PAUSE_MAX_S * 1000) + SETTLE_MS + TIMES.request_timeout_ms
"""Pods show the roles of their nodes after this time. A request whose sender gave up may arrive
after the present role was shown, which is shown again after the pause."""
AGAIN_MS: Final = 10 * TIMES.lease_ms
"""Whatever was lost has recovered after this time."""

GROWN_MS: Final = 20_000
"""Time within which a few files of large records are confirmed, at four messages a second."""
SKEW_MS: Final = 100
"""Clocks drift by less than this between two measurements, and a status is answered in less."""
LARGE_SHARE: Final = 0.7
KEPT_SIZE: Final = FILE_SIZE
"""Size of the log that stays when retention deletes as much as it may."""


STATE_DAMAGED: Final = DamagedFile("a unit of the state queue is damaged", "It is made again.")


class Trying:
    """Waits, commands and checks on one world."""

    def __init__(self, world: World) -> None:
        self._world, self._group, self._history = world, world.group, world.history
        self._timeline, self._random = world.timeline, world.timeline.random

    def must_be_forgotten(self) -> None:
        """Wait until stalls are forgotten: a node that was stalled is no good master for a
        while."""

        def is_forgotten() -> bool:
            services = [self._group.ha_of(name) for name in self._group.machines]
            if any(service is None or service.replica is None for service in services):
                return False  # A service is still starting.
            return not any([self._remembered_stalls(name) for name in self._group.machines])

        if not self._until(is_forgotten, FORGOTTEN_MS):
            state_text = {
                name: sorted(self._remembered_stalls(name)) for name in self._group.machines
            }
            raise Violation(
                f"no service stalled for {FORGOTTEN_MS} ms, but alarms are {state_text}"
            )
        self._must_be_whole_again("stalls were forgotten")

    def calm_down(self) -> None:
        """Wait until no alarm and no trouble is left."""
        self._must_end("alarms remain:", self._open_alarms)
        self._must_end("troubles remain:", self._troubles)
        self._must_end("nodes report", self._remains)
        self._must_end("pods show", self._wrong_role, SHOWN_MS)

    def _must_end(self, what: str, of: Callable[[str], object], ms: int = SETTLE_MS) -> None:
        """Wait until the function returns nothing for any node."""
        names = self._group.machines
        if not self._until(lambda: not any(map(of, names)), ms):
            found = {name: of(name) for name in names}
            raise Violation(f"the group is whole for {ms} ms, but {what} {found}")

    def _wrong_role(self, name: str) -> str | None:
        """The role that the pod of a node shows, if it is not that of the node."""
        shown = self._group.lease.shown_role(name)
        role = "master" if name == self._master().name else "slave"
        return None if shown in (role, None) else shown

    def _remains(self, name: str) -> dict[str, object]:
        """What a node of a whole group reports that a freshly started one would not, beside a
        stall, which is remembered for a while."""
        ha = self._group.ha_of(name)
        if ha is None or ha.replica is None:
            return {"ha": "is starting"}
        replica, now_ms = ha.replica, self._group.machines[name].boot_ms()
        own, term, answer = replica.context, replica.leadership.term, replica.status(now_ms)
        known = {key: answer.get(key) for key in ("reason", "opening_ms")}
        known["lease"] = answer["lease"].get("reason")
        for node in answer["nodes"]:
            is_steady = STALLED not in self._alarms_of(self._group.machines[node["node"]])
            known[f"reason of {node['node']}"] = node["reason"] if is_steady else None
            state = "master" if node["node"] == answer["master"] else "in-sync"
            if node["state"] != state or not node["in_sync"]:
                known[f"state of {node['node']}"] = node["state"], node["in_sync"]
            if node["lag_ms"] is None or node["lag_ms"] >= TIMES.lag_max_ms:
                known[f"lag of {node['node']}"] = f"{node['lag_ms']} ms"
        facts = own_status(own, term, replica.promises.promised).facts
        known |= {"refused_at": facts.refused_at, "hindrance": facts.hindrance}
        if STALLED not in own.alarms:
            known |= {"trouble": facts.trouble, "over": facts.stalls_are_over}
        known |= {"table writes": own.table_writes, "damage": own.damage, "halted": own.halted}
        known |= {"stopping": own.stopping, "idle": own.cannot_open}
        for node, skew in skews(replica).items():  # All wall clocks are equal.
            known[f"clock of {node}"] = skew if abs(skew.ahead_ms) > SKEW_MS else None
        broker = self._group.broker_of(name)
        known["/ready"] = "no broker" if broker is None else broker.hindrances
        return {key: value for key, value in known.items() if value}

    def _troubles(self, name: str) -> dict[str, int]:
        """Trouble that broker and reput of a node publish, by slot."""
        slots = (Slot.BROKER_TROUBLE, Slot.REPUT_TROUBLE)
        found = {slot.name: self._group.machines[name].slot(slot) for slot in slots}
        return {slot: trouble for slot, trouble in found.items() if trouble}

    def _command(self, name: str, arguments: dict[str, str]) -> None:
        """Give the master a command that must succeed."""
        reply = self._reply_to(name, arguments)
        if reply is None or not reply.ok:
            raise Violation(f"without a fault {name} is answered with {reply}")

    def _reply_to(
        self,
        name: str,
        arguments: dict[str, str],
        machine: Machine | None = None,
        within_ms: int = AGAIN_MS,
    ) -> Reply | None:
        """Give a command, by default to the master, and wait for its reply; None without one."""
        at = self._master() if machine is None else machine
        service, token = self._group.ha_of(at.name), self._group.command(name, arguments, at)
        if service is None or token is None:
            return None
        self._until(lambda: token in service.replies, within_ms)
        return service.replies.get(token)

    def _switch_until_done(self, arguments: dict[str, str], within_ms: int) -> bool:
        """Order a switch of whichever node is the master until one succeeds."""
        asked: tuple[Ha, int | None] | None = None

        def is_done() -> bool:
            nonlocal asked
            reply = None if asked is None else asked[0].replies.get(asked[1] or 0)
            if asked is None or not asked[0].runs or (reply is not None and not reply.ok):
                holder = self._history.holder
                ha = None if holder is None else self._group.ha_of(holder.node)
                asked = None
                if ha is not None:
                    asked = ha, self._group.command("switchover", arguments, ha.machine)
            return reply is not None and reply.ok

        return self._until(is_done, within_ms)

    @contextmanager
    def _on_lease_change(self, call: Callable[[Lease, Lease], None]) -> Iterator[None]:
        """Call with the lease before and after each change, for the length of a ``with``."""
        self._group.on_lease.append(call)
        yield
        self._group.on_lease.remove(call)

    @contextmanager
    def _fails_once(
        self, of: object, method: str, error: TidemarkError
    ) -> Iterator[Callable[[], bool]]:
        """Let the next call of a method raise the error, for the length of a ``with``; yields a
        function that returns whether it has."""

        def fail(*_: object) -> object:
            delattr(of, method)  # The attribute hides the method of the class.
            raise error

        setattr(of, method, fail)
        yield lambda: method not in vars(of)
        vars(of).pop(method, None)

    def _lose(self, machine: Machine, services: Iterable[str]) -> None:
        """Kill services. They stay away until ``_bring_back``."""
        for service in services:
            self._group.gone.add((machine.name, service))
            machine.processes[service].end()

    def _lose_from_set(
        self, machine: Machine, services: Iterable[str], within_ms: int = AGAIN_MS
    ) -> None:
        """Kill services of a member, and wait until it has left the in-sync set."""
        self._lose(machine, services)
        if not self._until(lambda: not self._is_member(machine), within_ms):
            raise Violation(f"{machine.name} has no {services}, but stays in the set")

    def _bring_back(self) -> None:
        """Start the services that were lost."""
        lost, gone = sorted(self._group.gone), self._group.gone
        gone.clear()
        for name, service in lost:
            self._group.start_later(self._group.machines[name], service, 50)

    @property
    def _may_lose_one(self) -> bool:
        """Whether all nodes but one are enough to accept sends."""
        return self._group.plan.nodes - 1 >= self._group.plan.min_in_sync

    def _master(self) -> Machine:
        holder = self._history.holder
        assert holder is not None, "the group is whole"
        return self._group.machines[holder.node]

    def _must_move_from(self, machine: Machine, within_ms: int, why: str) -> None:
        """Wait until another node holds the lease and sends are acknowledged."""
        acked = len(self._history.acked)

        def is_moved() -> bool:
            return self._has_another_master(machine) and len(self._history.acked) > acked

        if not self._until(is_moved, within_ms):
            raise Violation(
                f"{machine.name} is still the master after {within_ms} ms, although {why}: "
                f"{self._world.why_not_whole(len(self._history.acked) - acked)}"
            )

    def _must_be_whole_again(self, since: str) -> None:
        """Wait until all nodes are in the set, sends are acknowledged, and no alarm is left."""
        acked = len(self._history.acked)
        self._world.expect_all_confirmed()
        whole = self._until(
            lambda: len(self._history.acked) > acked and self._world.is_whole(), AGAIN_MS
        )
        if not whole:
            raise Violation(f"{since}; since then {self._world.why_not_whole(0)}")
        self.calm_down()

    def _must_accept_resync(self, machine: Machine) -> None:
        """Order a resync of the node until it is accepted, and wait until the store is empty."""
        group, before = self._group, machine.incarnation
        ha, token = group.ha_of(machine.name), None

        def is_taken() -> bool:
            nonlocal ha, token
            reply = None if ha is None or token is None else ha.replies.get(token)
            if token is None or reply is not None:
                ha = group.ha_of(machine.name)
                token = group.command("resync", {"group": "g0"}, machine)
            return machine.incarnation != before

        if not self._until(is_taken, AGAIN_MS):
            raise Violation(f"{machine.name} accepts no resync")

    def _open_alarms(self, name: str) -> dict[str, str]:
        alarms = self._alarms_of(self._group.machines[name])
        return {} if STALLED in alarms else alarms

    def _remembered_stalls(self, name: str) -> set[str]:
        """Alarms of a node without faults; only a recent stall may be among them."""
        service = self._group.ha_of(name)
        assert service is not None, "the group is whole"
        assert service.replica is not None, "the group is whole"
        alarms = set(service.replica.context.alarms)
        # A node that was stalled recently is no good master for a while, and has an alarm for that.
        if alarms - ({STALLED, HANDED_OVER} if STALLED in alarms else set()):
            raise Violation(f"{name} has alarms without a fault: {sorted(alarms)}")
        shown = {reason.code for reason in service.health.reasons}
        if shown != alarms:
            raise Violation(
                f"the probes of {name} report {sorted(shown)}, its alarms are {sorted(alarms)}"
            )
        return alarms

    def _grow(self, size: int) -> None:
        """Wait until size more bytes are confirmed, most of them in large records."""
        history = self._history
        until = len(history.confirmed) + size
        history.large_share = LARGE_SHARE
        is_grown = self._until(lambda: len(history.confirmed) >= until, GROWN_MS)
        history.large_share = None
        if not is_grown:
            raise Violation(
                f"in {GROWN_MS} ms without a fault {len(history.confirmed)} bytes are confirmed of "
                f"{until}: {self._world.why_not_whole(0)}"
            )

    def _let_expire(self, end: int) -> None:
        """Let the master, and every slave that follows it, delete all files up to the one that
        holds end."""
        self._keep_little(is_little=True)
        machines = list(self._group.machines.values())
        runs = [each for each in machines if self._group.broker_of(each.name) is not None]
        runs = [each for each in runs if self._group.ha_of(each.name) is not None]
        gone = end - end % FILE_SIZE + FILE_SIZE
        if not self._until(lambda: all(each.begins_at >= gone for each in runs), AGAIN_MS):
            begins = {each.name: each.begins_at for each in runs}
            needed = {each.name: each.slot(Slot.NEEDED_FROM) for each in runs}
            raise Violation(
                f"files up to {gone} may be deleted, but logs begin at {begins}: {needed}"
            )
        self._keep_little(is_little=False)

    def _keep_little(self, *, is_little: bool) -> None:
        for machine in self._group.machines.values():
            machine.log_size_max = KEPT_SIZE if is_little else 0

    def _any_machine(self) -> Machine:
        return self._random.choice(list(self._group.machines.values()))

    def _any_but(self, machine: Machine) -> Machine:
        others = [other for other in self._group.machines.values() if other is not machine]
        return self._random.choice(others)

    def _wait(self, ms: int) -> None:
        self._timeline.run_until(self._timeline.now_us + ms * 1000)

    def _until(self, is_so: Callable[[], bool], ms: int) -> bool:
        """Run until the condition holds, for at most ms; return whether it holds."""
        until_us = self._timeline.now_us + ms * 1000
        while not is_so():
            if self._timeline.now_us >= until_us:
                return False
            self._wait(CHECK_MS)
        return True

    def _alarms_of(self, machine: Machine) -> dict[str, str]:
        service = self._group.ha_of(machine.name)
        return {} if service is None or service.replica is None else service.replica.context.alarms

    def _ha(self, machine: Machine) -> Ha:
        service = self._group.ha_of(machine.name)
        assert service is not None, "the group is whole"
        return service

    def _send(
        self, broker: Broker, level: AckLevel | None, timeout_ms: int
    ) -> list[TidemarkError | None]:
        """Send a message; the outcome will be in the list."""
        outcome: list[TidemarkError | None] = []

        async def send() -> None:
            outcome.append(await broker.producer.send(timeout_ms, level, is_drawn=False))

        self._call(broker, lambda: broker.loop.create_task(send(), name=CLIENT))
        return outcome

    def _call(self, broker: Broker, call: Callable[[], object]) -> None:
        broker.loop.call_soon_threadsafe(call)

    def _broker(self, machine: Machine) -> Broker:
        self._until(lambda: self._group.broker_of(machine.name) is not None, AGAIN_MS)
        broker = self._group.broker_of(machine.name)
        assert broker is not None, "the group is whole"
        return broker

    def _has_another_master(self, machine: Machine) -> bool:
        holder = self._history.holder
        return holder is not None and holder.node != machine.name

    def _is_member(self, machine: Machine) -> bool:
        return machine.name in self._published

    @property
    def _published(self) -> list[str]:
        return [member.node for member in self._history.published]

    def _replica(self, ha: Ha) -> Replica:
        assert ha.replica is not None, "the group is whole"
        return ha.replica

    def _link_of(self, slave: Machine) -> int | None:
        link = self._replica(self._ha(slave)).following.link
        return None if link is None else link.link

    def _must_be(self, machine: Machine, state: State, why: str) -> None:
        state_text = self._world.state_of(machine.name)
        if state_text.partition(":")[0] != state.value:
            raise Violation(f"{machine.name} {why}; its state is {state_text}")
