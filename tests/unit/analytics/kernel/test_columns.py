from __future__ import annotations

import numpy as np
import pytest

from analytics.kernel.columns import significant, thousandths

NAN, INF = float("nan"), float("inf")


def test_seconds_are_rounded_to_milliseconds_and_unknown_ones_stay() -> None:
    found = thousandths(np.array([0.0, 1.23449, 1.2346, 98765.4321, NAN, INF]))
    np.testing.assert_array_equal(found, [0.0, 1.234, 1.235, 98765.432, NAN, INF])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, 0.0), (0.00123456, 0.001235), (1.0, 1.0), (9.9996, 10.0), (1234.56, 1235.0),
        (123456.0, 123500.0), (-2.34567, -2.346), (INF, INF), (NAN, NAN),
    ],
)  # fmt: skip
def test_so_many_digits_stay_whatever_the_size(value: float, expected: float) -> None:
    (found,) = significant(np.array([value]), 4)
    assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)
