"""Columns of commit log records, made with array operations (docs/formats.md, section 2).

From the bytes of records and their outlines (``tidemark.formats.outline``) it makes Arrow arrays. A
column costs a few nanoseconds per message, without a Python object. Only requested columns are
made. A message of an inner batch has the position, size, times and CRCs of the batch's record.
Store and topic sources share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analytics.schema import TIME
from tidemark.formats import hashing, native
from tidemark.formats.inner_batch import INNER_BATCH
from tidemark.formats.outline import ROW, Outlines
from tidemark.formats.record_layout import Buffer

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
        ("number", "=i4"),
        ("torn", "=i4"),
        ("queue", "=i4"),
        ("reconsume_times", "=i4"),
        ("queue_offset", "=i8"),
        ("physical_offset", "=i8"),
        ("born_ms", "=i8"),
        ("store_ms", "=i8"),
    ]
)
"""``outline.ROW`` as a numpy type."""
assert ROWS.itemsize == ROW.size

_MS_MIN: Final = -62_135_596_800_000
_MS_MAX: Final = 253_402_300_799_999
"""End of year 9999. A time outside of years 1 to 9999 is damage, and unknown."""

Numbers = npt.NDArray[np.int64]


class RecordColumns:
    """The columns of the messages of one view; used while the view is held."""

    def __init__(self, view: Buffer, found: Outlines) -> None:
        self._view = view
        self._found = found
        self.rows = np.frombuffer(found.rows, ROWS)
        self.starts: Numbers = self.rows["start"]

    def __len__(self) -> int:
        return len(self.rows)

    def never_written(self) -> npt.NDArray[np.bool_]:
        """Records whose ends a crash or a truncated copy lost."""
        torn: npt.NDArray[np.bool_] = self.rows["torn"] != 0
        return torn

    def unpacked(self) -> tuple[RecordColumns, npt.NDArray[np.bool_]]:
        """Return the columns of the messages, and which records are batches without their messages.

        Such a batch does not hold as many messages as it says, and none of them is returned.
        """
        broken = np.zeros(len(self), bool)
        if not (self.rows["sys_flag"] & INNER_BATCH).any():
            return self, broken
        found = native.unpack_rows(self._view, self._found.rows)
        broken[found.damaged] = True
        return RecordColumns(self._view, self._found._replace(rows=found.rows)), broken

    def only(self, wanted: npt.NDArray[np.bool_]) -> RecordColumns:
        """Return the columns of the wanted rows only."""
        return RecordColumns(self._view, self._found._replace(rows=self.rows[wanted].tobytes()))

    def column(self, name: str) -> pa.Array:
        """The column of a name in ``NAMES``."""
        return _MAKERS[name](self)

    # -- fixed fields -----------------------------------------------------------------------------

    def field(self, name: str) -> pa.Array:
        """A field of the outline."""
        return pa.array(np.ascontiguousarray(self.rows[name]))

    def queue_offset(self) -> pa.Array:
        """Queue offset of the message; a record has that of its first one."""
        return pa.array(self.rows["queue_offset"] + self.rows["number"])

    def time(self, name: str) -> pa.Array:
        """A field of the outline with milliseconds since 1970 as times."""
        return times(self.rows[name])

    # -- texts ------------------------------------------------------------------------------------

    def topic(self) -> pa.Array:
        """Topic names; each is decoded once per view."""
        return pa.array(self._found.topics, pa.string()).take(self.field("topic"))

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

    def stored(self, name: str) -> list[memoryview]:
        """The bytes of the bodies (`body`) or of the properties (`properties`)."""
        view = memoryview(self._view)
        firsts = self.starts + self.rows[f"{name}_at"]
        lasts = firsts + self.rows[f"{name}_size"]
        return [view[low:high] for low, high in zip(firsts.tolist(), lasts.tolist(), strict=True)]


_MAKERS: Final[dict[str, Callable[[RecordColumns], pa.Array]]] = {
    "physical_offset": lambda of: of.field("physical_offset"),
    "size": lambda of: of.field("size"),
    "topic": RecordColumns.topic,
    "queue": lambda of: of.field("queue"),
    "queue_offset": RecordColumns.queue_offset,
    "born_ts": lambda of: of.time("born_ms"),
    "store_ts": lambda of: of.time("store_ms"),
    "tag_hash": RecordColumns.tag_hash,
    "tag": lambda of: of.property(b"TAGS"),
    "keys": lambda of: of.property(b"KEYS"),
    "unique_id": lambda of: of.property(b"UNIQ_KEY"),
    "sys_flag": lambda of: of.field("sys_flag"),
    "reconsume_times": lambda of: of.field("reconsume_times"),
    "body_size": lambda of: of.field("body_size"),
    "crc_ok": RecordColumns.crc_ok,
    "body": lambda of: pa.array(of.stored("body"), pa.binary()),
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
