"""A change wakes the long polls that it concerns, and no others."""

from __future__ import annotations

import asyncio

from shared.runtime.keyed_waits import KeyedWaits


async def test_a_key_wakes_all_of_its_waits_and_no_other() -> None:
    waits = KeyedWaits()
    a, again, other, everything = (
        asyncio.create_task(waits.wait(key, 10)) for key in ("a", "a", "b", None)
    )
    await asyncio.sleep(0)
    assert waits.count == 4
    waits.wake(("a", "none"))
    assert [await a, await again] == [True, True]
    assert not other.done()
    waits.wake((None,))
    assert await everything
    waits.wake_all()
    assert await other
    assert waits.count == 0


async def test_a_wait_ends_with_its_time_and_is_not_woken_by_an_earlier_change() -> None:
    waits = KeyedWaits()
    waits.wake(("a",))
    assert not await waits.wait("a", 0.01)
    assert waits.count == 0
