"""Divides the messages of a request into inner batches, and checks those of a batch request. Pure.

The messages of a batch are found by what its own properties repeat of them: the unique id of the
first, their tag if all have the same, and the keys of all (``inner_batch``). ``split`` makes as
many parts as the limits of a record require, nearly always one. ``read_batch`` checks the entries
of a client that sends them as they are stored. Each is one pass over the entries. The native
implementation is ``speedups.parts``; ``native`` chooses.

Write path, between steps 2 and 4, for topics with batch queues only.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from tidemark.formats import batch, inner_batch, properties
from tidemark.formats.batch import BadBatch, WireMessage
from tidemark.formats.produce_wire import UNIQUE_ID_SIZE_MAX

ID_SIZE_MAX: Final = 4 * UNIQUE_ID_SIZE_MAX
"""Bytes of a batch's unique id. A longer one, of a message of another store, is not the batch's."""
FIXED_SIZE: Final = len(inner_batch.encode_properties("", 32_767, tags=b"t", keys=b"k")) - 2
"""Bytes of a batch's properties without unique id, tag and keys."""
OWN_NAMES: Final = frozenset({"TAGS", "KEYS", "UNIQ_KEY", "__SHARDINGKEY"})
"""Reserved properties that an entry may have: those that have fields of their own in a request."""

_TAGS, _KEYS, _UNIQUE_ID = b"TAGS", b"KEYS", b"UNIQ_KEY"


class Part(NamedTuple):
    """Adjacent messages of a request that become one batch, and what its properties repeat."""

    entries: bytes
    message_count: int
    unique_id: bytes | None
    """That of the first message."""
    tags: bytes | None
    """The tag of all messages; None if they differ, or have none."""
    keys: bytes | None
    """The distinct keys of all messages, in order, joined by spaces."""


class FaultKind(Enum):
    """Why entries are refused."""

    DAMAGED = "damaged"
    TOO_MANY = "too many messages"
    TOO_LARGE = "too large"
    PROPERTY = "property"


class Fault(NamedTuple):
    """The first mistake in the entries of a batch request."""

    kind: FaultKind
    entry: int | None
    """Index of the entry; None: it concerns the whole batch."""
    reason: str
    limit: int | None = None


def words_size_max(properties_size_max: int) -> int:
    """Return how many bytes tag and keys of a batch may have, with the spaces between keys."""
    return properties_size_max - FIXED_SIZE - ID_SIZE_MAX


def split(entries: bytes, *, body_size_max: int, properties_size_max: int) -> list[Part]:
    """Divide entries into batches, in order.

    body_size_max: bytes of entries of one batch; a larger message is a batch alone.
    properties_size_max: bytes of a batch's properties. If those of a single message do not fit, as
    in a message of another store, its last keys or its tag are left out. Raises BadBatch.
    """
    words_max = words_size_max(properties_size_max)
    parts: list[Part] = []
    part = _Part(words_max)
    at = 0
    for entry in batch.iterate(entries):
        size = batch.ENTRY_OVERHEAD + len(entry.body) + len(entry.properties)
        if part.message_count and not part.has_room(entry, size, body_size_max):
            parts.append(part.made(entries[at : at + part.size]))
            at += part.size
            part = _Part(words_max)
        part.add(entry, size)
    if part.message_count:
        parts.append(part.made(entries[at:] if at else entries))
    return parts


def read_batch(
    entries: bytes,
    *,
    message_size_max: int,
    message_properties_size_max: int,
    body_size_max: int,
    properties_size_max: int,
) -> Part | None:
    """Return the one batch that the entries of a batch request make; None if they have a fault.

    message_size_max, message_properties_size_max: bytes of one message's body and properties.
    body_size_max, properties_size_max: as in ``split``. Properties must be UTF-8 pairs with a name
    and a value, the last one with or without 0x02; names that a sender may not set are refused
    except OWN_NAMES: a message of the batch may become a record, when it is nacked. ``fault_of``
    says what the fault is.
    """
    part, fault = _checked(
        entries,
        message_size_max,
        message_properties_size_max,
        body_size_max,
        words_size_max(properties_size_max),
    )
    return None if fault is not None else part.made(entries)


def fault_of(
    entries: bytes,
    *,
    message_size_max: int,
    message_properties_size_max: int,
    body_size_max: int,
    properties_size_max: int,
) -> Fault | None:
    """Return the first fault of the entries; None if ``read_batch`` accepts them."""
    return _checked(
        entries,
        message_size_max,
        message_properties_size_max,
        body_size_max,
        words_size_max(properties_size_max),
    )[1]


