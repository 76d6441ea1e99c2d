"""Held pulls: woken when their queue's message can be seen, not for anybody else's."""

from __future__ import annotations

import pytest

from services.broker.held_pulls import HeldPulls
from tidemark.offsets import PhysicalOffset

A, B = ("t", 0), ("t", 1)


async def test_a_pull_is_woken_when_its_own_message_is_dispatched() -> None:
    held = HeldPulls()
    waits_a, waits_b = held.hold(A, appended_to=None), held.hold(B, appended_to=None)
    assert held.appended([A], PhysicalOffset(100))
    assert held.expects
    held.dispatched_to(PhysicalOffset(99))
    assert not waits_a.done()
    held.dispatched_to(PhysicalOffset(100))
    assert waits_a.done()
    assert not waits_b.done()
    assert not held.expects


async def test_a_message_of_a_queue_nobody_waits_for_costs_nothing() -> None:
    held = HeldPulls()
    held.hold(A, appended_to=None)
    assert not held.appended([B], PhysicalOffset(100))
    assert not held.expects


async def test_a_message_appended_before_the_pull_came_wakes_it_too() -> None:
    held = HeldPulls()
    waiter = held.hold(A, appended_to=PhysicalOffset(50))
    held.dispatched_to(PhysicalOffset(50))
    assert waiter.done()


async def test_the_first_of_several_messages_wakes() -> None:
    held = HeldPulls()
    waiter = held.hold(A, appended_to=None)
    held.appended([A], PhysicalOffset(10))
    held.appended([A], PhysicalOffset(20))
    held.dispatched_to(PhysicalOffset(10))
    assert waiter.done()


async def test_all_pulls_of_a_queue_are_woken_and_a_cancelled_one_is_no_trouble() -> None:
    held = HeldPulls()
    waiters = [held.hold(A, appended_to=None) for _ in range(3)]
    waiters[1].cancel()
    held.appended([A], PhysicalOffset(10))
    held.dispatched_to(PhysicalOffset(10))
    assert all(waiter.done() for waiter in waiters)


async def test_a_pull_let_go_is_forgotten_with_what_it_expected() -> None:
    held = HeldPulls()
    waiter = held.hold(A, appended_to=PhysicalOffset(10))
    held.let_go(A, waiter)
    assert not held.expects
    assert not held.appended([A], PhysicalOffset(20))


@pytest.mark.parametrize("before", [True, False])
async def test_closing_lets_everybody_go_and_holds_nobody_any_more(before: bool) -> None:
    held = HeldPulls()
    if before:
        waiter = held.hold(A, appended_to=None)
        held.close()
    else:
        held.close()
        waiter = held.hold(A, appended_to=None)
    assert waiter.done()
