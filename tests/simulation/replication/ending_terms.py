"""Trials in which a term ends, or is slow, in the middle of one of its steps.

The write, the broker or the slave that the step waits for goes on later. By then the node follows
again, with byte 0 and its place in the set, and every command has a reply. A slow step that
makes progress is no reason to end a term.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.ha.core.effects import Reply
from services.ha.core.switchover import FENCE_MS_MAX
from services.ha.lease.value import Lease
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.plan import TIMES
from tests.simulation.replication.store_view import LOG, PROMISE, TABLE
from tests.simulation.replication.trying import AGAIN_MS, QUIET_MS, Trying
from tests.simulation.replication.violation import Violation
from tidemark.formats.checkpoint import NodeRole, Slot

if TYPE_CHECKING:
    from tests.simulation.replication.world import World

SWITCH_MS: Final = 2_000
"""Longest duration of a planned switch without obstacles (docs/replication.md)."""
OUTLASTS_US: Final = (2 * TIMES.lease_ms + TIMES.wait_random_ms + 2 * TIMES.wait_rank_ms) * 1000
"""A write that takes this long ends after another node has taken the lease."""
ANSWERED_MS: Final = TIMES.lease_ms + 2 * TIMES.request_timeout_ms
"""Time within which a term without answers of the lease has ended, and its commands have replies.
"""
SLOW_US: Final = 700_000
"""Duration of one step of a slow switch, less than its limit of one second."""
SILENT_MS: Final = TIMES.broker_silent_ms - 200
"""A broker that is paused for this long does not count as silent."""
HANGS_US: Final = FENCE_MS_MAX * 1000 + OUTLASTS_US
SLOW_SWITCH_MS: Final = 4_000
FLUSH_US: Final = 1_700_000
"""Less than the two lease times without progress after which a term is given up; together with the
pauses before and after it, more."""
OPENED_MS: Final = 5_000


class EndingTerms(Trying):
    """Trials of one world."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.trials: tuple[Callable[[], None], ...] = (
            *(self._end_before_the_grant, self._end_after_the_grant, self._take_long),
        )

    def _end_before_the_grant(self) -> None:
        """A winner does not reach the lease while it writes its promise or its table. Another node
        takes the lease, and only then the write ends."""
        for path in (PROMISE, TABLE):
            self._end_during_a_write(path)

    def _end_during_a_write(self, path: Path) -> None:
        group, winner = self._group, self._any_but(self._master())

        def cut_off(_: Lease, now: Lease) -> None:
            if now.holder is not None and now.holder.node == winner.name:
                winner.held_up[path.with_name(path.name + ".tmp")] = OUTLASTS_US
                group.lease.unreachable.add(winner.name)

        with self._on_lease_change(cut_off):
            group.command("switchover", {"to": winner.name})
            self._until(lambda: winner.name in group.lease.unreachable, SWITCH_MS)
        why = f"{winner.name} does not reach the lease while it writes {path.name}"
        self._must_have_another_master(winner, why)
        group.lease.unreachable.clear()
        self._wait(OUTLASTS_US // 1000)
        self._must_be_whole_again(why)

    def _end_after_the_grant(self) -> None:
        """A term ends while it ends its grant, and while it writes a command into the lease."""
        self._end_while_fencing()
        self._hang_while_fencing()
        self._end_with_a_command()

    def _end_while_fencing(self) -> None:
        """A master does not reach the lease while a switch waits for its broker to release the
        log. The broker does so when another node has the lease."""
        group, master = self._group, self._master()
        target, broker, ha = self._any_but(master), master.processes["broker"], self._ha(master)

        def strike() -> None:
            broker.pause()
            group.lease.unreachable.add(master.name)

        master.arm(self._random.choice((Slot.FENCED, Slot.FENCED, Slot.SENDS_HELD)), strike)
        token = group.command("switchover", {"to": target.name}, master)
        self._until(lambda: broker.paused, SWITCH_MS)
        why = f"{master.name} does not reach the lease while it ends the grant of its broker"
        self._must_have_another_master(master, why)
        reply = ha.replies.get(token or 0)
        if broker.paused and (reply is None or reply.ok):
            raise Violation(f"{why}, and a switch to {target.name} is answered with {reply}")
        broker.resume()
        group.lease.unreachable.clear()
        self._must_be_whole_again(why)

    def _hang_while_fencing(self) -> None:
        """A switch waits for a broker that is alive, and whose disk hangs within the last append.
        Its node gives the lease up, also without the log."""
        group, history, master = self._group, self._history, self._master()
        broker, epoch = master.processes["broker"], history.epoch
        self._pause_within_an_append(master)
        group.command("switchover", {}, master)
        self._until(lambda: bool(master.slot(Slot.FENCED)), SILENT_MS)
        master.held_up[LOG] = HANGS_US
        broker.resume()
        why = f"the disk of {master.name} hangs during a switch"
        if not self._until(lambda: history.epoch > epoch, HANGS_US // 1000):
            raise Violation(f"{why}; {self._world.why_not_whole(0)}")
        self._must_have_another_master(master, why)
        self._until(lambda: self._timeline.now_us > master.hung_until_us, HANGS_US // 1000)
        self._must_be_whole_again(why)

    def _pause_within_an_append(self, master: Machine) -> None:
        """Pause the broker in an append. The log before it is confirmed, so a switch need not wait
        for the broker to sync it."""
        broker = master.processes["broker"]

        def pause() -> None:
            if master.slot(Slot.CONFIRM) < master.slot(Slot.WRITTEN):
                master.arm_append(pause)
            else:
                broker.pause()

        master.arm_append(pause)
        self._until(lambda: broker.paused, QUIET_MS)

    def _must_have_another_master(self, machine: Machine, why: str) -> None:
        if not self._until(lambda: self._has_another_master(machine), AGAIN_MS):
            raise Violation(f"{why}; {self._world.why_not_whole(0)}")

    def _end_with_a_command(self) -> None:
        """The answer to a command's write of the lease is lost, and so are those to the renewals
        after it, until the term has ended. The command has a reply by then, and the next one is
        carried out."""
        group, master = self._group, self._master()
        ha = self._ha(master)

        def lose(before: Lease, now: Lease) -> None:
            if now.paused != before.paused:
                group.lease.deaf.add(master.name)

        self._world.operator_paused = True
        with self._on_lease_change(lose):
            token = group.command("pause", {}, master)
            self._until(lambda: master.name in group.lease.deaf, QUIET_MS)
            self._wait(ANSWERED_MS)
        group.lease.deaf.clear()
        self._wait(TIMES.renew_ms)
        if token not in ha.replies:
            raise Violation(f"{master.name} has lost the lease and not replied to a command")
        reply: Reply | None = None

        def is_resumed() -> bool:
            nonlocal reply
            reply = self._reply_to("resume", {}, master)
            return reply is not None and reply.ok

        if not self._until(is_resumed, AGAIN_MS):
            raise Violation(f"{master.name} had lost the lease, and replies to resume with {reply}")
        self._world.operator_paused = False
        self._must_be_whole_again(f"a term of {master.name} ended with a command")

    def _take_long(self) -> None:
        """A new epoch, or a planned switch, takes a long time but makes progress."""
        self._open_slowly()
        self._switch_slowly()

    def _open_slowly(self) -> None:
        """A winner takes longer than two lease times to open its epoch, but makes progress. It is
        left in peace, and the switch ends when it accepts sends, not before."""
        group, history, master = self._group, self._history, self._master()
        winner, ha, epoch = self._any_but(master), self._ha(master), history.epoch
        broker, reput = winner.processes["broker"], winner.processes["reput"]

        def pause() -> None:
            if history.epoch > epoch:  # The grant, and not the end of an earlier one.
                broker.pause()
                self._timeline.after(SILENT_MS * 1000, broker.resume)

        def hold_up() -> None:
            winner.held_up[LOG] = FLUSH_US  # The sync of the epoch's first record.

        def stop_reput() -> None:
            if winner.slot(Slot.ROLE) == NodeRole.MASTER:
                reput.pause()
            else:
                winner.arm(Slot.ROLE, stop_reput)

        winner.arm(Slot.ROLE, stop_reput)
        winner.arm(Slot.GRANTED_TO, pause)
        winner.arm(Slot.SERVING_EPOCH, hold_up)
        token = group.command("switchover", {"to": winner.name}, master)
        self._until(lambda: reput.paused, OPENED_MS)
        self._wait(SILENT_MS)
        is_open = self._accepts_sends(winner)
        early = ha.replies.get(token or 0)
        reput.resume()
        self._until(lambda: token in ha.replies, OPENED_MS)
        reply, holder = ha.replies.get(token or 0), history.holder
        if history.epoch != epoch + 1 or holder is None or holder.node != winner.name:
            raise Violation(
                f"{winner.name} opens its epoch slowly, but {holder} has epoch {history.epoch} "
                f"after {epoch}: {reply}"
            )
        if reply is None or not reply.ok or (early is not None and not is_open):
            raise Violation(f"{winner.name} opens its epoch slowly, and the reply is {reply}")
        self._must_be_whole_again(f"{winner.name} opened its epoch slowly")

    def _accepts_sends(self, machine: Machine) -> bool:
        broker = self._group.broker_of(machine.name)
        return broker is not None and broker.gate.sends_open

    def _switch_slowly(self) -> None:
        """Every step of a planned switch takes nearly as long as it may. It succeeds."""
        group, history, master = self._group, self._history, self._master()
        target, ha, epoch = self._any_but(master), self._ha(master), history.epoch
        broker = master.processes["broker"]

        def resume() -> None:
            target.held_up[LOG] = SLOW_US
            broker.resume()

        self._pause_within_an_append(master)  # It ends after the grant.
        token = group.command("switchover", {"to": target.name}, master)
        self._wait(SILENT_MS)
        resume()
        self._until(lambda: token in ha.replies, SLOW_SWITCH_MS)
        reply, holder = ha.replies.get(token or 0), history.holder
        is_so = history.epoch == epoch + 1 and holder is not None and holder.node == target.name
        if reply is None or not reply.ok or not is_so:
            raise Violation(
                f"a slow switch from {master.name} to {target.name} should succeed; the reply is "
                f"{reply}, and {holder} has epoch {history.epoch} after {epoch}"
            )
        self._must_be_whole_again(f"{master.name} handed over slowly")
