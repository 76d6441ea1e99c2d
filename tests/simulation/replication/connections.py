"""The connections of one start of ha: links to other nodes, and requests to the lease object."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from services.ha.core.effects import LeaseCreate, LeaseGet, LeasePut
from services.ha.core.events import Done, LeaseAnswered
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


class SimulatedLeaseStore:
    """The lease object over a lossy network (``services.ha.lease.interface``)."""

    def __init__(self, ha: Ha, lease: LeaseObject) -> None:
        self._ha, self._lease = ha, lease

    async def get(self) -> Outcome:
        """Read the lease."""
        return await self._ask(LeaseGet(0))

    async def put(self, lease: Lease, base: Stored) -> Outcome:
        """Write the lease if it is still base."""
        return await self._ask(LeasePut(0, lease, base))

    async def create(self, lease: Lease) -> Outcome:
        """Create the lease."""
        return await self._ask(LeaseCreate(0, lease))

    async def announce(self, role: str) -> str:
        """Do nothing: there is no pod."""
        return ""

    async def close(self) -> None:
        """Do nothing: there is no resource."""

    async def _ask(self, request: LeaseGet | LeasePut | LeaseCreate) -> Outcome:
        loop = self._ha.loop
        answered: asyncio.Future[LeaseAnswered] = loop.create_future()

        def settle(answer: LeaseAnswered) -> None:
            if not answered.done():
                answered.set_result(answer)

        def answer(answer: LeaseAnswered) -> None:
            if self._ha.process.alive:
                loop.call_soon_threadsafe(settle, answer)

        timeout_ms = self._ha.setup.times.request_timeout_ms
        self._lease.ask(self._ha.node, request, timeout_ms=timeout_ms, answer=answer)
        found = await answered
        return Outcome(found.outcome, found.stored, found.reason)
