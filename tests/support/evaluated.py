"""Tables as evaluation leaves them, written straight into a root: weeks of them cost a second."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from analytics.schema import LAG, PAIR_LAG, RATES, TIME, fit, pair_id, series_id
from analytics.tables import TableRoot


class Named(NamedTuple):
    """A pair of tests: group g<number> on topic t<number> of broker g0."""

    number: int
    queues: int = 2

    @property
    def names(self) -> dict[str, str]:
        """The pair's names, as columns of pair_lag."""
        group, topic = f"g{self.number}", f"t{self.number}"
        return {"cluster": "c", "broker": "g0", "group": group, "topic": topic}

    @property
    def pair_id(self) -> int:
        """The id that collect would give to the pair."""
        return pair_id(**self.names)

    def series_id(self, queue: int) -> int:
        """Return the id that collect would give to a queue of the pair."""
        return series_id(**self.names, queue=queue)


def write_evaluated(
    root: TableRoot, pairs: Sequence[Named], begin: datetime, ticks: int, period_s: float
) -> None:
    """Ticks 0, period … after begin: each queue takes 30 + its number messages a tick, all read
    at the tick after, so that lag is what one tick brings."""
    number = np.arange(ticks)
    tick = pa.array([begin + timedelta(seconds=period_s * step) for step in range(ticks)], TIME)
    for at, pair in enumerate(pairs):
        lag, rates = [], []
        for queue in range(pair.queues):
            brings = 30 + queue
            fixed: dict[str, Any] = {
                "tick": tick,
                "series_id": pa.array(np.full(ticks, pair.series_id(queue))),
                "pair_id": pa.array(np.full(ticks, pair.pair_id)),
            }
            held = pa.array(np.where(number == 0, 0, brings))
            lag.append(_table(LAG, ticks, fixed | {"ts": tick, "lag": held}, age_method="exact"))
            flows = {
                "produced": pa.array(np.full(ticks - 1, brings)),
                "consumed": pa.array(np.where(number[1:] == 1, 0, brings)),
                "dt_seconds": pa.array(np.full(ticks - 1, period_s)),
            }
            later = {name: column[1:] for name, column in fixed.items()}
            rates.append(_table(RATES, ticks - 1, later | flows))
        whole = sum(30 + queue for queue in range(pair.queues))
        pair_rows = _table(
            PAIR_LAG,
            ticks,
            {
                "tick": tick,
                "pair_id": pa.array(np.full(ticks, pair.pair_id)),
                "lag_sum": pa.array(np.where(number == 0, 0, whole)),
                "age_max_seconds": pa.array(np.full(ticks, period_s)),
                "members": pa.array(np.full(ticks, 2)),
                "queues": pa.array(np.full(ticks, pair.queues), pa.int32()),
            },
            **pair.names,
        )
        last = tick[-1].as_py()
        for name, rows in (
            ("lag", pa.concat_tables(lag)),
            ("rates", pa.concat_tables(rates)),
            ("pair_lag", pair_rows),
        ):
            batch = f"evaluate-{begin:%Y%m%dT%H%M}-{at}"
            files = root.write(name, rows)
            root.commit(name, batch=batch, files=files, watermark=last)


def _table(schema: pa.Schema, rows: int, columns: dict[str, Any], **same: str) -> pa.Table:
    said = {"status": "OK"} | same
    for name, value in said.items():
        if name in schema.names:
            columns[name] = pa.array([value] * rows, pa.string())
    if "status_since" in schema.names:
        columns["status_since"] = columns["tick"]
    return fit(pa.table(columns), schema)
