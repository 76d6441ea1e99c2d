"""Trials of a whole group in which a service, or a node, stands still or is slow for a while.

What that costs follows from how long it lasts: less than a lease nothing, longer than a lease the
place of a master, and behind it trust that comes back with time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from services.ha.core.handover import STALLED
from services.ha.core.liveness import stall_ms
from services.ha.lease.value import Lease
from tests.simulation.replication.plan import SERVICES, TIMES
from tests.simulation.replication.trying import QUIET_MS, Trying
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

STALL_MS: Final = TIMES.lease_ms + 400, 2 * TIMES.lease_ms
"""A stall that counts."""
MOVED_MS: Final = TIMES.broker_silent_ms + 2 * TIMES.lease_ms + 600
"""A lease that is renewed no longer than its broker is heard has run out by then, another node has
waited for its turn and has opened its epoch."""
LAPSED_MS: Final = 300
"""A service that is gone is missed by then."""
SWITCH_MS: Final = 2_500
"""A switch takes two seconds at most; one write of the lease more, whose answer is lost."""
SHORT_MS: Final = stall_ms(TIMES) + 100
"""A stall that counts, and is shorter than a lease with the time since the last heartbeat."""
SHORT_TIMES: Final = 6
"""So many of them are longer than a lease."""
BETWEEN_MS: Final = 250
"""A service has moved again by then; less is forgotten than a tenth of a lease."""
AGED_MS: Final = 80
"""A renewal has been answered by then."""
LATE_MS: Final = TIMES.lease_ms - TIMES.margin_ms + 30
"""Behind the deadline of a master, and early enough to renew its lease with one request."""
BEHIND_US: Final = 100_000
"""A sync takes at least a quarter of it. Where a file ends there are several: together they take
less than a member may lag."""
BEHIND_MS: Final = 3 * TIMES.lag_max_ms


class Stalling(Trying):
    """Of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            *(self._stall_for_long, self._stall_again, self._switch_to_a_rested_node),
            *(self._wake_late, self._lag_a_little),
        )

    def _stall_for_long(self) -> None:
        """A service that stands still for longer than a lease: a master's is replaced in time, a
        slave's costs neither an epoch nor, but for ha, a place in the set. Killed then, it has no
        stall behind it."""
        history, group, machine = self._history, self._group, self._any_machine()
        if self._random.random() < 0.5:
            machine = self._master()
        service, leads = self._random.choice(SERVICES), machine is self._master()
        epoch, late, published = history.epoch, history.late_count, set(history.published)
        process, stall_ms = machine.processes[service], self._random.randint(*STALL_MS)
        group.tell("world", f"{service} of {machine.name} stands still for {stall_ms} ms")
        process.pause()
        may_move = leads and (self._may_lose_one or service == "reput")
        if may_move:
            self._must_move_from(machine, MOVED_MS, f"its {service} stands still")
        else:
            self._wait(stall_ms)
        if service != "ha":
            self._until(lambda: STALLED in self._said(machine), TIMES.lease_ms)
            if STALLED not in self._said(machine):
                raise Violation(f"{service} of {machine.name} stands still, and no alarm says so")
        is_as_before = set(history.published) == published and history.late_count == late
        if not leads and service != "ha" and not is_as_before:
            raise Violation(
                f"{service} of {machine.name}, a slave, stands still; the set was {published} "
                f"and is {history.published}; {history.late_count - late} sends waited"
            )
        is_killed = service != "ha" and self._random.random() < 0.5
        if is_killed:
            self._lose(machine, [service])
            self._wait(LAPSED_MS)
            self._bring_back()
        process.resume()
        moved = history.epoch
        self._must_be_whole_again(f"{service} of {machine.name} stood still")
        is_over = self._until(lambda: STALLED not in self._said(machine), LAPSED_MS)
        if is_killed and not is_over:
            raise Violation(f"{service} of {machine.name} was killed, and said to stand still")
        if history.epoch != moved if may_move else (not leads and history.epoch != epoch):
            raise Violation(
                f"{service} of {machine.name} stands still no more; epoch {epoch} became {moved}, "
                f"and {history.epoch}"
            )

    def _stall_again(self) -> None:
        """Stalls that come again and again add up; one of them is none yet."""
        history, slave = self._history, self._any_but(self._master())
        service = self._random.choice(("broker", "reput"))
        epoch, published = history.epoch, set(history.published)
        process, said = slave.processes[service], list[bool]()
        while len(said) < SHORT_TIMES and not (said and said[-1]):
            process.pause()
            self._wait(SHORT_MS)
            process.resume()
            self._wait(BETWEEN_MS)
            said.append(STALLED in self._said(slave))
        if said[0] or not said[-1] or history.epoch != epoch or {*history.published} != published:
            raise Violation(
                f"{service} of {slave.name} stood still {SHORT_TIMES} times for {SHORT_MS} ms; the "
                f"alarm was {said}, epoch {epoch} became {history.epoch}, {history.published}"
            )

    def _switch_to_a_rested_node(self) -> None:
        """A node whose services stood still and move again takes the lease by an order, and keeps
        it: what was is forgotten then. By itself a master that ends prefers another one."""
        group, history, master = self._group, self._history, self._master()
        rested = self._any_but(master)
        process = rested.processes[self._random.choice(("broker", "reput"))]
        process.pause()
        self._wait(self._random.randint(*STALL_MS))
        process.resume()
        self._wait(BETWEEN_MS)
        ha, epoch = self._ha(master), history.epoch
        is_stopping = group.plan.nodes > 2 and self._random.random() < 0.4
        arguments = {"reason": "stopping"} if is_stopping else {"to": rested.name}
        if STALLED not in self._said(rested):
            raise Violation(f"{rested.name} stood still for long, and it is forgotten already")
        token = group.order("switchover", arguments, master)
        assert token is not None, "it would not be whole"
        self._until(lambda: token in ha.replies, SWITCH_MS)
        reply = ha.replies.get(token)
        self._wait(2 * QUIET_MS)
        holder = "" if history.holder is None else history.holder.node
        is_so = holder != master.name and (holder == rested.name) != is_stopping
        if reply is None or not reply.ok or not is_so or history.epoch != epoch + 1:
            raise Violation(
                f"{rested.name} stood still and moves again; {master.name} was to hand over "
                f"{arguments}: {reply}, and {holder} has the lease in epoch {history.epoch}"
            )
        if is_stopping:
            self._lose(master, ["ha"])
            self._bring_back()
        elif STALLED in self._said(rested):
            raise Violation(f"{rested.name} leads by an order, and what it was is not forgotten")
        self._must_be_whole_again(f"{rested.name} had stood still")

    def _wake_late(self) -> None:
        """ha of a master that goes on behind its deadline, and before its lease has run out, renews
        it: that costs a pause, and no epoch."""
        group, history, master = self._group, self._history, self._master()
        epoch, renewed_us = history.epoch, 0

        def note(before: Lease, now: Lease) -> None:
            nonlocal renewed_us
            renewed_us = self._timeline.now_us

        group.on_lease.append(note)
        self._until(lambda: renewed_us > 0, QUIET_MS)
        group.on_lease.remove(note)
        self._wait(AGED_MS)
        process = master.processes["ha"]
        process.pause()
        self._timeline.run_until(renewed_us + LATE_MS * 1000)
        process.resume()
        self._must_be_whole_again(f"ha of {master.name} stood still beyond its deadline")
        if history.epoch != epoch:
            raise Violation(
                f"ha of {master.name} stood still beyond its deadline, and not beyond its lease; "
                f"epoch {epoch} became {history.epoch}"
            )

    def _lag_a_little(self) -> None:
        """A slave that never has all of the log on disk, and is never far behind, stays in the
        set; its master says how far behind it is."""
        history, master = self._history, self._master()
        slave, published = self._any_but(master), set(history.published)
        usual, slave.disk_us = slave.disk_us, BEHIND_US
        until_us, lags = self._timeline.now_us + BEHIND_MS * 1000, []
        while self._timeline.now_us < until_us:
            self._wait(50)
            status = self._replica(self._ha(master)).status(master.boot_ms())
            lags += [node["lag_ms"] for node in status["nodes"] if node["node"] == slave.name]
        slave.disk_us = usual
        known = [lag for lag in lags if lag is not None]
        if {*history.published} != published or len(known) < len(lags):
            raise Violation(
                f"{slave.name} is always a little behind, and the set {published} became "
                f"{history.published}; it was behind by {lags} ms"
            )
        if not 0 < max(known) < TIMES.lag_max_ms:
            raise Violation(f"{slave.name} is always a little behind, and said to be so by {lags}")
        self._must_be_whole_again(f"{slave.name} was a little behind")
