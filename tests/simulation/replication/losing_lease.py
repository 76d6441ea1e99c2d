"""Trials in which the lease, or the access to it, is out of order for a while.

A node does not act on lease content that it does not know, and reports that. The master, the set
and the replies to commands stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from services.ha.core.states import State
from services.ha.lease.value import Lease
from tests.simulation.replication.lease_object import Fate
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.trying import AGAIN_MS, QUIET_MS, Trying
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

CUT_OFF_MS: Final = TIMES.lease_ms + 500, 4 * TIMES.lease_ms
"""Longer than a candidate waits for a lease that is not renewed."""
DEAF_MS: Final = 50, TIMES.renew_ms - 50
"""With a renewal interval and one request, shorter than a master may go on without the lease."""
RENEWED_MS: Final = 2 * TIMES.renew_ms
"""Time within which a master whose requests get answers writes the lease."""
READ: Final = Fate(is_write=False, is_applied=False)
WRITE: Final = Fate(is_write=True, is_applied=False)
UNANSWERED: Final = Fate(is_write=True, is_applied=True)
LOST: Final = (
    *((WRITE,), (UNANSWERED,), (UNANSWERED, READ, WRITE), (WRITE, READ, UNANSWERED)),
    (WRITE, READ, WRITE),
)
"""Requests that get errors one after the other: a write is repeated after each read."""
KNOWN_MS: Final = TIMES.renew_ms + 2 * TIMES.request_timeout_ms
"""Time within which a node has read the lease."""
SLAVE_PAUSED_MS: Final = TIMES.lease_ms - TIMES.margin_ms
"""A master that cannot renew its lease confirms nothing after this time."""
WENT_BACK: Final = "lease-went-backwards"


class LosingLease(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            *(self._cut_off_from_the_lease, self._lose_an_answer, self._put_back_an_older_lease),
            self._lose_requests,
            self._put_back_a_smaller_set,
        )

    def touch_the_lease(self) -> None:
        """Other tools write their fields of the object, or links of it are damaged for a moment,
        while operators change the lease. The master has read a link before it is damaged: otherwise
        it cannot replace it, and loses the lease. One change is applied and answered with an error.
        The master stays, and every command does what its reply says."""
        group, history, master = self._group, self._history, self._master()
        lease, epoch = group.lease, history.epoch
        self._world.operator_paused = True
        touched = self._random.choice((0, TIMES.renew_ms, TIMES.lease_ms))
        for name in ("pause", "resume"):
            for _ in range(self._random.randint(1, 3)):
                if group.plan.lease_in_directory:
                    self._until(lambda: lease.is_known_to(master.name), RENEWED_MS)
                lease.touch()
                self._wait(self._random.randint(0, touched))
            lease.fails_once = self._random.random() < 0.5
            reply = self._reply_to(name, {}, self._any_machine())
            stored = lease.stored
            if reply is None or not reply.ok or stored is None:
                raise Violation(f"the lease was touched, and the reply to {name} is {reply}")
            if stored.lease.paused != (name == "pause"):
                raise Violation(f"the reply to {name} is {reply}, and the lease is {stored}")
        self._world.operator_paused = lease.fails_once = False
        self._must_be_whole_again("the lease was touched")
        if history.epoch != epoch:
            raise Violation(f"the lease was touched; epoch {epoch} became {history.epoch}")
        self._must_be(master, State.MASTER, "is the holder of a lease that was touched")

    def _cut_off_from_the_lease(self) -> None:
        """A slave without access to the lease stays in the set, with its master, and reports it. A
        master that gets no answers for a while goes on."""
        group, history, master = self._group, self._history, self._master()
        slave, epoch, late = self._any_but(master), history.epoch, history.late_count
        if self._random.random() < 0.3:
            group.lease.deaf.add(master.name)
            self._wait(self._random.randint(*DEAF_MS))
            group.lease.deaf.clear()
            self._wait(QUIET_MS)
            self._must_be(master, State.MASTER, "got no answers of the lease for a while")
        else:
            link = self._link_of(slave)
            cut = self._random.choice((group.lease.unreachable, group.lease.deaf))
            cut.add(slave.name)
            until_us = self._timeline.now_us + self._random.randint(*CUT_OFF_MS) * 1000
            while self._timeline.now_us < until_us:
                self._wait(100)
                self._must_be(slave, State.IN_SYNC, "does not reach the lease")
                if self._link_of(slave) != link:
                    raise Violation(f"{slave.name} does not reach the lease, but reconnects")
            if "lease-unavailable" not in self._alarms_of(slave):
                raise Violation(f"{slave.name} does not reach the lease, but raises no alarm")
            cut.clear()
        if history.epoch != epoch or history.late_count > late:
            raise Violation(
                f"a node did not reach the lease; epoch {epoch} became {history.epoch}, and "
                f"{history.late_count - late} sends waited"
            )
        self._must_be_whole_again("a node did not reach the lease")

    def _lose_requests(self) -> None:
        """Some requests get errors, of which some are applied. The master repeats its renewal in
        time, and does not serve for longer than the applied one allows. A command of any node
        succeeds."""
        group, history, master = self._group, self._history, self._master()
        epoch, late, fates = history.epoch, history.late_count, group.lease.fates
        self._world.operator_paused = True
        for lost in self._random.sample(LOST, len(LOST)):
            fates[master.name] = [*lost]
            self._until(lambda: not fates[master.name], QUIET_MS)
            if not self._until(partial(self._is_renewed, history.applied_us), RENEWED_MS):
                raise Violation(f"{master.name} lost {lost} and renews nothing in {RENEWED_MS} ms")
        for name, machine in (("pause", self._any_but(master)), ("resume", master)):
            fates[machine.name] = [*self._random.choice(LOST)]
            reply, stored = self._reply_to(name, {}, machine), group.lease.stored
            is_done = stored is not None and stored.lease.paused == (name == "pause")
            if reply is None or not reply.ok or not is_done:
                raise Violation(
                    f"requests of {machine.name} were lost; its reply to {name} is {reply}, and "
                    f"the lease is {stored}"
                )
        self._world.operator_paused = False
        self._must_be_whole_again("requests to the lease were lost")
        self._must_be(master, State.MASTER, "lost single requests to the lease")
        if history.epoch != epoch or history.late_count > late:
            raise Violation(
                f"{master.name} lost single requests to the lease; epoch {epoch} became "
                f"{history.epoch}, and {history.late_count - late} sends waited"
            )

    def _is_renewed(self, since_us: int) -> bool:
        return self._history.applied_us > since_us

    def _lose_an_answer(self) -> None:
        """A write of the lease is applied and its answer is lost. A command gets a reply with what
        is known, and the master waits for a member whose addition may have been applied."""
        if self._random.random() < 0.5 or not self._may_lose_one:
            self._lose_an_answer_to_an_order()
        else:
            self._lose_an_answer_of_a_growth()

    def _lose_an_answer_to_an_order(self) -> None:
        group, history, master = self._group, self._history, self._master()
        machine = self._random.choice((master, self._any_but(master), self._any_but(master)))
        ha, renewed = self._ha(machine), 0

        def lose(before: Lease, now: Lease) -> None:
            nonlocal renewed
            if now.paused and not before.paused:
                group.lease.deaf.add(machine.name)
            elif now.paused:
                renewed += 1

        self._world.operator_paused = True
        with self._on_lease_change(lose):
            token = group.command("pause", {}, machine)
            assert token is not None, "the group is whole"
            if machine is master:
                self._until(lambda: machine.name in group.lease.deaf, QUIET_MS)
                self._wait(DEAF_MS[1])
            else:
                self._until(lambda: renewed > 0, QUIET_MS)
                self._wait(TIMES.request_timeout_ms)  # The answer to the command came by then.
            group.lease.deaf.clear()
        self._until(lambda: token in ha.replies, QUIET_MS)
        reply, known = ha.replies.get(token), True if machine is master else None
        # If the master has written the lease since, another node cannot know which node made the
        # change.
        if reply is None or not reply.ok or reply.body.get("changed") is not known:
            raise Violation(
                f"{machine.name} pauses failover, gets no answer of the lease, and replies {reply}"
            )
        self._command("resume", {})
        self._world.operator_paused = False
        self._must_be_whole_again(f"the answer to a command of {machine.name} was lost")
        if history.holder is None or history.holder.node != master.name:
            raise Violation(
                f"the answer to a command of {machine.name} was lost, and {master.name} is no "
                "master any more"
            )

    def _lose_an_answer_of_a_growth(self) -> None:
        group, master = self._group, self._master()
        slave = self._any_but(master)
        self._lose_from_set(slave, ["ha"])

        def lose(before: Lease, now: Lease) -> None:
            if len(now.in_sync) > len(before.in_sync):
                group.lease.deaf.add(master.name)
                group.network.break_links(master.name, slave.name)
                self._lose(slave, ["ha"])

        with self._on_lease_change(lose):
            self._bring_back()
            self._until(lambda: self._is_member(slave), AGAIN_MS)
        self._wait(self._random.randint(*DEAF_MS))
        group.lease.deaf.clear()
        self._bring_back()
        self._must_be_whole_again(f"the answer to the write that adds {slave.name} was lost")

    def _put_back_an_older_lease(self) -> None:
        """An older lease is put back, of the same epoch and with a removed member. No node takes or
        renews it, and all report that, until an operator creates it again."""
        group, history, master = self._group, self._history, self._master()
        slave, stored = self._any_but(master), group.lease.stored
        assert stored is not None, "the group is whole"
        if not self._may_lose_one:
            return
        self._world.operator_paused = True
        self._lose_from_set(slave, ["ha"])
        history.is_restored = True
        group.lease.replace(stored.lease)
        put_back, left = group.lease.stored, [each for each in group.machines if each != slave.name]

        def is_noticed() -> bool:
            return all(WENT_BACK in self._alarms_of(group.machines[name]) for name in left)

        if not self._until(is_noticed, 2 * KNOWN_MS):
            raise Violation(f"an older lease was put back, but not all of {left} report it")
        self._wait(2 * TIMES.lease_ms)
        if group.lease.stored != put_back:
            raise Violation(f"an older lease was put back and became {group.lease.stored}")
        self._world.operator_paused = False
        self._bring_back()
        self._must_be_whole_again("an older lease was put back")
        history.is_restored = False

    def _put_back_a_smaller_set(self) -> None:
        """An older lease of the running term is put back, without a member that was added since.
        That member is slow, and the master confirms nothing without it."""
        group, history, slave = self._group, self._history, self._any_but(self._master())
        if not self._may_lose_one:
            return
        self._lose_from_set(slave, ["ha"])
        stored = group.lease.stored
        assert stored is not None, "the group is whole"
        self._bring_back()
        self._must_be_whole_again(f"{slave.name} was away")
        self._world.operator_paused = history.is_restored = True
        group.lease.replace(stored.lease)
        process = slave.processes["ha"]
        process.pause()
        self._wait(SLAVE_PAUSED_MS)
        process.resume()
        self._world.operator_paused = False
        self._must_be_whole_again("an older lease of the same term was put back")
        history.is_restored = False
