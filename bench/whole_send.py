"""The broker's own code from a connection to the page cache, in this process.

    async with Broker(directory, registry) as broker:
        ... broker.port ...

Connections, the fast path, parsing, the append into mapped files, counting and the answer are the
broker's. The flush and all background work are left out, so that small parts of the rest can be
measured.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Self, cast

from bench.durable import Log, StandaloneLog
from bench.stores import HOST
from services.broker.api.components import Components
from services.broker.api.connections import ApiServer
from services.broker.api.gate import Gate
from services.broker.api.http_api import Api
from services.broker.api.http_requests import BodyBounds
from services.broker.api.messages import Rules
from services.broker.api.own_route import OwnRoute
from services.broker.config import BrokerConfig
from services.broker.log.log_context import LogContext
from services.broker.metrics import BrokerMetrics
from services.broker.send.deduplicator import Deduplicator
from services.broker.send.sender import Sender
from services.broker.send.unique_ids import UniqueIds
from services.broker.state.topics import Topics
from shared.metrics.registry import Registry
from shared.runtime.connections import Bounds
from shared.runtime.health import Health
from shared.state.values import TopicConfig

QUEUES: Final = 4


class _OneTopic:
    """Treats every name as a topic."""

    def ready_for_sending(self, name: str) -> TopicConfig:
        return TopicConfig(name, QUEUES, QUEUES)

    def is_batch(self, name: str) -> bool:
        return False


class Broker:
    """The part of a broker that answers sends, with its own log and the registry's instruments."""

    def __init__(self, root: Path, registry: Registry) -> None:
        self._log = Log(root, warm_up=False)
        self._metrics = BrokerMetrics(registry)
        self._closing = AsyncExitStack()
        self.port = 0
        """Port on the loopback interface."""

    async def __aenter__(self) -> Self:
        config, metrics = BrokerConfig(), self._metrics
        self._closing.callback(self._log.close)
        # Its flusher does not run, because only the send is measured.
        log_context = StandaloneLog(config, self._log.appender, metrics)
        clock, append = log_context.clock, log_context.append()
        stop = asyncio.Event()
        making = asyncio.create_task(log_context.files.run(stop))
        await log_context.files.wait()
        gate = Gate(Health(clock))
        gate.sends_open = True
        api = Api(
            gate,
            Rules(config.message_size_max, config.store.record_crc),
            clock,
            metrics,
            UniqueIds(clock, HOST),
            BodyBounds(config.request_size_max, config.waiting_bytes_max, config.read_timeout_s),
            OwnRoute(config, gate, clock),
            version="bench",
        )
        sends = Deduplicator(
            Sender(cast(LogContext, log_context), append, cast(Topics, _OneTopic()))
        )
        unused: dict[str, Any] = dict.fromkeys(Components._fields, None)
        api.serve(Components(**(unused | {"deduplicator": sends})))
        server = ApiServer(
            api.app, metrics, Bounds(10, 3600, 3600, 3600), direct_sends=api.direct_sends
        )
        await server.start("127.0.0.1", 0)
        self._closing.push_async_callback(server.close)
        self.port = server.port

        async def end() -> None:
            stop.set()
            await making

        self._closing.push_async_callback(end)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()
