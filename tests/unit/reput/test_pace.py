from __future__ import annotations

from services.reput.pace import INTERVAL_S, MANY_PER_S, Pace


def rests(per_s: float, *, batch: int = 1, seconds: float = 0.5) -> list[float]:
    """Return the pauses after steps, with records that arrive in batches at a constant rate.

    Each step takes the records that arrived since the previous one.
    """
    pace, now, found = Pace(), 100.0, []
    gap, next_at = batch / per_s, 100.0
    while now < 100.0 + seconds:
        now = max(now, next_at)
        taken = 0
        while next_at <= now:
            taken += batch
            next_at += gap
        pace.stepped(now, taken)
        found.append(pace.rest_s(now))
        now += found[-1]
    return found


def test_a_first_record_and_few_records_a_second_are_never_delayed() -> None:
    assert Pace().rest_s(5.0) == 0.0
    assert not any(rests(10))
    assert not any(rests(MANY_PER_S / 2))
    pace = Pace()
    pace.stepped(5.0, 1)
    assert pace.rest_s(5.0) == 0.0


def test_at_a_high_rate_steps_begin_at_most_once_in_the_interval() -> None:
    for per_s in (4 * MANY_PER_S, 600_000):
        found = rests(per_s)
        settled = found[len(found) // 2 :]
        assert min(settled) > INTERVAL_S * 0.99
        assert len(found) < 1.3 * 0.5 / INTERVAL_S + 100


def test_rare_batches_are_dispatched_at_once() -> None:
    pace = Pace()
    for number in range(100):
        now = 5.0 + number * 0.1
        # The rest of the pause when the next batch arrives, whatever the rate was.
        assert pace.rest_s(now) == 0.0
        pace.stepped(now, 1000)


def test_the_pause_ends_with_the_rate() -> None:
    pace = Pace()
    for number in range(200):
        pace.stepped(5.0 + number * INTERVAL_S, 1000)
    assert pace.rest_s(5.399) > 0
    for number in range(200):
        pace.stepped(6.0 + number * 0.005, 1)
    assert pace.rest_s(7.0) == 0.0


def test_two_steps_at_the_same_moment_are_harmless() -> None:
    pace = Pace()
    for _ in range(3):
        pace.stepped(5.0, 1000)
    assert pace.rest_s(5.0) in (0.0, INTERVAL_S)
