"""Frames of the replication protocol: bytes and values (docs/replication.md, frames). Pure.

u32 length of what follows (at most 8 MiB) · u8 type · u8 flags · u16 reserved · i64 epoch · payload
· u32 CRC-32 over type to payload. All integers big-endian. Every frame carries its sender's epoch.

The checksum finds damage, not malice: who may send at all is ``handshake``'s. What a payload says
is ``payloads``'. Step before: bytes of a socket. Step after: ``payloads.parse``.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final, NamedTuple

FRAME_SIZE_MAX: Final = 8 << 20
"""Bytes behind the length, of a peer that has proved who it is."""
HEAD: Final = struct.Struct(">IBBHq")
"""Length, type, flags, reserved, epoch."""
TAIL: Final = struct.Struct(">I")
"""CRC-32."""
LENGTH_SIZE: Final = 4
AROUND_SIZE: Final = HEAD.size - LENGTH_SIZE + TAIL.size
"""What the length counts besides the payload."""
BUFFER_SIZE_MIN: Final = 4096


class FrameType(IntEnum):
    """What a frame says."""

    HELLO = 1
    HELLO_OK = 2
    RESYNC_REQUIRED = 3
    APPEND = 4
    ACK = 5
    PROMISE = 6
    PROMISE_OK = 7
    STATUS = 8
    STATUS_OK = 9
    FENCED = 10
    CAMPAIGN_NOW = 14
    CHALLENGE = 20
    """20 to 23 are the handshake's and mean nothing behind it."""
    ANSWER = 21
    WELCOME = 22
    REFUSED = 23


_TYPES: Final = {int(member): member for member in FrameType}


class BadFrame(ValueError):
    """The bytes are no frame of this protocol: the link is closed, nothing of it is believed."""


class Frame(NamedTuple):
    """One frame, its payload not yet decoded."""

    type: FrameType
    epoch: int
    """The sender's; of APPEND the master's, its data epoch is in the payload."""
    payload: bytes | memoryview
    flags: int = 0
    """None is defined yet; a receiver ignores those that it does not know."""


def encode(frame: Frame) -> bytes:
    """The frame's bytes. Raises ValueError if the payload is larger than a frame may be."""
    head, crc = encode_head(frame, 0)
    return head + TAIL.pack(crc)


def encode_head(frame: Frame, data_size: int) -> tuple[bytes, int]:
    """What goes before bytes that are sent from where they are, and the CRC-32 so far.

    data_size: of those bytes, which continue the frame's payload. Send them and ``encode_tail``
    right behind. Raises ValueError if payload and bytes are more than a frame may hold.
    """
    length = AROUND_SIZE + len(frame.payload) + data_size
    if length > FRAME_SIZE_MAX:
        raise ValueError(f"a frame of {length} bytes; the most is {FRAME_SIZE_MAX}")
    head = HEAD.pack(length, frame.type, frame.flags, 0, frame.epoch) + frame.payload
    return head, zlib.crc32(memoryview(head)[LENGTH_SIZE:])


def encode_tail(crc: int, data: bytes | memoryview) -> bytes:
    """What goes behind the bytes of ``encode_head``; data is read once, not copied."""
    return TAIL.pack(zlib.crc32(data, crc))


class Decoder:
    """A stream of bytes to frames. Holds no socket, so a test can feed it one byte at a time.

    Memory follows the bytes that came, never the length that a peer claims, and is bounded by
    ``size_max``: small until the handshake is over. ``feed`` for bytes in hand; ``room`` and
    ``received`` for a transport that reads into the decoder's own memory.
    """

    def __init__(self, size_max: int = FRAME_SIZE_MAX) -> None:
        self.size_max = size_max
        """Most bytes behind a frame's length; may be raised once the peer has proved itself."""
        self._buffer = bytearray(BUFFER_SIZE_MIN)
        self._start = 0
        self._end = 0
        self._bad: str | None = None

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete."""
        return self._end - self._start

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Take what the network gave; return the frames it completed, oldest first.

        Raises BadFrame for a length, type or checksum that cannot be; frames in front of it in
        the same bytes are lost with it. Every later call raises it again.
        """
        frames: list[Frame] = []
        view = memoryview(data)
        while len(view):
            room = self.room()
            size = min(len(room), len(view))
            room[:size] = view[:size]
            view = view[size:]
            frames += self.received(size)
        return frames

    def room(self) -> memoryview:
        """Free memory to read into, at least one byte; valid until the next call."""
        if self._start == self._end:
            self._start = self._end = 0
        if self._end == len(self._buffer):
            self._make_room()
        return memoryview(self._buffer)[self._end :]

    def received(self, size: int) -> list[Frame]:
        """The first size bytes of ``room`` were filled; as ``feed``."""
        if self._bad is not None:
            raise BadFrame(self._bad)
        self._end += size
        frames: list[Frame] = []
        try:
            while (frame := self._next()) is not None:
                frames.append(frame)
        except BadFrame as error:
            self._bad = str(error)
            raise
        return frames

    def _next(self) -> Frame | None:
        """The next whole frame, its payload copied out; None: more bytes are needed."""
        held = self._end - self._start
        if held < LENGTH_SIZE:
            return None
        # As soon as it is there, before anybody waits for that many bytes.
        length = int.from_bytes(self._buffer[self._start : self._start + LENGTH_SIZE], "big")
        if not AROUND_SIZE <= length <= self.size_max:
            raise BadFrame(f"a length of {length}; {AROUND_SIZE} to {self.size_max} may be")
        if held < HEAD.size:
            return None
        _, number, flags, _, epoch = HEAD.unpack_from(self._buffer, self._start)
        kind = _TYPES.get(number)
        if kind is None or epoch < 0:
            raise BadFrame(f"type {number} with epoch {epoch}")
        end = self._start + LENGTH_SIZE + length
        if end > self._end:
            return None
        with memoryview(self._buffer) as view:
            checked = view[self._start + LENGTH_SIZE : end - TAIL.size]
            (crc,) = TAIL.unpack_from(view, end - TAIL.size)
            if zlib.crc32(checked) != crc:
                raise BadFrame(f"checksum of a {kind.name} frame of {length} bytes")
            payload = bytes(checked[HEAD.size - LENGTH_SIZE :])
        self._start = end
        return Frame(kind, epoch, payload, flags)

    def _make_room(self) -> None:
        """Move what is held to the front, into memory twice as large if it is full."""
        held = self._end - self._start
        size = len(self._buffer)
        kept = memoryview(self._buffer)[self._start : self._end]
        if 2 * held > size:
            # New memory: a transport may still hold a view of the old one, and a bytearray with a
            # view cannot be resized.
            self._buffer = bytearray(min(2 * size, 2 * (LENGTH_SIZE + self.size_max)))
        # Within the same memory otherwise: what has been read from it was copied out.
        memoryview(self._buffer)[:held] = kept
        self._start, self._end = 0, held
