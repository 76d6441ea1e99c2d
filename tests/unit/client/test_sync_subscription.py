from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from typing import Any

import pytest

import tidemark
from tests.unit.client.fake_broker import in_a_thread
from tests.unit.client.group_broker import GroupBroker
from tests.unit.client.test_sync import in_a_fork
from tidemark import Message


@pytest.fixture
def broker() -> Iterator[GroupBroker]:
    broker = GroupBroker()
    broker.put("orders", 0, b"1", b"2", b"3")
    with in_a_thread(broker) as serving:
        assert isinstance(serving, GroupBroker)
        yield serving


def test_the_facade_consumes_and_commits_without_asyncio(broker: GroupBroker) -> None:
    with (
        tidemark.connect_sync(broker.url) as mq,
        mq.subscribe("orders", group="billing") as messages,
    ):
        assert messages.assignment == {("orders", 0)}
        for message in messages:
            if message.body == b"2":
                messages.commit()
                assert broker.committed["orders", 0] == 1
                break
        for batch in messages.batches():
            assert [message.body for message in batch] == [b"3"]
            break
    assert broker.committed["orders", 0] == 3
    assert broker.left == [messages.member]


def test_an_exception_sends_the_message_back(broker: GroupBroker) -> None:
    def handle(message: Message) -> None:
        if message.body == b"2":
            raise ZeroDivisionError

    def consume() -> None:
        with (
            tidemark.connect_sync(broker.url) as mq,
            mq.subscribe("orders", group="billing") as messages,
        ):
            for message in messages:
                handle(message)

    with pytest.raises(ZeroDivisionError):
        consume()
    assert broker.nacks == [{"topic": "orders", "queue": 0, "queue_offset": 1}]
    assert broker.committed["orders", 0] == 2


def test_stop_ends_the_loop(broker: GroupBroker) -> None:
    with (
        tidemark.connect_sync(broker.url) as mq,
        mq.subscribe("orders", group="billing") as messages,
    ):
        seen = []
        for message in messages:
            seen.append(message.body)
            messages.nack(message, delay_level=3)
            messages.stop()
    assert seen == [b"1"]
    assert broker.nacks[0]["delay_level"] == 3
    assert broker.committed["orders", 0] == 1


def test_the_facade_offers_messages_one_by_one(broker: GroupBroker) -> None:
    mq = tidemark.connect_sync(broker.url).start()
    messages = mq.subscribe("orders", group="billing").start()
    first = messages.getone(30)
    assert first is not None
    assert first.body == b"1"
    assert messages.position("orders", 0) == 1
    assert messages.ack(first) == 1
    messages.pause(("orders", 0))
    assert messages.paused == {("orders", 0)}
    assert messages.getone(0.01) is None
    messages.resume(("orders", 0))
    messages.seek("orders", 0, 0)
    again = messages.getmany(5, 30)
    assert [message.body for message in again] == [b"1", b"2", b"3"]
    assert messages.ack(*again) == 3
    messages.close()
    messages.close()
    mq.close()
    mq.close()
    assert broker.committed["orders", 0] == 3
    assert broker.left == [messages.member]


def test_two_loops_do_not_commit_each_others_messages(broker: GroupBroker) -> None:
    with (
        tidemark.connect_sync(broker.url) as mq,
        mq.subscribe("orders", group="billing") as messages,
    ):
        one = iter(messages)
        assert next(one).body == b"1"
        with pytest.raises(RuntimeError, match="another iteration"):
            next(iter(messages))
        assert next(one).body == b"2"
        del one
        assert next(iter(messages)).body == b"3"


def test_closing_the_client_leaves_the_group(broker: GroupBroker) -> None:
    mq = tidemark.connect_sync(broker.url).start()
    with mq.subscribe("orders", group="billing") as messages:
        assert messages.getone(30) is not None
        mq.close()
    assert broker.left == [messages.member]


# It waited for itself, forever.
def test_a_blocking_call_from_a_callback_is_refused(broker: GroupBroker) -> None:
    refused: list[str] = []
    with tidemark.connect_sync(broker.url) as mq:

        async def assigned(_queues: list[tuple[str, int]]) -> None:
            with pytest.raises(RuntimeError, match="own thread") as error:
                mq.topics()
            refused.append(str(error.value))

        with mq.subscribe("orders", group="billing", on_assigned=assigned) as messages:
            assert messages.getone(30) is not None
    assert len(refused) == 1


# It stopped the thread in which it ran; whoever waited for a call waited forever.
def test_closing_the_client_from_a_callback_is_refused(broker: GroupBroker) -> None:
    refused: list[str] = []
    mq = tidemark.connect_sync(broker.url).start()

    async def assigned(_queues: list[tuple[str, int]]) -> None:
        with pytest.raises(RuntimeError, match="own thread") as error:
            mq.close()
        refused.append(str(error.value))

    with mq.subscribe("orders", group="billing", on_assigned=assigned) as messages:
        assert messages.getone(30) is not None
    mq.close()
    assert len(refused) == 1


