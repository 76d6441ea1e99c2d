"""One end of a simulated TCP connection: the socket in the kernel and asyncio's transport on it.

Written bytes go on their way while fewer than ``window`` are unread at the other end; the others
wait in the memory of the process. ``close`` sends them first, ``abort`` drops them. All calls of
the protocol happen on the loop of the process, as asyncio makes them.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from services.ha.wire.versions import Versions
from tests.simulation.replication.process import Process

if TYPE_CHECKING:
    from tests.simulation.replication.loop import Loop
    from tests.simulation.replication.network import Network

Data = bytes | bytearray | memoryview
PIECE_EVERY: Final = 5
"""One read of this many is done in two pieces."""


class Owner(Protocol):
    """A process with sockets."""

    node: str
    process: Process
    loop: Loop

    @property
    def versions(self) -> Versions:
        """Protocol versions that it supports."""
        ...

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        ...


class Transport(asyncio.Transport):
    """One end of a connection, at one process."""

    def __init__(self, network: Network, owner: Owner, window: int, *, is_small: bool) -> None:
        """window: bytes that may be under way or unread at the other end. is_small: on a path that
        is cut, the kernel takes no more bytes, and all wait in the process."""
        super().__init__()
        self._is_small = is_small
        self._network, self.owner, self._window = network, owner, window
        self.other: Transport
        self.open = True
        """Whether the kernel of this end knows the connection."""
        self.has_made = False
        """Whether this end connected."""
        self.begun = False
        """Whether the process has taken the connection up."""
        self.closing_us: int | None = None
        """When the process closed it; None: it did not."""
        self.lost = False
        """Whether ``connection_lost`` was called or is about to be."""
        self.arriving: deque[tuple[int, bytes]] = deque()
        """Bytes under way to this end or unread, with their arrival times; empty ones: no more
        follow."""
        self.last_at_us = 0
        """Arrival time of the last of them."""
        self.read_size = self.sent_size = 0
        """Bytes that the process has read here; bytes that were put on their way from here."""
        self._known_read = 0
        self._protocol: asyncio.BufferedProtocol
        self._buffer: deque[memoryview] = deque()
        self._reads = 0

    @property
    def is_refused(self) -> bool:
        """Whether the other side has closed the connection."""
        return any(not data for _, data in self.arriving)

    # -- called by the loop --------------------------------------------------------------------

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Take the connection up."""
        self._protocol, self.begun = cast(asyncio.BufferedProtocol, protocol), True
        self._protocol.connection_made(self)
        if self.open:
            self.readable()
        else:
            self.reset()

    def readable(self) -> None:
        """Read what has arrived."""
        now_us = self.owner.process.timeline.now_us
        arriving = self.arriving
        while self.begun and not self.is_closing() and arriving and arriving[0][0] <= now_us:
            data = arriving.popleft()[1]
            if data:
                while arriving and arriving[0][1] and arriving[0][0] <= now_us:
                    data += arriving.popleft()[1]
                self._read(memoryview(data))
            elif not self._protocol.eof_received():
                self.close()

    def writable(self) -> None:
        """Send what the other end has room for."""
        taken: list[memoryview] = []
        room = self._window - self._unread_size()
        if self._is_small and not self._network.passes_to(self.other):
            room = 0
        while self._buffer and room > 0:
            piece = self._buffer.popleft()
            if len(piece) > room:
                self._buffer.appendleft(piece[room:])
                piece = piece[:room]
            taken.append(piece)
            room -= len(piece)
        if taken:
            data = b"".join(taken)
            self.sent_size += len(data)
            self._network.post(self.other, data)
        if not self._buffer and self.is_closing():
            self._lose(None)

    def reset(self) -> None:
        """Report the reset of the connection by the other side."""
        self._drop(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def wake(self) -> None:
        """Resume sending, because the other end has read. Called from outside the process."""
        if self.open and self._buffer and self.owner.runs:
            self.owner.loop.call_soon_threadsafe(self.writable)

    # -- called by the protocol ----------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the address of the peer."""
        return (self.other.owner.node, 9000) if name == "peername" else default

    def write(self, data: Data) -> None:
        """Send bytes."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        """Send bytes; those that must wait are not copied before they are sent."""
        if not self.lost:
            self._buffer.extend(memoryview(data) for data in list_of_data if len(data))
            self.writable()

    def get_write_buffer_size(self) -> int:
        """Return the size of what waits in the process."""
        return sum(map(len, self._buffer))

    def is_closing(self) -> bool:
        """Return whether the process has closed the connection."""
        return self.closing_us is not None

    def close(self) -> None:
        """Send what waits, then close."""
        if not self.is_closing():
            self.closing_us = self.owner.process.timeline.now_us
            if not self._buffer:
                self._lose(None)

    def abort(self) -> None:
        """Drop what waits, and close."""
        self._drop(None)

    # -- inside --------------------------------------------------------------------------------

    def _read(self, data: memoryview) -> None:
        self._reads += 1
        first = len(data) // 3 if self._reads % PIECE_EVERY == 0 else 0
        while len(data) and not self.is_closing():
            room = cast(memoryview, self._protocol.get_buffer(-1))
            size = min(len(room), first or len(data))
            room[:size] = data[:size]
            data, first = data[size:], 0
            self.read_size += size
            self._protocol.buffer_updated(size)
        self._network.has_read(self)

    def _unread_size(self) -> int:
        """Bytes sent from here that the other end has not acknowledged."""
        if self._network.passes_to(self):
            self._known_read = self.other.read_size
        return self.sent_size - self._known_read

    def _drop(self, error: OSError | None) -> None:
        self._buffer.clear()
        if not self.is_closing():
            self.closing_us = self.owner.process.timeline.now_us
        self._lose(error)

    def _lose(self, error: OSError | None) -> None:
        if not self.lost:
            self.lost = True
            self.owner.loop.call_soon(self._end, error)

    def _end(self, error: OSError | None) -> None:
        try:
            if self.begun:
                self._protocol.connection_lost(error)
        finally:
            self._network.closed(self)
