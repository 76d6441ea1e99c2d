"""Futures of waiting senders: released in bulk, out of time by one timer for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from services.broker.log.waiting import Waiting
from shared.runtime.clock import SystemClock
from tests.support.still_clock import StillClock
from tidemark.errors import NotServing
from tidemark.offsets import PhysicalOffset

START = PhysicalOffset(0)


def at(offset: int) -> PhysicalOffset:
    return PhysicalOffset(offset)


async def test_reached_senders_are_released_and_the_others_wait_on() -> None:
    waiting = Waiting(START, SystemClock())
    first, second = waiting.wait(at(10)), waiting.wait(at(20))
    assert waiting.reach(at(19)) == 1
    assert first.result() is True
    assert not second.done()
    assert waiting.wait(at(19)).result() is True, "there already"


async def test_a_sender_that_went_away_is_passed_over() -> None:
    waiting = Waiting(START, SystemClock())
    gone, late, stays = (waiting.wait(at(10), deadline) for deadline in (1e9, 0.0, 1e9))
    gone.cancel()
    late.cancel()
    assert waiting.reach(at(10)) == 3
    assert stays.result() is True


async def test_each_sender_times_out_at_its_own_deadline() -> None:
    clock = StillClock(100_000)
    waiting = Waiting(START, clock)
    waits = {after_s: waiting.wait(at(10), 100.0 + after_s) for after_s in (0.03, 0.01, 0.05)}
    for_ever = waiting.wait(at(10))
    for after_s, left in ((0.01, 3), (0.03, 2), (0.05, 1)):
        clock.now_s = 100.0 + after_s
        assert await waits[after_s] is False
        assert len(waiting.places) == left
    assert not for_ever.done()


async def test_senders_with_the_same_deadline_share_a_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    timers: list[float] = []
    call_later = loop.call_later

    def counted(
        delay: float, callback: Callable[..., object], *args: object
    ) -> asyncio.TimerHandle:
        timers.append(delay)
        return call_later(delay, callback, *args)

    monkeypatch.setattr(loop, "call_later", counted)
    clock = SystemClock()
    waiting = Waiting(START, clock)
    for end in range(1, 1001):
        waiting.wait(at(end), clock.monotonic() + 3.0)
        if end % 10 == 0:
            waiting.reach(at(end))
    assert len(timers) == 1
    waiting.close()


async def test_the_timer_of_a_released_sender_serves_the_next_one() -> None:
    clock = SystemClock()
    waiting = Waiting(START, clock)
    now = clock.monotonic()
    waiting.wait(at(10), now + 0.01)
    waiting.reach(at(10))
    assert await waiting.wait(at(20), now + 0.03) is False
    assert clock.monotonic() >= now + 0.03


async def test_after_close_every_wait_fails() -> None:
    waiting = Waiting(START, SystemClock())
    before = waiting.wait(at(10), 1e9)
    gone = waiting.wait(at(10))
    gone.cancel()
    waiting.close()
    for future in (before, waiting.wait(at(10)), waiting.wait(START)):
        with pytest.raises(NotServing, match="may not be on disk"):
            await future
