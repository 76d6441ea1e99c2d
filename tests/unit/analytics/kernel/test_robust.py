from __future__ import annotations

import numpy as np
import pytest

from analytics.kernel import robust

NAN = float("nan")


def test_quantiles_are_numpys_of_what_is_known() -> None:
    seed = 1
    print("seed", seed)
    random = np.random.default_rng(seed)
    values = random.normal(size=(40, 23))
    values[random.random(values.shape) < 0.3] = np.nan
    for share in (0.0, 0.1, 0.5, 0.95, 1.0):
        expected = [np.quantile(row[~np.isnan(row)], share) for row in values]
        assert robust.quantile(values, share) == pytest.approx(expected)


def test_of_nothing_there_is_no_quantile_slope_or_mean() -> None:
    nothing = np.full((2, 3), NAN)
    places = np.array([0.0, 1, 2])
    for found in (
        robust.median(nothing),
        robust.slope(places, nothing),
        robust.mean_of_known(nothing),
    ):
        assert np.isnan(found).all()
    assert np.isnan(robust.slope(places[:1], nothing[:, :1])).all()


def test_a_slope_is_not_moved_by_a_wild_value_or_a_gap() -> None:
    places = np.array([0.0, 1, 2, 4, 7, 8, 9])
    values = 3 - 2 * places
    values[2], values[4] = 1e9, NAN
    assert robust.slope(places, values[None, :]) == pytest.approx([-2])


def test_pinball_loss_is_least_at_the_quantile() -> None:
    seed = 4
    print("seed", seed)
    came = np.random.default_rng(seed).normal(size=20_000)
    for share in (0.1, 0.5, 0.9):
        candidates = np.linspace(-2, 2, 81)
        losses = [robust.pinball(came, np.full(1, at), share).mean() for at in candidates]
        best = candidates[int(np.argmin(losses))]
        assert best == pytest.approx(np.quantile(came, share), abs=0.06)


def test_autocorrelation_knows_noise_from_a_walk() -> None:
    seed = 6
    print("seed", seed)
    noise = np.random.default_rng(seed).normal(size=5000)
    assert robust.autocorrelation(noise) == pytest.approx(0, abs=0.05)
    assert robust.autocorrelation(np.cumsum(noise)) > 0.95
    assert robust.autocorrelation(np.ones(9)) == 0
