"""Trials of a whole group: each introduces one cause, so its outcome is known.

Faults hide each other's effects: a delay or a loss may be due to any of them. Nothing else happens
during a trial, so a slow switch, a lasting alarm or undetected damage is a mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Final

from services.ha.core.switch_orders import SWITCH_PAUSE_MS
from tests.simulation.replication.beginnings import Beginnings
from tests.simulation.replication.connecting import ConnectingTrials
from tests.simulation.replication.copying import Copying
from tests.simulation.replication.damaging import Damaging
from tests.simulation.replication.ending_terms import EndingTerms
from tests.simulation.replication.handing_over import HandingOver
from tests.simulation.replication.keeping_in_sync import KeepingInSync
from tests.simulation.replication.losing_lease import LosingLease
from tests.simulation.replication.lost_leases import LostLeases
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.operating import Operating
from tests.simulation.replication.outages import Outages
from tests.simulation.replication.plan import SERVICES, TIMES
from tests.simulation.replication.promoting import Promoting
from tests.simulation.replication.rotting import Rotting
from tests.simulation.replication.serving import Serving
from tests.simulation.replication.stalling import Stalling
from tests.simulation.replication.trying import AGAIN_MS, QUIET_MS, SETTLE_MS, UNHEARD_MS, Trying
from tests.simulation.replication.violation import Violation
from tests.simulation.replication.winning import Winning
from tests.simulation.replication.without_room import WithoutRoom
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

QUIET_INTERVALS: Final = 2
"""Number of intervals for which a whole group must stay quiet before its trials."""
TAKEN_US: Final = (TIMES.renew_ms + 50 + 50) * 1000
"""The target of a release finds it with its next read if the frame about it is lost with its link,
and takes the lease with three requests."""
NOTIFIED_US: Final = 120_000
"""Longest time from that frame to the new epoch."""
SWITCH_MS: Final = 2_000
"""Longest duration of a planned switch (docs/replication.md)."""
END_MS: Final = 5_000
"""A node that shuts down cleanly has ended after this time."""
HANDED_MS: Final = SWITCH_PAUSE_MS + 3 * TIMES.lease_ms
"""A failed switch is tried again after this time."""
SOON_MS: Final = 4 * TIMES.lease_ms
"""A member that ended has left the set, and a switch to another one has ended, within this time."""
SLOW_US: Final = 5_000_000
"""A sync takes at least a quarter of this, which is longer than the lag limit of a member."""
PAUSED_MS: Final = 300, 500
"""With the time since the last renewal and two requests, shorter than a lease."""
APART_MS: Final = 700
"""Time between the ends of two services, so that each notices the other's end."""


