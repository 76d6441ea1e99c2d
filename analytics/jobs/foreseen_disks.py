"""Predicts when volumes are full: a part of `forecast`, on an executor."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from analytics.kernel import columns
from analytics.kernel.columns import SECOND
from analytics.kernel.disk import Outlook, outlook
from analytics.schema import FORECASTS, fit
from analytics.tables import TableRoot
from analytics.tables.layout import HOUR, hour_of
from analytics.tables.parts import Writer

HISTORY: Final = timedelta(weeks=5)
STEP: Final = timedelta(hours=6)
STEPS: Final = 28  # a week
MODEL: Final = "robust_line"
SPACING: Final = timedelta(minutes=5)
"""Time between observations: an hour, or less while the history is shorter than two days."""
YOUNG: Final = timedelta(days=2)


def foresee_disks(root: TableRoot, issued_at: datetime, writer: Writer) -> None:
    """Write a forecast for the volume of each node's commit log, as of issued_at."""
    seen: dict[tuple[str, str, str], dict[int, tuple[int, float]]] = {}
    names = ["tick", "cluster", "broker", "replica", "free_bytes"]
    first = root.span("logs")
    young = first is not None and issued_at - first[0] < YOUNG
    spacing = columns.SECOND * round((SPACING if young else HOUR).total_seconds())
    since = issued_at - HISTORY
    for rows in root.scan("logs", since=since, before=issued_at, columns=names):
        tick, free = columns.micros(rows, "tick"), columns.floats(rows, "free_bytes")
        slot = tick // spacing
        places = columns.joined(rows, *names[1:4])
        (node,) = columns.codes(places)
        known = np.flatnonzero(~np.isnan(free))
        order = known[np.lexsort((tick[known], slot[known], node[known]))]
        begins = np.ones(order.size, dtype=np.bool_)
        begins[1:] = (np.diff(slot[order]) != 0) | (np.diff(node[order]) != 0)
        for at in order[begins].tolist():
            cluster, broker, replica = places[at].as_py().split("\x1f")
            of_node = seen.setdefault((cluster, broker, replica), {})
            here = (int(tick[at]), float(free[at]))
            of_node[int(slot[at])] = min(here, of_node.get(int(slot[at]), here))
    for (cluster, broker, replica), found in sorted(seen.items()):
        observed = np.array(sorted(found.values()), dtype=np.float64)
        ahead = STEP.total_seconds() * np.arange(STEPS + 1, dtype=np.float64)
        at, free = observed[:, 0] / float(SECOND), observed[:, 1]
        foreseen = outlook(at, free, ahead)
        if foreseen is not None:
            subject = f"cluster={cluster} broker={broker} replica={replica} volume=log"
            writer.write("forecasts", _rows(subject, foreseen, issued_at))


def _rows(subject: str, foreseen: Outlook, issued_at: datetime) -> pa.Table:
    size = foreseen.p50.size
    limits = {
        f"time_to_limit_{name}_seconds": pa.array([getattr(foreseen.full, name)] * size)
        for name in ("p10", "p50", "p90")
    }
    return fit(
        pa.table(
            {
                "issued_at": pa.array([issued_at] * size, FORECASTS.field("issued_at").type),
                "subject": [subject] * size,
                "kind": ["disk"] * size,
                "at": pa.array([hour_of(issued_at) + STEP * step for step in range(size)]),
                "p10": foreseen.p10,
                "p50": foreseen.p50,
                "p90": foreseen.p90,
                "model": [MODEL] * size,
                **limits,
            }
        ),
        FORECASTS,
    )
