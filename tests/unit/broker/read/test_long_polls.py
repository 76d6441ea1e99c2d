"""Held pulls: woken when a message of their own queue is visible, not for other queues."""

from __future__ import annotations

import pytest

from services.broker.read.long_polls import HeldPull, LongPolls, Wake
from tidemark.offsets import PhysicalOffset

A, B = ("t", 0), ("t", 1)


def hold(
    held: LongPolls, queue: tuple[str, int], *, appended_to: int | None, gone: bool = False
) -> HeldPull:
    end = None if appended_to is None else PhysicalOffset(appended_to)
    return held.hold(queue, appended_to=end, is_gone=lambda: gone)


async def test_a_pull_is_woken_when_its_own_message_is_dispatched() -> None:
    held = LongPolls()
    waits_a, waits_b = hold(held, A, appended_to=None), hold(held, B, appended_to=None)
    assert held.appended([A], PhysicalOffset(100))
    assert held.expects
    held.dispatched_to(PhysicalOffset(99))
    assert not waits_a.woken.done()
    held.dispatched_to(PhysicalOffset(100))
    assert waits_a.woken.done()
    assert not waits_b.woken.done()
    assert not held.expects


async def test_a_message_appended_before_the_pull_came_wakes_it_too() -> None:
    held = LongPolls()
    waiter = hold(held, A, appended_to=50)
    held.dispatched_to(PhysicalOffset(50))
    assert waiter.woken.done()


async def test_only_a_message_appended_before_the_pull_came_may_be_there_early() -> None:
    held = LongPolls()
    early, late = hold(held, A, appended_to=50), hold(held, B, appended_to=None)
    held.appended([B], PhysicalOffset(60))
    held.wake_early()
    assert early.woken.result() is Wake.MESSAGE
    assert not late.woken.done()
    held.let_go(early)
    again = hold(held, A, appended_to=70)
    held.dispatched_to(PhysicalOffset(60))
    assert late.woken.done()
    assert not again.woken.done()
    held.dispatched_to(PhysicalOffset(70))
    assert again.woken.done()
    held.let_go(again)
    held.wake_early()
    assert not held.expects


async def test_a_message_of_a_queue_without_held_pulls_costs_nothing() -> None:
    held = LongPolls()
    hold(held, A, appended_to=None)
    assert not held.appended([B], PhysicalOffset(100))
    assert not held.expects


async def test_the_first_of_several_messages_wakes() -> None:
    held = LongPolls()
    waiter = hold(held, A, appended_to=None)
    held.appended([A], PhysicalOffset(10))
    held.appended([A], PhysicalOffset(20))
    held.dispatched_to(PhysicalOffset(10))
    assert waiter.woken.done()


async def test_all_pulls_of_a_queue_are_woken_and_a_cancelled_one_is_no_trouble() -> None:
    held = LongPolls()
    waiters = [hold(held, A, appended_to=None) for _ in range(3)]
    waiters[1].woken.cancel()
    held.appended([A], PhysicalOffset(10))
    held.dispatched_to(PhysicalOffset(10))
    assert all(waiter.woken.done() for waiter in waiters)


async def test_a_pull_let_go_is_forgotten_with_what_it_expected() -> None:
    held = LongPolls()
    waiter = hold(held, A, appended_to=10)
    held.let_go(waiter)
    assert not held.expects
    assert not held.appended([A], PhysicalOffset(20))


@pytest.mark.parametrize("before", [True, False])
async def test_close_ends_all_held_pulls_and_holds_no_more(before: bool) -> None:
    held = LongPolls()
    if before:
        waiter = hold(held, A, appended_to=None)
        held.close()
    else:
        held.close()
        waiter = hold(held, A, appended_to=None)
    assert waiter.woken.done()
    assert waiter.woken.result() is Wake.CLOSE


async def test_only_pulls_of_disconnected_clients_are_ended() -> None:
    held = LongPolls()
    stays = hold(held, A, appended_to=None)
    goes = [hold(held, queue, appended_to=None, gone=True) for queue in (A, B)]
    held.wake_disconnected()
    assert [one.woken.result() for one in goes] == [Wake.GONE, Wake.GONE]
    assert not stays.woken.done()
    stays.wake(Wake.TIME)
    held.close()
    assert stays.woken.result() is Wake.TIME


class Watching:
    """Counts its wake-ups, and watches again each time if a test asks for it."""

    def __init__(self, held: LongPolls, *, again: bool = False) -> None:
        self.held = held
        self.again = again
        self.wakes = 0

    def wake(self, why: Wake) -> None:
        self.wakes += 1
        self.held.unwatch(A, self)
        if self.again:
            self.held.watch(A, self, appended_to=None)


async def test_a_watcher_is_woken_once_until_it_watches_anew() -> None:
    held = LongPolls()
    once, again = Watching(held), Watching(held, again=True)
    for watcher in (once, again):
        held.watch(A, watcher, appended_to=None)
    for end in (10, 20):
        assert held.appended([A, B], PhysicalOffset(end))
        held.dispatched_to(PhysicalOffset(end))
    assert (once.wakes, again.wakes) == (1, 2)
    held.unwatch(A, again)
    held.unwatch(A, again)
    assert not held.appended([A], PhysicalOffset(30))


async def test_a_call_without_a_queue_is_woken_by_its_holder_or_at_the_end() -> None:
    held = LongPolls()
    call = held.hold(None, appended_to=None, is_gone=lambda: True)
    assert not held.appended([A], PhysicalOffset(10))
    held.wake_disconnected()
    assert call.woken.result() is Wake.GONE
    held.let_go(call)
    last = held.hold(None, appended_to=None, is_gone=lambda: False)
    held.close()
    assert last.woken.result() is Wake.CLOSE


async def test_of_a_slave_all_that_wait_for_a_queue_may_look() -> None:
    held = LongPolls()
    pulls = [hold(held, queue, appended_to=None) for queue in (A, B)]
    member = held.hold(None, appended_to=None, is_gone=lambda: False)
    held.wake_all_queues()
    assert [await pull.woken for pull in pulls] == [Wake.MESSAGE, Wake.MESSAGE]
    assert not member.woken.done(), "its watchers wake it"
