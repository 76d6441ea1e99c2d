"""Samples as arrays of codes, and functions that turn many metrics into few rows. Pure.

A *scrape* is one target at one instant; all its samples have one code. A *key* is a whole number
made of codes, so that joins are searches in sorted arrays. No function loops over rows. Step
before: sources made the table ``samples``. Step after: ``shape`` makes typed tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.columns import Bools, Floats, Ints, nullable
from analytics.schema import TIME

NO_QUEUE: Final = -1
DENSE: Final = 8
"""Keys are marked in an array of their range if it is at most this many times their number."""
CONTEXT: Final = "context"
"""``source`` of samples that another partition has as well: they are used, not written."""
GAP_METRIC: Final = "_gap"
"""Metric of the rows that name what a source could not read (``sources.gaps``)."""


class Coded(NamedTuple):
    """A column of strings as codes, and the string of each code. Null is the empty string."""

    codes: Ints
    names: list[str]

    @classmethod
    def of(cls, table: pa.Table, column: str) -> Coded:
        """One column of a table, of texts or of dictionaries of texts."""
        if pa.types.is_dictionary(table.schema.field(column).type):
            return cls._of_dictionaries(table.column(column))
        values = table.column(column).combine_chunks()
        if isinstance(values, pa.ChunkedArray):  # combine_chunks of a column without rows
            values = (
                pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], "string")
            )
        encoded = values.cast(pa.string()).fill_null("").dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(codes, encoded.dictionary.to_pylist())

    @classmethod
    def _of_dictionaries(cls, column: pa.ChunkedArray) -> Coded:
        chunks = column.unify_dictionaries().chunks
        names = chunks[0].dictionary.to_pylist() if chunks else []
        if column.null_count and "" not in names:
            names.append("")
        none = names.index("") if column.null_count else 0
        codes = [np.asarray(chunk.indices.fill_null(none), np.int64) for chunk in chunks]
        return cls(np.concatenate(codes) if codes else np.zeros(0, np.int64), names)

    def code(self, name: str) -> int:
        """Code of a name; -1 if no row has it."""
        return self.names.index(name) if name in self.names else -1

    def take(self, codes: Ints) -> pa.Array:
        """Names of these codes, as strings."""
        return pa.array(self.names, pa.string()).take(pa.array(codes))

    def at(self, rows: Ints) -> pa.Array:
        """Names of these rows."""
        return self.take(self.codes[rows])

    def is_in(self, names: Sequence[str] | frozenset[str]) -> Bools:
        """Return which rows have one of these names."""
        wanted = np.array([name in names for name in self.names], dtype=bool)
        return wanted[self.codes] if wanted.size else np.zeros(len(self.codes), dtype=bool)


class Grouped(NamedTuple):
    """Sorted unique keys, and the index of each row's key."""

    keys: Ints
    at: Ints

    @classmethod
    def of(cls, keys: Ints) -> Grouped:
        """Group one key per row. Keys of a small range are marked in an array instead of sorted."""
        if len(keys):
            low = int(keys.min())
            span = int(keys.max()) - low + 1
            if span <= DENSE * len(keys):
                return cls._dense(keys - low, span, low)
        found, at = np.unique(keys, return_inverse=True)
        return cls(found, at.astype(np.int64))

    @classmethod
    def _dense(cls, places: Ints, span: int, low: int) -> Grouped:
        seen = np.zeros(span, dtype=bool)
        seen[places] = True
        number = np.cumsum(seen, dtype=np.int64)
        return cls(np.flatnonzero(seen) + low, number[places] - 1)

    @classmethod
    def of_sparse(cls, keys: Ints) -> Grouped:
        """Group keys that have few different values in a wide range, like times."""
        encoded = pa.array(keys).dictionary_encode()
        found = encoded.dictionary.to_numpy()
        order = np.argsort(found)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        return cls(found[order], rank[encoded.indices.to_numpy()])

    def first_rows(self) -> Ints:
        """One row of each key, for values that all rows of a key share."""
        rows = np.zeros(len(self.keys), dtype=np.int64)
        rows[self.at[::-1]] = np.arange(len(self.at) - 1, -1, -1)
        return rows


