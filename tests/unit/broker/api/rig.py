"""An API on a free port whose store only remembers what it is asked: for tests of requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import msgpack
from yarl import URL

from services.broker.api.components import Components
from services.broker.api.connections import ApiServer
from services.broker.api.gate import Gate
from services.broker.api.http_api import Api
from services.broker.api.http_requests import BodyBounds
from services.broker.api.messages import Rules
from services.broker.metrics import BrokerMetrics
from services.broker.read.pull import PullRequest
from services.broker.send.request import ProduceRequest
from services.broker.send.send_result import SendResult
from services.broker.send.sender import AppendedSend, Outcome, PendingSend, Sender
from services.broker.send.unique_ids import UniqueIds
from shared.files.pull import PullResult, PullStatus
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.connections import Bounds
from shared.runtime.health import Health
from tests.support.own_routes import own_route
from tidemark.errors import UnknownTopic
from tidemark.formats import inner_batch
from tidemark.formats.batch_parts import Part
from tidemark.formats.hosts import Host
from tidemark.formats.record import Checks
from tidemark.offsets import QueueOffset

HOST = Host(b"\x7f\x00\x00\x01", 10911)
RULES = Rules(message_size_max=1000, record_crc=True)
MSGPACK = {"Content-Type": "application/msgpack"}


class Answered:
    """The result of a send; its answer has size bytes more than it needs."""

    def __init__(self, size: int) -> None:
        self.size = size

    def packed(self) -> bytes:
        padding = {"padding": bytes(self.size)} if self.size else {}
        return cast(bytes, msgpack.packb({"status": "PUT_OK", **padding}))

    def as_dict(self) -> dict[str, Any]:
        return {"status": "PUT_OK"}


class Sends:
    """The deduplicator and the sender of an API: remembers what it is asked to store."""

    def __init__(self, answer_size: int) -> None:
        self.answer_size = answer_size
        self.waits = False
        """Whether plain sends must wait before they are stored: then all take the general path."""
        self.level = asyncio.Event()
        """Plain sends are answered when it is set."""
        self.direct_count = 0
        """Number of sends that bypassed aiohttp."""
        self.gathered: list[int] = []
        """How many sends were appended together, each time."""
        self.level.set()
        self.sent: list[tuple[str, ProduceRequest, Host]] = []
        self.repeats = 0
        self.asked = asyncio.Event()
        """For the count of repeats."""
        self.since: int | None = None

    def is_batch(self, topic: str) -> bool:
        return topic == "batches"

    def batch_properties(self, part: Part) -> bytes:
        unique_id = "MADE" if part.unique_id is None else part.unique_id.decode()
        return inner_batch.encode_properties(
            unique_id, part.message_count, tags=part.tags, keys=part.keys
        )

    @property
    def repeat_count(self) -> int:
        self.asked.set()
        return self.repeats

    def append_all(self, sends: Sequence[PendingSend | Exception | None]) -> list[Outcome]:
        self.gathered.append(sum(isinstance(each, PendingSend) for each in sends))
        return [self._appended(each) if isinstance(each, PendingSend) else each for each in sends]

    def append_now(self, send: PendingSend) -> AppendedSend | None:
        (outcome,) = self.append_all([send])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _appended(self, send: PendingSend) -> Outcome:
        if self.waits:
            return None
        try:
            self._store(send.topic, send.request, send.born_host)
        except UnknownTopic as error:
            return error
        self.direct_count += 1
        result = cast(SendResult, Answered(self.answer_size))
        unused = cast(Any, None)
        return AppendedSend(cast(Sender, self), send, result, unused, unused)

    def wait(self, appended: AppendedSend) -> asyncio.Task[object] | None:
        return None if self.level.is_set() else asyncio.create_task(self.level.wait())

    async def reach(self, appended: AppendedSend, waiting: asyncio.Task[object] | None) -> None:
        if waiting is not None:
            await waiting

    def settle(self, appended: AppendedSend, now: float) -> None:
        assert self.level.is_set()

    def _store(self, topic: str, request: ProduceRequest, born_host: Host) -> None:
        if topic == "missing":
            raise UnknownTopic("there is no topic missing. Nothing was stored.", "Make it.")
        self.sent.append((topic, request, born_host))

    async def send(
        self,
        topic: str,
        request: ProduceRequest,
        born_host: Host,
        appended: object = None,
        since: int | None = None,
        pauses: object = None,
    ) -> Answered:
        self.since = since
        self._store(topic, request, born_host)
        return Answered(self.answer_size)


class Puller:
    """Remembers requests, and has no messages."""

    def __init__(self) -> None:
        self.asked: list[PullRequest] = []

    async def pull(self, request: PullRequest, is_gone: Callable[[], bool]) -> PullResult:
        self.asked.append(request)
        zero = QueueOffset(0)
        nothing = PullStatus.NO_MESSAGE_IN_QUEUE
        return PullResult(nothing, zero, zero, zero, [], 0, 0, 0, zero, b"")

    def checks_at(self, offset: int) -> Checks:
        return Checks()


class Topics:
    def check_readable(self, topic: str, queue: int, *, may_be_missing: bool = False) -> None:
        if topic == "missing":
            raise UnknownTopic("there is no topic missing.", "Make it.")


class Served:
    """A running API, and a client of it."""

    def __init__(
        self,
        url: URL,
        sends: Sends,
        puller: Puller,
        server: ApiServer,
        api: Api,
        registry: Registry,
    ) -> None:
        self.url, self.sends, self.puller = url, sends, puller
        self.server, self.api, self.registry = server, api, registry

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession(headers={"Accept": "application/msgpack"} | headers) as session,
            session.get(URL(f"{self.url}{path}", encoded=True)) as answer,
        ):
            raw = await answer.read()
            return answer.status, msgpack.unpackb(raw) if raw else None

    @property
    def last(self) -> ProduceRequest:
        return self.sends.sent[-1][1]

    async def post(self, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
        async with aiohttp.ClientSession(headers=MSGPACK | headers) as session:
            url = URL(f"{self.url}{path}", encoded=True)
            async with session.post(url, data=body) as answer:
                raw = await answer.read()
                return answer.status, msgpack.unpackb(raw) if raw else None


@asynccontextmanager
async def served(
    *,
    sends_open: bool = True,
    request_size_max: int = 100_000,
    answer_size: int = 0,
    direct: bool = True,
) -> AsyncIterator[Served]:
    """An API without a store. direct: whether plain sends bypass aiohttp."""
    clock, registry = SystemClock(), Registry("broker")
    gate, metrics, sends = Gate(Health(clock)), BrokerMetrics(registry), Sends(answer_size)
    gate.sends_open = sends_open
    gate.reads_open = True
    api = Api(
        gate,
        RULES,
        clock,
        metrics,
        UniqueIds(clock, HOST),
        BodyBounds(request_size_max, 1 << 20, 5),
        own_route(),
        version="test",
    )
    puller = Puller()
    unused = dict.fromkeys(Components._fields, None)
    used = {"deduplicator": sends, "read": SimpleNamespace(puller=puller, topics=Topics())}
    api.serve(Components(**cast(Any, unused | used)))
    server = ApiServer(
        api.app,
        metrics,
        Bounds(10, 5, 5, 5),
        api.fast_path,
        direct_sends=api.direct_sends if direct else None,
    )
    await server.start("127.0.0.1", 0)
    try:
        yield Served(URL(f"http://127.0.0.1:{server.port}"), sends, puller, server, api, registry)
    finally:
        await server.close()
