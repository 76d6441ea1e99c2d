"""One connection to a peer: bytes in, frames out; no replica frames before authentication.

The link reads into the decoder's own memory and writes frames; bytes of the log's mapping are
passed to the transport without a copy. Limits: before authentication frames are small and time is
short; a peer that reads too slowly is disconnected at ``buffer_max`` unsent bytes. Invalid frames
close the connection and are discarded. Step before: ``links`` makes connections. Step after:
``links`` posts frames of authenticated links to the replica.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from services.ha.wire import frames, handshake
from services.ha.wire.frames import BadFrame, Decoder, Frame, encode, encode_head, encode_tail
from services.ha.wire.handshake import Accepting, Connecting, Peer, Refused
from shared.runtime import connection_errors
from tidemark.formats import native

if TYPE_CHECKING:
    from services.ha.shell.links import Links

UNACKNOWLEDGED_MAX: Final = 256
"""Streamed pieces whose send time is kept; of more pieces the oldest are not measured."""
CLOSE_TIMEOUT_S: Final = 1.0
"""Time in which buffered bytes may still be sent after a close; then they are dropped."""


class Link(asyncio.BufferedProtocol):
    """One connection, in either direction."""

    def __init__(
        self,
        number: int,
        owner: Links,
        proof: Accepting | Connecting,
        *,
        node: str | None,
        buffer_max: int,
    ) -> None:
        """node: the node to connect to; None: the peer connected here. buffer_max: unsent bytes."""
        self.number = number
        self.node = node
        self.peer: Peer | None = None
        self.address = ""
        """Address of the peer without its port, for log lines."""
        self.sent_bytes = 0
        self.unacknowledged: deque[tuple[int, float]] = deque(maxlen=UNACKNOWLEDGED_MAX)
        """Ends of streamed bytes with their send times, oldest first."""
        self.closing = False
        self.forsaken = False
        """The owner has abandoned the link, and gets no further calls."""
        self._owner = owner
        self._proof: Accepting | Connecting | None = proof
        self._buffer_max = buffer_max
        self._decoder = Decoder(handshake.FRAME_SIZE_MAX)
        self._transport: asyncio.Transport | None = None
        self._reason = ""

    @property
    def outbound(self) -> bool:
        """Whether this node connected."""
        return self.node is not None

    # -- called by the transport ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        # Not checked with isinstance: transports of uvloop have no class of asyncio.
        self._transport = cast(asyncio.Transport, transport)
        if self.forsaken:
            self._transport.abort()
            return
        name = transport.get_extra_info("peername")
        self.address = str(name[0]) if isinstance(name, (tuple, list)) and name else "unknown"
        self._owner.made(self)
        if not self.closing and isinstance(self._proof, Accepting):
            self._write(self._proof.begin())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes."""
        return self._decoder.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Process the frames that the received bytes complete."""
        if self.closing:
            return
        try:
            whole = self._decoder.received(nbytes)
        except BadFrame as error:
            self.abort(f"bad-frame: {error}")
            return
        for frame in whole:
            if self.closing:
                return
            if self.peer is None:
                self._take_proof(frame)
            else:
                self._owner.received(self, frame)

    def eof_received(self) -> bool:
        """Close, and drop what is buffered: a peer closes both directions, and reads nothing more.

        Otherwise the transport would wait for a peer that may be unreachable by now.
        """
        if self._transport is not None:
            self._transport.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end to the owner."""
        self.closing = True
        if not self._reason:
            self._reason = (
                f"connection lost: {connection_errors.describe(exc)}"
                if exc
                else "closed by the peer"
            )
            if isinstance(self._proof, Connecting):
                self._reason = str(self._proof.ended())
        self._owner.lost(self, self._reason)

    def _take_proof(self, frame: Frame) -> None:
        assert self._proof is not None
        try:
            step = self._proof.take(frame)
        except Refused as error:
            if error.answer is not None:
                self._write(error.answer)
            self.close(str(error))
            return
        if step.send is not None:
            self._write(step.send)
        if step.peer is not None:
            self._proof = None
            self.peer = step.peer
            self._decoder.allow(frames.FRAME_SIZE_MAX)
            self._owner.proved(self, step.peer)

    # -- called by the owner -------------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        """Send a frame; the link is closed if the peer reads too slowly."""
        if not self.closing:
            self._write(frame)

    def stream(self, frame: Frame, views: Sequence[memoryview]) -> None:
        """Send a frame whose payload ends with the bytes of the views.

        The socket reads the views later, so their bytes must not change until then. This holds for
        bytes below the published end of the log."""
        if self.closing:
            return
        assert self._transport is not None
        head, crc = encode_head(frame, sum(len(view) for view in views))
        for view in views[:-1]:
            crc = native.crc32(view, crc)
        tail = encode_tail(crc, views[-1] if views else b"")
        parts: list[bytes | memoryview] = [head, *views, tail]
        self.sent_bytes += sum(len(part) for part in parts)
        self._transport.writelines(parts)
        self._judge_buffer()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the socket."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self, reason: str) -> None:
        """Send what is buffered, for at most CLOSE_TIMEOUT_S, then close."""
        if self.closing:
            return
        self.closing, self._reason = True, reason
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    def forsake(self) -> None:
        """Abandon a link that took too long to connect; its later events are ignored."""
        self.forsaken = True
        self.abort("not reached in time")

    def abort(self, reason: str) -> None:
        """Close and drop what is buffered."""
        if not self.closing:
            self.closing, self._reason = True, reason
        if self._transport is not None:
            self._transport.abort()

    def _write(self, frame: Frame) -> None:
        assert self._transport is not None
        data = encode(frame)
        self.sent_bytes += len(data)
        self._transport.write(data)
        self._judge_buffer()

    def _judge_buffer(self) -> None:
        if self.unsent_bytes > self._buffer_max:
            self.abort(f"slow-peer: {self.unsent_bytes} bytes unsent, {self._buffer_max} may be")
