"""The file of the epoch table, epochFileCheckpoint (docs/formats.md, section 1.3). Pure.

It is text: the number of entries, a masked CRC-32 over all that follows, then one line
``epoch-startOffset`` per entry. The order of epochs is not checked here. A ``.bak`` copy is read
instead if this file is unreadable or empty.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from tidemark.offsets import Epoch, PhysicalOffset

_LINE: Final = re.compile(r"(\d{1,10})-(\d{1,19})\Z", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,10}\Z", re.ASCII)
_EPOCH_MAX: Final = 2**31 - 1
_OFFSET_MAX: Final = 2**63 - 1


class EpochsUnreadable(ValueError):
    """The bytes are not a complete epoch table."""


class EpochStart(NamedTuple):
    """An epoch, and where in the commit log its first record is."""

    epoch: Epoch
    start: PhysicalOffset


def encode(entries: Sequence[EpochStart]) -> bytes:
    """Encode the file; lines end with LF."""
    body = "".join(f"{entry.epoch}-{entry.start}\n" for entry in entries).encode("ascii")
    return f"{len(entries)}\n{_masked_crc(body)}\n".encode("ascii") + body


def decode(data: bytes) -> list[EpochStart]:
    """Return the entries in file order. Lines may end in CR LF; a CRC of 0 is not compared.

    Raises EpochsUnreadable, even for an empty file: then the ``.bak`` copy is read.
    """
    count_line, count_found, rest = data.partition(b"\n")
    crc_line, crc_found, body = rest.partition(b"\n")
    count = _number(count_line, "the number of entries")
    if count == 0 and not rest:
        return []  # the reference implementation stops reading here
    if not count_found or not crc_found:
        raise EpochsUnreadable("the file ends within its first two lines")
    stored_crc = _number(crc_line, "the CRC")
    if stored_crc and stored_crc != _masked_crc(body):
        raise EpochsUnreadable(f"CRC-32 is {_masked_crc(body)}, the file has {stored_crc}")
    entries = [_entry(line) for line in body.split(b"\n") if line.strip(b"\r")]
    if len(entries) != count:
        raise EpochsUnreadable(f"{len(entries)} entries, the file has the count {count}")
    return entries


def _entry(line: bytes) -> EpochStart:
    match = _LINE.match(_text(line))
    if match is None:
        raise EpochsUnreadable(f"{line[:60]!r} is not an epoch and a start offset")
    epoch, start = int(match[1]), int(match[2])
    if epoch > _EPOCH_MAX or start > _OFFSET_MAX:
        raise EpochsUnreadable(f"{line[:60]!r} is out of range")
    return EpochStart(Epoch(epoch), PhysicalOffset(start))


def _number(line: bytes, what: str) -> int:
    text = _text(line)
    if not _NUMBER.match(text):
        raise EpochsUnreadable(f"{what} is {line[:60]!r}")
    return int(text)


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("ascii", "replace")


def _masked_crc(body: bytes) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF
