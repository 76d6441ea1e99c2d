"""Wire entries of a batch: the messages of a produce request (docs/formats.md, 2.12). Pure.

Entries follow each other without a count or separators. The first three fields are written but not
read; the lengths locate the next entry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tidemark.formats.properties import PROPERTIES_SIZE_MAX

ENTRY_OVERHEAD: Final = 22

_HEAD: Final = struct.Struct(">iiiii")  # total size, magic 0, body crc 0, flag, body size
_BODY_SIZE: Final = struct.Struct(">16xi")
_PROPERTIES_SIZE: Final = struct.Struct(">h")


class WireMessage(NamedTuple):
    """One entry. From ``iterate``, body and properties borrow from the batch."""

    body: bytes | memoryview
    properties: bytes | memoryview = b""
    flag: int = 0


class BadBatch(ValueError):
    """The bytes are not a batch. ``entry`` is the index of the entry, ``at`` its first byte."""

    def __init__(self, entry: int, at: int, reason: str) -> None:
        self.entry, self.at, self.reason = entry, at, reason
        super().__init__(f"batch entry {entry} at byte {at}: {reason}")


class TruncatedEntry(BadBatch):
    """The batch ends inside an entry."""


class BadEntrySize(BadBatch):
    """A length is negative, or the properties exceed the limit of a record."""


def encode(messages: Iterable[WireMessage]) -> bytes:
    """Encode entries one after another. Raises BadEntrySize if one has too long properties."""
    parts: list[bytes | memoryview] = []
    size = 0
    for number, message in enumerate(messages):
        body_size, properties_size = len(message.body), len(message.properties)
        if properties_size > PROPERTIES_SIZE_MAX:
            raise BadEntrySize(number, size, f"{properties_size} bytes of properties")
        total = ENTRY_OVERHEAD + body_size + properties_size
        parts.append(_HEAD.pack(total, 0, 0, message.flag, body_size))
        parts.append(message.body)
        parts.append(_PROPERTIES_SIZE.pack(properties_size))
        parts.append(message.properties)
        size += total
    return b"".join(parts)


def first_body_size(batch: bytes) -> int:
    """Return the size of the first entry's body [bytes]; ``iterate`` would accept the batch."""
    size: int = _BODY_SIZE.unpack_from(batch)[0]
    return size


def entry_at(batch: bytes | bytearray | memoryview, at: int) -> WireMessage:
    """Return the entry that begins at byte ``at``; ``iterate`` has accepted the batch."""
    view = memoryview(batch)
    _, _, _, flag, body_size = _HEAD.unpack_from(view, at)
    body_at = at + _HEAD.size
    properties_at = body_at + body_size + _PROPERTIES_SIZE.size
    (size,) = _PROPERTIES_SIZE.unpack_from(view, properties_at - _PROPERTIES_SIZE.size)
    body = view[body_at : body_at + body_size]
    return WireMessage(body, view[properties_at : properties_at + size], flag)


def iterate(batch: bytes | bytearray | memoryview) -> Iterator[WireMessage]:
    """Yield the entries in order. Raises BadBatch at the first that cannot be decoded."""
    view = memoryview(batch)
    at = number = 0
    while at < len(view):
        body_at = at + _HEAD.size
        if body_at > len(view):
            raise TruncatedEntry(number, at, f"{len(view) - at} bytes are too few for an entry")
        _, _, _, flag, body_size = _HEAD.unpack_from(view, at)
        if body_size < 0:
            raise BadEntrySize(number, at, f"body size {body_size}")
        properties_at = body_at + body_size + 2
        if properties_at > len(view):
            raise TruncatedEntry(number, at, f"a body of {body_size} bytes exceeds the batch")
        (properties_size,) = _PROPERTIES_SIZE.unpack_from(view, properties_at - 2)
        if properties_size < 0:
            raise BadEntrySize(number, at, f"properties size {properties_size}")
        end = properties_at + properties_size
        if end > len(view):
            raise TruncatedEntry(
                number, at, f"{properties_size} bytes of properties exceed the batch"
            )
        yield WireMessage(view[body_at : properties_at - 2], view[properties_at:end], flag)
        at, number = end, number + 1
