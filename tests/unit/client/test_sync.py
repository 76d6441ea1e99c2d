from __future__ import annotations

import os
import re
import select
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

import tidemark
from tests.unit.client.fake_broker import FakeBroker, in_a_thread
from tidemark import errors


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with in_a_thread(FakeBroker(queues={"orders": [[]]})) as serving:
        yield serving


def test_the_facade_sends_pulls_and_reads_without_asyncio(broker: FakeBroker) -> None:
    with tidemark.connect_sync(broker.url) as mq:
        assert mq.send("orders", b"1", tags="new").level == "disk"
        assert len(mq.send_many("orders", [b"2", b"3"])) == 2
        assert [message.body for message in mq.pull("orders", 0, 0).messages] == [b"1", b"2", b"3"]
        assert [message.body for message in mq.read("orders", 0)] == [b"1", b"2", b"3"]
        for message in mq.read("orders", 0):
            assert message.body == b"1"
            break
        assert [topic.name for topic in mq.topics()] == ["orders"]
        with pytest.raises(errors.UnknownTopic):
            mq.topic("missing")


def test_threads_may_share_one_facade(broker: FakeBroker) -> None:
    with (
        tidemark.connect_sync(broker.url) as mq,
        ThreadPoolExecutor(8) as threads,
    ):
        results = list(threads.map(lambda n: mq.send("orders", b"%d" % n), range(100)))
    assert sorted(result.queue_offset for result in results) == list(range(100))


def test_leaving_ends_the_thread_and_later_calls_say_so(broker: FakeBroker) -> None:
    before = threading.active_count()
    with tidemark.connect_sync(broker.url) as mq:
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        mq.topics()


def in_a_fork(work: Callable[[], str]) -> str:
    """Run work in a forked process; return its result, or the error as text. Fails if it hangs."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: that is the test
        pid = os.fork()
    if pid == 0:
        said = "nothing"
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001 (the process ends here)
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], 60.0)
        assert ready, "the forked process hangs"
        return os.read(reading, 1 << 16).decode()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)


def test_a_forked_process_gets_an_error_to_connect_itself_and_does_not_hang(
    broker: FakeBroker,
) -> None:
    """A web server forks its workers behind the import that connects: each first call hung."""
    with tidemark.connect_sync(broker.url) as mq:
        mq.send("orders", b"parent")
        reading = mq.read("orders", 0)
        next(reading)

        def send() -> str:
            return mq.send("orders", b"child").level

        def leave() -> str:
            cast(Generator[object, None, None], reading).close()
            mq.__exit__(None, None, None)
            return "left"

        def connect_anew() -> str:
            with tidemark.connect_sync(broker.url) as own:
                return own.send("orders", b"child").level

        assert re.match(r"RuntimeError: .*forked process needs its own client", in_a_fork(send))
        assert in_a_fork(leave) == "left"
        assert in_a_fork(connect_anew) == "disk"
        assert mq.send("orders", b"parent").queue_offset == 2  # untouched by all that


# It raised "the client is closed", which also hid the exception of the body.
def test_a_client_may_be_closed_within_its_with_block(broker: FakeBroker) -> None:
    def fails() -> None:
        with tidemark.connect_sync(broker.url) as mq:
            mq.close()
            mq.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()


# The loop was stopped with the call in it, and its thread waited forever.
def test_closing_the_client_ends_calls_of_other_threads(broker: FakeBroker) -> None:
    for _ in range(5):
        mq = tidemark.connect_sync(broker.url).start()
        mq.send("orders", b"1")
        with ThreadPoolExecutor(4) as threads:
            begun = threading.Barrier(5)

            def read(begun: threading.Barrier, mq: tidemark.SyncClient) -> None:
                messages = mq.read("orders", 0, follow=True)
                next(messages)
                begun.wait(60)
                for _message in messages:
                    pass

            reading = [threads.submit(read, begun, mq) for _ in range(4)]
            begun.wait(60)
            mq.close()
            for each in reading:
                assert isinstance(each.exception(60), RuntimeError)


def test_the_help_of_subscribe_is_that_of_the_blocking_client_too() -> None:
    # It said only `async with`, and not in which thread the callbacks run.
    text = tidemark.SyncClient.subscribe.__doc__
    assert text is not None
    assert "The blocking client uses ``with``, and runs the callbacks in its own thread." in text
