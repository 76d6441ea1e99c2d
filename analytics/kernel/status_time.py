"""How long each status held within a bucket, and the worst of them. Pure."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from analytics.kernel import columns
from analytics.kernel.columns import Floats, Groups, Ints
from analytics.statuses import BY_SEVERITY, Status


def status_seconds(table: pa.Table, order: Ints, groups: Groups, period_s: float) -> Floats:
    """Sum seconds by group and status, one period per row. Raises ValueError for a bad status."""
    names = table.column("status").combine_chunks().dictionary_encode()
    known: dict[str, int] = {status: at for at, status in enumerate(BY_SEVERITY)}
    try:
        meaning = np.array([known[name] for name in names.dictionary.to_pylist()], dtype=np.int64)
    except KeyError as error:
        raise ValueError(f"a status that is not known: {error}") from error
    status = meaning[np.asarray(names.indices.to_numpy(False), dtype=np.int64)][order]
    size = groups.starts.size * len(BY_SEVERITY)
    counted = np.bincount(groups.of * len(BY_SEVERITY) + status, minlength=size)
    return np.asarray(counted.reshape(-1, len(BY_SEVERITY)) * period_s, dtype=np.float64)


def stored_seconds(rollup: pa.Table) -> Floats:
    """Seconds by row and status, from rows of ROLLUP."""
    texts = rollup.column("seconds_in_status").combine_chunks().dictionary_encode()
    meaning = np.zeros((len(texts.dictionary) + 1, len(BY_SEVERITY)))
    for row, text in zip(meaning, texts.dictionary.to_pylist(), strict=False):
        held = json.loads(text)
        row[:] = [held.get(str(status), 0.0) for status in BY_SEVERITY]
    at = np.asarray(texts.indices.fill_null(len(texts.dictionary)).to_numpy(False), dtype=np.int64)
    return meaning[at]


def status_columns(seconds: Floats) -> dict[str, pa.Array]:
    """The columns worst_status and seconds_in_status, from seconds by row and status."""
    alike, which = np.unique(seconds, axis=0, return_inverse=True)
    texts, worst = [], []
    for row in alike:
        held = np.flatnonzero(row)
        texts.append(json.dumps({str(BY_SEVERITY[at]): round(float(row[at]), 6) for at in held}))
        worst.append(str(BY_SEVERITY[int(held[-1])]) if held.size else str(Status.UNKNOWN))
    return {
        "worst_status": columns.words(worst, which.reshape(-1)),
        "seconds_in_status": columns.words(texts, which.reshape(-1)),
    }
