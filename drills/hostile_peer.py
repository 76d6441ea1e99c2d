"""A peer on a node's replication port that violates the protocol.

With the group's secret it completes the handshake as any node, and then sends arbitrary frames.
Without the secret, or with arbitrary bytes, it shows how the port treats strangers. Tests and
drills use it to check that nothing from it is counted, appended or accepted.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable
from typing import Final

from services.ha.wire import payloads
from services.ha.wire.frames import BadFrame, Decoder, Frame, encode
from services.ha.wire.handshake import NONCE_SIZE, Connecting, Identity, Peer
from services.ha.wire.payloads import Payload

RECEIVE_SIZE: Final = 1 << 16


class HostilePeer:
    """One connection to a replication port that sends what a real peer would not.

    Use it with ``with``; calls block, with a time limit."""

    def __init__(self, host: str, port: int, *, timeout_s: float = 5.0) -> None:
        """Connect. Raises OSError."""
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._decoder = Decoder()
        self._frames: list[Frame] = []
        self.sent = bytearray()
        """All bytes that were sent, so that they can be replayed."""

    def __enter__(self) -> HostilePeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def prove(self, claimed: Identity, *, secret: bytes, wanted: str, nodes: Iterable[str]) -> Peer:
        """Do the handshake as ``claimed``; return the other side.

        Raises handshake.Refused with the reason that the other side gave, or for which it closed.
        """
        nonce, known = secrets.token_bytes(NONCE_SIZE), frozenset(nodes)
        proof = Connecting(claimed, secret=secret, nonce=nonce, nodes=known, wanted=wanted)
        while (frame := self.receive()) is not None:
            step = proof.take(frame)
            if step.send is not None:
                self.write(encode(step.send))
            if step.peer is not None:
                return step.peer
        raise proof.ended()

    def say(self, epoch: int, payload: Payload) -> bool:
        """Send a frame; return whether the connection accepted it."""
        return self.write(encode(payloads.frame(epoch, payload)))

    def write(self, data: bytes) -> bool:
        """Send bytes; return whether the connection accepted all of them."""
        self.sent += data
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def receive(self) -> Frame | None:
        """Return the next frame; None if the other side closed. Raises TimeoutError."""
        while not self._frames:
            try:
                data = self._socket.recv(RECEIVE_SIZE)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames = self._decoder.feed(data)
        return self._frames.pop(0)

    def is_closed(self) -> bool:
        """Wait until the other side closes; False if it does not within the time limit."""
        try:
            while self.receive() is not None:
                pass
        except (TimeoutError, BadFrame):
            return False
        return True
