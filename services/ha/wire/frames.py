"""Frames of the replication protocol: bytes and values (docs/replication.md, frames). Pure.

u32 length of what follows (at most 8 MiB) · u8 type · u8 flags · u16 reserved · i64 epoch · payload
· u32 CRC-32 over type to payload. All integers big-endian. Every frame carries its sender's epoch.

The checksum finds damage, not attacks: ``handshake`` authenticates the sender. ``payloads`` decodes
the payload. Step before: bytes of a socket. Step after: ``payloads.parse``.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from tidemark.formats import native

FRAME_SIZE_MAX: Final = 8 << 20
"""Limit of a frame's length field, of an authenticated peer."""
HEAD: Final = struct.Struct(">IBBHq")
"""Length, type, flags, reserved, epoch."""
TAIL: Final = struct.Struct(">I")
"""CRC-32."""
LENGTH_SIZE: Final = 4
AROUND_SIZE: Final = HEAD.size - LENGTH_SIZE + TAIL.size
"""What the length counts besides the payload."""
BUFFER_SIZE_MIN: Final = 4096


class FrameType(IntEnum):
    """Type of a frame."""

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
    """Types 20 to 23 belong to the handshake and are invalid after it."""
    ANSWER = 21
    WELCOME = 22
    REFUSED = 23


_TYPES: Final = {int(member): member for member in FrameType}


class BadFrame(ValueError):
    """These bytes are not a frame of this protocol; they are discarded and the link is closed."""


class Frame(NamedTuple):
    """One frame with an undecoded payload."""

    type: FrameType
    epoch: int
    """The sender's epoch; the data epoch of APPEND is in the payload."""
    payload: bytes | memoryview
    flags: int = 0
    """No flag is defined yet; a receiver ignores unknown ones."""


def encode(frame: Frame) -> bytes:
    """Return the frame's bytes. Raises ValueError if the payload is larger than a frame may be."""
    head, crc = encode_head(frame, 0)
    return head + TAIL.pack(crc)


def encode_head(frame: Frame, data_size: int) -> tuple[bytes, int]:
    """Return the bytes before data that is sent without a copy, and the CRC-32 so far.

    data_size: size of that data, which continues the frame's payload. The caller sends the data and
    ``encode_tail`` directly after it. Raises ValueError if payload and data exceed a frame.
    """
    length = AROUND_SIZE + len(frame.payload) + data_size
    if length > FRAME_SIZE_MAX:
        raise ValueError(f"a frame of {length} bytes; the most is {FRAME_SIZE_MAX}")
    head = HEAD.pack(length, frame.type, frame.flags, 0, frame.epoch) + frame.payload
    return head, native.crc32(memoryview(head)[LENGTH_SIZE:])


def encode_tail(crc: int, data: bytes | memoryview) -> bytes:
    """Return the bytes after the data of ``encode_head``; data is read once, not copied."""
    return TAIL.pack(native.crc32(data, crc))


class Decoder:
    """Splits a stream of bytes into frames. Holds no socket, so a test can feed it one byte at a
    time.

    Memory grows with the received bytes, not with the length that a peer claims, and is bounded by
    ``size_max``, which is small until the handshake is over. ``feed`` takes bytes; ``room`` and
    ``received`` serve a transport that reads into the decoder's own memory.
    """

    def __init__(self, size_max: int = FRAME_SIZE_MAX) -> None:
        self._size_max = size_max
        self._buffer = bytearray(BUFFER_SIZE_MIN)
        self._start = 0
        self._end = 0
        self._bad: str | None = None

    def allow(self, size_max: int) -> None:
        """Accept frames up to this size from now on: the peer is authenticated."""
        self._size_max = size_max

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame."""
        return self._end - self._start

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Take received bytes; return the frames that they complete, oldest first.

        Raises BadFrame for an invalid length, type or checksum; earlier frames of the same bytes
        are lost with it. Every later call raises it again.
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
        """Return free memory to read into, at least one byte; valid until the next call."""
        if self._start == self._end:
            self._start = self._end = 0
        if self._end == len(self._buffer):
            self._make_room()
        return memoryview(self._buffer)[self._end :]

    def received(self, size: int) -> list[Frame]:
        """Take the first size bytes of ``room``, which were filled; return like ``feed``."""
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
        """Return the next whole frame, its payload copied; None: more bytes are needed."""
        held = self._end - self._start
        if held < LENGTH_SIZE:
            return None
        # Checked as soon as it is complete, before waiting for that many bytes.
        length = int.from_bytes(self._buffer[self._start : self._start + LENGTH_SIZE], "big")
        if not AROUND_SIZE <= length <= self._size_max:
            raise BadFrame(f"a length of {length}; {AROUND_SIZE} to {self._size_max} may be")
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
            if native.crc32(checked) != crc:
                raise BadFrame(f"checksum of a {kind.name} frame of {length} bytes")
            payload = bytes(checked[HEAD.size - LENGTH_SIZE :])
        self._start = end
        return Frame(kind, epoch, payload, flags)

    def _make_room(self) -> None:
        """Move the held bytes to the front, into memory twice as large if it is full."""
        held = self._end - self._start
        size = len(self._buffer)
        kept = memoryview(self._buffer)[self._start : self._end]
        if 2 * held > size:
            # New memory: a transport may still hold a view of the old one, and a bytearray with a
            # view cannot be resized.
            self._buffer = bytearray(min(2 * size, 2 * (LENGTH_SIZE + self._size_max)))
        # Else the bytes move within the same memory: frames that were returned are copies.
        memoryview(self._buffer)[:held] = kept
        self._start, self._end = 0, held
