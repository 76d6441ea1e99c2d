"""Trials of the state with which a broker follows and becomes the master.

Whatever of the log a broker has not applied yet when an epoch is granted to it, it begins with the
state of its whole log (``client_answers.begins_with``), and reports damage only if there is any
(``history``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.simulation.replication.broker import Broker
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.store_view import FILE_SIZE
from tests.simulation.replication.trying import (
    AGAIN_MS,
    QUIET_MS,
    STATE_DAMAGED,
    UNHEARD_MS,
    Trying,
)
from tests.simulation.replication.violation import Violation
from tidemark.errors import AckTimeout, DamagedFile, TidemarkError
from tidemark.formats.checkpoint import NodeRole, Slot, Trouble

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

BACKLOGS: Final = 10, 25, 60
"""State records that a broker has not applied: more than it applies at once, and more than it
reads without a snapshot (``seams``)."""
APPLIED_MS: Final = 400
"""Time within which they are confirmed and dispatched, shorter than a broker may be silent."""
NOTICED_MS: Final = 500
"""A slave applies its log twenty times a second."""
GRANTED_MS: Final = 500
"""Time within which a switch ends, or has failed because a broker is silent."""
WAITS_MS: Final = 300
KEPT_FILES: Final = 4
ENDED_MS: Final = 3_000
"""Time within which a broker ends that has waited for another master in vain."""
GROUP: Final = "last"
QUEUE: Final = "orders", 0


class Promoting(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            *(self._lead_after_a_backlog, self._fail_to_follow, self._begin_before_reput),
            self._stop_without_a_successor,
        )

    def _lead_after_a_backlog(self) -> None:
        """The broker of a slave stands still while state records are confirmed and dispatched, and
        is granted an epoch before it has applied them."""
        master, slave = self._master(), self._any_but(self._master())
        process, broker = slave.processes["broker"], self._broker(master)
        count, end = self._random.choice(BACKLOGS), len(self._history.confirmed)
        process.pause()
        self._call(broker, lambda: self._change_state(broker, count))
        self._until(lambda: slave.slot(Slot.DISPATCHED) > end + count, APPLIED_MS)
        self._group.command("switchover", {"to": slave.name})
        self._until(lambda: self._is_granted(slave), GRANTED_MS)
        process.resume()
        self._must_be_whole_again(f"the broker of {slave.name} had {count} records to apply")

    def _fail_to_follow(self) -> None:
        """A slave that cannot read its state serves nothing and reports that, until reput has made
        the queue anew. Then it is as good as any other."""
        slave = self._any_but(self._master())
        broker = self._broker(slave)
        assert broker.node is not None, "the group is whole"
        self._history.unreadable.add(slave.name)
        with self._fails_once(broker.node._followed, "follow", STATE_DAMAGED):
            self._wait(NOTICED_MS)
        shown = slave.slot(Slot.BROKER_TROUBLE), broker.shows, DamagedFile.code in broker.hindrances
        if shown != (Trouble.DAMAGED, 0, True):
            raise Violation(
                f"{slave.name} cannot read its state; its trouble, the end that it serves, and "
                f"whether /ready reports it: {shown}"
            )
        self._history.unreadable.clear()
        slave.processes["reput"].end()
        self._must_be_whole_again(f"{slave.name} could not read its state")
        self._wait(QUIET_MS)  # Its master knows that by then.
        self._command("switchover", {"to": slave.name})
        self._must_be_whole_again(f"{slave.name} had read its state again")
        self._lead_after_a_backlog()

    def _begin_before_reput(self) -> None:
        """After a power cut an epoch is granted to a broker before reput has published what the
        queues cover. The log begins after its first record."""
        group, history = self._group, self._history
        self._grow(max(0, KEPT_FILES * FILE_SIZE - len(history.confirmed)))
        self._let_expire(len(history.confirmed) - FILE_SIZE)
        machines = list(group.machines.values())
        group.gone |= {(each.name, "reput") for each in machines}
        for machine in machines:
            group.cut_power(machine)
        for machine in machines:
            group.boot(machine)
        self._until(lambda: any(self._is_granted(each) for each in machines), AGAIN_MS)
        self._wait(WAITS_MS)
        self._bring_back()
        self._must_be_whole_again("all nodes began without reput")
        self._lead_after_a_backlog()

    def _stop_without_a_successor(self) -> None:
        """The broker of a master that no node can replace shuts down cleanly while offsets are
        committed. Its log has all of them (``client_answers.ends_with``), and no stored send is
        left without its answer."""
        master = self._master()
        broker, commits = self._broker(master), 0
        asked: list[list[TidemarkError | None]] = []
        for machine in self._history.others(master):
            self._lose(machine, ["broker"])
        self._wait(UNHEARD_MS)
        self._history.producers_paused = True
        broker.ask_to_end()

        def has_ended() -> bool:
            nonlocal commits
            commits += 1
            if broker.process.alive:
                self._call(broker, partial(self._commit, broker, commits))
                asked.append(self._send(broker, None, AGAIN_MS))
            return not broker.process.alive

        if not self._until(has_ended, ENDED_MS) or not broker.process.is_finished:
            raise Violation(f"the broker of {master.name} was asked to end and did not")
        late = [error for each in asked for error in each if isinstance(error, AckTimeout)]
        if late:
            raise Violation(f"{master.name} shut down, and does not answer stored sends: {late}")
        self._history.producers_paused = False
        self._bring_back()
        self._must_be_whole_again(f"the broker of {master.name} had shut down")

    def _commit(self, broker: Broker, offset: int) -> None:
        if broker.gate.reads_open and broker.epoch is not None:
            broker.api.components.groups.offsets.accept(GROUP, {QUEUE: offset})

    def _is_granted(self, machine: Machine) -> bool:
        return machine.slot(Slot.ROLE) == NodeRole.PROMOTING and not machine.slot(Slot.FENCED)

    def _change_state(self, broker: Broker, count: int) -> None:
        """Append state records."""
        if broker.gate.sends_open:
            for _ in range(count):
                broker.api.components.delayed.deliver()