# The error of the body was hidden behind one of the client.
def test_a_forked_process_leaves_no_group(broker: GroupBroker) -> None:
    with (
        tidemark.connect_sync(broker.url) as mq,
        mq.subscribe("orders", group="billing") as messages,
    ):

        def fails() -> str:
            try:
                with ExitStack() as body:
                    body.push(messages.__exit__)
                    raise ZeroDivisionError
            except ZeroDivisionError:
                messages.close()
                return "its own error"

        assert in_a_fork(fails) == "its own error"
        assert messages.getone(30) is not None
        assert broker.left == []


# The second thread committed the message that the first was working on. Once that was refused, the
# first one's loop ended as if there were no more messages.
@pytest.mark.parametrize("kind", ["messages", "batches"])
def test_two_threads_that_share_one_loop_do_not_commit_each_others_messages(
    broker: GroupBroker, kind: str
) -> None:
    with (
        tidemark.connect_sync(broker.url) as mq,
        mq.subscribe("orders", group="billing") as messages,
    ):
        shared: Iterator[object] = iter(messages) if kind == "messages" else messages.batches(1)
        with ThreadPoolExecutor(1) as other:
            assert other.submit(next, shared).result() is not None
            with pytest.raises(RuntimeError, match="another thread has messages"):
                next(shared)
            messages.commit()
            assert broker.committed.get(("orders", 0), 0) == 0
            assert other.submit(next, shared).result() is not None
            messages.commit()
            assert broker.committed["orders", 0] == 1
        assert next(shared) is not None  # the other one has ended, which it does when it is done
        messages.commit()
        assert broker.committed["orders", 0] == 2
    assert broker.committed["orders", 0] == 3


def test_two_threads_do_not_wait_in_one_loop(broker: GroupBroker) -> None:
    broker.queues["orders"][0].clear()
    with (
        tidemark.connect_sync(broker.url) as mq,
        mq.subscribe("orders", group="billing") as messages,
        ThreadPoolExecutor(2) as threads,
    ):
        shared = iter(messages)
        asked = {threads.submit(next, shared, None) for _ in range(2)}
        refused, waiting = concurrent.futures.wait(asked, return_when="FIRST_COMPLETED")
        with pytest.raises(RuntimeError, match="two threads ask one iteration"):
            refused.pop().result()
        messages.stop()
        assert waiting.pop().result() is None


# It was committed although it was not finished.
def test_closing_from_another_thread_leaves_the_message_in_hand_for_the_next_member(
    broker: GroupBroker,
) -> None:
    with tidemark.connect_sync(broker.url) as mq, ThreadPoolExecutor(1) as worker:
        messages = mq.subscribe("orders", group="billing").start()
        loop = iter(messages)
        for _ in range(2):
            worker.submit(next, loop).result()
        messages.close()
        assert worker.submit(next, loop, None).result() is None
    assert broker.committed["orders", 0] == 1
    assert broker.nacks == []


class Interrupted:
    """A future whose waiting thread gets a signal at the moment of the result."""

    def __init__(self, future: concurrent.futures.Future[object]) -> None:
        self._future = future

    def result(self) -> object:
        self._future.result()
        raise KeyboardInterrupt

    def cancel(self) -> bool:
        return self._future.cancel()


def interrupt_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the next blocking call as its result arrives."""
    submit = asyncio.run_coroutine_threadsafe

    def interrupted(*work: Any) -> Interrupted:
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit)
        return Interrupted(submit(*work))

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)


# It was committed when the program left the group or asked again, and never seen: most consumers
# that ended their loop at Ctrl-C, and had work to do, lost a message or a batch.
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("kind", ["messages", "batches"])
def test_a_message_that_arrives_as_a_signal_ends_the_wait_is_not_lost(
    broker: GroupBroker, monkeypatch: pytest.MonkeyPatch, kind: str, goes_on: bool
) -> None:
    with tidemark.connect_sync(broker.url) as mq:
        with mq.subscribe("orders", group="billing") as messages:

            def asking() -> Iterator[Any]:
                return iter(messages) if kind == "messages" else messages.batches(1)

            interrupt_next_call(monkeypatch)
            with pytest.raises(KeyboardInterrupt):
                next(asking())
            if goes_on:
                seen = [
                    [message.body for message in (each if isinstance(each, list) else [each])]
                    for each in islice(asking(), 2)
                ]
                assert seen == [[b"1"], [b"2"]]
        assert broker.committed.get(("orders", 0), 0) == (2 if goes_on else 0)
    assert broker.nacks == []


def test_the_messages_of_an_interrupted_batch_are_not_done_before_all_are_seen(
    broker: GroupBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.put("orders", 0, b"4", b"5")
    with tidemark.connect_sync(broker.url) as mq:
        with mq.subscribe("orders", group="billing") as messages:
            interrupt_next_call(monkeypatch)
            with pytest.raises(KeyboardInterrupt):
                next(messages.batches(3))
            loop = iter(messages)
            assert [next(loop).body, next(loop).body] == [b"1", b"2"]
            messages.commit()
            assert broker.committed.get(("orders", 0), 0) == 0
        assert broker.committed.get(("orders", 0), 0) == 0
