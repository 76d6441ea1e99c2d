"""Results of the kernel for tables when it is called once for each bucket, without Spark."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa

from analytics.jobs.evaluate import COMPUTED
from analytics.kernel.evaluate import evaluate as kernel
from analytics.kernel.rules import Rules
from analytics.kernel.window import Window
from analytics.schema import TABLES
from analytics.tables import TableRoot
from analytics.ticks.window import known_series
from tests.truth.steps import DAWN, moment


def at_once(root: TableRoot, until: datetime) -> dict[str, pa.Table]:
    """What one call of the kernel says of each bucket, over the whole time; without the column
    that says when a row was revised."""
    after = moment(DAWN)
    every: dict[str, list[pa.Table]] = {name: [] for name in COMPUTED}
    for bucket in range(root.buckets):
        of_bucket = [bucket]
        window = Window(
            positions=root.read("positions", buckets=of_bucket),
            series=known_series(root, after, until, of_bucket),
            pairs=root.read("pairs", buckets=of_bucket),
            logs=root.read("logs"),
            replicas=root.read("replicas"),
            events=TABLES["offset_events"].empty_table(),
            gaps=TABLES["gaps"].empty_table(),
        )
        done = kernel(window, Rules(), None, after, until)
        for name in COMPUTED:
            every[name].append(getattr(done, name))
    return {name: pa.concat_tables(pieces) for name, pieces in every.items()}
