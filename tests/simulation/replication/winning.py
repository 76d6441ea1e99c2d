"""Trials in which the node that takes over by a planned switch is paused or killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from services.ha.lease.value import Lease
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import SERVICES, TIMES
from tests.simulation.replication.store_view import TABLE
from tests.simulation.replication.trying import AGAIN_MS, Trying
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import BrokerPhase, Slot

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

SWITCH_MS: Final = 2_000
"""Longest duration of a planned switch (docs/replication.md)."""


class Winning(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            self._stall_a_winner,
            self._outlast_a_lease,
            self._lose_a_winner,
            self._stall_a_target,
        )

    def _stall_a_winner(self) -> None:
        """A node that takes the lease and cannot open its epoch leaves it to a node that can."""
        group = self._group
        winner = self._any_but(self._master())
        service = self._random.choice(("broker", "reput"))
        process = winner.processes[service]

        def stop(_: Lease, now: Lease) -> None:
            if now.holder is not None and now.holder.node == winner.name:
                process.pause()

        with self._on_lease_change(stop):
            group.command("switchover", {"to": winner.name})
            is_stopped = self._until(lambda: process.paused, SWITCH_MS)
        if is_stopped and winner.slot(Slot.BROKER_STATE) != BrokerPhase.SERVING:
            self._must_move_from(winner, AGAIN_MS, f"its {service} is paused")
        process.resume()
        self._must_be_whole_again(f"the {service} of {winner.name} was paused")

    def _outlast_a_lease(self) -> None:
        """ha of a winner stands still while it hands the log to its broker, until the lease has run
        out. It follows the next master, or opens its next epoch."""
        group = self._group
        winner = self._any_but(self._master())
        process = winner.processes["ha"]
        winner.arm_step("promote-6", process.pause)
        group.command("switchover", {"to": winner.name})
        if self._until(lambda: process.paused, SWITCH_MS):
            self._wait(self._random.choice((TIMES.lease_ms, 2 * TIMES.lease_ms)))
        process.resume()
        self._must_be_whole_again(f"{winner.name} stood still while it became master")

    def _lose_a_winner(self) -> None:
        """A node takes the lease, writes its epoch into its table and dies. It leaves nothing
        behind: the next epoch begins at the same byte."""
        group, master = self._group, self._master()
        winner = self._any_but(master)
        services = self._random.choice((("ha", "broker"), ("ha",), SERVICES))
        winner.arm_file(TABLE.name, lambda: self._lose_soon(winner, services))
        group.command("switchover", {"to": winner.name})
        is_lost = self._until(lambda: (winner.name, "ha") in group.gone, SWITCH_MS)
        winner.calm()
        if is_lost and self._may_lose_one:
            self._must_move_from(winner, AGAIN_MS, "it was killed")
        self._bring_back()
        self._must_be_whole_again(f"{winner.name} was killed")

    def _lose_soon(self, machine: Machine, services: Iterable[str]) -> None:
        """Kill the services a few steps of ha later."""
        process = machine.processes["ha"]
        process.strike_after(self._random.randint(1, 20), lambda: self._lose(machine, services))

    def _stall_a_target(self) -> None:
        """A planned switch to a node that becomes silent fails, and sends are acknowledged
        again."""
        history, group, master = self._history, self._group, self._master()
        target = self._any_but(master)
        process = target.processes["ha"]
        strike = process.pause
        if self._random.random() < 0.3:
            strike = partial(group.network.break_links, master.name, target.name)
        master.arm(self._random.choice((Slot.SENDS_HELD, Slot.FENCED)), strike)
        reply = self._reply_to("switchover", {"to": target.name})
        acked = len(history.acked)
        if reply is None:
            raise Violation(f"a planned switch to the silent node {target.name} gets no reply")
        self._until(lambda: len(history.acked) > acked, AGAIN_MS)
        if process.paused and self._may_lose_one and len(history.acked) == acked:
            raise Violation(
                f"a planned switch to the silent node {target.name} ended with {reply}; since "
                f"then {self._world.why_not_whole(0)}"
            )
        process.resume()
        self._must_be_whole_again(f"{target.name} was silent")
