"""Decoded pulls and look-ups of batch queues: people get messages, as many as they asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import BaseTestServer, TestServer

from services.broker.api.components import Components
from services.broker.read.query import Queries
from shared.files.index import IndexReader
from tests.unit.broker.groups.rig import Rig
from tests.unit.broker.groups.test_counted_answers import api_of
from tidemark.formats.batch import WireMessage

PULL = "/v1/topics/orders/queues/0/messages"
MIXED = [WireMessage(tag, b"TAGS\x01" + tag + b"\x02") for tag in (b"a", b"b", b"a", b"b")]


class Caller:
    """Makes calls and returns their status and decoded JSON."""

    def __init__(self, server: BaseTestServer, session: ClientSession) -> None:
        self._server, self._session = server, session

    async def get(self, path: str, **query: object) -> tuple[int, dict[str, Any]]:
        url = self._server.make_url(path)
        async with self._session.get(url, params={k: str(v) for k, v in query.items()}) as answered:
            return answered.status, await answered.json()

    async def pull(self, offset: int, **query: object) -> tuple[str, int, list[int]]:
        """Status, next offset, and queue offsets of the messages."""
        status, answer = await self.get(PULL, offset=offset, **query)
        assert status == 200
        offsets = [each["queue_offset"] for each in answer["messages"]]
        return answer["status"], answer["next_offset"], offsets


@pytest.fixture
async def caller(rig: Rig) -> AsyncIterator[Caller]:
    index = IndexReader(rig.small.store, rig.reader)
    queries = Queries(
        rig.reader, rig.queues, index, lambda: rig.dispatched, rig.views.is_shown, rig.clock
    )
    api = api_of(rig)
    read = SimpleNamespace(puller=rig.puller, topics=rig.views, queries=queries)
    api.serve(cast(Components, SimpleNamespace(deduplicator=None, groups=rig.groups, read=read)))
    async with TestServer(api.app) as server, ClientSession() as session:
        yield Caller(server, session)
    index.close()


async def test_a_pull_ends_inside_a_batch_at_its_number_of_messages(
    rig: Rig, caller: Caller
) -> None:
    rig.put_batch([b"0", b"1", b"2"])
    rig.put_batch([b"3", b"4"])
    assert await caller.pull(0, max=2) == ("FOUND", 2, [0, 1])
    assert await caller.pull(2, max=2) == ("FOUND", 4, [2, 3])
    assert await caller.pull(4, max=2) == ("FOUND", 5, [4])
    assert await caller.pull(0, max=5) == ("FOUND", 5, [0, 1, 2, 3, 4])
    assert await caller.pull(1, max=0) == ("FOUND", 2, [1])


async def test_a_pull_of_a_large_batch_is_cut_too(rig: Rig, caller: Caller) -> None:
    rig.put_batch([b"%d" % number for number in range(300)])
    assert await caller.pull(10, max=100) == ("FOUND", 110, list(range(10, 110)))


async def test_tags_select_single_messages_of_a_batch(rig: Rig, caller: Caller) -> None:
    rig.put_batch(MIXED)
    assert await caller.pull(0, tags="b") == ("FOUND", 4, [1, 3])
    assert await caller.pull(0, tags="b", max=1) == ("FOUND", 3, [1])
    assert await caller.pull(3, tags="a") == ("NO_MATCHED_MESSAGE", 4, [])
    assert await caller.pull(0, tags="c") == ("NO_MATCHED_MESSAGE", 4, [])


async def test_a_message_of_a_batch_is_shown_by_id_and_queue_offset(
    rig: Rig, caller: Caller
) -> None:
    rig.put_batch(MIXED)
    _, pulled = await caller.get(PULL, offset=0, max=1)
    path = f"/v1/messages/{pulled['messages'][0]['message_id']}"
    for query, offset, tags in (({}, 0, "a"), ({"queue_offset": 3}, 3, "b")):
        status, found = await caller.get(path, **query)
        assert (status, found["queue_offset"], found["tags"]) == (200, offset, tags)
        assert (found["body_text"], found["sys_flag"]) == (tags, 0)
    status, refused = await caller.get(path, queue_offset=4)
    assert (status, refused["code"], refused["max_offset"]) == (404, "unknown-message", 4)
