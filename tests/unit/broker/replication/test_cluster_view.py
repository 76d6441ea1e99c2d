"""What clients learn of the group: the answer of ha, or that it does not respond."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from services.broker.replication.cluster_view import ClusterView
from shared.cluster.config import ClusterConfig
from tests.unit.broker.replication.page import Page, StillClock
from tidemark.formats.checkpoint import NodeRole, Slot

CONFIG = ClusterConfig(
    name="test",
    node="a",
    nodes=("a=127.0.0.1:1", "b=127.0.0.1:2"),
    api=("a=http://a", "b=http://b"),
    admin=("a=http://a:1", "b=http://b:1"),
    secret_file=Path("/dev/null"),
    lease_dir=Path("/tmp"),
)
ANSWER: dict[str, Any] = {
    "master": "b",
    "nodes": [
        {"node": "a", "api": "http://a", "first_offset": 0},
        {"node": "b", "api": "http://b", "first_offset": 4096},
    ],
}


class Ha:
    """Answers on the socket, and counts."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: Any = ANSWER
        self.status = 200
        self.hangs = False

    async def handle(self, _: web.Request) -> web.Response:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        return web.json_response(self.answer, status=self.status)

    @asynccontextmanager
    async def listening(self, run_dir: Path) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/v1/cluster", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.UnixSite(runner, str(run_dir / "ha-control.sock")).start()
        try:
            yield
        finally:
            await runner.cleanup()


class MonotonicClock(StillClock):
    """The monotonic clock stands, too."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> MonotonicClock:
    return MonotonicClock()


@pytest.fixture
async def view(tmp_path: Path, clock: MonotonicClock) -> AsyncIterator[ClusterView]:
    stop = asyncio.Event()
    page = Page()
    page.publish(Slot.ROLE, NodeRole.FOLLOWER)
    page.publish(Slot.EPOCH, 7)
    made = ClusterView(CONFIG, tmp_path, page, clock)
    yield made
    stop.set()
    await made.run(stop)  # closes what it has open


async def test_callers_of_the_same_moment_share_one_answer(
    tmp_path: Path, view: ClusterView, clock: MonotonicClock
) -> None:
    ha = Ha()
    async with ha.listening(tmp_path):
        assert view.master is None
        answers = await asyncio.gather(*(view.now() for _ in range(20)))
        assert (ha.asked, answers) == (1, [ANSWER] * 20)
        assert view.master is not None
        assert view.master.api == "http://b"
        assert view.master_from == 4096
        clock.now_s += 0.05
        await view.now()
        assert ha.asked == 1
        clock.now_s += 0.1
        await view.now()
        assert ha.asked == 2


@pytest.mark.parametrize("fault", ["missing", "refuses", "nonsense", "hangs"])
async def test_without_ha_the_answer_has_only_the_page_and_says_so(
    tmp_path: Path,
    view: ClusterView,
    clock: MonotonicClock,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.broker.replication.cluster_view.TIMEOUT_S", 0.05)
    ha = Ha()
    ha.status = 503 if fault == "refuses" else 200
    ha.answer = ["no", "map"] if fault == "nonsense" else ANSWER
    ha.hangs = fault == "hangs"
    if fault == "missing":
        answer = await view.now()
    else:
        async with ha.listening(tmp_path):
            answer = await view.now()
    assert answer["master"] is None
    assert "ha of node a does not answer" in answer["reason"]
    assert answer["epoch"] == 7
    assert answer["nodes"][0]["role"] == "follower"
    assert view.master is None
    assert view.master_from is None
    ha = Ha()
    clock.now_s += 1
    async with ha.listening(tmp_path):
        assert (await view.now())["master"] == "b", "it is asked again"
