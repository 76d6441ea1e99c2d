"""Columns of commit log records, made with array operations (docs/formats.md, section 2).

From the bytes of records and their outlines (``tidemark.formats.outline``) it makes Arrow arrays. A
column costs a few nanoseconds per record, without a Python object. Only requested columns are made.
Store and topic sources share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analytics.schema import TIME
from tidemark.formats import hashing, native
from tidemark.formats.outline import ROW, Outlines

ROWS: Final = np.dtype(
    [
        ("start", "=i8"),
        ("size", "=i4"),
        ("body_at", "=i4"),
        ("body_size", "=i4"),
        ("topic", "=i4"),
        ("properties_at", "=i4"),
        ("properties_size", "=i4"),
        ("sound", "=i4"),
        ("sys_flag", "=i4"),
    ]
)
"""``outline.ROW`` as a numpy type."""
assert ROWS.itemsize == ROW.size

_MS_MIN: Final = -62_135_596_800_000
_MS_MAX: Final = 253_402_300_799_999
"""End of year 9999. A time outside of years 1 to 9999 is damage, and unknown."""
_V6_SHIFT: Final = 12
"""Difference in bytes of an IPv6 and an IPv4 host."""

Numbers = npt.NDArray[np.int64]


class RecordColumns:
    """The columns of the records of one view; used while the view is held."""

    def __init__(self, view: bytes, found: Outlines) -> None:
        self._view = view
        self._found = found
        self.rows = np.frombuffer(found.rows, ROWS)
        self.starts: Numbers = self.rows["start"]

    def __len__(self) -> int:
        return len(self.rows)

    def never_written(self) -> npt.NDArray[np.bool_]:
        """Records that end in an impossible zero: a crash or a truncated copy kept their sizes and
        lost their ends. No CRC detects it, because the CRC is also at the end."""
        # Properties end in 0x02 or in text. Without properties, the topic is followed by two zeros.
        behind = np.where(self.rows["properties_size"] > 0, 1, 3)
        at = self.starts + self.rows["size"] - behind
        zeros: npt.NDArray[np.bool_] = np.frombuffer(self._view, np.uint8)[at] == 0
        return zeros

    def only(self, wanted: npt.NDArray[np.bool_]) -> RecordColumns:
        """Return the columns of the wanted records only."""
        return RecordColumns(self._view, self._found._replace(rows=self.rows[wanted].tobytes()))

    def column(self, name: str) -> pa.Array:
        """The column of a name in ``NAMES``."""
        return _MAKERS[name](self)

    # -- fixed fields -----------------------------------------------------------------------------

    def _gathered(self, at: Numbers, kind: str) -> npt.NDArray[Any]:
        """The big-endian numbers of that kind at these positions of the view."""
        kind_size = np.dtype(kind).itemsize
        room = max(0, len(self._view) - kind_size + 1)
        # A number at every byte, unaligned; numpy reads only the requested ones.
        everywhere: npt.NDArray[Any] = np.ndarray((room,), kind, self._view, 0, (1,))
        return everywhere[at].astype(kind.replace(">", "="))

    def physical_offset(self) -> pa.Array:
        """Physical offset, as stored in the record."""
        return pa.array(self._gathered(self.starts + 28, ">i8"))

    def _field(self, name: str) -> pa.Array:
        return pa.array(np.ascontiguousarray(self.rows[name]))

    def queue(self) -> pa.Array:
        """Number of the queue."""
        return pa.array(self._gathered(self.starts + 12, ">i4"))

    def queue_offset(self) -> pa.Array:
        """Number of the message in its queue."""
        return pa.array(self._gathered(self.starts + 20, ">i8"))

    def born_ts(self) -> pa.Array:
        """Time by the producer's clock."""
        return times(self._gathered(self.starts + 40, ">i8"))

    def store_ts(self) -> pa.Array:
        """Time by the broker's clock."""
        after_born_host = self.starts + 56 + _V6_SHIFT * (self.rows["sys_flag"] >> 4 & 1)
        return times(self._gathered(after_born_host, ">i8"))

    def reconsume_times(self) -> pa.Array:
        """Return how often the message was redelivered."""
        return pa.array(self._gathered(self.starts + self.rows["body_at"] - 16, ">i4"))

    # -- texts ------------------------------------------------------------------------------------

    def topic(self) -> pa.Array:
        """Topic names; each is decoded once per view."""
        numbers = pa.array(np.ascontiguousarray(self.rows["topic"]))
        names = pa.array(self._found.topics, pa.string())
        return names.take(numbers)

    def property(self, name: bytes) -> pa.Array:
        """Values of a property; null in records without it."""
        values = native.property_values(self._view, self._found.rows, wanted=name)
        present = np.frombuffer(values.present, np.uint8)
        validity = np.packbits(present, bitorder="little")
        return pa.Array.from_buffers(
            pa.string(),
            len(self),
            [pa.py_buffer(validity), pa.py_buffer(values.offsets), pa.py_buffer(values.data)],
        )

    def tag_hash(self) -> pa.Array:
        """Return the hash of the tags as a queue unit stores it; 0 without tags."""
        tags = self.property(b"TAGS").dictionary_encode()
        hashes = pa.array(
            [hashing.tags_code(tag) for tag in tags.dictionary.to_pylist()], pa.int64()
        )
        return hashes.take(tags.indices).fill_null(0)

    def crc_ok(self) -> pa.Array:
        """Whether the CRCs of body and record are correct; null: not verified."""
        sound = self.rows["sound"]
        return pa.array(sound == 1, pa.bool_(), mask=sound < 0)

    def body(self) -> pa.Array:
        """The bodies, copied."""
        firsts = self.starts + self.rows["body_at"]
        lasts = firsts + self.rows["body_size"]
        view = memoryview(self._view)
        return pa.array(
            [view[first:last] for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)],
            pa.binary(),
        )

    def raw_properties(self) -> list[bytes]:
        """Properties as stored, as one text."""
        firsts = self.starts + self.rows["properties_at"]
        lasts = firsts + self.rows["properties_size"]
        return [
            self._view[first:last]
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
        ]


_MAKERS: Final[dict[str, Callable[[RecordColumns], pa.Array]]] = {
    "physical_offset": RecordColumns.physical_offset,
    "size": lambda columns: columns._field("size"),
    "topic": RecordColumns.topic,
    "queue": RecordColumns.queue,
    "queue_offset": RecordColumns.queue_offset,
    "born_ts": RecordColumns.born_ts,
    "store_ts": RecordColumns.store_ts,
    "tag_hash": RecordColumns.tag_hash,
    "tag": lambda columns: columns.property(b"TAGS"),
    "keys": lambda columns: columns.property(b"KEYS"),
    "unique_id": lambda columns: columns.property(b"UNIQ_KEY"),
    "sys_flag": lambda columns: columns._field("sys_flag"),
    "reconsume_times": RecordColumns.reconsume_times,
    "body_size": lambda columns: columns._field("body_size"),
    "crc_ok": RecordColumns.crc_ok,
    "body": RecordColumns.body,
}
NAMES: Final = frozenset(_MAKERS)
"""Builders by column name."""


def times(ms: Numbers) -> pa.Array:
    """Milliseconds since 1970 as times; null outside the years 1 to 9999."""
    mask = (ms < _MS_MIN) | (ms > _MS_MAX)
    if not mask.any():
        return pa.array(ms * 1000).view(TIME)
    return pa.array(np.where(mask, 0, ms) * 1000, mask=mask).view(TIME)


def repeated(text: str, count: int) -> pa.Array:
    """The same text for every row."""
    return pa.repeat(pa.scalar(text, pa.string()), count)
