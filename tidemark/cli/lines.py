"""Bytes to lines: what ``produce`` makes messages of. The splitter is pure, the reader a thread.

A line ends at ``\\n`` and nowhere else: ``\\r``, 0x00 and bytes that are no UTF-8 stay in it. A
last line without ``\\n`` counts and is told apart, so that ``consume`` can give back the bytes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from typing import BinaryIO, Final, NamedTuple

from tidemark.errors import BadRequest

CHUNK_SIZE: Final = 1 << 20
CHUNKS_AHEAD_MAX: Final = 4
LINE_SIZE_MAX: Final = 64 << 20
"""Beyond any message limit: input that never ends a line must not fill the memory."""


class Lines(NamedTuple):
    """Consecutive lines, without their ends."""

    lines: list[bytes]
    size: int
    """Bytes of input that they were, ends included."""
    open_ended: bool
    """The last one ended with the input, not with a newline."""


class LineSplitter:
    """Cuts a stream of bytes into lines, however it is cut into chunks."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._partial_size = 0

    def feed(self, chunk: bytes) -> Lines:
        """Take what was read; return the lines it completed. BadRequest if one never ends."""
        first, *rest = chunk.split(b"\n")
        self._partial.append(first)
        self._partial_size += len(first)
        if not rest:
            if self._partial_size > LINE_SIZE_MAX:
                raise BadRequest(
                    f"a line of the input is longer than {LINE_SIZE_MAX} bytes. "
                    "The lines before it were handled.",
                    "Check that the input is lines of text.",
                )
            return Lines([], 0, False)
        lines = [b"".join(self._partial), *rest[:-1]]
        size = self._partial_size + sum(map(len, rest[:-1])) + len(rest)
        self._partial = [rest[-1]] if rest[-1] else []
        self._partial_size = len(rest[-1])
        return Lines(lines, size, False)

    def finish(self) -> Lines:
        """The input is over; return the last line if it had no end."""
        if not self._partial_size:
            return Lines([], 0, False)
        line = b"".join(self._partial)
        self._partial, self._partial_size = [], 0
        return Lines([line], len(line), True)


async def read_lines(source: BinaryIO) -> AsyncIterator[Lines]:
    """Yield the lines of a file or pipe as they come; at most a few chunks are read ahead.

    A daemon thread reads: a pipe that nobody writes to must not keep Ctrl-C from ending the
    command, as a worker of the loop's own executor would.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD_MAX)
    left = threading.Event()

    def read() -> None:
        while not left.is_set():
            room.acquire()
            try:
                got: bytes | OSError = _read_some(source)
            except OSError as error:
                got = error
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, got)
            except RuntimeError:
                return  # the loop is closed: the command has ended
            if not got or isinstance(got, OSError):
                return

    threading.Thread(target=read, name="input", daemon=True).start()
    splitter = LineSplitter()
    try:
        while got := await chunks.get():
            if isinstance(got, OSError):
                raise got
            room.release()
            lines = splitter.feed(got)
            if lines.lines:
                yield lines
        last = splitter.finish()
        if last.lines:
            yield last
    finally:
        left.set()
        room.release()


def _read_some(source: BinaryIO) -> bytes:
    """What is there now, at most a chunk; empty only at the end."""
    try:
        descriptor = source.fileno()
    except OSError:  # not a file of the system's: bytes in memory
        return source.read(CHUNK_SIZE)
    # Past the buffer, which nobody else uses: a thread that sits in a buffered read holds its lock,
    # and an interpreter that ends meanwhile aborts over it.
    return os.read(descriptor, CHUNK_SIZE)
