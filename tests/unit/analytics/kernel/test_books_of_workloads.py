"""The books of every workload with known answers balance, and so do those of its roll-ups."""

from __future__ import annotations

import numpy as np
import pytest

from analytics.kernel.balance import books
from analytics.kernel.rollup import MINUTE, merge, rollup
from tests.analytics.truth.judged import judged_case, truth_of
from tests.support.for_each import for_each
from tests.truth import cases
from tests.truth.steps import SECOND, moment

pytestmark = pytest.mark.xdist_group("workloads")


@for_each("case", cases.EVERY)
def test_what_was_produced_is_consumed_skipped_or_unread(case: str) -> None:
    truth = truth_of(case)
    judged = judged_case(case)
    book = books(judged.lag, judged.rates, judged.offset_events)
    known = ~np.isnan(book.imbalance)
    assert np.count_nonzero(known) > 0.3 * known.size  # an AHEAD commit leaves most unknown
    assert not book.imbalance[known].any()

    minutes = rollup(
        judged.lag,
        judged.rates,
        judged.pair_lag,
        judged.offset_events,
        grain_s=MINUTE,
        period_s=truth.period / SECOND,
        since=moment(truth.start),
        before=moment(truth.end),
    )
    day = merge(minutes, grain_s=86_400)
    for table in (minutes, day):
        assert not np.nan_to_num(table.column("imbalance").to_numpy()).any()
    skipped = np.nansum(day.filter(day.column("series_id").is_valid()).column("skipped").to_numpy())
    inside = book.row < judged.lag.num_rows
    assert skipped == np.nansum(book.skipped[inside])


def test_skipped_messages_are_those_that_were_reset_or_expired() -> None:
    for case, count in (("reset_forward", 3000), ("expiry", 1000)):
        judged = judged_case(case)
        skipped = books(judged.lag, judged.rates, judged.offset_events).skipped
        assert np.nansum(skipped) == count
