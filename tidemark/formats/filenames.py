"""Names of the fixed-size files (docs/formats.md, section 1.1). Pure.

A file of the commit log or of a queue is named by the offset of its first byte, in 20 digits. An
index file is named by the local time of its creation, in 17 digits. Both sort as strings in the
order of their content. ``shared.files.mapped_file_queue`` checks whether a name fits its
neighbours.
"""

from __future__ import annotations

import datetime
from typing import Final

OFFSET_DIGITS: Final = 20
OFFSET_MAX: Final = 2**63 - 1
"""Offsets are signed 64 bit everywhere, so no file can have a larger name."""

RUNNING_SIGN: Final = "tidemark-is-running"
"""A symbolic link in commitlog/ of a store that a process has open (docs/formats.md, section 8)."""

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def offset_name(offset: int) -> str:
    """The name of the file that starts at offset (bytes). Raises ValueError outside 0…2^63−1."""
    if not 0 <= offset <= OFFSET_MAX:
        raise ValueError(f"offset {offset} is not in 0…{OFFSET_MAX}")
    return f"{offset:020d}"


def parse_offset_name(name: str) -> int | None:
    """The start offset in a name; None if it is not 20 digits, or beyond 2^63−1."""
    if len(name) != OFFSET_DIGITS or not _is_digits(name):
        return None
    offset = int(name)
    return offset if offset <= OFFSET_MAX else None


def index_name(wall_ms: int, utc_offset_s: int = 0, *, after: str | None = None) -> str:
    """The name of an index file created now: local time as yyyyMMddHHmmssSSS.

    wall_ms: ms since 1970 UTC. utc_offset_s: local time minus UTC in seconds. after: the name of
    the newest file; the result is always larger. Otherwise a clock that is set back (or the
    repeated hour in autumn) would sort the new file before its predecessor, and queries, which stop
    at the first file that is too old, would stop too early.
    """
    local = _EPOCH + datetime.timedelta(milliseconds=wall_ms, seconds=utc_offset_s)
    name = local.strftime("%Y%m%d%H%M%S").rjust(14, "0") + f"{local.microsecond // 1000:03d}"
    previous = parse_index_name(after) if after is not None else None
    if previous is not None and int(name) <= previous:
        return f"{previous + 1:017d}"
    return name


def parse_index_name(name: str) -> int | None:
    """The number in a name; None for other names, which RocketMQ skips as well."""
    if not 1 <= len(name) <= 19 or not _is_digits(name):
        return None
    number = int(name)
    return number if number <= OFFSET_MAX else None


def _is_digits(name: str) -> bool:
    # isdigit alone also accepts Arabic-Indic and superscript digits.
    return name.isascii() and name.isdigit()
