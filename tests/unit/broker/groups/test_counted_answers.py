"""Large responses: a refused fetch loses nothing, and every response is counted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import BaseTestServer, TestServer, make_mocked_request

from services.broker.api import group_calls as calls
from services.broker.api.components import Components
from services.broker.api.gate import Gate
from services.broker.api.http_api import Api
from services.broker.api.http_requests import BodyBounds
from services.broker.api.large_answers import MESSAGE_SIZE, Reserved
from services.broker.api.messages import Rules
from services.broker.read.pull import PullRequest
from services.broker.read.unpacking import Pulled
from services.broker.send.unique_ids import UniqueIds
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health
from tests.support.own_routes import own_route
from tests.unit.broker.groups.rig import GROUP, Rig
from tidemark.errors import CorruptRecord, Overloaded
from tidemark.formats.hosts import Host
from tidemark.offsets import PhysicalOffset, QueueOffset

LIMIT = 1 << 20


def api_of(rig: Rig) -> Api:
    clock = SystemClock()
    gate = Gate(Health(clock))
    gate.reads_open = gate.sends_open = True
    api = Api(
        gate,
        Rules(message_size_max=1 << 20, record_crc=True),
        clock,
        rig.metrics,
        UniqueIds(clock, Host(b"\x7f\x00\x00\x01", 1)),
        BodyBounds(1 << 20, LIMIT, 1.0),
        own_route(),
        version="1",
    )
    api.serve(
        cast(
            Components,
            SimpleNamespace(
                deduplicator=None, groups=rig.groups, read=SimpleNamespace(puller=rig.puller)
            ),
        )
    )
    return api


class Caller:
    """A member that asks for JSON."""

    def __init__(self, server: BaseTestServer, session: ClientSession) -> None:
        self._url = server.make_url(f"/v1/groups/{GROUP}/members/m1/fetch")
        self._session = session

    async def fetch(self) -> tuple[int, list[tuple[int, int]]]:
        """Status, and queue and queue offset of each message."""
        body = {"max": 256, "wait_ms": 0}
        async with self._session.post(self._url, json=body) as answered:
            answer: dict[str, Any] = await answered.json()
        queues = answer.get("queues", ())
        return answered.status, [
            (queue["queue"], each["queue_offset"]) for queue in queues for each in queue["messages"]
        ]


# 1. A member fetched, and its place moved; 2. there was no capacity for the response beside earlier
# ones that its address had not read, and the member got 503; 3. its next fetch began behind those
# messages, and the next commit covered them.
@pytest.mark.parametrize("has_room_at_first", [True, False])
async def test_a_fetch_that_is_refused_loses_no_message(
    rig: Rig, has_room_at_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_room_at_first:  # another answer takes the room while the fetch is held
        monkeypatch.setattr(calls, "ROOM_MIN", 0)
    rig.put(50, 0)
    rig.put(50, 1)
    await rig.join()
    api = api_of(rig)
    async with TestServer(api.app) as server, ClientSession() as session:
        caller = Caller(server, session)
        others = Reserved(api._answers, "127.0.0.1", LIMIT // 2)
        assert await caller.fetch() == (503, [])
        others.release()
        assert api._answers._used == 0
        assert await caller.fetch() == (
            200,
            [(queue, each) for queue in (0, 1) for each in range(50)],
        )
        assert await caller.fetch() == (200, [])
    handed_out = rig.coordinator.deliveries(GROUP, "orders", 0, 0)
    assert len(handed_out) == 1 + has_room_at_first, "a fetch without room hands out nothing"


# 64 messages are encoded at once, and can be more than 64 KiB then: the response was counted after
# the call, and refused there.
async def test_a_fetch_of_few_messages_is_not_refused_behind_the_call(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "ROOM_MIN", 0)
    monkeypatch.setattr("services.broker.api.large_answers.LARGE", 1 << 14)
    rig.put(60)
    await rig.join()
    api = api_of(rig)
    async with TestServer(api.app) as server, ClientSession() as session:
        caller = Caller(server, session)
        Reserved(api._answers, "127.0.0.1", LIMIT // 2)
        assert await caller.fetch() == (200, [(0, each) for each in range(60)])


# Thirty pulls of a megabyte were checked against the budget, and counted when they were written:
# until then each waited for its slices with all its decoded messages, and none of them was counted.
@pytest.mark.parametrize("end", ["cancelled", "damaged", "client gone", "taken"])
async def test_a_large_pull_counts_from_before_it_is_made_until_its_end(
    rig: Rig, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put(100)
    api = api_of(rig)
    answers = api._answers
    pull = PullRequest("orders", 0, 0, 100, None, None, 0, bulk=True)
    result = rig.puller.read(pull)
    request = make_mocked_request("GET", "/")
    if end == "damaged":
        damage = Pulled(QueueOffset(0), CorruptRecord(PhysicalOffset(0), "planted"), 0)
        damaged = Mock(return_value=iter([damage]))
        monkeypatch.setattr("services.broker.api.http_api.pulled_messages", damaged)
    async with answers._slice:
        pulling = asyncio.create_task(api._pull_answer(request, pull, result))
        await asyncio.sleep(0)
        assert answers._used == result.bytes_total + 100 * MESSAGE_SIZE
        with pytest.raises(Overloaded, match="not been read yet"):
            answers.reserve(request, size=LIMIT // 2, count=0)
        if end == "cancelled":
            pulling.cancel()
    if end in ("cancelled", "damaged"):
        with pytest.raises((asyncio.CancelledError, CorruptRecord)):
            await pulling
        assert answers._used == 0
        return
    answered = await pulling
    assert answers._used > 0
    if end == "client gone":
        gone = AsyncMock(side_effect=ConnectionResetError)
        monkeypatch.setattr(request, "_prepare_hook", gone)
        with pytest.raises(ConnectionResetError):
            await answered.prepare(request)
    else:
        await answered.prepare(request)
        await answered.write_eof()
    assert answers._used == 0
