"""Trials of what keeps a member in the in-sync set, or takes it out: its lag, its bytes, pauses.

What a master concludes about its members in general is checked in ``member_rules``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from services.ha.core.liveness import stall_ms
from services.ha.core.replica_context import LOGS_DIFFER
from services.ha.core.switch_orders import STALLED
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.trying import AGAIN_MS, Trying
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import Slot

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

APART_MS: Final = 60
"""A member that is cut off for this long, and connects again, is not silent meanwhile. Otherwise it
would leave the set, and its bytes would be confirmed without it."""
TRIES: Final = 20
"""Attempts to have a record come in that time."""
TOGETHER_MS: Final = (
    (stall_ms(TIMES) + 50, TIMES.lease_ms // 2),
    (TIMES.lease_ms + 300, 5 * TIMES.lease_ms),
)
"""A stall that costs nothing, and stalls of more than a lease. Between them, a lease may be renewed
and run out at the same moment."""
TURN_MS: Final = 100
"""Longest time between two services that continue after a pause of all; all three together less
than a stall."""
SEEN_MS: Final = 400
"""ha has seen its own pause, and the heartbeats after it, within this time."""


class KeepingInSync(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            self._differ_behind_confirm,
            self._pause_together,
        )

    def _differ_behind_confirm(self) -> None:
        """A slave whose newest bytes are not confirmed, and differ from those of its master in the
        same epoch, cuts them off and follows again, with the rest of its log."""
        group, history, master = self._group, self._history, self._master()
        slave = self._any_but(master)
        before, epoch, at = slave.incarnation, history.epoch, self._unconfirmed(slave, master)
        if at is None:
            return  # No record came in time.
        group.trace("world", f"a bit of byte {at} of {slave.name} flips")
        history.damaged.add(slave.name)
        slave.flip(at, self._random.randrange(8))
        cuts = self._replica(self._ha(slave)).count.truncations
        group.network.break_links(slave.name, master.name)
        group.network.heal()

        def is_cut_or_differs() -> bool:
            cut = self._replica(self._ha(slave)).count.truncations > cuts
            return cut or LOGS_DIFFER in self._alarms_of(slave)

        self._until(is_cut_or_differs, AGAIN_MS)
        if LOGS_DIFFER in self._alarms_of(slave) and master.slot(Slot.CONFIRM) > at:
            # The master went on without the slave, which connected again too late. Nothing that the
            # master has confirmed is cut: the log of either node may be the damaged one.
            history.replaced.add(slave.name)
            self._must_accept_resync(slave)
            self._must_be_whole_again(f"{slave.name} was resynced")
            history.damaged.clear()
            return
        self._must_be_whole_again(f"unconfirmed byte {at} of {slave.name} was another one")
        history.damaged.clear()
        is_cut = self._replica(self._ha(slave)).count.truncations == cuts + 1
        if not is_cut or slave.incarnation != before or history.epoch != epoch:
            raise Violation(
                f"unconfirmed byte {at} of {slave.name} was another one; the log was "
                f"{'' if is_cut else 'not '}cut once, {before} is {slave.incarnation}, and epoch "
                f"{epoch} became {history.epoch}"
            )

    def _unconfirmed(self, slave: Machine, master: Machine) -> int | None:
        """Cut the path from the slave, so that its master receives no acknowledgement, and return
        an offset of its log that is not confirmed; None if no record comes."""
        network = self._group.network
        for _ in range(TRIES):
            network.cut(slave.name, master.name)
            self._wait(2)  # The last acknowledgement that arrived is handled.
            if self._until(lambda: slave.end > master.slot(Slot.CONFIRM), APART_MS):
                confirmed = master.slot(Slot.CONFIRM)
                return self._random.choice(
                    (confirmed, self._random.randrange(confirmed, slave.end))
                )
            network.heal()
            self._wait(2 * TIMES.heartbeat_ms)
        return None

    def _pause_together(self) -> None:
        """ha and other services of a node are paused together, as with the whole machine, and go on
        in any order. The pause counts as one of ha, if it lasts for a lease, and never as a stall
        of the others: they had no time to show that they run."""
        machine = self._master() if self._random.random() < 0.5 else self._any_machine()
        others = self._random.choice((("broker",), ("reput",), ("broker", "reput")))
        pause_ms = self._random.randint(*self._random.choice(TOGETHER_MS))
        processes = [machine.processes[service] for service in ("ha", *others)]
        liveness = self._replica(self._ha(machine)).context.liveness
        stalls = {"broker": liveness.broker, "reput": liveness.reput}
        # A stall that was too short for an alarm is still remembered, and less so as time passes.
        before = {name: each.remembered_ms for name, each in stalls.items()}
        for process in processes:
            process.pause()
        self._wait(pause_ms)
        self._random.shuffle(processes)
        for process in processes:
            process.resume()
            self._wait(self._random.choice((0, 1, TURN_MS)))

        def is_blamed() -> bool:
            return any(
                each.remembered_ms > before[name] or each.too_many for name, each in stalls.items()
            )

        self._until(is_blamed, SEEN_MS)
        alarm = self._alarms_of(machine).get(STALLED, "")
        if is_blamed() or (alarm and not alarm.startswith("ha ")):
            counted = {name: each.remembered_ms for name, each in stalls.items()}
            raise Violation(
                f"ha, {others} of {machine.name} were paused together for {pause_ms} ms; as stalls "
                f"of the others {before} ms became {counted} ms: {alarm!r}"
            )
        if bool(alarm) != (pause_ms > TIMES.lease_ms):
            raise Violation(
                f"ha of {machine.name} was paused for {pause_ms} ms, and reports {alarm!r}"
            )
        self._must_be_whole_again(f"ha, {others} of {machine.name} were paused together")
