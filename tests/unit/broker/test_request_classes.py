"""Running requests: counted from head to answer, but not while they are held."""

from __future__ import annotations

import asyncio

import pytest

from services.broker.request_classes import SENT_LATELY_S, RequestClass, RequestClasses, held
from shared.runtime import pauses
from tests.support.still_clock import StillClock


def test_the_oldest_request_is_the_one_that_began_first_of_those_in_hand() -> None:
    clock = StillClock()
    classes = RequestClasses(clock)
    puts = classes.of[RequestClass.PUT]
    assert classes.queued() == dict.fromkeys(["put", "pull", "query", "admin", "heartbeat"], 0)
    assert classes.oldest_s()["put"] == 0
    first = puts.begin(clock.now_s)
    clock.now_s += 1.0
    second = puts.begin(clock.now_s)
    clock.now_s += 2.0
    assert (classes.queued()["put"], classes.oldest_s()["put"]) == (2, 3.0)
    puts.end(first)
    assert (classes.queued()["put"], classes.oldest_s()["put"]) == (1, 2.0)
    puts.end(second)
    assert (classes.queued()["put"], classes.oldest_s()["put"]) == (0, 0)
    assert classes.oldest_s()["pull"] == 0


async def test_a_pull_that_is_held_is_not_in_hand_and_begins_anew() -> None:
    clock = StillClock()
    classes = RequestClasses(clock)
    message, answered = asyncio.Event(), asyncio.Event()

    async def pull() -> None:
        with classes.pulling():
            with held(clock):
                await message.wait()
            await answered.wait()

    pulls = [asyncio.create_task(pull()) for _ in range(2)]
    await asyncio.sleep(0)
    assert classes.queued()["pull"] == 0
    clock.now_s += 30.0
    message.set()
    await asyncio.sleep(0)
    clock.now_s += 0.5
    assert (classes.queued()["pull"], classes.oldest_s()["pull"]) == (2, 0.5)
    answered.set()
    await asyncio.gather(*pulls)
    assert classes.queued()["pull"] == 0


async def test_a_pull_that_ends_while_it_is_held_leaves_nothing_behind() -> None:
    classes = RequestClasses(StillClock())

    async def pull() -> None:
        with classes.pulling(), held(StillClock()):
            await asyncio.Event().wait()

    task = asyncio.create_task(pull())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert classes.queued()["pull"] == 0


def test_work_without_a_request_may_be_held_too() -> None:
    with held(StillClock()):
        pass


async def test_work_for_a_reader_rests_while_a_send_is_in_hand(slept: list[float]) -> None:
    """Consecutive look-ups took a slice in each turn of the loop that a send needs."""
    clock = StillClock()
    classes = RequestClasses(clock)
    rests, puts = classes.behind_sends(), classes.of[RequestClass.PUT]
    classes.of[RequestClass.PULL].begin(clock.monotonic())
    await rests.rest()
    assert slept == [0, 0]  # others that read have their turn, and no more
    number = puts.begin(clock.monotonic())
    await rests.rest()
    assert slept[2:] == [0, 0, pauses.REST_S]  # once, however long the send takes
    puts.end(number)
    await rests.rest()
    assert slept[5:] == [0, 0]


async def test_changes_have_their_turns_beside_sends_and_wait_for_none_without(
    slept: list[float],
) -> None:
    """Sixteen clients that created topics kept the loop busy beside another client's sends."""
    clock = StillClock()
    classes = RequestClasses(clock)
    puts = classes.of[RequestClass.PUT]
    await classes.turn(4)
    assert slept == []
    number = puts.begin(clock.monotonic())
    for _ in range(3):
        await classes.turn(4)
    assert slept == pytest.approx([n * 4 * pauses.REST_S for n in (1, 2, 3)], rel=0.2)
    slept.clear()
    with classes.long_send():  # the one in hand takes long by itself
        await classes.turn(4)
    puts.end(number)
    await classes.turn(4)
    assert slept == []
    classes.note_sent()
    await classes.turn(4)
    assert len(slept) == 1
    clock.now_s += 2 * SENT_LATELY_S
    await classes.turn(4)
    assert len(slept) == 1