class Rows:
    """The coded samples. All arrays have the length of the table."""

    def __init__(self, samples: pa.Table) -> None:
        self.metric = Coded.of(samples, "metric")
        self.source = Coded.of(samples, "source")
        self.target = Coded.of(samples, "target")
        self.cluster = Coded.of(samples, "cluster")
        self.broker = Coded.of(samples, "broker")
        self.replica = Coded.of(samples, "replica")
        self.service = Coded.of(samples, "service")
        self.group = Coded.of(samples, "group")
        self.topic = Coded.of(samples, "topic")
        self.labels = Coded.of(samples, "labels")
        times = samples.column("ts").cast(TIME).cast(pa.int64())
        self.ts: Ints = times.to_numpy().astype(np.int64)
        queue = samples.column("queue").fill_null(NO_QUEUE).cast(pa.int64())
        self.queue: Ints = queue.to_numpy().astype(np.int64)
        self.value: Floats = samples.column("value").to_numpy().astype(np.float64)
        self.is_own: Bools = ~self.source.is_in((CONTEXT,))
        self.set = Grouped.of(self.cluster.codes * (len(self.broker.names) + 1) + self.broker.codes)
        self.node = Grouped.of(self.set.at * (len(self.replica.names) + 1) + self.replica.codes)
        """Key of a node: its three processes share it."""
        instant = Grouped.of_sparse(self.ts)
        process = self.node.at * (len(self.target.names) + 1) + self.target.codes
        self.scrape = Grouped.of(process * (len(instant.keys) + 1) + instant.at)


class Wide(NamedTuple):
    """One row per key, one column per metric; NaN where a key lacks the metric."""

    keys: Ints
    rows: Ints
    """One row of the samples for each key."""
    columns: Mapping[str, Floats]

    def of(self, metric: str) -> Floats:
        """A metric's column."""
        return self.columns[metric]

    def at(self, metric: str, keys: Ints) -> Floats:
        """A metric's values for other keys; NaN for missing ones."""
        return find(self.keys, self.columns[metric], keys)


def wide(rows: Rows, keys: Ints, metrics: Sequence[str], where: Bools | None = None) -> Wide:
    """Turn samples of some metrics into columns.
    keys: the key of every row of the samples. where: rows to use; None: all."""
    chosen = rows.metric.is_in(metrics)
    if where is not None:
        chosen &= where
    at = np.flatnonzero(chosen)
    grouped = Grouped.of(keys[at])
    columns: dict[str, Floats] = {}
    for metric in metrics:
        column = np.full(len(grouped.keys), np.nan)
        own = rows.metric.codes[at] == rows.metric.code(metric)
        column[grouped.at[own]] = rows.value[at][own]
        columns[metric] = column
    return Wide(grouped.keys, at[grouped.first_rows()], columns)


def find(sorted_keys: Ints, values: Floats, keys: Ints) -> Floats:
    """Return values[i] where sorted_keys[i] is the key; NaN where there is none."""
    if not len(sorted_keys):
        return np.full(len(keys), np.nan)
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return np.where(sorted_keys[at] == keys, values[at], np.nan)


def expand(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """All (i, j) with low[i] <= j < high[i], as two arrays."""
    counts = high - low
    left = np.repeat(np.arange(len(low), dtype=np.int64), counts)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    return left, np.arange(len(left), dtype=np.int64) - begins + np.repeat(low, counts)


def integers(values: Floats) -> pa.Array:
    """Whole numbers; NaN and infinity as null. Exact up to 2**53, as the samples are."""
    return nullable(np.where(np.isfinite(values), values, np.nan), pa.int64())


def microseconds(seconds: Floats) -> Floats:
    """Convert seconds since 1970 to whole microseconds, which are exact below 2**53; keep NaN."""
    return np.rint(seconds * 1e6)


def instants(us: Floats | Ints) -> pa.Array:
    """Microseconds since 1970 as times; NaN as null."""
    return integers(us.astype(np.float64)).cast(TIME)


def labelled(labels: Coded, label: str) -> Bools:
    """Return which rows have a label, like ``a="b"``, among others of their target. A Kubernetes
    operator adds container, endpoint, namespace and pod to every target."""
    name, _, value = label.partition("=")
    wanted = value.strip('"')
    return labels.is_in(
        frozenset(text for text in labels.names if label_value(text, name) == wanted)
    )


def label_value(labels: str, name: str) -> str:
    """One label from a text like ``a="b",c="d"``; empty if it is missing."""
    found = re.search(rf'(?:^|,){re.escape(name)}="((?:[^"\\]|\\.)*)"', labels)
    return "" if found is None else unescaped(found[1])


def unescaped(text: str) -> str:
    r"""Return a label's value without the escapes ``\\``, ``\"`` and ``\n``."""
    if "\\" not in text:
        return text
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)


def or_null(names: pa.Array) -> pa.Array:
    """Return the names, with null for an empty one."""
    return pc.if_else(pc.equal(names, ""), pa.scalar(None, pa.string()), names)


def replica_of(rows: Rows, row: Ints) -> pa.Array:
    """Names of the nodes of samples; without that label, the name of the target."""
    if "" not in rows.replica.names:
        return rows.replica.at(row)
    return pc.coalesce(or_null(rows.replica.at(row)), rows.target.at(row))
