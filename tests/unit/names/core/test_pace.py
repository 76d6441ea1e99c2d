from __future__ import annotations

import pytest

from services.names.core.pace import COST_MIN, SENDERS_MAX, Allowance, Pace
from tidemark.errors import Overloaded


def test_a_sender_may_send_its_burst_and_then_at_its_rate() -> None:
    pace = Pace(Allowance(burst=10 << 20, rate=1 << 20))
    pace.admit("n0", 10 << 20, 0.0)
    with pytest.raises(Overloaded, match=r"n0 .* 10.0 MiB .*Try again in 1.0 s"):
        pace.admit("n0", 1 << 20, 0.0)
    pace.admit("n0", 1 << 20, 1.0)
    pace.admit("other", 10 << 20, 1.0)


def test_a_refused_registration_is_not_charged() -> None:
    pace = Pace(Allowance(burst=COST_MIN, rate=COST_MIN))
    pace.admit("n0", 1, 0.0)
    for _ in range(100):
        with pytest.raises(Overloaded):
            pace.admit("n0", 1, 0.5)
    pace.admit("n0", 1, 1.0)


def test_a_flood_of_senders_does_not_fill_the_memory() -> None:
    pace = Pace(Allowance(burst=COST_MIN, rate=COST_MIN))
    for number in range(SENDERS_MAX + 10):
        pace.admit(str(number), 1, 0.0)
    assert len(pace._used) == SENDERS_MAX
