"""Conversion between columns of Arrow tables and numpy arrays; grouping of rows. Pure.

In arrays, times are int64 microseconds since 1970 and unknown numbers are NaN. A whole number that
may be unknown is a float, which is exact below 2**53.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analytics.schema import TIME

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SECOND: Final = 1_000_000  # microseconds


class Groups(NamedTuple):
    """Rows sorted by key.
    order: the sorted rows; starts: start of each group in that order; of: group of each row in that
    order."""

    order: Ints
    starts: Ints
    of: Ints

    @property
    def sizes(self) -> Ints:
        """Rows per group."""
        return np.diff(np.append(self.starts, self.order.size))


def micros(table: pa.Table, name: str) -> Ints:
    """A column of times without nulls, as microseconds since 1970."""
    column = table.column(name)
    if column.null_count:
        raise ValueError(f"{column.null_count} nulls in the column {name}")
    return np.asarray(column.cast(TIME).cast(pa.int64()).to_numpy(), dtype=np.int64)


def instants(table: pa.Table, name: str) -> Floats:
    """Times of a column as microseconds since 1970; NaN for null and for a missing column. The
    values are whole numbers below 2**53, so differences are exact if the division by SECOND comes
    last."""
    if name not in table.column_names:
        return np.full(table.num_rows, np.nan)
    column = table.column(name).cast(TIME).cast(pa.int64()).cast(pa.float64())
    return np.asarray(column.to_numpy(), dtype=np.float64)


def floats(table: pa.Table, name: str) -> Floats:
    """Numbers of a column; NaN for null and for a missing column."""
    if name not in table.column_names:
        return np.full(table.num_rows, np.nan)
    return np.asarray(table.column(name).cast(pa.float64()).to_numpy(), dtype=np.float64)


def ints(table: pa.Table, name: str) -> Ints:
    """A column of whole numbers without nulls."""
    column = table.column(name)
    if column.null_count:
        raise ValueError(f"{column.null_count} nulls in the column {name}")
    return np.asarray(column.cast(pa.int64()).to_numpy(), dtype=np.int64)


def truths(table: pa.Table, name: str) -> Bools:
    """A column of booleans as an array; null counts as false."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, dtype=np.bool_)
    return np.asarray(pc.fill_null(table.column(name), False).to_numpy(), dtype=np.bool_)


def codes(*columns: pa.ChunkedArray) -> tuple[Ints, ...]:
    """Texts of several columns as numbers: equal texts have equal numbers, null is −1."""
    joined = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
    encoded = joined.combine_chunks().dictionary_encode()
    numbers = np.asarray(pc.fill_null(encoded.indices, -1).to_numpy(False), dtype=np.int64)
    cuts = np.cumsum([len(column) for column in columns])[:-1]
    return tuple(np.split(numbers, cuts))


def equals(column: pa.ChunkedArray, text: str) -> pa.ChunkedArray:
    """Return where a column of texts or of dictionaries of texts has this one; not at nulls."""
    chunks = [
        pc.equal(chunk.indices, pc.index(chunk.dictionary, text))
        if pa.types.is_dictionary(chunk.type)
        else pc.equal(chunk, text)
        for chunk in column.chunks
    ]
    return pa.chunked_array([pc.fill_null(each, False) for each in chunks], pa.bool_())


def joined(table: pa.Table, *names: str) -> pa.ChunkedArray:
    """Joined texts of several columns, for use as one key; null if any is null."""
    return pc.binary_join_element_wise(*(table.column(name) for name in names), "\x1f")


def named(table: pa.Table, *names: str) -> tuple[Ints, list[tuple[str, ...]]]:
    """A code for each row's texts in several columns, and the texts of each code; no nulls."""
    encoded = joined(table, *names).combine_chunks().dictionary_encode()
    each = [tuple(text.split("\x1f")) for text in encoded.dictionary.to_pylist()]
    return np.asarray(encoded.indices.to_numpy(False), dtype=np.int64), each


def grouped(*keys: Ints) -> Groups:
    """Sort rows by the first key, then the next; rows of equal keys keep their order."""
    order = np.lexsort(keys[::-1]).astype(np.int64)
    changed = np.zeros(order.size, dtype=np.bool_)
    changed[:1] = True
    for key in keys:
        in_order = key[order]
        changed[1:] |= in_order[1:] != in_order[:-1]
    return Groups(order, np.flatnonzero(changed).astype(np.int64), np.cumsum(changed) - 1)


def last_of(*keys: Ints) -> Ints:
    """Return the row with the largest last key for each combination of the other keys, sorted by
    these."""
    order = np.lexsort(keys[::-1])
    last = np.zeros(order.size, dtype=np.bool_)
    last[-1:] = True
    for key in keys[:-1]:
        last[:-1] |= key[order][1:] != key[order][:-1]
    return order[last].astype(np.int64)


def keyed(key: Ints, at: Ints, wanted_key: Ints, wanted_at: Ints) -> tuple[Ints, Ints]:
    """Combine key and time into one number that sorts by key, then time, comparably for both
    tables, which must have rows."""
    names = np.unique(np.concatenate([key, wanted_key]), return_inverse=True)[1].reshape(-1)
    low = min(int(at.min()), int(wanted_at.min()))
    span = max(int(at.max()), int(wanted_at.max())) - low + 2
    return names[: key.size] * span + (at - low), names[key.size :] * span + (wanted_at - low)


def places(key: Ints, at: Ints, wanted_key: Ints, wanted_at: Ints) -> Ints:
    """Row of each wanted key and time in rows sorted by key and time; −1 if it is not there."""
    if not key.size or not wanted_key.size:
        return np.full(wanted_key.size, -1, dtype=np.int64)
    keys, wanted = keyed(key, at, wanted_key, wanted_at)
    found = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where(keys[found] == wanted, found, -1)


def beside(table: pa.Table, rows: Ints) -> pa.Table:
    """The rows of a table with these numbers; a row of nulls for the number −1."""
    return table.take(pa.array(rows, mask=rows < 0))


def nullable(values: Floats, kind: pa.DataType | None = None) -> pa.Array:
    """Numbers with NaN as null; whole numbers are rounded to the nearest."""
    kind = kind or pa.float64()
    unknown = np.isnan(values)
    if pa.types.is_integer(kind):
        return pa.array(np.rint(np.where(unknown, 0, values)).astype(np.int64), mask=unknown).cast(
            kind
        )
    return pa.array(values, mask=unknown)


def thousandths(values: Floats) -> Floats:
    """Return the values rounded to three decimals: seconds to the millisecond of the clocks that
    they come from."""
    rounded: Floats = np.rint(values * 1000) / 1000
    return rounded


def significant(values: Floats, digits: int) -> Floats:
    """Return the values rounded to so many significant digits; 0, NaN and infinity stay."""
    plain = np.isfinite(values) & (values != 0)
    scale = np.zeros(values.shape)
    np.log10(np.abs(values), out=scale, where=plain)
    scale = 10.0 ** (digits - 1 - np.floor(scale))
    return np.where(plain, np.rint(values * scale) / scale, values)


def times(values: Ints) -> pa.Array:
    """Microseconds since 1970 as a column of times."""
    return pa.array(values, pa.int64()).cast(TIME)


def nullable_times(values: Floats) -> pa.Array:
    """Microseconds since 1970 as a column of times; NaN as null."""
    return nullable(values, pa.int64()).cast(TIME)


def words(choices: Sequence[str | None], chosen: Ints) -> pa.Array:
    """Return words by index."""
    return pa.array(choices, pa.string()).take(pa.array(chosen))
