"""Assembles whole records from log bytes that are cut anywhere. Pure.

A master's log arrives in pieces without regard to record borders; an incomplete record waits here
for its rest. Each record is checked by its shape, its offset, its body CRC and its record CRC
before it is returned. In a range that RocketMQ wrote the record CRC may be a copy of another
record's, and is not checked. The first invalid bytes end the stretch. A filler ends its file: the
bytes after its head mean nothing and are returned separately.

Step before: ``slave_protocol`` accepts the bytes as the next ones. Step after: ``copied_log``
writes them.
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
    """Kind of some bytes."""

    RECORDS = "records"
    """Whole records of one file."""
    FILLER = "filler"
    """The head of a filler: the file's records end here."""
    REST = "rest"
    """The bytes after the filler's head, up to the end of the file."""


class Piece(NamedTuple):
    """Adjacent bytes of one kind, borrowed until the next piece is requested."""

    part: Part
    at: int
    """Physical offset of data[0]."""
    data: memoryview
    store_timestamp_ms: int = 0
    """Of RECORDS: time of the last one that a queue gets; 0 if there is none."""


class BadBytes(Exception):
    """The bytes are not a record; no byte from ``at`` on was returned."""

    def __init__(self, at: int, reason: str) -> None:
        self.at, self.reason = at, reason
        super().__init__(f"no record at physical offset {at}: {reason}")


class RecordAssembler:
    """Assembles one stretch of bytes after the other; ``begin`` comes first."""

    def __init__(self, file_size: int) -> None:
        """file_size: size of a commit log file, here and at the master [bytes]."""
        self._file_size = file_size
        self._pending = bytearray()
        self._at = 0
        self._filler_at = self._filler_until = 0
        self._foreign = (0, 0)
        """[from, until) that RocketMQ wrote: record CRCs are not checked there."""

    def set_foreign(self, begin: int, until: int) -> None:
        """Set the range that RocketMQ wrote, in which record CRCs are not checked."""
        self._foreign = begin, until

    @property
    def received(self) -> int:
        """Physical offset after the last received byte."""
        return self._at + len(self._pending)

    @property
    def pending_size(self) -> int:
        """Bytes that wait for the rest of their record; less than one record and the last bytes
        taken."""
        return len(self._pending)

    def begin(self, at: int) -> None:
        """Begin a stretch at physical offset ``at``; waiting bytes are dropped.

        at: start of a record or a filler, or a place inside the rest of a filler whose head this
        object has returned.
        """
        self._pending = bytearray()
        self._at = at
        if not self._filler_at < at < self._filler_until:
            self._filler_at = self._filler_until = 0

    def take(self, data: bytes | memoryview) -> Iterator[Piece]:
        """Yield the pieces that data completes. Consume them before the next call.

        data is not copied, except for the incomplete parts at its ends. Raises BadBytes; then
        ``begin`` must come next.
        """
        view = memoryview(data)
        while self._pending and len(view):
            size = min(self._missing(), len(view))
            self._pending += view[:size]
            view = view[size:]
            piece = self._next(memoryview(self._pending), self._at)
            if piece is not None:
                # The rest is kept in memory of its own: the piece may still be held.
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
        """Return how many bytes are needed at least before the waiting ones can be checked; at
        least 1."""
        held = len(self._pending)
        if held < BLANK_SIZE:
            return BLANK_SIZE - held
        size = int.from_bytes(self._pending[:SIZE_OF_SIZE], "big", signed=True)
        return max(1, size - held)

    def _next(self, view: memoryview, at: int) -> Piece | None:
        """Return the first piece of view; None if the rest of a record has to come first."""
        room = self._file_size - at % self._file_size
        if at < self._filler_until:
            return Piece(Part.REST, at, view[: self._filler_until - at])
        if room < BLANK_SIZE:
            # Too short even for a filler: only the end of the file.
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
            if size > room:  # otherwise it would wait, and keep bytes, forever
                raise BadBytes(at, f"{size} bytes, {room} before the end of its file")
        if len(window) == room:
            raise BadBytes(at, reason or "the file ends inside a record")
        return None

    def _judge_by(self, window: memoryview, at: int) -> tuple[int, Stop, str, int]:
        """Check with the checks that apply at ``at``, up to the place where others begin to
        apply."""
        begin, until = self._foreign
        checks, border = CHECKS, begin
        if begin <= at < until:
            checks, border = FOREIGN_CHECKS, until
        if at < border < at + len(window) and until:
            judged = self._judge(window[: border - at], at, checks)
            if judged[0]:
                return judged
        return self._judge(window, at, checks)

    def _judge(self, window: memoryview, at: int, checks: Checks) -> tuple[int, Stop, str, int]:
        """Return the size of the leading whole records, why they end, and the last one's store
        time."""
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
            # A name that dispatch refuses; as bytes of the log the record may be valid.
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
