"""Input and output of an evaluation.

Step before: the collected tables. Step after: the computed tables, and the state for the next
evaluation.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from analytics.schema import REPLICAS, TIME


class Window(NamedTuple):
    """Collected rows of some pairs with after − history_s < tick ≤ until. Rows may be in any order
    (by series_id and ts is fastest); rows of other ticks are ignored."""

    positions: pa.Table
    series: pa.Table
    pairs: pa.Table
    logs: pa.Table
    events: pa.Table
    gaps: pa.Table
    replicas: pa.Table = REPLICAS.empty_table()


class Evaluated(NamedTuple):
    """Rows of the computed tables for ticks in (after, until], and the state at `until`.

    Each table has exactly the schema of its name; rows are sorted by series_id (pair_id in pair_lag
    and stages) and tick.
    """

    rates: pa.Table
    lag: pa.Table
    pair_lag: pa.Table
    stages: pa.Table
    status_changes: pa.Table
    offset_events: pa.Table
    state: pa.Table


STATUS_STATE: Final = pa.schema(
    [
        pa.field("pair_id", pa.int64(), nullable=False),
        pa.field("series_id", pa.int64()),  # null: of the pair as a whole
        pa.field("series", pa.list_(pa.float64())),  # null in rows of pairs
        pa.field("pair", pa.list_(pa.float64())),  # null in rows of series
        pa.field("names", pa.list_(pa.string())),  # of pairs: cluster, broker, group, topic
        pa.field("until", TIME, nullable=False),  # the tick that the state is of
    ]
)
"""State that one evaluation leaves for the next; storage does not interpret it. One row per series,
and one per pair, with numbers in the order of analytics.kernel.state."""
