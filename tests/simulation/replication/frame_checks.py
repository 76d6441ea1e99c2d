"""Decodes received frames again, in other pieces and with mistakes."""

from __future__ import annotations

from typing import Final

from services.ha.wire.frames import BUFFER_SIZE_MIN, LENGTH_SIZE, BadFrame, Decoder, Frame, encode
from tests.simulation.replication.violation import Violation

DECODED_AGAIN: Final = 64
"""One frame of this many is also decoded in other ways."""
FILLED: Final = 1024
"""One frame of this many is repeated until it fills the memory of a decoder."""
PIECE_SIZE_MAX: Final = 97


def check_decoding(frame: Frame, turn: int) -> None:
    """Check that a received frame is decoded whatever pieces it arrives in, and is refused if it is
    too long or changed. turn: number of the frame; one of DECODED_AGAIN is checked."""
    if turn % DECODED_AGAIN == 0:
        raw = encode(frame)
        _check_size(raw, frame)
        _check_pieces(raw, frame, turn)
        _check_flipped(raw, turn)


def _check_size(raw: bytes, sent: Frame) -> None:
    """Check that an invalid length is refused at once."""
    decoder = Decoder(len(raw) - LENGTH_SIZE)
    if decoder.feed(raw) != [sent]:
        raise Violation(f"{sent} is refused at exactly the maximal frame size")
    _must_refuse(Decoder(len(raw) - LENGTH_SIZE - 1), raw[:LENGTH_SIZE], "a frame that is too long")


def _check_pieces(raw: bytes, frame: Frame, turn: int) -> None:
    """Check that frames arrive in whatever pieces a transport reads them."""
    is_filled = turn % FILLED == 0
    count = BUFFER_SIZE_MIN // len(raw) + 2 if is_filled else 2
    piece_size = BUFFER_SIZE_MIN if is_filled else 1 + turn // DECODED_AGAIN % PIECE_SIZE_MAX
    decoder, stream, found = Decoder(), memoryview(raw * count), list[Frame]()
    while len(stream):
        room = decoder.room()
        size = min(len(room), len(stream), piece_size)
        if not size:
            raise Violation(f"the decoder has no room for a frame of {len(raw)} bytes")
        room[:size], stream = stream[:size], stream[size:]
        found += decoder.received(size)
    if found != [frame] * count or decoder.pending:
        raise Violation(
            f"{count} frames arrive as {len(found)}, and {decoder.pending} bytes are pending"
        )


def _check_flipped(raw: bytes, turn: int) -> None:
    """Check that a frame with a flipped bit never arrives, nor anything after it."""
    at = LENGTH_SIZE + turn // DECODED_AGAIN * 31 % (len(raw) - LENGTH_SIZE)
    changed = bytearray(raw)
    changed[at] ^= 1 << turn // DECODED_AGAIN % 8
    decoder = Decoder()
    _must_refuse(decoder, bytes(changed), f"a frame with a changed byte {at} of {len(raw)}")
    _must_refuse(decoder, raw, "a frame after a bad one")


def _must_refuse(decoder: Decoder, data: bytes, what: str) -> None:
    try:
        decoder.feed(data)
    except BadFrame as error:
        if not str(error):
            raise Violation(f"{what} is refused without a reason") from error
        return
    raise Violation(f"{what} is accepted")
