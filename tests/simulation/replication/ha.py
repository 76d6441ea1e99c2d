"""One start of ha: the service's own replica, effect runner, watch and disk, on simulated
connections.

The composition is that of ``services.ha.service``. Simulated are the network (``network``) and the
lease object; there are no sockets for probes and admin commands.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable
from random import Random
from typing import Final, cast

from services.ha.core.events import Command, Event
from services.ha.core.promises import RETRY_MS
from services.ha.core.replica import Replica
from services.ha.core.setup import Setup
from services.ha.core.states import State
from services.ha.core.switch_orders import STOPPING
from services.ha.lease.value import Holder, Member
from services.ha.shell.effect_runner import EffectRunner
from services.ha.shell.lease_client import LeaseClient
from services.ha.shell.page_writer import PageWriter
from services.ha.shell.probes import Probes
from services.ha.shell.replica_disk import ReplicaDisk
from services.ha.shell.replica_store import ReplicaStore
from services.ha.shell.watch import SnapshotReader, Watch
from services.ha.startup import status_before
from services.ha.wire.versions import SPOKEN, Versions
from shared.files.lock_probe import LockProbe
from shared.files.store_dir import StoreDir
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import Health
from shared.runtime.lifecycle import run_parts
from tests.simulation.replication import redone, view_rules
from tests.simulation.replication.connections import JudgedLeaseStore, JudgedLinks, JudgedViews
from tests.simulation.replication.history import History
from tests.simulation.replication.judged_replica import JudgedReplica
from tests.simulation.replication.known_marks import Noted, check_found, marks_of
from tests.simulation.replication.lease_object import LeaseObject
from tests.simulation.replication.machine import Machine
from tests.simulation.replication.member_rules import MemberRules
from tests.simulation.replication.network import Network, Sockets
from tests.simulation.replication.process import Process
from tests.simulation.replication.replies import LEAVING, Replies
from tests.simulation.replication.service import Service
from tests.simulation.replication.store_view import ROOT, STORE
from tests.simulation.replication.violation import Violation

SENSE_INTERVAL_MS: Final = 50
LEAVE_MS: Final = 2_500
"""Longest time that a stopping start waits (``services.ha.service``)."""
LEASE_NOTED_US: Final = (RETRY_MS + 1_000) * 1000
"""A write that found no room is tried again after this time."""


class Ha(Service):
    """A process of the service ha on one node."""

    def __init__(
        self,
        machine: Machine,
        process: Process,
        history: History,
        ring: Callable[[str], None],
        write_trace: Callable[[str, str], None] | None,
        *,
        setup: Setup,
        network: Network,
        lease: LeaseObject,
        random: Random,
    ) -> None:
        super().__init__(machine, process, history, ring, write_trace)
        self.node, self.setup = machine.name, setup
        self.network, self.lease, self._random = network, lease, random
        self.replica: Replica | None = None
        self.links: JudgedLinks | None = None
        self.loop.sockets = Sockets(network, self)
        self.health = Health(machine)
        """State and alarms that the probes report."""
        self.probes = Probes(machine, self._state)
        self.seen_us = 0
        """Since when this start has read the lease with its present content."""
        self.commands = Replies(self)
        """Commands of operators and their replies."""
        self.replies = self.commands.by_token
        self._differed: tuple[set[str], set[str]] | None = None
        """Alarms and alarms of the probes at the last check if they differed; None if they were
        equal."""
        self.noted = Noted()
        self.members: MemberRules | None = None
        self.found_us = 0
        """When the log was recovered."""
        self._unnoted: tuple[tuple[int, int], int] | None = None
        """Lease content that is not yet on the disk, and since when."""
        self._runner: EffectRunner | None = None
        self._disk: ReplicaDisk | None = None
        process.on_end.append(lambda: network.ended(self))

    # -- for the world and other services --------------------------------------------------

    @property
    def runs(self) -> bool:
        """Whether this start has not ended."""
        return self.process.alive

    @property
    def versions(self) -> Versions:
        """Protocol versions of this start: every fourth start is of an older release."""
        drawn = zlib.crc32(self.setup.process.encode())
        older = 0 if drawn % 4 else drawn // 4 % (SPOKEN.highest - SPOKEN.lowest) + 1
        return Versions(SPOKEN.lowest, SPOKEN.highest - older)

    @property
    def member(self) -> Member:
        """Identity that this start proves to its peers."""
        return Member(self.node, "") if self.links is None else self.links.member

    @property
    def holder(self) -> Holder:
        """Identity of this start as holder of the lease."""
        return Holder(self.node, self.member.incarnation, self.setup.process)

    def check_log_again(self) -> None:
        """Begin the next check of the log at once."""
        if self._disk is not None:
            self._disk._wake.set()

    def ask_to_end(self) -> None:
        """SIGTERM: hand over and leave the set first, so that no sender waits for this node."""
        if self._runner is None or self.stop.is_set():
            super().ask_to_end()
            return
        self.command(Command(LEAVING, "switchover", {"reason": STOPPING}), refused=False)
        self.machine.timeline.after(LEAVE_MS * 1000, super().ask_to_end)

    def command(self, command: Command, *, refused: bool) -> None:
        """Give an admin command. refused: it must not succeed."""
        if self._runner is not None and self.process.alive:
            self.commands.give(command, refused=refused)

    def check_lease_noted(self) -> None:
        """Check that the newest lease content seen is written to the disk soon, so that a later
        start does not believe an older lease."""
        replica, machine, now_us = self.replica, self.machine, self.machine.timeline.now_us
        if replica is None or not self.process.alive or self.process.paused or machine.is_full:
            self._unnoted = None
            return
        if replica.promises._writing:
            self._unnoted = None  # The write takes its time on a slow disk.
            return
        shown = replica.session._set[0]
        if (
            not replica.context.initialised
            or shown <= machine.durably_seen
            or replica.context.ending
        ):
            self._unnoted = None
            return
        if self._unnoted is None or self._unnoted[0] != shown:
            self._unnoted = shown, now_us
        since_us = max(self._unnoted[1], self.process.resumed_us, machine.roomy_us)
        if now_us - since_us > LEASE_NOTED_US:
            raise Violation(
                f"{self.node} read the lease {shown} {now_us - since_us} µs ago, but its "
                f"disk has {machine.durably_seen}"
            )

    def show(self, answer: Callable[[str], None]) -> None:
        """Answer a status request of the broker of this node. answer takes JSON, in this
        process."""

        def reply() -> None:
            machine, replica = self.machine, self.replica
            if replica is None:
                value = status_before(self.setup, self.health.state)
            else:
                value = replica.status(machine.boot_ms())
                view_rules.check_status(replica, machine, value, self.seen_us)
                if self.members is not None:
                    self.members.answers(value, replica.context.now_ms)
            if self.process.alive:
                answer(json.dumps(value))

        if self.process.alive:
            self.loop.call_soon_threadsafe(reply)

    def check_roles(self) -> None:
        """Check that ``/primary``, ``/replica`` and ``/in-sync`` match the state of the node."""
        if self.process.alive and not self.process.paused and self.probes.positions is not None:
            view_rules.check_roles(self.history, self.machine, self.process, self.probes)

    def _state(self) -> State:
        return State.RECOVERING if self.replica is None else self.replica.context.state

    def check_probes(self) -> None:
        """Check that the probes report the alarms of ha, after a short delay."""
        replica, differed, self._differed = self.replica, self._differed, None
        if replica is None or not self.process.alive or self.process.paused or self.stop.is_set():
            return
        alarms, shown = set(replica.context.alarms), {reason.code for reason in self.health.reasons}
        if alarms == shown:
            return
        if (alarms, shown) == differed:
            raise Violation(
                f"the probes of {self.node} report {sorted(shown)}, its alarms are {sorted(alarms)}"
            )
        self._differed = alarms, shown

    def post(self, event: Event) -> None:
        """Pass an event to the replica, on the loop."""
        if self._runner is not None:
            self._runner.post(event)

    # -- the service -----------------------------------------------------------------------

    async def main(self) -> None:
        """Run as ``services.ha.service`` does."""
        before = marks_of(self.machine)
        held = await asyncio.to_thread(self._open)
        found = await asyncio.to_thread(
            lambda: held.recover(
                boot_id=self.machine.boot, progress=lambda done, total: None, stopping=lambda: False
            )
        )
        assert found is not None
        if found.halted is not None and self.node not in self.history.damaged:
            raise Violation(f"{self.node} halts at its start: {found.halted}")
        self.history.check_own_confirm(self.machine)
        check_found(self.machine, before, found, self.history)
        self.found_us = self.machine.timeline.now_us
        if found.halted is None:
            redone.check_found(self.machine, found)
        self.trace(f"found {found}")
        positions = held.positions
        links = JudgedLinks(self, found.incarnation, JudgedViews(self, held.directory, positions))
        self.probes.open(positions)
        disk = self._disk = ReplicaDisk(held, self._post_from_thread, self._crashed)
        replica = self.replica = Replica(self.setup, found, log=held, random=self._random.random)
        bell = cast(Doorbell, self.bell)
        store = JudgedLeaseStore(self, self.lease)
        lease = LeaseClient(store, request_timeout_ms=self.setup.times.request_timeout_ms)
        runner = self._runner = EffectRunner(
            cast(Replica, JudgedReplica(self, replica)),
            self.machine,
            PageWriter(positions, self.machine.boot, self.machine, bell),
            links,
            disk,
            lease,
            self.health,
            self.commands.replied,
        )
        self.links = links
        await links.listen(self.node, self.setup.own.port)
        disk.start()
        locks = cast(LockProbe, self.machine)
        reader = SnapshotReader(positions, locks, self.machine, self.machine.wall_ms)
        watch = Watch(
            reader, positions, bell, self.machine, runner.post, interval_ms=SENSE_INTERVAL_MS
        )
        await run_parts(
            self.stop,
            {"replica": lambda: runner.run(self.stop), "watch": lambda: watch.run(self.stop)},
        )
        self.commands.control.close()
        await store.close()
        await asyncio.to_thread(disk.close)
        await links.close()
        await asyncio.to_thread(held.stopped_clean)

    def _open(self) -> ReplicaStore:
        return ReplicaStore.open(StoreDir(self.disk, ROOT, STORE), self.setup, self.machine)

    def _post_from_thread(self, event: Event) -> None:
        if self._runner is not None:
            self._runner.post_from_thread(event)

    def _crashed(self, error: BaseException) -> None:
        self.failed(error)
        if self._runner is not None:
            self._runner.fail_from_thread(error)
