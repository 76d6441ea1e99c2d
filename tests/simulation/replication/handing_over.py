"""Trials in which a master hands over, or must not, while one thing is in the way.

A switch that can succeed does; one that cannot costs no epoch. A clean shutdown leaves lease,
in-sync set and sends as an operator expects. Trouble of a slave is no reason to hand over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from services.ha.core.states import State
from services.ha.core.status import BELOW_MINIMUM
from services.ha.core.switch_orders import OPENING_LEASES, REMOVAL_MS_MAX, SHORT_LEASES
from services.ha.lease.value import Lease
from tests.simulation.replication.lease_object import Weather
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.trying import AGAIN_MS, QUIET_MS, UNHEARD_MS, Trying
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

SWITCH_MS: Final = 2_500
"""A switch takes two seconds at most, plus one write of the lease whose answer is lost."""
VAIN_MS: Final = 1_500
"""A switch gives up within a second if its target does not get the end of the log."""
SYNC_US: Final = 5_000_000
"""Longest sync of a disk that is too slow for a switch; the shortest takes a quarter of it."""
FREED_MS: Final = 150
"""Time within which sends are accepted again after a failed switch."""
REMOVED_MS: Final = 4 * TIMES.renew_ms
"""Time within which a master that learns of a slave's shutdown has removed it from the lease."""
LEFT_MS: Final = REMOVAL_MS_MAX + 500
"""Time within which a node that shuts down has a reply, whatever its master does."""
KNOWN_MS: Final = TIMES.renew_ms + 2 * TIMES.request_timeout_ms
"""Time within which a node has read the lease."""
SENSED_MS: Final = 200, 700
"""A service that is gone is missed within this time, and does not count as stalled yet."""
REPORTED_MS: Final = 500
"""Time within which ha raises an alarm that is due."""
UNOPENED_MS: Final = (OPENING_LEASES + 1) * TIMES.lease_ms
"""Time within which a node that does not open its epoch leaves it to another node."""


