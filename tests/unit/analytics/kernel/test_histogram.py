from __future__ import annotations

import numpy as np
import pytest

from analytics.kernel.histogram import quantile

BOUNDS = np.array([0.1, 0.5, 1.0, np.inf])


def test_a_quantile_lies_on_a_line_through_its_bucket() -> None:
    found = quantile(BOUNDS, np.array([[50.0, 90.0, 100.0, 100.0]]), 0.75)
    assert found.value == pytest.approx([0.1 + 0.4 * 25 / 40])
    assert (found.low[0], found.high[0]) == (0.1, 0.5)


def test_above_the_last_bound_it_is_at_least_that() -> None:
    found = quantile(BOUNDS, np.array([[0.0, 0.0, 1.0, 10.0]]), 0.99)
    assert (found.value[0], found.low[0], found.high[0]) == (1.0, 1.0, np.inf)


def test_nothing_counted_has_no_quantile() -> None:
    found = quantile(BOUNDS, np.array([[0.0] * 4, [np.nan, 1, 2, 3]]), 0.5)
    assert np.isnan(found.value).all()
    assert np.isnan(found.low).all()


def test_the_true_quantile_lies_within_the_bounds() -> None:
    seed = 8
    print("seed", seed)
    random = np.random.default_rng(seed)
    values = random.gamma(1.5, 0.3, (200, 500))
    grown = np.stack([(values <= bound).sum(axis=1) for bound in BOUNDS], axis=1).astype(np.float64)
    for share in (0.1, 0.5, 0.9, 0.99):
        truth = np.quantile(values, share, axis=1, method="inverted_cdf")
        found = quantile(BOUNDS, grown, share)
        assert (found.low <= truth).all()
        assert (truth <= found.high).all()
