"""Rests of long work: only while requests wait, for as long as they do, and not forever."""

from __future__ import annotations

import asyncio
import time

import pytest

from shared.runtime.pauses import PATIENCE_S, REST_S, SLICE_S, Pace, Pauses


class Waiting:
    """A request waits for this many checks."""

    def __init__(self, checks: int) -> None:
        self.checks = checks
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked <= self.checks


async def timers_of(pauses: Pauses, rests: int) -> int:
    """Return how many timers that many rests took: turns of the loop alone take none."""
    loop = asyncio.get_running_loop()
    count, call_later = 0, loop.call_later

    def counted(*arguments: object, **named: object) -> object:
        nonlocal count
        count += 1
        return call_later(*arguments, **named)  # type: ignore[arg-type]

    loop.call_later = counted  # type: ignore[method-assign, assignment]
    try:
        for _ in range(rests):
            await pauses.rest()
    finally:
        loop.call_later = call_later  # type: ignore[method-assign]
    return count


async def test_without_waiting_requests_a_rest_is_two_turns() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    assert await timers_of(Pauses(), 3) == 0
    assert turns >= 5
    task.cancel()


async def test_it_rests_as_long_as_requests_wait() -> None:
    assert await timers_of(Pauses(Waiting(5)), 1) == 5


async def test_patience_ends_and_the_work_goes_on_beside_requests_that_never_end() -> None:
    pauses = Pauses(lambda: True, patience_s=10 * REST_S)
    first = await timers_of(pauses, 1)
    assert 10 <= first <= 12
    assert await timers_of(pauses, 3) == 3, "one rest per slice from then on"
    assert PATIENCE_S > REST_S


async def test_works_that_share_a_pace_have_one_slice_together_in_each_rest(
    slept: list[float],
) -> None:
    """Sixteen bodies that rested a millisecond each kept the loop busy all the time."""
    pace = Pace()
    all_pauses = [Pauses(lambda: True, patience_s=0.0, pace=pace) for _ in range(16)]
    for pauses in all_pauses:
        await pauses.rest()
    rests = [each for each in slept if each]
    assert len(rests) == 16
    assert rests[-1] > 8 * REST_S
    assert Pace().rest_s(5.0) == pytest.approx(REST_S)


def test_a_thread_rests_after_each_slice_only_while_requests_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    now, is_waiting = 100.0, True
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", slept.append)
    pauses = Pauses(lambda: is_waiting)
    pauses.rest_in_thread()
    pauses.rest_in_thread()  # the slice has just begun
    assert slept == [REST_S]
    now += 2 * SLICE_S
    pauses.rest_in_thread()
    assert slept == [REST_S] * 2
    now, is_waiting = now + 1.0, False
    pauses.rest_in_thread()
    assert slept == [REST_S] * 2
