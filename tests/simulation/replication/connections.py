"""The connections of one start of ha: links to other nodes, and requests to the lease object."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from services.ha.core.events import Done
from services.ha.lease.interface import Outcome
from services.ha.lease.value import Lease, Stored
from services.ha.wire.frames import Frame
from tests.simulation.replication.lease_object import LeaseObject
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.ha import Ha


class SimulatedLinks:
    """Connections over the simulated network (``services.ha.shell.links.Links``)."""

    def __init__(self, ha: Ha) -> None:
        self._ha = ha

    def connect(self, name: str) -> None:
        """Connect to a node."""
        self._ha.network.connect(self._ha, name)

    def disk_changed(self, done: Done) -> None:
        """Take over the files of the log, and the identity, after a change on disk."""
        if done.incarnation:
            self._ha.proves = done.incarnation
        assert self._ha.views is not None
        self._ha.views.refresh()

    def send(self, number: int, frame: Frame) -> None:
        """Send a frame."""
        self._ha.network.send(self._ha, number, frame)

    def stream(self, number: int, frame: Frame, offset: int, size: int) -> None:
        """Send a frame followed by bytes of the log."""
        assert self._ha.views is not None
        views = self._ha.views.views(offset, size)
        if views is None:
            if offset >= self._ha.machine.begins_at:
                raise Violation(f"{self._ha.node} cannot read {size} bytes at {offset} to send")
            self.close_link(number, f"log-gone: bytes {offset} to {offset + size}")
            return
        self._must_be_the_log(views, offset, size)
        self._ha.network.send(self._ha, number, frame, views)

    def _must_be_the_log(self, views: list[memoryview], offset: int, size: int) -> None:
        """Check that the bytes to be sent are those of the log."""
        machine = self._ha.machine
        if b"".join(views) != machine.log(offset, offset + size):
            raise Violation(
                f"{self._ha.node} sends {size} bytes at {offset} that differ from its log"
            )

    def close_link(self, number: int, reason: str) -> None:
        """Close a link."""
        self._ha.network.close(self._ha, number, reason)


class JudgedLeaseStore:
    """The product's store of one start of ha; every answer is checked."""

    def __init__(self, ha: Ha, lease: LeaseObject) -> None:
        self._ha, self._lease = ha, lease
        self._store = lease.store_of(ha)

    async def get(self) -> Outcome:
        """Read the lease."""
        return await self._judged(None, self._store.get())

    async def put(self, lease: Lease, base: Stored) -> Outcome:
        """Write the lease if it is still base."""
        self._lease.sends(self._ha.process, lease, base)
        return await self._judged(lease, self._store.put(lease, base))

    async def create(self, lease: Lease) -> Outcome:
        """Create the lease."""
        self._lease.sends(self._ha.process, lease, None)
        return await self._judged(lease, self._store.create(lease))

    async def announce(self, role: str) -> str:
        """Show the role of this node where the lease is kept."""
        return await self._store.announce(role)

    async def close(self) -> None:
        """Release connections and threads."""
        await self._store.close()

    async def _judged(self, wanted: Lease | None, call: Awaitable[Outcome]) -> Outcome:
        begun_us = self._ha.machine.timeline.now_us
        outcome = await call
        self._lease.check_answer(self._ha.node, begun_us, wanted, outcome)
        return outcome