def _checked(
    entries: bytes, size_max: int, stored_max: int, body_size_max: int, words_max: int
) -> tuple[_Part, Fault | None]:
    """Return the batch of the entries, and their first fault."""
    part = _Part(words_max)
    too_large = FaultKind.TOO_LARGE
    try:
        for index, entry in enumerate(batch.iterate(entries)):
            size = batch.ENTRY_OVERHEAD + len(entry.body) + len(entry.properties)
            if index == inner_batch.COUNT_MAX:
                limit = inner_batch.COUNT_MAX
                reason = f"the batch has {index + 1} messages or more"
                return part, Fault(FaultKind.TOO_MANY, None, reason, limit)
            if len(entry.body) > size_max:
                reason = f"the body has {len(entry.body)} bytes"
                return part, Fault(too_large, index, reason, size_max)
            if len(entry.properties) > stored_max:
                reason = f"the properties have {len(entry.properties)} bytes"
                return part, Fault(FaultKind.PROPERTY, index, reason, stored_max)
            if reason := _property_fault(bytes(entry.properties)):
                return part, Fault(FaultKind.PROPERTY, index, reason)
            if part.size + size > body_size_max and index:
                reason = f"the messages have {part.size + size} bytes or more"
                return part, Fault(too_large, None, reason, body_size_max)
            if not part.has_room_for_words(entry):
                reason = "up to here the keys of all messages have too many bytes for one batch"
                return part, Fault(too_large, index, reason, words_max)
            part.add(entry, size)
    except BadBatch as error:
        return part, Fault(FaultKind.DAMAGED, error.entry, error.reason)
    if not part.message_count:
        return part, Fault(FaultKind.DAMAGED, None, "there are no messages")
    return part, None


def _property_fault(raw: bytes) -> str:
    """Return what is wrong with an entry's properties; "" if nothing is."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "the properties are not UTF-8"
    for segment in raw.removesuffix(b"\x02").split(b"\x02") if raw else ():
        name, _, value = segment.partition(b"\x01")
        if not name or not value:
            return "a property has no name or no value"
        if properties.is_refused(name.decode()) and name.decode() not in OWN_NAMES:
            return f"the property {name.decode()!r} is reserved for the store"
        if name == _UNIQUE_ID and not _is_unique_id(value):
            limit = UNIQUE_ID_SIZE_MAX
            return f"a unique id has a space or 0x01, or more than {limit} characters"
    return ""


def _is_unique_id(value: bytes) -> bool:
    return not {0x20, 0x01} & set(value) and len(value.decode()) <= UNIQUE_ID_SIZE_MAX


class _Part:
    """The batch that is being made of entries."""

    def __init__(self, words_max: int) -> None:
        self.size = self.message_count = 0
        self._unique_id: bytes | None = None
        self._tags: bytes | None = None
        self._has_one_tag = True
        self._keys: dict[bytes, None] = {}
        self._room = words_max + 1
        """Bytes left for the first message's tag and for keys, with a separator after each."""

    def has_room(self, entry: WireMessage, size: int, body_size_max: int) -> bool:
        """Return whether an entry of size bytes may follow those of the batch."""
        return (
            self.message_count < inner_batch.COUNT_MAX
            and self.size + size <= body_size_max
            and self.has_room_for_words(entry)
        )

    def has_room_for_words(self, entry: WireMessage) -> bool:
        """Return whether the entry's keys, and its tag if it is the first, fit."""
        raw = bytes(entry.properties)
        words = self._new_keys(raw)
        if not self.message_count and (tags := properties.find(raw, _TAGS)) is not None:
            words.append(tags)
        return sum(len(word) + 1 for word in words) <= self._room

    def _new_keys(self, raw: bytes) -> list[bytes]:
        found = properties.find(raw, _KEYS) or b""
        return [key for key in dict.fromkeys(found.split(b" ")) if key and key not in self._keys]

    def add(self, entry: WireMessage, size: int) -> None:
        """Add an entry of size bytes; keys and a tag that do not fit are left out."""
        raw = bytes(entry.properties)
        tags = properties.find(raw, _TAGS)
        if self.message_count:
            self._has_one_tag = self._has_one_tag and tags == self._tags
        else:
            unique_id = properties.find(raw, _UNIQUE_ID)
            if unique_id is not None and len(unique_id) <= ID_SIZE_MAX:
                self._unique_id = unique_id
            if tags is not None and self._takes(tags):
                self._tags = tags
        for key in self._new_keys(raw):
            if self._takes(key):
                self._keys[key] = None
        self.size += size
        self.message_count += 1

    def _takes(self, word: bytes) -> bool:
        """Reserve the bytes of a word; return False if they are not left."""
        if len(word) + 1 > self._room:
            return False
        self._room -= len(word) + 1
        return True

    def made(self, entries: bytes) -> Part:
        """Return the batch. entries: those that were added."""
        tags = self._tags if self._has_one_tag else None
        keys = b" ".join(self._keys) or None
        return Part(entries, self.message_count, self._unique_id, tags, keys)