class HandingOver(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            *(self._switch_in_spite, self._switch_in_vain, self._leave_in_order),
            *(self._lead_too_few, self._order_twice),
        )

    # -- switches --------------------------------------------------------------------------

    def _switch_in_spite(self) -> None:
        """A planned switch succeeds although writes of the lease meet conflicts, or their answers
        are late or lost. It costs one epoch."""
        group, history, master = self._group, self._history, self._master()
        target, ha, epoch = self._any_but(master), self._ha(master), history.epoch
        how = self._random.choice(("touched", "deaf", "deaf", "slow", "paused", "twice"))
        self._group.trace("world", f"{how} while {master.name} hands over to {target.name}")
        if how == "touched":
            master.arm(Slot.FENCED, group.lease.touch)
        elif how == "paused":
            other = self._any_but(master)
            self._world.operator_paused = True
            master.arm(Slot.SENDS_HELD, lambda: self._command_soon("pause", other))
        elif how == "twice":
            master.arm(Slot.SENDS_HELD, lambda: self._give("switchover", master, refused=True))
        elif how == "slow":
            group.lease.weather = Weather(delay_max_ms=90)
        else:
            group.on_lease.append(self._deaf_when_released)
        token = group.command("switchover", {"to": target.name}, master)
        assert token is not None, "the group is whole"
        if how == "deaf" and self._until(lambda: history.epoch > epoch, SWITCH_MS):
            group.on_lease.remove(self._deaf_when_released)
            group.lease.deaf.clear()
        self._until(lambda: token in ha.replies, SWITCH_MS)
        group.lease.weather = Weather()
        reply = ha.replies.get(token)
        so = {"master": target.name, "epoch": history.epoch, "changed": True}
        body: dict[str, Any] = {} if reply is None else dict(reply.body)
        # With a slow lease the other nodes may learn of the target's epoch before the target does,
        # which then takes the next epoch.
        terms = history.epoch - epoch
        is_so = reply is not None and reply.ok and all(body.get(name) == so[name] for name in so)
        if not is_so or not 1 <= terms <= 1 + (how == "slow"):
            raise Violation(
                f"a planned switch from {master.name} to {target.name} should succeed while the "
                "lease is "
                f"{how}; the reply is {reply}, epoch {epoch} became {history.epoch}"
            )
        if how == "paused":
            self._wait(KNOWN_MS)
            if group.lease.stored is not None and group.lease.stored.lease.paused:
                self._command("resume", {})
            self._world.operator_paused = False
        self._must_be_whole_again(f"{master.name} handed over to {target.name}")

    def _deaf_when_released(self, before: Lease, now: Lease) -> None:
        """Drop the answer to the release of the lease, which is applied."""
        if before.holder is not None and now.holder is None:
            self._group.lease.deaf.add(before.holder.node)

    def _command_soon(self, order: str, machine: Machine) -> None:
        self._timeline.after(self._random.randint(1, 20_000), lambda: self._give(order, machine))

    def _give(self, order: str, machine: Machine, *, refused: bool = False) -> None:
        self._group.command(order, {}, machine, refused=refused)

    def _switch_in_vain(self) -> None:
        """A planned switch that fails before the grant ends changes nothing: the epoch stays, and
        sends are accepted again. A switch to a node that cannot serve is refused at once."""
        history, master = self._history, self._master()
        target = self._any_but(master)
        how = self._random.choice(("link", "link", "ha", "slow", "broker", "reput"))
        if how == "slow" and not self._may_lose_one:
            how = "link"  # The set would be too small for longer than goes without an alarm.
        self._group.trace("world", f"{how} of {target.name} is in the way of a switch")
        usual, epoch, held_us = target.disk_us, history.epoch, self._timeline.now_us
        if how == "link":
            master.arm(Slot.SENDS_HELD, lambda: self._close_link_of(target))
        elif how == "ha":
            master.arm(Slot.SENDS_HELD, lambda: self._lose(target, ["ha"]))
        elif how == "slow":
            target.disk_us = SYNC_US
            end = master.end
            self._until(lambda: master.end > end, QUIET_MS)
        else:
            self._lose(target, [how])
            self._wait(self._random.randint(*SENSED_MS))
        refused_ms = VAIN_MS if how in ("link", "ha", "slow") else TIMES.heartbeat_ms
        reply = self._reply_to("switchover", {"to": target.name}, master, refused_ms)
        self._wait(FREED_MS)
        held = master.slot(Slot.SENDS_HELD)
        began = how not in ("broker", "reput") and master.changed_us.get(Slot.SENDS_HELD, 0)
        if reply is None or held or history.epoch != epoch:
            raise Violation(
                f"{how} of {target.name} is in the way of a switch from {master.name}; "
                f"the reply is {reply}; sends are held: {held}; epoch {epoch} became "
                f"{history.epoch}"
            )
        if reply.ok or (began and began < held_us):
            raise Violation(
                f"{how} of {target.name} is in the way of a switch, but the reply is {reply}"
            )
        target.disk_us = usual
        if how == "slow":  # Whatever the node is asked waits for the sync that has begun.
            replica = self._ha(target).replica
            assert replica is not None, "no process has ended"
            self._until(lambda: not replica.promises._writing, SYNC_US // 1000)
        elif self._may_lose_one:
            acked = len(history.acked)
            if not self._until(lambda: len(history.acked) > acked, AGAIN_MS):
                raise Violation(f"a switch from {master.name} failed, and no send is acknowledged")
        self._bring_back()
        self._must_be_whole_again(f"a switch to {target.name} failed")
        if history.epoch != epoch:
            raise Violation(
                f"a switch to {target.name} failed, but epoch {epoch} became {history.epoch}"
            )

    def _close_link_of(self, slave: Machine) -> None:
        """Close only the connection on which a slave follows. The slave connects again."""
        link = self._link_of(slave)
        links, loop = self._ha(slave).links, self._ha(slave).loop
        if link is not None and links is not None:
            loop.call_soon_threadsafe(links.close_link, link, "reset")

    def _order_twice(self) -> None:
        """The target of a switch does not take the lease, so the old master takes it again. A
        second switch succeeds, and both commands get a reply."""
        group, master = self._group, self._master()
        others = {name for name in group.machines if name != master.name}

        def keep_away(before: Lease, now: Lease) -> None:
            if before.holder is not None and now.holder is None:
                group.lease.unreachable |= others

        with self._on_lease_change(keep_away):
            first = self._group.command("switchover", {}, master)
            self._until(lambda: bool(group.lease.unreachable), SWITCH_MS)
        ha, epoch = self._ha(master), self._history.epoch
        if not self._until(lambda: self._history.epoch > epoch, AGAIN_MS):
            raise Violation(f"no node takes the lease that {master.name} released")
        group.lease.unreachable.clear()
        moved = self._switch_until_done({}, AGAIN_MS)
        if not moved or not self._until(lambda: first in ha.replies, SWITCH_MS):
            raise Violation(f"{master.name} replies to two switches with {ha.replies}")
        self._must_be_whole_again(f"{master.name} was ordered to switch twice")

    # -- clean shutdown --------------------------------------------------------------------

    def _leave_in_order(self) -> None:
        """ha of a node shuts down cleanly, also while its slaves reconnect. A master releases the
        lease first; a slave has left the set, and no send waits for it."""
        history, group, machine = self._history, self._group, self._any_machine()
        leads, ha, epoch = machine is self._master(), self._ha(machine), history.epoch
        late, begun_us = history.late_count, self._timeline.now_us
        before = set(history.published)
        group.gone.add((machine.name, "ha"))
        is_relinked = leads and self._random.random() < 0.6
        if is_relinked:
            for other in group.machines.values():
                if other is not machine:
                    self._close_link_of(other)
            term = self._replica(ha).leadership.term
            self._until(lambda: term is None or not term.links, TIMES.heartbeat_ms)
        token = group.command("switchover", {"reason": "stopping"}, machine)
        assert token is not None, "the group is whole"
        published: list[set[str]] = []

        def is_answered() -> bool:
            if token in ha.replies and not published:
                published.append({member.node for member in history.published})
            return token in ha.replies

        may_shrink = len(before) > group.plan.min_in_sync
        if not self._until(
            is_answered, SWITCH_MS if leads else REMOVED_MS if may_shrink else LEFT_MS
        ):
            raise Violation(f"{machine.name} shuts down and gets no reply")
        if machine.name in published[0] and may_shrink:
            raise Violation(f"{machine.name} may end, but is still in the set {published[0]}")
        if not may_shrink and machine.name not in published[0]:
            raise Violation(f"{machine.name} may end, but the set is {published[0]}")
        ha.ask_to_end()
        process = machine.processes["ha"]
        if leads:
            self._must_have_been_given(machine, epoch, begun_us)
        if not self._until(lambda: not process.alive, LEFT_MS):
            raise Violation(f"ha of {machine.name} has handed over but does not end")
        self._wait(QUIET_MS)
        # Sends for more copies than members left wait until their timeout.
        if not leads and may_shrink and history.late_count > late:
            raise Violation(
                f"{machine.name} shut down cleanly, but {history.late_count - late} sends waited "
                "for it"
            )
        if history.epoch != epoch + leads:
            raise Violation(
                f"{machine.name} shut down cleanly, and epoch {epoch} became {history.epoch}"
            )
        self._bring_back()
        self._must_be_whole_again(f"{machine.name} shut down cleanly")

    def _must_have_been_given(self, machine: Machine, epoch: int, begun_us: int) -> None:
        """Check that the master released the lease and another node took it."""
        history = self._history

        def is_taken() -> bool:
            return history.epoch > epoch and history.holder is not None

        taken = self._until(is_taken, TIMES.lease_ms)
        if not taken or history.released_us < begun_us:
            raise Violation(
                f"{machine.name} shut down cleanly without releasing the lease to another node: "
                f"{history.holder} has it with epoch {history.epoch}"
            )

    # -- too few ---------------------------------------------------------------------------

    def _lead_too_few(self) -> None:
        """A master without slaves goes on. If it must refuse sends, it reports that. It keeps the
        lease while no other node can lead, also after a restart."""
        group, history, master = self._group, self._history, self._master()
        slaves = [each.name for each in group.machines.values() if each is not master]
        least, epoch = group.plan.min_in_sync, history.epoch
        for name in slaves:
            self._lose(group.machines[name], ["ha"])
        self._wait(SHORT_LEASES * TIMES.lease_ms)
        if BELOW_MINIMUM in self._alarms_of(master):
            raise Violation(f"{master.name} raises {BELOW_MINIMUM} too soon")
        self._wait(UNHEARD_MS + REPORTED_MS)
        is_short = BELOW_MINIMUM in self._alarms_of(master)
        if is_short != (least > 1) or len(self._published) != least or history.epoch != epoch:
            raise Violation(
                f"{master.name} is alone with the minimum {least}; the alarms are "
                f"{self._alarms_of(master)}, the set {self._published}, the epoch {epoch}, then "
                f"{history.epoch}"
            )
        self._must_report_away(master, slaves, BELOW_MINIMUM if is_short else "")
        if is_short and self._random.random() < 0.7:
            master.processes[self._random.choice(("ha", "broker"))].end()
            self._until(lambda: history.epoch > epoch, 2 * TIMES.lease_ms)
            self._wait(
                REPORTED_MS
            )  # It may take the start of the broker that ended for the next one.
            begun = history.epoch
            self._wait(UNOPENED_MS)
            self._must_be(master, State.PROMOTING, "is alone and was restarted")
            if history.epoch != begun or begun > epoch + 2:
                raise Violation(
                    f"{master.name} is alone, and epoch {epoch} became {begun}, then "
                    f"{history.epoch}"
                )
        self._bring_back()
        self._must_be_whole_again(f"{master.name} was alone")

    def _must_report_away(self, machine: Machine, away: list[str], reason: str) -> None:
        """Check the status: why this node refuses sends, and that the other nodes are not
        reachable."""
        status = self._replica(self._ha(machine)).status(machine.boot_ms())
        for node in status["nodes"]:
            name, text = node["node"], node["reason"] or ""
            is_in = name in self._published
            is_so = node["in_sync"] is is_in and (
                (node["state"], node["role"]) == (None, None) and text.startswith("not reachable")
                if name in away
                else text.startswith(reason) and bool(text) == bool(reason)
            )
            if not is_so:
                raise Violation(
                    f"the set is {self._published}, {away} are away, but {machine.name} reports "
                    "for "
                    f"{name}: {node}"
                )
