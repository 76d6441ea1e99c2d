"""Predicts when volumes are full: a part of `forecast`, on an executor."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from analytics.jobs.foreseen_pairs import forecast_rows
from analytics.kernel import columns
from analytics.kernel.columns import SECOND
from analytics.kernel.disk import outlook
from analytics.moments import HOUR, hour_of
from analytics.tables import TableRoot
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
        earliest = columns.last_of(node[known], slot[known], -tick[known])
        for at in known[earliest].tolist():
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
            times = [hour_of(issued_at) + STEP * step for step in range(STEPS + 1)]
            bands = (foreseen.p10, foreseen.p50, foreseen.p90)
            rows = forecast_rows(
                subject, "disk", issued_at, times, bands, MODEL, math.nan, foreseen.full[:3]
            )
            writer.write("forecasts", rows)
