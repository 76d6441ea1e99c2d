"""How unevenly a pair's lag is spread over its queues, and why (docs/analytics-methods.md, "Skew").
Pure.

Step before: lag and age of every queue. Step after: the cause in the report. Queues with unknown
lag are left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from analytics.kernel import columns
from analytics.kernel.columns import Bools, Floats, Groups, Ints
from analytics.schema import TIME

SKEW: Final = pa.schema(
    [
        pa.field("tick", TIME, nullable=False),
        pa.field("pair_id", pa.int64(), nullable=False),
        pa.field("skew", pa.float64()),
        pa.field("gini", pa.float64()),
        pa.field("skew_kind", pa.string()),
        pa.field("top_share", pa.float64()),
        pa.field("top_queue", pa.int32()),
    ]
)
KINDS: Final = (
    None,
    "poison_message",
    "unassigned_queue",
    "stuck_queue",
    "slow_member",
    "hot_queue",
)
POISON, UNASSIGNED, STUCK, SLOW_MEMBER, HOT = range(1, 6)

HOT_SHARE: Final = 2.0  # times the mean messages of the other queues, also of two queues
HOT_SKEW: Final = 2.0  # a hot queue that keeps up does not count as skew
STILL_SHARE_MAX: Final = 0.25  # if more queues stand still, the cause is the group


def skew(series_rows: pa.Table) -> pa.Table:
    """Measure for each tick and pair how unevenly lag is spread over the queues.

    series_rows: tick, pair_id, series_id, queue, lag [messages or null], produce_per_second,
    consume_per_second, is_lagging (older than the objective), stands_still
    (``status.stands_still``), redeliveries_rise (of the pair; null: not known), member (number of
    the queue's owner; 0: none, null: not known). Rows may be in any order. Returns rows of SKEW, by
    tick and pair. `skew` is the largest lag over the mean of the others, infinite if those have
    none; null with fewer than two known queues or without lag.
    """
    if series_rows.num_rows == 0:
        return SKEW.empty_table()
    tick, pair = columns.micros(series_rows, "tick"), columns.ints(series_rows, "pair_id")
    lag = columns.floats(series_rows, "lag")
    groups = columns.grouped(tick, pair)
    order, starts = groups.order, groups.starts

    ordered = lag[order]
    known = ~np.isnan(ordered)
    held = np.where(known, ordered, 0.0)
    count = np.add.reduceat(known.astype(np.float64), starts)
    total, largest = np.add.reduceat(held, starts), np.maximum.reduceat(held, starts)
    spread = (count >= 2) & (total > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = largest / ((total - largest) / (count - 1))
    ratio[~spread] = np.nan
    top = _first_largest(np.where(known, ordered, -1.0), groups)
    share = _share_of_largest(columns.floats(series_rows, "produce_per_second"), groups)
    kinds = _kinds(series_rows, groups, count, spread, ratio, top)
    queue = columns.ints(series_rows, "queue")[order][top]
    no_top = np.where(total > 0, queue.astype(np.float64), np.nan)
    return pa.table(
        [
            columns.times(tick[order][starts]),
            pa.array(pair[order][starts]),
            columns.nullable(ratio),
            columns.nullable(_gini(held, known, groups, count, total, spread)),
            columns.words(KINDS, kinds),
            columns.nullable(share),
            columns.nullable(no_top, pa.int32()),
        ],
        schema=SKEW,
    )


def _gini(
    lag: Floats, known: Bools, groups: Groups, count: Floats, total: Floats, spread: Bools
) -> Floats:
    """Return the Gini coefficient of each group: 0 if all queues lag alike, 1 − 1/n if one has all.

    It is the sum over the queues by rank i = 1..n of (2i − n − 1) × lag, over n × the sum of lag.
    """
    # An unknown queue is first in its group with weight 0; ranks count the known ones.
    ranked = np.lexsort((np.where(known, lag, -1.0), groups.of))
    known_before = np.cumsum(known[ranked])
    group_start: Ints = known_before[groups.starts] - known[ranked][groups.starts]
    rank: Ints = known_before - group_start[groups.of]
    weight = (2 * rank - count[groups.of] - 1) * np.where(known[ranked], lag[ranked], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        gini = np.add.reduceat(weight, groups.starts) / (count * total)
    gini[~spread] = np.nan
    return gini


def _first_largest(values: Floats, groups: Groups) -> Ints:
    """Return the place of the first largest value of each group."""
    largest = np.maximum.reduceat(values, groups.starts)
    at = np.where(values == largest[groups.of], np.arange(values.size), values.size)
    return np.minimum.reduceat(at, groups.starts)


def _share_of_largest(produced: Floats, groups: Groups) -> Floats:
    """Return the share of the queue with the most messages; NaN without any."""
    rate = np.nan_to_num(produced[groups.order], nan=0.0)
    total = np.add.reduceat(rate, groups.starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        share: Floats = np.maximum.reduceat(rate, groups.starts) / total
    share[total <= 0] = np.nan
    return share


def _kinds(
    rows: pa.Table,
    groups: Groups,
    count: Floats,
    spread: Bools,
    ratio: Floats,
    top: Ints,
) -> Ints:
    """The kind of each group's skew, an index into KINDS: the first that holds."""
    order, starts = groups.order, groups.starts
    several = groups.sizes >= 2
    still = np.add.reduceat(columns.truths(rows, "stands_still")[order].astype(np.int64), starts)
    rising = np.logical_or.reduceat(columns.truths(rows, "redeliveries_rise")[order], starts)
    few_still = several & ((still == 1) | ((still > 1) & (still <= STILL_SHARE_MAX * groups.sizes)))
    unassigned, one_member, is_quick = _by_member(rows, groups)
    rate = np.nan_to_num(columns.floats(rows, "produce_per_second")[order])
    late = columns.truths(rows, "is_lagging")[order]
    others = np.maximum(count - 1, 1)[groups.of]
    much = rate * others > HOT_SHARE * (np.add.reduceat(rate, starts)[groups.of] - rate)
    # A slow member delays its other queues as well. So does a quick one that serves its queues in
    # the order of arrival.
    alone = np.logical_and.reduceat(~late | much, starts) | (one_member & is_quick)
    hot = spread & much[top] & (ratio >= HOT_SKEW)
    return np.select(
        [few_still & rising, unassigned, few_still, hot & alone, one_member & several, hot],
        [POISON, UNASSIGNED, STUCK, HOT, SLOW_MEMBER, HOT],
        0,
    ).astype(np.int64)


def _by_member(rows: pa.Table, groups: Groups) -> tuple[Bools, Bools, Bools]:
    """Whether a queue with lag has no member; whether one of several members has all the lag;
    whether that one consumes at least as many messages as the mean of the others."""
    size = groups.starts.size
    member = columns.floats(rows, "member")[groups.order]
    if np.isnan(member).all():
        nowhere = np.zeros(size, dtype=np.bool_)
        return nowhere, nowhere, nowhere
    lag = columns.floats(rows, "lag")[groups.order]
    late = columns.truths(rows, "is_lagging")[groups.order]
    unassigned = np.logical_or.reduceat((member == 0) & (lag > 0), groups.starts)
    holder_known = np.logical_and.reduceat(~np.isnan(member), groups.starts)
    least = np.minimum.reduceat(np.where(late, member, np.inf), groups.starts)
    most = np.maximum.reduceat(np.where(late, member, -np.inf), groups.starts)
    other = (member > 0) & (member != least[groups.of])
    one_member = holder_known & (least == most) & (least > 0)
    one_member &= np.logical_or.reduceat(other, groups.starts)
    rate = columns.floats(rows, "consume_per_second")[groups.order]
    own = np.add.reduceat(np.where(member == least[groups.of], rate, 0.0), groups.starts)
    # A member with a queue whose rate is not known is not compared.
    width = np.nanmax(member) + 1
    members, queue_of = np.unique(groups.of[other] * width + member[other], return_inverse=True)
    read = np.bincount(queue_of, weights=rate[other], minlength=members.size)
    of, known = (members // width).astype(np.int64), ~np.isnan(read)
    others = np.bincount(of[known], weights=read[known], minlength=size)
    count = np.bincount(of[known], minlength=size)
    return unassigned, one_member, (own > 0) & (own * count >= others)
