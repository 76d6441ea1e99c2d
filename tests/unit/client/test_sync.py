from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

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
