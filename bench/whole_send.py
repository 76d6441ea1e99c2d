"""The broker's own code from a connection to the page cache, in this process.

    async with Broker(directory, registry) as broker:
        ... broker.port ...

Connections, the short way, parsing, append into mapped files, counting and the answer are the
broker's; the flush and everything in the background are left out, so that a small part of the rest
can be seen.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from bench.durable import Log
from services.broker.append import Append
from services.broker.config import BrokerConfig
from services.broker.connections import ApiServer
from services.broker.files_ahead import FilesAhead
from services.broker.flusher import Flusher, Pace
from services.broker.gate import Gate
from services.broker.http_api import Api
from services.broker.messages import Rules
from services.broker.metrics import BrokerMetrics
from services.broker.parts import Parts
from services.broker.produce import Sends
from services.broker.queue_offsets import QueueOffsets
from services.broker.topics import Topics
from services.broker.unique_ids import UniqueIds
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.connections import Bounds
from shared.runtime.health import Health
from shared.state.values import TopicConfig
from tidemark.formats.hosts import parse

HOST: Final = parse("127.0.0.1:10911")
QUEUES: Final = 4


class _OneTopic:
    """Every name is a topic."""

    async def for_sending(self, name: str) -> TopicConfig:
        return TopicConfig(name, QUEUES, QUEUES)


class Broker:
    """What answers sends, with a log of its own and the instruments of the registry."""

    def __init__(self, root: Path, registry: Registry) -> None:
        self._log = Log(root, warm_up=False)
        self._metrics = BrokerMetrics(registry)
        self._closing = AsyncExitStack()
        self.port = 0
        """Listened on, on the loopback."""

    async def __aenter__(self) -> Self:
        clock, config, metrics = SystemClock(), BrokerConfig(), self._metrics
        self._closing.callback(self._log.close)
        flusher = Flusher(
            self._log.appender,
            Pace(config.flush_interval_ms / 1000),
            clock,
            metrics,
            on_flushed=lambda: None,
        )
        files = FilesAhead(
            self._log.appender.prepare_next,
            lambda: self._log.appender.appended,
            file_size=config.store.commit_log_file_size,
            wait_s=config.prepare_wait_s,
            on_change=lambda failure: None,
        )
        append = Append(
            self._log.appender,
            QueueOffsets({}),
            files,
            clock,
            metrics,
            file_size=config.store.commit_log_file_size,
            reserve=config.reserve,
            clock_step_max_ms=config.clock_step_max_ms,
            last_store_time_ms=0,
            snapshot=list,
            undispatched=lambda: 0,
            dispatch_lag_max=config.dispatch_lag_max,
            on_appended=lambda queues, end: None,  # nobody flushes: the send is what is measured
            on_clock_step=lambda step_ms: None,
            on_fault=flusher.fail,
        )
        stop = asyncio.Event()
        making = asyncio.create_task(files.run(stop))
        await files.wait()
        gate = Gate(Health(clock))
        gate.sends_open = True
        api = Api(
            gate,
            Rules(config.message_size_max, config.store.record_crc),
            clock,
            metrics,
            UniqueIds(clock, HOST),
            request_size_max=config.request_size_max,
            waiting_bytes_max=config.waiting_bytes_max,
            read_timeout_s=config.read_timeout_s,
            delay_levels_ms=(),
            version="bench",
        )
        sends = Sends(append, flusher, cast(Topics, _OneTopic()), clock, metrics, HOST)
        unused: dict[str, Any] = dict.fromkeys(Parts._fields, None)
        api.parts = Parts(**(unused | {"sends": sends}))
        server = ApiServer(api.app, metrics, Bounds(10, 3600, 3600, 3600), api.short_way)
        await server.start("127.0.0.1", 0)
        self._closing.push_async_callback(server.close)
        self.port = server.port

        async def end() -> None:
            stop.set()
            await making

        self._closing.push_async_callback(end)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._closing.aclose()
