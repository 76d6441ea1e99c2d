from __future__ import annotations

from drills.pods.probes import Backoff


def test_the_first_restart_is_made_at_once_and_later_ones_wait_twice_as_long_each() -> None:
    backoff, now, waits = Backoff(), 0.0, []
    for _ in range(8):
        again = backoff.ended(started_at=now, now=now + 1)
        waits.append(again - now - 1)
        now = again
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_container_that_ran_for_ten_minutes_begins_anew() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.ended(started_at=0, now=1)
    assert backoff.ended(started_at=0, now=600) > 600
    assert backoff.ended(started_at=0, now=601) == 601
