"""The network between nodes: bytes arrive in order, late, or only after a cut is healed.

Bytes under way on a path that is cut wait there, as TCP repeats them. An end learns of a dead peer
only if a packet can reach it. The links on these connections are the product's own.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from services.ha.wire.versions import SPOKEN
from tests.simulation.replication.loop import Loop
from tests.simulation.replication.process import Process
from tests.simulation.replication.timeline import Timeline
from tests.simulation.replication.transport import Owner, Transport
from tests.simulation.replication.violation import Violation

WINDOWS: Final = (1_500, 6_000, 100_000)
"""Bytes of a connection that may be unread at the other end; the rest waits in the sender."""
CLOSED_US: Final = 1_300_000
"""A connection that its process closed has ended after this time."""

Factory = Callable[[], asyncio.BaseProtocol]


class Network:
    """All connections of all nodes."""

    def __init__(self, timeline: Timeline, *, delay_max_us: int, spike: float) -> None:
        """spike: probability that bytes are late by up to half a second."""
        self._timeline = timeline
        self._delay_max_us = delay_max_us
        self.spike = spike
        self._listening: dict[str, tuple[Owner, Factory]] = {}
        self._ends: list[Transport] = []
        self._cuts: set[tuple[str, str]] = set()
        self.off: set[str] = set()
        """Nodes without power. Nothing answers for them, not even with a refusal."""
        self.connections_count = self.frames_count = 0
        self.to_corrupt: set[tuple[str, str]] = set()
        """(sender, receiver) pairs whose next piece of log is corrupted once before it is sent."""

    # -- for the world ---------------------------------------------------------------------

    def cut(self, sender: str, receiver: str) -> None:
        """Drop everything from sender to receiver from now on."""
        self._cuts.add((sender, receiver))

    def heal(self, sender: str | None = None, receiver: str | None = None) -> None:
        """Restore the path, or all paths."""
        if sender is None or receiver is None:
            self._cuts.clear()
        else:
            self._cuts.discard((sender, receiver))
        for end in self._ends:
            if end.arriving:
                self._timeline.after(self._delay(), self._deliver_to(end))
            if end.get_write_buffer_size():
                self._timeline.after(self._delay(), end.wake)

    def break_links(self, one: str, other: str) -> None:
        """Reset both ends of all connections between two nodes."""
        for end in list(self._ends):
            if {end.owner.node, end.other.owner.node} == {one, other}:
                self._reset(end)

    def ended(self, owner: Owner) -> None:
        """Close the connections of a process that is gone, unless its machine is off."""
        listening = self._listening.get(owner.node)
        if listening is not None and listening[0] is owner:
            del self._listening[owner.node]
        for end in self.ends_of(owner):
            end.open = False
            self._ends.remove(end)
            if owner.node not in self.off:
                self.post(end.other, b"")

    def ends_of(self, owner: Owner) -> list[Transport]:
        """Connections that a process has."""
        return [end for end in self._ends if end.owner is owner]

    def made_count(self, one: str, other: str) -> int:
        """Connections that a node has made to another one."""
        made = [end for end in self._ends if end.has_made and end.owner.node == one]
        return sum(end.other.owner.node == other for end in made)

    def ends_count(self, node: str) -> int:
        """Connections that a node has, made or accepted."""
        return sum(end.owner.node == node for end in self._ends)

    def knock(self, stranger: Stranger, node: str, data: bytes) -> Transport:
        """Connect to a node as a stranger, and send bytes."""
        near, far = self._join(stranger, *self._listening[node])
        if data:
            self.post(far, data)
        return near

    def check_closed(self, owner: Owner) -> None:
        """Check that connections which a process has closed end soon, although bytes for a silent
        peer wait."""
        process, now_us = owner.process, self._timeline.now_us
        if process.paused or not owner.runs:
            return
        for end in self.ends_of(owner):
            closing_us = end.closing_us
            if closing_us is not None and now_us - max(closing_us, process.resumed_us) > CLOSED_US:
                raise Violation(
                    f"{owner.node} closed a connection to {end.other.owner.node} "
                    f"{now_us - closing_us} µs ago, and it has not ended: "
                    f"{end.get_write_buffer_size()} bytes wait"
                )

    # -- for processes (asyncio's loop) ----------------------------------------------------

    def listen(self, owner: Owner, factory: Factory) -> asyncio.Server:
        """Accept connections to a node."""
        self._listening[owner.node] = owner, factory
        return cast(asyncio.Server, _Server(self, owner))

    def stop_listening(self, owner: Owner) -> None:
        """Refuse connections from now on."""
        del self._listening[owner.node]

    async def connect(
        self, owner: Owner, node: str, factory: Factory
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a node. Raises OSError."""
        loop = owner.loop
        made: asyncio.Future[Transport] = loop.create_future()
        ends: list[Transport] = []

        def settle(error: OSError | None) -> None:
            if made.done():
                return
            if error is not None:
                made.set_exception(error)
            else:
                made.set_result(ends[0])

        def arrive() -> None:
            if not owner.runs or made.done() or not self._is_reached(owner.node, node):
                return
            listening, error = self._listening.get(node), None
            if listening is None:
                error = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            else:
                ends.extend(self._join(owner, *listening))
            loop.call_soon_threadsafe(settle, error)

        self._timeline.after(self._delay() * 2, arrive)
        try:
            end = await made
            protocol = factory()
            loop.call_soon(end.begin, protocol)
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if ends:
                ends[0].abort()
            raise
        return end, protocol

    # -- for transports --------------------------------------------------------------------

    def post(self, end: Transport, data: bytes) -> None:
        """Put bytes on their way to an end; empty: no more follow."""
        timeline = self._timeline
        if not end.open:
            # A running kernel that does not know the connection (any more) resets it.
            if data and self.passes_to(end) and end.other.open:
                timeline.after(self._delay(), lambda: self._reset(end.other))
            return
        end.last_at_us = max(end.last_at_us, timeline.now_us + self._delay())
        end.arriving.append((end.last_at_us, data))
        timeline.after(end.last_at_us - timeline.now_us, self._deliver_to(end))

    def has_read(self, end: Transport) -> None:
        """Let the other end of a connection resume sending."""
        if self.passes_to(end.other) and end.other.get_write_buffer_size():
            self._timeline.after(self._delay(), end.other.wake)

    def passes_to(self, end: Transport) -> bool:
        """Whether packets arrive at an end."""
        sender, receiver = end.other.owner.node, end.owner.node
        return (sender, receiver) not in self._cuts and receiver not in self.off

    def closed(self, end: Transport) -> None:
        """Close an end. The other end learns of it after the bytes that are under way."""
        self._ends.remove(end)
        if end.open:
            end.open = False
            self.post(end.other, b"")

    # -- inside ----------------------------------------------------------------------------

    def _delay(self) -> int:
        random = self._timeline.random
        if random.random() < self.spike:
            return random.randint(1_000, 500_000)
        return random.randint(30, self._delay_max_us)

    def _is_reached(self, one: str, other: str) -> bool:
        is_cut = (one, other) in self._cuts or (other, one) in self._cuts
        return not is_cut and other not in self.off

    def _join(self, owner: Owner, peer: Owner, factory: Factory) -> list[Transport]:
        self.connections_count += 1
        window, is_small = WINDOWS[self.connections_count % 3], self.connections_count % 2 == 0
        ends = [Transport(self, each, window, is_small=is_small) for each in (owner, peer)]
        ends[0].other, ends[1].other = ends[1], ends[0]
        ends[0].has_made = True
        self._ends += ends

        def accept() -> None:
            if ends[1].open:
                ends[1].begin(factory())
            else:
                self._ends.remove(ends[1])

        peer.loop.call_soon_threadsafe(accept)
        return ends

    def _deliver_to(self, end: Transport) -> Callable[[], None]:
        def deliver() -> None:
            if end.open and end.owner.runs and self.passes_to(end):
                end.owner.loop.call_soon_threadsafe(end.readable)

        return deliver

    def _reset(self, end: Transport) -> None:
        if end.open and end.owner.runs:
            end.open = False
            end.arriving.clear()
            if end.begun:
                end.owner.loop.call_soon_threadsafe(end.reset)


class Stranger:
    """A peer outside the group. Its ends are never taken up, so what arrives stays unread."""

    node, runs, versions = "stranger", False, SPOKEN
    process: Process
    loop: Loop


class Sockets(NamedTuple):
    """The sockets of one process."""

    network: Network
    owner: Owner

    async def connect(
        self, factory: Factory, node: str
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a node. Raises OSError."""
        return await self.network.connect(self.owner, node, factory)

    def listen(self, factory: Factory) -> asyncio.Server:
        """Accept connections to the node of this process."""
        return self.network.listen(self.owner, factory)


class _Server:
    """A listening socket (``asyncio.Server``)."""

    def __init__(self, network: Network, owner: Owner) -> None:
        self._network, self._owner = network, owner

    def close(self) -> None:
        """Refuse connections from now on."""
        self._network.stop_listening(self._owner)
