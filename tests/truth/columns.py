"""Arrays of a workload as columns of Arrow tables, ABSENT and NaN as null. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tests.truth.steps import ABSENT, Ints, Mask
from tests.truth.workload import Broker


def names(broker: Broker, index: Ints) -> npt.NDArray[np.str_]:
    """Names of nodes by their indices; an arbitrary name where there is no node."""
    nodes = np.array(broker.nodes)
    found: npt.NDArray[np.str_] = nodes[np.clip(index, 0, len(nodes) - 1)]
    return found


def table(rows: Mask, columns: dict[str, object]) -> pa.Table:
    """A table of these rows; ABSENT, NaN and empty reasons become null."""
    made = {}
    for name, column in columns.items():
        values = np.asarray(column)[rows]
        if values.dtype == np.int64:
            made[name] = pa.array(values, mask=values == ABSENT)
        elif values.dtype == np.float64:
            made[name] = pa.array(values, mask=np.isnan(values))
        elif name == "reason":
            made[name] = pa.array(values.tolist(), pa.string(), mask=values == "")
        else:
            kind = pa.bool_() if values.dtype == np.bool_ else pa.string()
            made[name] = pa.array(values.tolist(), kind)
    return pa.table(made)


def joined(fields: pa.Schema, tables: list[pa.Table]) -> pa.Table:
    """Join tables into one, which has these columns even without a row."""
    return pa.concat_tables([fields.empty_table(), *tables]).combine_chunks()
