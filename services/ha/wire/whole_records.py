"""From log bytes cut anywhere to whole records that may be written, file by file. Pure.

A master's log comes as it is, in pieces that know no borders: what is not a whole record yet waits
here until the rest comes. Each record is judged by its shape, its place, its body's CRC and its
record CRC before it is handed out (where RocketMQ wrote, the last one may be a copy of another
record's and is not); the first bytes that are none end the stretch. A filler ends
its file: what stands behind its head means nothing and is handed out apart.

Step before: ``slave_protocol`` says that the bytes come next. Step after: ``copied_log`` writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from tidemark.errors import CorruptRecord
from tidemark.formats import native
from tidemark.formats.record import BLANK_SIZE, Checks
from tidemark.formats.scan import Stop
from tidemark.offsets import PhysicalOffset

RECORDS_AT_ONCE: Final = 65_536
SIZE_OF_SIZE: Final = 4
CHECKS: Final = Checks()
FOREIGN_CHECKS: Final = Checks(record_crc=False)


class Part(Enum):
    """What some bytes are."""

    RECORDS = "records"
    """Whole records of one file."""
    FILLER = "filler"
    """The head of a filler: the file's records end here."""
    REST = "rest"
    """Bytes behind it, up to the file's end."""


class Piece(NamedTuple):
    """Adjacent bytes of one part, borrowed until the next piece is asked for."""

    part: Part
    at: int
    """Physical offset of data[0]."""
    data: memoryview
    store_timestamp_ms: int = 0
    """Of RECORDS: of the last one that a queue gets; 0 if none."""


class BadBytes(Exception):
    """What came is no record; nothing behind ``at`` was handed out."""

    def __init__(self, at: int, reason: str) -> None:
        self.at, self.reason = at, reason
        super().__init__(f"no record at physical offset {at}: {reason}")


class WholeRecords:
    """One stretch of bytes after the other. ``begin`` first."""

    def __init__(self, file_size: int) -> None:
        """file_size: of a commit log file, here and at the master [bytes]."""
        self._file_size = file_size
        self._pending = bytearray()
        self._at = 0
        self._filler_at = self._filler_until = 0
        self.unjudged = (0, 0)
        """[from, until) in which record CRCs are not judged."""

    @property
    def received(self) -> int:
        """Physical offset behind the last byte that came."""
        return self._at + len(self._pending)

    @property
    def pending_size(self) -> int:
        """Bytes that wait for the rest of their record; less than one record and what came last."""
        return len(self._pending)

    def begin(self, at: int) -> None:
        """The next byte that comes has physical offset ``at``; what waited is dropped.

        at: where a record or a filler begins, or inside the rest of a filler that this object has
        handed out the head of.
        """
        self._pending = bytearray()
        self._at = at
        if not self._filler_at < at < self._filler_until:
            self._filler_at = self._filler_until = 0

    def take(self, data: bytes | memoryview) -> Iterator[Piece]:
        """Bytes came: hand out what is whole now. Consume it before the next call.

        data is not copied, but for what is not whole at its ends. Raises BadBytes, then nothing
        more may come before ``begin``.
        """
        view = memoryview(data)
        while self._pending and len(view):
            size = min(self._missing(), len(view))
            self._pending += view[:size]
            view = view[size:]
            piece = self._next(memoryview(self._pending), self._at)
            if piece is not None:
                # What is left in memory of its own: the piece may still be held.
                self._pending = self._pending[len(piece.data) :]
                self._at += len(piece.data)
                yield piece
                del piece
        while len(view):
            piece = self._next(view, self._at)
            if piece is None:
                break
            view = view[len(piece.data) :]
            self._at += len(piece.data)
            yield piece
            del piece
        self._pending += view

    def _missing(self) -> int:
        """Bytes that what waits needs at least before it can be judged; at least one."""
        held = len(self._pending)
        if held < BLANK_SIZE:
            return BLANK_SIZE - held
        size = int.from_bytes(self._pending[:SIZE_OF_SIZE], "big", signed=True)
        return max(1, size - held)

    def _next(self, view: memoryview, at: int) -> Piece | None:
        """The first piece of view; None if the rest of a record has to come first."""
        room = self._file_size - at % self._file_size
        if at < self._filler_until:
            return Piece(Part.REST, at, view[: self._filler_until - at])
        if room < BLANK_SIZE:
            # Too short even for a filler: nothing but the file's end.
            self._filler_at, self._filler_until = at, at + room
            return Piece(Part.FILLER, at, view[:room])
        window = view[:room]
        end, stop, reason, timestamp_ms = self._judge_by(window, at)
        if end:
            return Piece(Part.RECORDS, at, window[:end], timestamp_ms)
        if stop is Stop.BLANK:
            self._filler_at, self._filler_until = at, at + room
            return Piece(Part.FILLER, at, window[:BLANK_SIZE])
        if stop is Stop.BAD:
            raise BadBytes(at, reason)
        if len(window) >= BLANK_SIZE:
            size = int.from_bytes(window[:SIZE_OF_SIZE], "big", signed=True)
            if size > room:  # else we would wait, and keep, for ever
                raise BadBytes(at, f"{size} bytes, {room} before the end of its file")
        if len(window) == room:
            raise BadBytes(at, reason or "the file ends inside a record")
        return None

    def _judge_by(self, window: memoryview, at: int) -> tuple[int, Stop, str, int]:
        """``_judge``, by the checks that count at ``at``: at most to where others begin to."""
        begin, until = self.unjudged
        checks, border = CHECKS, begin
        if begin <= at < until:
            checks, border = FOREIGN_CHECKS, until
        if at < border < at + len(window) and until:
            judged = self._judge(window[: border - at], at, checks)
            if judged[0]:
                return judged
        return self._judge(window, at, checks)

    def _judge(self, window: memoryview, at: int, checks: Checks) -> tuple[int, Stop, str, int]:
        """Size of the leading whole records, why they end, and the last one's store time."""
        try:
            planned = native.plan_range(
                window,
                at=PhysicalOffset(at),
                checks=checks,
                records_max=RECORDS_AT_ONCE,
                delay_levels_ms=(),
                index=False,
            )
        except CorruptRecord:
            # A name that dispatch refuses; as bytes of the log the record may be sound.
            walked = native.walk(
                window,
                at=PhysicalOffset(at),
                checks=checks,
                records_max=RECORDS_AT_ONCE,
                delay_levels_ms=(),
            )
            newest = walked.entries[-1].store_timestamp_ms if walked.entries else 0
            return walked.end, walked.stop, walked.reason, newest
        return planned.end, planned.stop, planned.reason, planned.plan.unit_timestamp_ms
