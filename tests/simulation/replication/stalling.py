"""Trials in which a service or a node is paused or slow for a while.

The cost depends on the duration: nothing below a lease; above a lease a master loses its place, and
a node that was stalled is a bad target for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from services.ha.core.liveness import stall_ms
from services.ha.core.switch_orders import STALLED
from services.ha.lease.value import Lease
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import SERVICES, TIMES
from tests.simulation.replication.trying import QUIET_MS, Trying
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

STALL_MS: Final = TIMES.lease_ms + 400, 2 * TIMES.lease_ms
"""Long enough to count as a stall."""
MOVED_MS: Final = TIMES.broker_silent_ms + 2 * TIMES.lease_ms + 600
"""Time within which a lease that is not renewed for a silent broker has run out, and another node
has taken it and opened its epoch."""
LAPSED_MS: Final = 300
"""A service that is gone is missed within this time."""
SWITCH_MS: Final = 2_500
"""A switch takes two seconds at most, plus one write of the lease whose answer is lost."""
SHORT_MS: Final = stall_ms(TIMES) + 100
"""Counts as a stall, and is shorter than a lease including the time since the last heartbeat."""
SHORT_TIMES: Final = 6
"""Together, this many of them are longer than a lease."""
BETWEEN_MS: Final = 250
"""A service is seen to run again within this time, and less than a tenth of a lease is
forgotten."""
AGED_MS: Final = 80
"""A renewal has been answered within this time."""
LATE_MS: Final = TIMES.lease_ms - TIMES.margin_ms + 30
"""After the deadline of a master, and early enough to renew its lease with one request."""
BEHIND_US: Final = 60_000
"""A sync takes at least a quarter of this. Several syncs at the end of a file together take less
than half of the lag limit of a member: a master may count nearly twice the lag."""
BEHIND_MS: Final = 3 * TIMES.lag_max_ms


class Stalling(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            *(self._stall_for_long, self._stall_again, self._switch_to_a_rested_node),
            *(self._wake_late, self._lag_a_little),
        )

    def _stall_for_long(self) -> None:
        """A service is paused for longer than a lease. A master is replaced in time. A slave costs
        no epoch and, except for ha, keeps its place in the set. A service that is killed then does
        not count as stalled."""
        history, group, machine = self._history, self._group, self._any_machine()
        if self._random.random() < 0.5:
            machine = self._master()
        service, leads = self._random.choice(SERVICES), machine is self._master()
        epoch, late, published = history.epoch, history.late_count, set(history.published)
        process, stall_ms = machine.processes[service], self._random.randint(*STALL_MS)
        group.trace("world", f"{service} of {machine.name} is paused for {stall_ms} ms")
        process.pause()
        may_move = leads and (self._may_lose_one or service == "reput")
        if may_move:
            # A switch that failed shortly before delays the next one.
            orders = self._replica(self._ha(machine))._switch_orders
            rest_ms = max(0, orders._not_before_ms - machine.boot_ms())
            self._must_move_from(machine, MOVED_MS + rest_ms, f"its {service} is paused")
        else:
            self._wait(stall_ms)
        if service != "ha":
            self._until(lambda: STALLED in self._alarms_of(machine), TIMES.lease_ms)
            if STALLED not in self._alarms_of(machine):
                raise Violation(f"{service} of {machine.name} is paused, but no alarm is raised")
        is_as_before = set(history.published) == published and history.late_count == late
        if not leads and service != "ha" and not is_as_before:
            raise Violation(
                f"{service} of {machine.name}, a slave, is paused; the set was {published} "
                f"and is {history.published}; {history.late_count - late} sends waited"
            )
        is_killed = service != "ha" and self._random.random() < 0.5
        if is_killed:
            self._lose(machine, [service])
            self._wait(LAPSED_MS)
            self._bring_back()
        process.resume()
        moved = history.epoch
        self._must_be_whole_again(f"{service} of {machine.name} was paused")
        is_over = self._until(lambda: STALLED not in self._alarms_of(machine), LAPSED_MS)
        if is_killed and not is_over:
            raise Violation(f"{service} of {machine.name} was killed, but counts as stalled")
        if history.epoch != moved if may_move else (not leads and history.epoch != epoch):
            raise Violation(
                f"{service} of {machine.name} runs again; epoch {epoch} became {moved}, "
                f"and {history.epoch}"
            )

    def _stall_again(self) -> None:
        """Repeated stalls add up; a single short one does not count."""
        history, slave = self._history, self._any_but(self._master())
        service = self._random.choice(("broker", "reput"))
        epoch, published = history.epoch, set(history.published)
        process, alarms = slave.processes[service], list[bool]()
        while len(alarms) < SHORT_TIMES and not (alarms and alarms[-1]):
            process.pause()
            self._wait(SHORT_MS)
            process.resume()
            self._wait(BETWEEN_MS)
            alarms.append(STALLED in self._alarms_of(slave))
        if (
            alarms[0]
            or not alarms[-1]
            or history.epoch != epoch
            or {*history.published} != published
        ):
            raise Violation(
                f"{service} of {slave.name} was paused {SHORT_TIMES} times for {SHORT_MS} ms; the "
                f"alarm was {alarms}, epoch {epoch} became {history.epoch}, {history.published}"
            )

    def _switch_to_a_rested_node(self) -> None:
        """A node whose stalled services run again takes the lease by command and keeps it; the
        stall is forgotten then. A master that stops prefers another node."""
        group, history, master = self._group, self._history, self._master()
        rested = self._any_but(master)
        process = rested.processes[self._random.choice(("broker", "reput"))]
        process.pause()
        self._wait(self._random.randint(*STALL_MS))
        process.resume()
        self._wait(BETWEEN_MS)
        epoch = history.epoch
        is_stopping = group.plan.nodes > 2 and self._random.random() < 0.4
        arguments = {"reason": "stopping"} if is_stopping else {"to": rested.name}
        if STALLED not in self._alarms_of(rested):
            raise Violation(
                f"{rested.name} was stalled for long, but the stall is already forgotten"
            )
        reply = self._reply_to("switchover", arguments, master, SWITCH_MS)
        self._wait(2 * QUIET_MS)
        holder = "" if history.holder is None else history.holder.node
        is_so = holder != master.name and (holder == rested.name) != is_stopping
        if reply is None or not reply.ok or not is_so or history.epoch != epoch + 1:
            raise Violation(
                f"{rested.name} was stalled and runs again; {master.name} was to hand over "
                f"{arguments}: {reply}, and {holder} has the lease in epoch {history.epoch}"
            )
        if is_stopping:
            self._lose(master, ["ha"])
            self._bring_back()
        elif STALLED in self._alarms_of(rested):
            raise Violation(f"{rested.name} leads by command, but its stall is not forgotten")
        self._must_be_whole_again(f"{rested.name} was stalled")

    def _wake_late(self) -> None:
        """ha of a master that is paused beyond its deadline, but not until its lease has run out,
        renews the lease. That costs a pause and no epoch. Members lose no place by it, also one
        that was a little behind before the pause."""
        history, master = self._history, self._rested_master()
        slave, published = self._any_but(master), set(history.published)
        epoch, renewed_us, usual = history.epoch, 0, slave.disk_us
        slave.disk_us = self._random.choice((usual, BEHIND_US))

        def note(before: Lease, now: Lease) -> None:
            nonlocal renewed_us
            renewed_us = self._timeline.now_us

        with self._on_lease_change(note):
            self._until(lambda: renewed_us > 0, QUIET_MS)
        self._wait(AGED_MS)
        process = master.processes["ha"]
        process.pause()
        self._timeline.run_until(renewed_us + LATE_MS * 1000)
        process.resume()
        self._wait(TIMES.renew_ms)
        is_same = {*history.published} == published
        slave.disk_us = usual
        self._must_be_whole_again(f"ha of {master.name} was paused beyond its deadline")
        if history.epoch != epoch or not is_same:
            raise Violation(
                f"ha of {master.name} was paused beyond its deadline, but not beyond its lease; "
                f"epoch {epoch} became {history.epoch}, and the set "
                f"{'stayed' if is_same else 'changed'}"
            )

    def _rested_master(self) -> Machine:
        """The master; with some chance a former slave, whose ha was stalled before for longer than
        a lease."""
        master = self._master()
        if self._random.random() < 0.5:
            return master
        slave = self._any_but(master)
        process = slave.processes["ha"]
        process.pause()
        self._wait(STALL_MS[0])
        process.resume()
        self._must_be_whole_again(f"ha of {slave.name} was paused")
        reply = self._reply_to("switchover", {"to": slave.name}, master, SWITCH_MS)
        self._must_be_whole_again(f"{slave.name} was to become master: {reply}")
        return self._master()

    def _lag_a_little(self) -> None:
        """A slave that never has the whole log on disk, but is never far behind, stays in the set.
        Its master reports its lag."""
        history, master = self._history, self._master()
        slave, published = self._any_but(master), set(history.published)
        usual, slave.disk_us = slave.disk_us, BEHIND_US
        history.large_share = 0.0  # The ends of two files would follow each other.
        until_us, lags = self._timeline.now_us + BEHIND_MS * 1000, []
        while self._timeline.now_us < until_us:
            self._wait(50)
            status = self._replica(self._ha(master)).status(master.boot_ms())
            lags += [node["lag_ms"] for node in status["nodes"] if node["node"] == slave.name]
        slave.disk_us, history.large_share = usual, None
        known = [lag for lag in lags if lag is not None]
        if {*history.published} != published or len(known) < len(lags):
            raise Violation(
                f"{slave.name} is always a little behind, but the set {published} became "
                f"{history.published}; it was behind by {lags} ms"
            )
        if not 0 < max(known) < TIMES.lag_max_ms:
            raise Violation(
                f"{slave.name} is always a little behind, but its reported lags are {lags}"
            )
        self._must_be_whole_again(f"{slave.name} was a little behind")