class Trials(Trying):
    """All trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._losing_lease = LosingLease(world)
        self._trials = (
            *(self._switch_once, self._end_a_node),
            *Damaging(world).trials,
            *Operating(world).trials,
            *(self._fill_a_disk, self._slow_a_disk, self._lose_members),
            *Winning(world).trials,
            *(self._remove_a_member, self._order_in_the_dark),
            *(self._pause_failover, self._stand_still),
            *Outages(world).trials,
            *Rotting(world).trials,
            *WithoutRoom(world).trials,
            *Beginnings(world).trials,
            *LostLeases(world).trials,
            *Copying(world).trials,
            *HandingOver(world).trials,
            *self._losing_lease.trials,
            *Stalling(world).trials,
            *Serving(world).trials,
            *KeepingInSync(world).trials,
            *ConnectingTrials(world).trials,
            *Promoting(world).trials,
            *EndingTerms(world).trials,
        )

    def drawn(self, count: int) -> list[Callable[[], None]]:
        """Return count trials drawn at random."""
        return self._random.sample(self._trials, count)

    def in_turn(self, turn: int, count: int) -> list[Callable[[], None]]:
        """Return the trials of a turn: consecutive turns of count trials go through all of them,
        each time in another order."""
        each = len(self._trials)
        places = [divmod(place, each) for place in range(turn * count, (turn + 1) * count)]
        return [Random(deal).sample(self._trials, each)[place] for deal, place in places]

    def run(self, trials: Iterable[Callable[[], None]]) -> None:
        """Check for a while that nothing happens; then run the trials. Raises Violation."""
        self.await_replies()
        self._rest(QUIET_MS)
        self._stay_whole()
        self._losing_lease.touch_the_lease()
        for trial in trials:
            self._group.trace("world", f"trial {trial.__name__}")
            self._history.replaced.clear()
            self._world.strikes.count += 1
            trial()
            self._rest(QUIET_MS)
        self._rest(SETTLE_MS)

    def _rest(self, ms: int) -> None:
        """Wait, and until stalls are forgotten. What a trial has left behind shows itself here or
        during the next trials, for the rules hold all the time."""
        self._wait(ms)
        self.must_be_forgotten()

    def await_replies(self) -> None:
        """Wait until commands that were given before the healing have ended."""
        self._until(lambda: not any(map(self._waits_for_replies, self._group.machines)), SETTLE_MS)

    def _waits_for_replies(self, name: str) -> bool:
        """Whether a node has a command without a reply."""
        ha = self._group.ha_of(name)
        return ha is not None and ha.commands.are_waiting

    def _stay_whole(self) -> None:
        """Check that epoch and in-sync set do not change, that no alarm is raised, and that sends
        and reads go on."""
        history, group = self._history, self._group
        epoch, published = history.epoch, set(history.published)
        states = {name: self._world.state_of(name).partition(":")[0] for name in group.machines}
        if sorted(states.values()) != ["in-sync"] * (len(states) - 1) + ["master"]:
            raise Violation(f"without a fault the nodes are {states}")
        for machine in group.machines.values():
            broker = group.broker_of(machine.name)
            hindrances = ["no broker"] if broker is None else broker.hindrances
            troubles = [machine.slot(slot) for slot in (Slot.BROKER_TROUBLE, Slot.REPUT_TROUBLE)]
            if hindrances or any(troubles):
                raise Violation(
                    f"without a fault the broker of {machine.name} is {hindrances}, with the "
                    f"troubles {troubles}"
                )
        for _ in range(QUIET_INTERVALS):
            acked, confirmed = len(history.acked), len(history.confirmed)
            self._wait(QUIET_MS)
            shown = {name: self._world.shown(name) for name in group.machines}
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

    def _switch_once(self) -> None:
        """A planned switch without obstacles succeeds, and the group goes on."""
        history, group = self._history, self._group
        master = history.holder
        assert master is not None, "the group is whole"
        others = sorted(name for name in group.machines if name != master.node)
        to = self._random.choice(others)
        reply = self._reply_to("switchover", {"to": to}, within_ms=SWITCH_MS)
        acked = len(history.acked)
        self._wait(QUIET_MS)
        holder = history.holder
        if reply is None or not reply.ok or holder is None or holder.node != to:
            raise Violation(
                f"without a fault a planned switch from {master.node} to {to} ends with {reply}; "
                f"the holder is {holder and holder.node}"
            )
        waited_us = history.won_us - history.released_us
        since_notified_us = history.won_us - history.campaign_now_us.get(to, 0)
        if waited_us > TAKEN_US or NOTIFIED_US < since_notified_us < waited_us:
            raise Violation(f"{to} takes the lease {waited_us} µs after {master.node} released it")
        if len(history.acked) == acked or not self._world.is_whole():
            raise Violation(
                f"{len(history.acked) - acked} sends were acknowledged after a planned switch"
            )

    def _end_a_node(self) -> None:
        """Its services shut down cleanly in any order, and the last one marks the store as clean
        (``page_rules.check_stopped``). After their restart the group is whole."""
        group, history = self._group, self._history
        machine = self._any_machine()
        # Without sends everything is dispatched soon, so no service has work left.
        history.producers_paused = True
        self._wait(QUIET_MS)
        group.gone |= {(machine.name, service) for service in SERVICES}
        gap_ms = self._random.choice((0, APART_MS))
        for service in self._random.sample(SERVICES, len(SERVICES)):
            self._ask_to_end(machine, service)
            self._wait(gap_ms)
        processes = list(machine.processes.values())
        self._until(lambda: not any(process.alive for process in processes), END_MS)
        left = [process.name for process in processes if not process.is_finished]
        if left:
            raise Violation(f"{left} of {machine.name} were asked to end and did not")
        history.producers_paused = False
        group.gone.clear()
        for service in SERVICES:
            group.start_later(machine, service, 50)
        self._must_be_whole_again(f"all services of {machine.name} were started again")

    def _ask_to_end(self, machine: Machine, service: str) -> None:
        ending = self._group.services[machine.name, service]
        ha = self._group.ha_of(machine.name)
        if service == "ha" and ha is not None:
            stopping = {"reason": "stopping"}
            if self._reply_to("switchover", stopping, machine, END_MS) is None:
                raise Violation(f"{machine.name} was asked to end and did not hand over")
        ending.ask_to_end()

    def _fill_a_disk(self) -> None:
        """A master without room on its disk hands over to a node with room."""
        machine = self._master()
        if not self._may_lose_one:
            return  # The remaining nodes would refuse sends, as configured.
        self._group.trace("world", f"the disk of {machine.name} is full")
        machine.is_full = True
        if self._until(lambda: bool(machine.slot(Slot.BROKER_TROUBLE)), AGAIN_MS):
            self._must_move_from(machine, HANDED_MS, "its disk is full")
        machine.is_full = False
        self._must_be_whole_again(f"the disk of {machine.name} was full")
        if self._group.plan.nodes > 2:
            self._fill_and_lose_a_target()

    def _fill_and_lose_a_target(self) -> None:
        """The node to which it would hand over ends. As soon as that node has left the set, it
        hands over to the other one."""
        self.must_be_forgotten()
        machine = self._master()
        orders = self._replica(self._ha(machine))._switch_orders
        self._until(lambda: machine.boot_ms() >= orders._not_before_ms, HANDED_MS)

        def lose_target() -> None:
            term = self._replica(self._ha(machine)).leadership.term
            if term is not None and term.switch is not None:
                self._lose(self._group.machines[term.switch.target.node], ["ha"])

        machine.arm(Slot.SENDS_HELD, lose_target)
        machine.is_full = True
        if self._until(lambda: bool(self._group.gone), AGAIN_MS) and not self._until(
            lambda: self._has_another_master(machine), SOON_MS
        ):
            raise Violation(
                f"{machine.name} has a full disk and the first node to take over has ended; "
                f"{self._world.why_not_whole(0)}"
            )
        machine.calm()
        self._bring_back()
        self._must_be_whole_again(f"the disk of {machine.name} was full")

    def _slow_a_disk(self) -> None:
        """A member whose syncs take seconds leaves the set, and sends do not wait for it any
        more."""
        history = self._history
        if not self._may_lose_one:
            return
        slave = self._any_but(self._master())
        usual, slave.disk_us = slave.disk_us, SLOW_US
        self._group.trace("world", f"the disk of {slave.name} is slow")

        if not self._until(lambda: not self._is_member(slave), SLOW_US // 1000):
            raise Violation(f"the disk of {slave.name} takes seconds, but it stays in the set")
        acked, stored = len(history.acked), history.stored_count
        self._until(lambda: len(history.acked) > acked, QUIET_MS)
        # A send for more copies than members is refused, and nothing is stored.
        if len(history.acked) == acked and history.stored_count > stored:
            raise Violation(f"{slave.name} has left the set, but no send is acknowledged")
        slave.disk_us = usual
        self._wait(SLOW_US // 1000)  # Wait for the syncs that have begun.
        self._must_be_whole_again(f"the disk of {slave.name} was slow")

    def _remove_a_member(self) -> None:
        """A silent member is removed by command, and is in the set again once it runs."""
        group, master = self._group, self._master()
        slave, service = self._any_but(master), group.ha_of(master.name)
        assert service is not None, "the group is whole"
        if not self._may_lose_one:
            return
        self._lose(slave, ["ha"])
        token: int | None = None

        def is_removed() -> bool:
            nonlocal token
            reply = None if token is None else service.replies.get(token)
            if token is None or (reply is not None and not reply.ok):
                token = group.command("remove-member", {"node": slave.name}, master)
            return reply is not None and reply.ok

        if not self._until(is_removed, AGAIN_MS):
            raise Violation(f"{slave.name} is silent, and no command removes it from the set")
        if self._is_member(slave):
            raise Violation(f"{slave.name} was removed by command and is still in the set")
        self._bring_back()
        self._must_be_whole_again(f"{slave.name} was removed from the set")

    def _order_in_the_dark(self) -> None:
        """A slave without access to the lease is given a command that changes the lease, and one to
        copy itself anew. The second is answered all the same, the first once the lease is
        reached."""
        group = self._group
        slave = self._any_but(self._master())
        service = group.ha_of(slave.name)
        assert service is not None, "the group is whole"
        self._world.operator_paused = True
        group.lease.unreachable.add(slave.name)
        pause = group.command("pause", {}, slave)
        self._wait(self._random.randint(1, TIMES.request_timeout_ms))
        before = slave.incarnation
        self._history.replaced.add(slave.name)
        resync = group.command("resync", {"group": "g0"}, slave)
        answered = self._until(lambda: resync in service.replies, AGAIN_MS)
        group.lease.unreachable.clear()
        if not answered or not self._until(lambda: pause in service.replies, AGAIN_MS):
            raise Violation(f"{slave.name} did not reach the lease, and does not reply to commands")
        if resync is not None and not service.replies[resync].ok:
            self._history.replaced.discard(slave.name)
            if slave.incarnation != before:
                raise Violation(f"{slave.name} refused to empty its store, and emptied it")
        self._world.operator_paused = False
        self._must_be_whole_again(f"{slave.name} did not reach the lease")

    def _pause_failover(self) -> None:
        """While automatic failover is paused, a planned switch succeeds, and the holder of the
        lease keeps it over a restart."""
        group, history = self._group, self._history
        self._world.operator_paused = True
        self._command("pause", {})
        self._switch_once()
        epoch, master = history.epoch, self._master()
        ended = master.processes[self._random.choice(("ha", "broker"))]
        ended.end()
        self._until(lambda: master.processes[ended.name] is not ended, AGAIN_MS)
        self._must_be_whole_again(f"{ended.name} of {master.name} endedwhile failover was paused")
        if history.holder is None or history.holder.node != master.name:
            raise Violation(
                f"failover is paused, but {history.holder} took over from epoch {epoch} of "
                f"{master.name}"
            )
        self._command("resume", {})
        self._world.operator_paused = False
        stored = group.lease.stored
        if stored is None or stored.lease.paused:
            raise Violation("failover was resumed, but the lease still has it paused")

    def _stand_still(self) -> None:
        """A pause of one or all services of a master that is shorter than a lease costs no
        epoch."""
        epoch, master = self._history.epoch, self._master()
        services = self._random.choice((*((service,) for service in SERVICES), SERVICES))
        stopped = [master.processes[service] for service in services]
        for process in stopped:
            process.pause()
        self._wait(self._random.randint(*PAUSED_MS))
        for process in stopped:
            process.resume()
        self._must_be_whole_again(f"{services} of {master.name} were paused")
        if self._history.epoch != epoch:
            raise Violation(
                f"{services} of {master.name} were paused for less than a lease, but epoch "
                f"{epoch} became {self._history.epoch}"
            )

    def _lose_members(self) -> None:
        """With fewer nodes than the minimum, nothing is stored."""
        group, history, master = self._group, self._history, self._master()
        least = group.plan.min_in_sync
        if least < 2:
            return
        others = [name for name in group.machines if name != master.name]
        lost = self._random.sample(others, len(others) - least + 2)
        for name in lost:
            self._lose(group.machines[name], ["ha"])
        self._wait(UNHEARD_MS)
        stored = history.stored_count
        self._wait(QUIET_MS)
        if history.stored_count != stored:
            raise Violation(
                f"{master.name} stores {history.stored_count - stored} messages, but fewer than "
                f"{least} members answer"
            )
        self._bring_back()
        self._must_be_whole_again(f"ha of {lost} was killed")
