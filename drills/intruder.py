"""A client of the replication protocol that the nodes must not trust.

Drills use it to send arbitrary frames to a node's replication port, with or without the group's
secret and under any name. The node's own checks must reject them.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from types import TracebackType
from typing import Final

from services.ha.wire.frames import FRAME_SIZE_MAX, BadFrame, Decoder, Frame, encode
from services.ha.wire.handshake import FRAME_SIZE_MAX as SIZE_BEFORE_PROOF
from services.ha.wire.handshake import NONCE_SIZE, Connecting, Identity, Refused

READ_SIZE: Final = 1 << 16
TIMEOUT_S: Final = 3.0


class Intruder:
    """One connection, used as ``async with Intruder(…) as intruder``."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._decoder = Decoder(SIZE_BEFORE_PROOF)
        self._frames: list[Frame] = []
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.sent = bytearray()
        """All bytes that were sent, so that they can be replayed."""

    async def __aenter__(self) -> Intruder:
        async with asyncio.timeout(TIMEOUT_S):
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._writer is not None
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def prove(self, own: Identity, secret: bytes, wanted: str) -> str:
        """Do the handshake; return "" if the node accepted it, else the code of the refusal."""
        proof = Connecting(
            own,
            secret=secret,
            nonce=secrets.token_bytes(NONCE_SIZE),
            nodes=(own.node, wanted),
            wanted=wanted,
        )
        while True:
            frame = await self.receive()
            if frame is None:
                return proof.ended().reason.code
            try:
                step = proof.take(frame)
            except Refused as refused:
                return refused.reason.code
            if step.send is not None:
                await self.send(encode(step.send))
            if step.peer is not None:
                self._decoder.allow(FRAME_SIZE_MAX)
                return ""

    async def send(self, data: bytes) -> bool:
        """Send arbitrary bytes; return False if the node has closed the connection."""
        assert self._writer is not None
        self.sent += data
        try:
            self._writer.write(data)
            async with asyncio.timeout(TIMEOUT_S):
                await self._writer.drain()
        except (OSError, TimeoutError):
            return False
        return True

    async def receive(self) -> Frame | None:
        """Return the next frame; None if the node closed the connection or sends nothing."""
        assert self._reader is not None
        while not self._frames:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    data = await self._reader.read(READ_SIZE)
            except (OSError, TimeoutError):
                return None
            if not data:
                return None
            try:
                self._frames += self._decoder.feed(data)
            except BadFrame:
                return None
        return self._frames.pop(0)

    async def is_closed(self) -> bool:
        """Return whether the node closes the connection within a few seconds."""
        assert self._reader is not None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while await self._reader.read(READ_SIZE):
                    pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True
