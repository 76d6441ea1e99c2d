"""Trials in which the lease object is deleted, or an older backup is put back.

The node that may create it again, and the set that it must use, are known. A master does so by
itself if all members promise the next epoch. In every other case an operator does, with the newest
set that any node has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from services.ha.core.recreation import Recreation
from services.ha.lease.value import Member
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import SERVICES, TIMES
from tests.simulation.replication.store_view import PROMISE
from tests.simulation.replication.trying import AGAIN_MS, QUIET_MS, Trying
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

OLD_TERM_MS: Final = TIMES.lease_ms + TIMES.request_timeout_ms
"""Time within which the deadline of an ended term has passed, and its node has noticed that."""
TAKEN_MS: Final = 2 * TIMES.lease_ms + 3 * (TIMES.wait_random_ms + TIMES.wait_rank_ms)
"""Time within which a node has taken a lease that is not renewed."""
SENSED_MS: Final = 300
"""A service that is gone is missed, and the other nodes know that, within this time."""
WENT_BACK: Final = "lease-went-backwards"


class LostLeases(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            *(self._lose_lease, self._lose_lease_and_member, self._restore_a_lease),
        )

    def _lose_lease(self) -> None:
        """The lease is created again, with the same set and the next epoch, although answers are
        lost: none, those of members, or that of the lease itself.

        In the last case slaves may read the lease before its holder does, and connect to it in an
        epoch that it does not know yet. It then takes the lease anew.
        """
        group, history, master = self._group, self._history, self._master()
        epoch, before = history.epoch, set(history.published)
        others = [each for each in group.machines.values() if each is not master]
        self._world.operator_paused = True
        # Without answers of a shared volume, a node does not even create the lease there.
        is_deaf = self._random.random() < 0.3 and not group.plan.lease_in_directory
        if is_deaf:
            self._any_but(master).arm_file(PROMISE.name, lambda: group.lease.deaf.add(master.name))
        broken = (
            [] if is_deaf else self._random.sample(others, self._random.randint(0, len(others)))
        )
        for other in broken:
            breaks = partial(group.network.break_links, master.name, other.name)
            other.arm_file(PROMISE.name, breaks)
        group.lease.delete()
        if not is_deaf and not broken:  # Lose the request instead, or nothing.
            group.network.break_links(*self._random.sample(sorted(group.machines), 2))
        is_made = self._until(lambda: group.lease.stored is not None, OLD_TERM_MS)
        group.lease.deaf.clear()
        if not is_made:
            raise Violation(
                f"the lease was deleted and answers were lost; the states are {self._states()}"
            )
        self._must_be_whole_again("the lease was deleted, and answers were lost")
        is_next = history.epoch == epoch + 1 or (is_deaf and history.epoch > epoch)
        is_next = is_next and self._master() is master
        if not is_next or set(history.published) != before:
            raise Violation(
                f"{master.name} was to create the lease again with epoch {epoch + 1} of {before}, "
                f"but it is {history.holder} with {history.epoch} of {history.published}"
            )
        self._world.operator_paused = False

    def _states(self) -> dict[str, str]:
        return {name: self._world.state_of(name) for name in self._group.machines}

    def _lose_lease_and_member(self) -> None:
        """Without a member's promise the master gives up when its old term would have ended. Then
        an operator has the lease created again, who states that the member is stopped, or waits for
        it."""
        group, master = self._group, self._master()
        member = self._any_but(master)
        self._world.operator_paused = True
        if self._random.random() < 0.5:
            self._lose(member, SERVICES)
        else:  # The promise is written, and its message is lost.
            member.arm_file(PROMISE.name, lambda: self._lose(member, SERVICES))
        group.lease.delete()
        self._wait(OLD_TERM_MS + TIMES.lease_ms)
        member.calm()
        service = group.ha_of(master.name)
        assert service is not None, "no fault struck it"
        assert service.replica is not None, "no fault struck it"
        campaign = service.replica.leadership.campaign
        if group.lease.stored is not None or isinstance(campaign, Recreation):
            raise Violation(
                f"the lease was deleted, {member.name} is gone, the lease is {group.lease.stored} "
                f"and {self._states()}"
            )
        if self._random.random() < 0.4:
            self._recreate_without(member)
            self._bring_back()
        else:  # A promise of the failed attempt is known to the nodes that gave it.
            self._bring_back()
            self._recreate(())
        self._must_be_whole_again(f"the lease was deleted, and {member.name} was gone")
        self._world.operator_paused = False

    def _recreate_without(self, member: Machine) -> None:
        """Create the lease again while one node is stopped, as the operator states."""
        group, history = self._group, self._history
        at = self._any_but(member)
        silent = self._reply_to("recreate-lease", {}, at)
        if silent is None or silent.ok or member.name not in str(silent.body.get("detail")):
            raise Violation(f"{member.name} is silent, but {at.name} creates the lease: {silent}")
        epoch, published, acked = history.epoch, history.published, len(history.acked)
        known = {name for name in group.machines if name != member.name}
        first = max((group.machines[name] for name in sorted(known)), key=lambda each: each.end)
        if len(known) > 1:  # The one with the longest log cannot lead now.
            self._lose(first, ["reput"])
            self._wait(SENSED_MS)
            known.discard(first.name)
        dry = self._reply_to("recreate-lease", {"stopped": member.name, "dry_run": "true"}, at)
        if dry is None or not dry.ok or group.lease.stored is not None:
            raise Violation(f"{at.name} replies {dry}, and the lease is {group.lease.stored}")
        group.gone.discard((first.name, "reput"))
        group.start_later(first, "reput", 50)
        reply = self._reply_to("recreate-lease", {"stopped": member.name}, at)
        if reply is None or not reply.ok or history.published != published:
            raise Violation(f"{at.name} replies {reply}, and the set is {history.published}")
        if reply.body.get("epoch", 0) <= epoch or dry.body.get("to") not in known:
            raise Violation(
                f"{at.name} creates the lease with an epoch after {epoch}: {reply}, {dry}"
            )
        if self._may_lose_one and not self._until(lambda: len(history.acked) > acked, AGAIN_MS):
            raise Violation(f"the lease was created again, and {self._world.why_not_whole(0)}")

    # -- backups ---------------------------------------------------------------------------

    def _restore_a_lease(self) -> None:
        """No node takes or renews an older lease from a backup, as long as a newer one was seen
        anywhere. All nodes may have restarted since, and a member that is in the backup but was
        removed later has seen nothing newer."""
        if not self._may_lose_one:
            return
        group, history, slave = self._group, self._history, self._any_but(self._master())
        stored = group.lease.stored
        assert stored is not None, "the group is whole"
        self._world.operator_paused = True
        self._lose_from_set(slave, SERVICES)
        acked = len(history.acked)
        self._until(lambda: len(history.acked) > acked, QUIET_MS)
        published = history.published
        all_begin_anew = self._random.random() < 0.5
        if all_begin_anew:
            self._wait(QUIET_MS)  # The newest lease is on the disks.
            for machine in group.machines.values():
                if machine is not slave:
                    self._lose(machine, ["ha"])
        history.is_restored = True
        group.lease.replace(stored.lease)
        history.is_restored = False
        if all_begin_anew or self._random.random() < 0.7:
            self._bring_back()
        self._must_stay_as_it_is()
        self._bring_back()
        self._recreate(published if all_begin_anew else ())
        if history.published != published:
            raise Violation(
                f"an older lease was put back, and {published} became {history.published}"
            )
        self._must_be_whole_again("an older lease was put back, and created again")
        self._world.operator_paused = False

    def _must_stay_as_it_is(self) -> None:
        group, history = self._group, self._history
        stored = group.lease.stored
        self._wait(TAKEN_MS)
        acked = len(history.acked)
        self._wait(TIMES.lease_ms // 2)
        if group.lease.stored != stored:
            raise Violation(f"an older lease was put back, {stored}: it is {group.lease.stored}")
        if len(history.acked) > acked:
            raise Violation("an older lease was put back, and sends are acknowledged")
        for name, machine in group.machines.items():
            if group.ha_of(name) is not None and WENT_BACK not in self._alarms_of(machine):
                raise Violation(f"an older lease was put back, but {name} does not report it")

    def _recreate(self, forgotten: tuple[Member, ...]) -> None:
        """Create the lease again on any node, once all nodes run. forgotten: the newest set if no
        running start of ha has seen it; an operator has to name its members."""
        machine, reply = self._any_machine(), None
        named = {"in_sync": ",".join(member.node for member in forgotten)} if forgotten else {}
        until_all_answer = partial(self._is_ordered, machine, named)
        if forgotten:
            self._until(lambda: self._takes_orders(machine), AGAIN_MS)
            reply = self._reply_to("recreate-lease", {}, machine)
        if (reply is not None and reply.ok) or not self._until(until_all_answer, AGAIN_MS):
            raise Violation(f"the lease is to be created again, and {machine.name} replies {reply}")

    def _is_ordered(self, machine: Machine, arguments: dict[str, str]) -> bool:
        if not self._takes_orders(machine):
            return False
        reply = self._reply_to("recreate-lease", arguments, machine)
        return reply is not None and reply.ok

    def _takes_orders(self, machine: Machine) -> bool:
        """Whether ha runs and has recovered the log."""
        service = self._group.ha_of(machine.name)
        return service is not None and service.replica is not None
