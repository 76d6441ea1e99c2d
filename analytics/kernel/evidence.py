"""Evidence of a status: the numbers that its rule used, as a JSON object per row. Pure.

Only alarms and statuses that inform have evidence. UNKNOWN has a reason instead. An alert can be
explained and checked from these numbers alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel.columns import Floats
from analytics.kernel.status import CODE, RULES, Codes
from analytics.statuses import Status

_AGE: Final = ("age_seconds", "objective_seconds", "lag")
USES: Final[Mapping[Status, tuple[str, ...]]] = {
    Status.AHEAD: ("commit_offset", "max_offset", "ahead"),
    Status.LOST: ("commit_offset", "min_offset", "lost", "lost_lately", "lost_seconds_ago"),
    Status.ABANDONED: ("lag", "members"),
    Status.PAUSED: ("lag", "age_seconds"),
    Status.STOPPED: (*_AGE, "members", "alone_seconds"),
    Status.STALLED: (*_AGE, "members", "still_seconds", "stall_after_seconds"),
    Status.RACING: (*_AGE, "progress", "kept_seconds"),
    Status.CATCHING_UP: (*_AGE, "progress"),
    Status.FALLING_BEHIND: (*_AGE, "progress"),
    Status.LAGGING: (*_AGE, "progress"),
}
"""The numbers that the rule of each status uses."""
EXPLAINED: Final = [CODE[status] for status in USES]
"""Codes of the statuses that have evidence."""
_NUMBER: Final = {rule.status: rule.number for rule in RULES}


def evidence(status: Codes, numbers: Mapping[str, Floats]) -> pa.Array:
    """A JSON object for each row, null where its status needs none.
    numbers: one value per row under each name of USES; NaN is written as null."""
    chosen = [status == CODE[each] for each in USES]
    rows = [np.flatnonzero(mask) for mask in chosen]
    texts: list[pa.Array] = [
        _objects(each, {name: numbers[name][at] for name in USES[each]})
        for each, at in zip(USES, rows, strict=True)
        if at.size
    ]
    if not texts:
        return pa.nulls(status.size, pa.string())
    places = np.full(status.size, -1, np.int64)
    together = np.concatenate([at for at in rows if at.size])
    places[together] = np.arange(together.size)
    return pa.concat_arrays(texts).take(pa.array(places, mask=places < 0))


def _objects(status: Status, numbers: Mapping[str, Floats]) -> pa.Array:
    parts: list[pa.Scalar | pa.Array] = []
    begin = f'{{"rule":"{_NUMBER[status]}"'
    for name, values in numbers.items():
        parts += [pa.scalar(f'{begin},"{name}":'), json_numbers(values)]
        begin = ""
    return pc.binary_join_element_wise(*parts, pa.scalar("}"), "")


def json_numbers(values: Floats) -> pa.Array:
    """Numbers as JSON texts, with three decimals; null for NaN and infinite ones."""
    finite = np.isfinite(values)
    thousandths = np.rint(np.where(finite, values, 0.0) * 1000).astype(np.int64)
    if not (thousandths % 1000).any():
        texts = pa.array(thousandths // 1000).cast(pa.string())
    else:
        texts = pa.array(thousandths / 1000).cast(pa.string())
    return pc.if_else(pa.array(finite), texts, "null")
