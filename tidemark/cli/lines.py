"""Splits input into lines, of which ``produce`` makes messages: a splitter and a reader thread.

A line ends only at ``\\n``: ``\\r``, 0x00 and bytes that are not UTF-8 are part of it. A last line
without ``\\n`` counts and is marked, so that ``consume`` can write the same bytes back.
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
"""Above any message limit: input without line ends must not fill the memory."""


class Lines(NamedTuple):
    """Consecutive lines, without their newlines."""

    lines: list[bytes]
    size: int
    """Size of the input in bytes, including newlines."""
    open_ended: bool
    """Whether the last line ended with the input instead of a newline."""


class LineSplitter:
    """Splits a stream of bytes into lines, independent of how it is divided into chunks."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._partial_size = 0

    def feed(self, chunk: bytes) -> Lines:
        """Add a chunk; return the lines that it completes. Raises BadRequest for a huge line."""
        first, *rest = chunk.split(b"\n")
        self._partial.append(first)
        self._partial_size += len(first)
        if not rest:
            if self._partial_size > LINE_SIZE_MAX:
                raise BadRequest(
                    f"a line of the input is longer than {LINE_SIZE_MAX} bytes. "
                    "The lines before it were processed.",
                    "Check that the input consists of lines of text.",
                )
            return Lines([], 0, False)
        lines = [b"".join(self._partial), *rest[:-1]]
        size = self._partial_size + sum(map(len, rest[:-1])) + len(rest)
        self._partial = [rest[-1]] if rest[-1] else []
        self._partial_size = len(rest[-1])
        return Lines(lines, size, False)

    def finish(self) -> Lines:
        """Return the last line if the input ended without a newline."""
        if not self._partial_size:
            return Lines([], 0, False)
        line = b"".join(self._partial)
        self._partial, self._partial_size = [], 0
        return Lines([line], len(line), True)


async def read_lines(source: BinaryIO) -> AsyncIterator[Lines]:
    """Yield the lines of a file or pipe as they arrive; at most a few chunks are read ahead.

    A daemon thread reads, because it does not keep Ctrl-C from ending the command while the pipe is
    idle. A worker of the loop's own executor would.
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
    """Read what is available, at most a chunk; empty only at the end."""
    try:
        descriptor = source.fileno()
    except OSError:  # not a file of the operating system, but bytes in memory
        return source.read(CHUNK_SIZE)
    # Bypasses the buffer: a thread inside a buffered read holds the buffer's lock, and an
    # interpreter that exits meanwhile aborts because of it.
    return os.read(descriptor, CHUNK_SIZE)
