"""Rings in quick succession are merged, and the last of them is always delivered."""

from __future__ import annotations

import asyncio
from typing import cast

from services.broker.log.throttled_doorbell import INTERVAL_S, ThrottledDoorbell
from shared.runtime.doorbell import Doorbell
from tests.support.still_clock import StillClock


class Rings:
    """Counts rings, and wakes a test that waits for one."""

    def __init__(self) -> None:
        self.services: list[str] = []
        self.rung = asyncio.Event()

    def ring(self, service: str) -> None:
        self.services.append(service)
        self.rung.set()


async def test_a_ring_after_a_pause_is_rung_at_once() -> None:
    rings, clock = Rings(), StillClock()
    bell = ThrottledDoorbell(cast(Doorbell, rings), "reput", clock)
    for count in range(1, 4):
        bell.ring()
        assert rings.services == ["reput"] * count
        clock.now_s += INTERVAL_S * 1.01


async def test_rings_that_follow_too_closely_are_one_and_it_is_not_lost() -> None:
    rings, clock = Rings(), StillClock()
    bell = ThrottledDoorbell(cast(Doorbell, rings), "reput", clock)
    for _ in range(100):
        bell.ring()
    assert len(rings.services) == 1
    rings.rung.clear()
    async with asyncio.timeout(10):
        await rings.rung.wait()
    assert len(rings.services) == 2
