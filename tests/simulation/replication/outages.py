"""Trials in which one thing is out of order for a while and then works again.

Each trial fixes what such an outage may cost: which node may lead, how often the lease may change
hands, and whether sends are answered. Afterwards the group is whole again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from services.ha.core.switch_orders import STALLED
from services.ha.lease.value import Lease
from tests.simulation.replication.plan import SERVICES, TIMES
from tests.simulation.replication.trying import AGAIN_MS, QUIET_MS, UNHEARD_MS, Trying
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

OUTAGE_MS: Final = 100, 3_500
"""From shorter to longer than every timeout."""
CUT_MS: Final = 100, 1_200
"""Shorter than the time for which ``World`` lets two running nodes be without a connection."""
KILLS: Final = 3
GONE_MS: Final = 100, 1_500
"""A broker is missed within this time, or is back before."""
ENDED_MS: Final = 5_000
"""Time within which a node that shuts down cleanly has ended."""
FLAPPING_MS: Final = 6 * TIMES.lease_ms
"""Time for several failed terms."""
MOVED_MS: Final = 3_000
"""Time within which a planned switch has ended, with or without success."""
SAMPLED_MS: Final = 300
"""ha samples the heartbeats of its services several times within this."""
TROUBLE_MS: Final = 2_500
"""Time within which a node that cannot lead has reported it."""


class Outages(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            *(self._fill_a_slaves_disk, self._cut_a_slave_off, self._cut_a_master_off),
            *(self._end_a_slave_in_order, self._kill_again, self._kill_beside_a_sick_node),
            *(self._estimate_a_loss, self._stand_alone, self._restart_all),
            *(self._switch_to_a_sick_node, self._end_a_masters_broker),
        )

    def _fill_a_slaves_disk(self) -> None:
        """The slave leaves the in-sync set, and the master keeps its epoch."""
        epoch, slave = self._history.epoch, self._any_but(self._master())
        slave.is_full = True
        begins_anew = self._random.random() < 0.5
        if begins_anew:  # The slave has to promise an epoch and has no room to write the promise.
            self._master().processes["ha"].end()
        self._wait(self._random.randint(*OUTAGE_MS))
        slave.is_full = False
        self._must_be_whole_again(f"the disk of {slave.name} was full")
        if not begins_anew:
            self._must_be_epoch(epoch, f"the disk of {slave.name}, a slave, was full")

    def _cut_a_slave_off(self) -> None:
        """A slave that does not reach the lease, or the other nodes, does not take over."""
        group, master = self._group, self._master()
        epoch, slave = self._history.epoch, self._any_but(master)
        away_ms = self._random.randint(*OUTAGE_MS)
        if self._random.random() < 0.5:
            group.lease.unreachable.add(slave.name)
        elif self._random.random() < 0.5:
            group.lease.deaf.add(slave.name)
        else:
            away_ms = self._random.randint(*CUT_MS)
            for other in group.machines:
                if other != slave.name:
                    group.network.cut(other, slave.name)
                    group.network.cut(slave.name, other)
        self._wait(away_ms)
        group.lease.unreachable.clear()
        group.lease.deaf.clear()
        group.network.heal()
        self._must_be_whole_again(f"{slave.name} was cut off")
        self._must_be_epoch(epoch, f"{slave.name}, a slave, was cut off")

    def _cut_a_master_off(self) -> None:
        """A master that loses access to the lease is replaced, and follows."""
        master, lease = self._master(), self._group.lease
        unreached = self._random.choice((lease.unreachable, lease.deaf))
        unreached.add(master.name)
        self._must_move_from(master, AGAIN_MS, "it does not reach the lease")
        unreached.clear()
        self._must_be_whole_again(f"{master.name} did not reach the lease")

    def _end_a_slave_in_order(self) -> None:
        """A slave that shuts down cleanly reports it, so that no send waits for it."""
        group, history, slave = self._group, self._history, self._any_but(self._master())
        if group.plan.nodes < 3:
            return  # With one other node, a send for two copies waits in vain.
        if not self._may_lose_one:
            return
        epoch, late = history.epoch, history.late_count
        group.gone |= {(slave.name, service) for service in SERVICES}
        for service in self._random.sample(SERVICES, len(SERVICES)):
            group.services[slave.name, service].ask_to_end()
            self._wait(self._random.choice((0, 50)))
        processes = list(slave.processes.values())
        self._until(lambda: not any(process.alive for process in processes), ENDED_MS)
        self._wait(QUIET_MS)
        if history.late_count > late:
            raise Violation(
                f"{slave.name} shut down cleanly, but {history.late_count - late} sends waited "
                "for it in vain"
            )
        self._bring_back()
        self._must_be_whole_again(f"{slave.name} shut down cleanly")
        self._must_be_epoch(epoch, f"{slave.name}, a slave, shut down cleanly")

    def _kill_again(self) -> None:
        """A service that is killed and restarted does not count as stalled. The others go on
        without a slave's services and without a master's reput."""
        history, machine = self._history, self._any_machine()
        service = self._random.choice(("broker", "reput", "ha"))
        gone_ms = self._random.randint(*GONE_MS)
        costs = machine is self._master() and (service != "reput" or gone_ms >= TIMES.lease_ms // 2)
        for _ in range(KILLS):
            epoch = history.epoch
            self._lose(machine, [service])
            self._wait(gone_ms)
            self._bring_back()
            why = f"{service} of {machine.name} was gone for {gone_ms} ms"
            self._must_be_whole_again(why)
            if not costs:
                self._must_be_epoch(epoch, why)
        is_over = self._until(lambda: STALLED not in self._alarms_of(machine), SAMPLED_MS)
        if service != "ha" and not is_over:
            raise Violation(f"{service} of {machine.name} was killed, but counts as stalled")

    def _kill_beside_a_sick_node(self) -> None:
        """After a kill of the master, a node that cannot serve leaves the lease to the other
        one."""
        group, master = self._group, self._master()
        if group.plan.nodes < 3:
            return
        sick = self._any_but(master)
        well = next(each for each in group.machines.values() if each not in (master, sick))
        what = self._random.choice(("broker", "reput", "disk"))
        if what == "disk":
            sick.is_full = True
            if not self._until(lambda: bool(sick.slot(Slot.BROKER_TROUBLE)), TROUBLE_MS):
                what = ""  # The broker may not have noticed the full disk yet.
        else:
            self._lose(sick, [what])
            self._wait(TROUBLE_MS)
        holders: list[str] = []

        def note(_: Lease, now: Lease) -> None:
            if now.holder is not None:
                holders.append(now.holder.node)

        with self._on_lease_change(note):
            self._lose(master, SERVICES)
            self._until(lambda: well.name in holders, AGAIN_MS)
        sick.is_full = False
        if what and (well.name not in holders or sick.name in holders):
            raise Violation(
                f"{master.name} was killed, {sick.name} cannot serve without its {what}, and the "
                "lease "
                f"went to {sorted(set(holders))}"
            )
        self._bring_back()
        self._must_be_whole_again(f"{master.name} was killed, and {sick.name} could not serve")

    def _switch_to_a_sick_node(self) -> None:
        """A node without broker or reput is refused as the target of a switchover. A master that is
        shutting down hands over to another node."""
        group, history, master = self._group, self._history, self._master()
        sick = self._any_but(master)
        epoch, what = history.epoch, self._random.choice(("broker", "reput"))
        self._lose(sick, [what])
        self._wait(TROUBLE_MS)
        is_stopping = group.plan.nodes > 2 and self._random.random() < 0.5
        arguments = {"reason": "stopping"} if is_stopping else {"to": sick.name}
        reply = self._reply_to("switchover", arguments, master)
        holder = history.holder
        who = None if holder is None else holder.node
        if is_stopping and (reply is None or not reply.ok or who in (master.name, sick.name)):
            raise Violation(
                f"{master.name} stops, {sick.name} has no {what}, but {who} has the lease"
            )
        if not is_stopping and (reply is None or reply.ok or history.epoch != epoch):
            raise Violation(f"{sick.name} has no {what}, but is accepted as target: {reply}")
        if is_stopping:
            self._lose(master, SERVICES)
        self._bring_back()
        self._must_be_whole_again(f"{sick.name} had no {what}")

    def _end_a_masters_broker(self) -> None:
        """Another node takes over before the broker ends. Sends wait as for a planned switch, and
        no longer."""
        group, history, master = self._group, self._history, self._master()
        epoch = history.epoch
        group.gone.add((master.name, "broker"))
        group.services[master.name, "broker"].ask_to_end()
        if not self._until(lambda: history.epoch > epoch, MOVED_MS):
            raise Violation(f"the broker of {master.name} shuts down, but epoch {epoch} goes on")
        self._bring_back()
        self._must_be_whole_again(f"the broker of {master.name} shut down cleanly")

    def _estimate_a_loss(self) -> None:
        """The last running node estimates the loss from the last reports of the others, and names
        the silent ones."""
        group, history, master = self._group, self._history, self._master()
        slave = self._any_but(master)
        others = [each for each in group.machines.values() if each is not slave]
        history.producers_paused = True
        self._wait(QUIET_MS)
        epoch, confirmed = history.epoch, len(history.confirmed)
        for other in others:
            self._lose(other, SERVICES)
        self._wait(UNHEARD_MS)
        reply = self._reply_to("failover", {"dry_run": "true"}, slave)
        if history.epoch == epoch:
            so = {
                "estimated_loss_bytes": max(0, confirmed - slave.end),
                "known_confirm": confirmed,
                "known_from": sorted(group.machines),
            }
            reported = {} if reply is None else {name: reply.body.get(name) for name in so}
            silent = "" if reply is None else str(reply.body.get("loss_reason"))
            if reported != so or any(other.name not in silent for other in others):
                raise Violation(
                    f"{slave.name} is left with {slave.end} bytes of {confirmed}, and "
                    f"replies {reply}"
                )
        history.producers_paused = False
        self._bring_back()
        self._must_be_whole_again(f"{slave.name} was alone")

    def _stand_alone(self) -> None:
        """A master without slaves goes on if one member is enough. It recovers by itself and keeps
        the lease while no other node can take it."""
        group, history, master = self._group, self._history, self._master()
        slaves = [each for each in group.machines.values() if each is not master]
        for slave in slaves:
            self._lose(slave, ["ha"])
        self._wait(UNHEARD_MS + QUIET_MS)
        epoch, process = history.epoch, master.processes[self._random.choice(SERVICES)]
        if self._random.random() < 0.5:
            process.end()
        else:
            process.pause()
            self._wait(self._random.randint(*OUTAGE_MS))
            process.resume()
        self._wait(self._random.choice((0, FLAPPING_MS)))
        if group.plan.min_in_sync == 1:
            acked = len(history.acked)
            if not self._until(lambda: len(history.acked) > acked, AGAIN_MS):
                raise Violation(
                    f"{master.name} is alone, its {process.name} was away; since then "
                    f"{self._world.why_not_whole(0)}"
                )
        terms = history.epoch - epoch
        if terms > 2:
            raise Violation(f"{master.name} is alone and took the lease {terms} times")
        self._bring_back()
        self._must_be_whole_again(f"{master.name} was alone")

    def _restart_all(self) -> None:
        """All nodes end at once: by a kill or a power cut, and then by a clean shutdown."""
        self._restart_all_by(self._random.choice(("kill", "power")))
        self._restart_all_by("end")

    def _restart_all_by(self, how: str) -> None:
        group, history, master = self._group, self._history, self._master()
        machines, before = list(group.machines.values()), history.published
        confirmed = len(history.confirmed)
        for machine in machines:
            if how == "power":
                group.cut_power(machine)
            elif how == "kill":
                self._lose(machine, SERVICES)
            else:
                group.gone |= {(machine.name, service) for service in SERVICES}
                for service in SERVICES:
                    group.services[machine.name, service].ask_to_end()
        self._wait(ENDED_MS)
        left = [m.node for m in before if m not in history.published and m.node != master.name]
        if left:
            raise Violation(f"all nodes ended by {how}, and the slaves {left} left the set")
        for machine in machines:
            if not machine.is_on:
                group.boot(machine)
        self._bring_back()
        self._must_be_whole_again(f"all nodes ended by {how}")
        if len(history.confirmed) < confirmed:
            raise Violation(f"all nodes ended by {how}, and confirmed records are lost")

    def _must_be_epoch(self, epoch: int, why: str) -> None:
        if self._history.epoch != epoch:
            raise Violation(f"{why}; epoch {epoch} became {self._history.epoch}")
