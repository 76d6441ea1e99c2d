"""Changes of one name are made one after another, those of others meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from services.broker.state.name_locks import NameLocks


async def test_one_name_is_changed_by_one_at_a_time_and_others_meanwhile() -> None:
    locks, goes_on, began, ended = NameLocks(), asyncio.Event(), list[str](), list[str]()

    async def change(name: str, number: int) -> None:
        async with locks.holding(name):
            began.append(f"{name}{number}")
            await goes_on.wait()
            ended.append(f"{name}{number}")

    changes = [asyncio.create_task(change(name, n)) for n in range(3) for name in "ab"]
    await asyncio.sleep(0)
    assert began == ["a0", "b0"]
    goes_on.set()
    await asyncio.gather(*changes)
    assert [each for each in ended if each[0] == "a"] == ["a0", "a1", "a2"]
    assert not locks._locks
    assert not locks._users


async def test_a_change_that_fails_or_is_cancelled_lets_the_next_one_go_on() -> None:
    locks, never = NameLocks(), asyncio.Event()

    async def change() -> None:
        async with locks.holding("a"):
            await never.wait()

    first, waiting = asyncio.create_task(change()), asyncio.create_task(change())
    await asyncio.sleep(0)
    waiting.cancel()
    first.cancel()
    await asyncio.gather(first, waiting, return_exceptions=True)
    with pytest.raises(ZeroDivisionError):
        async with locks.holding("a"):
            raise ZeroDivisionError
    assert not locks._locks
