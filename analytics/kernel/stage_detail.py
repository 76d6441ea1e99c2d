"""Facts about a blamed stage beyond its delay, in words (docs/analytics-methods.md, "Stages").
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.kernel import columns
from analytics.kernel.columns import Bools, Floats, Ints
from analytics.kernel.logs_of import PairsWithLogs
from analytics.schema import Stage

POISON: Final = "poison_message"
KIND_WORDS: Final = {
    POISON: "one message is delivered again and again",
    "unassigned_queue": "a queue with lag is held by no member",
    "stuck_queue": "one queue stands still while others move",
    "slow_member": "all lagging queues are held by one member",
    "hot_queue": "one queue gets far more than its share",
}


def details(
    rows: PairsWithLogs,
    blamed: Ints,
    stages: Sequence[str | None],
    skew_kind: pa.Array,
    residual: Floats,
    period_s: float,
) -> pa.Array:
    """One short sentence per row; null if only the delay is known.
    blamed: indices into stages. skew_kind: kind of skew of each row's pair, or null. residual [s]:
    difference between age and stages; above one period it is a defect in the data, which takes
    precedence over every other fact."""

    def of(stage: Stage) -> Bools:
        here: Bools = blamed == list(stages).index(stage)
        return here

    subscribed = columns.floats(rows.pairs, "subscribed")
    readers = np.where(subscribed == 0, 0.0, columns.floats(rows.pairs, "members"))
    in_flight = columns.floats(rows.pairs, "inflight")
    queued = columns.floats(rows.logs, "pulls_queued")
    held = columns.floats(rows.logs, "long_polls")
    waits = columns.floats(rows.logs, "put_wait_seconds")
    again = _redelivered(rows)
    delivery, processing = of(Stage.DELIVERY), of(Stage.PROCESSING)
    defect = np.abs(residual) > period_s
    words = pa.nulls(blamed.size, pa.string())
    # This is first: a member that crashes on a message is missing in some samples.
    poison = (delivery | processing) & _is(skew_kind, POISON)
    for where, text in (
        (defect, _worded("age and stages differ by {} s: the data contradict", residual, 1)),
        (poison, pa.scalar(KIND_WORDS[POISON])),
        (delivery & (readers == 0), pa.scalar("no member is there to ask")),
        (delivery & (queued > 0), _worded("{} pulls wait in the broker", queued, 0)),
        (delivery & (held == 0), pa.scalar("no pull is open: members do not ask")),
        (processing & (readers == 0), pa.scalar("no member is there to finish what it took")),
        *(
            (processing & _is(skew_kind, kind), pa.scalar(text))
            for kind, text in KIND_WORDS.items()
        ),
        (processing & (again > 0), _worded("{} deliveries since were repeated", again, 0)),
        (processing & (in_flight > 0), _worded("{} messages are in flight", in_flight, 0)),
        (of(Stage.APPEND), _worded("a send request has waited {} s", waits, 1)),
    ):
        words = pc.if_else(pc.and_(pa.array(where), pc.is_null(words)), text, words)
    return words


def _is(words: pa.Array, word: str) -> Bools:
    return np.asarray(pc.fill_null(pc.equal(words, word), False).to_numpy(False), dtype=np.bool_)


def _worded(text: str, numbers: Floats, digits: int) -> pa.Array:
    """Put the numbers into the text, with that many decimals."""
    before, _, after = text.partition("{}")
    rounded = pa.array(np.round(numbers, digits), mask=np.isnan(numbers))
    shown = rounded.cast(pa.int64() if digits == 0 else pa.float64()).cast(pa.string())
    return pc.binary_join_element_wise(before, shown, after, "")


def _redelivered(rows: PairsWithLogs) -> Floats:
    """Repeated deliveries since the previous row of the pair and process; NaN without one."""
    total = columns.floats(rows.pairs, "redelivered_total")
    since = np.full(total.size, np.nan)
    same = (rows.pair[1:] == rows.pair[:-1]) & (rows.process[1:] == rows.process[:-1])
    since[1:][same] = (total[1:] - total[:-1])[same]
    return since
