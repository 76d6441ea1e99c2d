"""The exporter reads the tables periodically and answers scrapes and probes from the last reading.

It is ready while it can read the tables. It writes nothing, so several exporters may run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa

from analytics.export.metrics import ExportMetrics
from analytics.export.notices import Notices
from analytics.export.reading import Reading, read
from analytics.export.webhook import Webhook
from analytics.tables import TableRoot
from shared.metrics.process_facts import add_process_facts
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.health import AdminServer, Health
from tidemark.errors import TidemarkError

log = logging.getLogger(__name__)

SERVICE: Final = "analytics"
PORT: Final = 9190
EVERY_S: Final = 15.0
UNREADABLE: Final = "tables-unreadable"
WAITING: Final = "waiting-for-tables"
RUNS_WITHIN: Final = timedelta(days=3)
"""Age of the oldest runs that the first reading includes."""
RUNS_LATE: Final = timedelta(minutes=10)
"""Overlap of two readings: a run is visible a moment after its end."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Location of the tables, and the address of the exporter."""

    tables: str | Path
    host: str = "127.0.0.1"
    port: int = PORT
    every_s: float = EVERY_S
    """Seconds between two readings."""
    webhook: str | None = None
    """URL to which changes of status are posted; None: Alertmanager sends them."""


class Exporter:
    """One exporter. Its parts are built before it runs."""

    def __init__(
        self,
        options: ExportOptions,
        stop: asyncio.Event,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._options, self._stop, self._now = options, stop, now
        self.health = Health(SystemClock())
        self.registry = Registry(SERVICE)
        add_process_facts(self.registry, is_ready=lambda: self.health.ready)
        self._metrics = ExportMetrics(self.registry, lambda: now().timestamp())
        self.admin = AdminServer(self.health, self.registry, host=options.host, port=options.port)
        self._read_at: datetime | None = None
        self._notices = Notices()
        self._webhook = None if options.webhook is None else Webhook(options.webhook)
        self.health.add_reason(WAITING, f"the tables in {options.tables} were not read yet")

    async def run(self) -> None:
        """Read and answer until stop is set. Raises CannotListen if the port is taken."""
        async with AsyncExitStack() as closing:
            await closing.enter_async_context(self.admin)
            self.health.enter("serving")
            log.info("metrics at http://%s:%d/metrics", self._options.host, self.admin.port)
            while not self._stop.is_set():
                await self.refresh()
                try:
                    async with asyncio.timeout(self._options.every_s):
                        await self._stop.wait()
                except TimeoutError:
                    continue

    async def refresh(self) -> None:
        """Read once. Tables that cannot be read make the exporter unready; the next round tries
        again."""
        try:
            seen = await asyncio.to_thread(self._read)
        except (TidemarkError, OSError, pa.ArrowException) as error:
            detail = str(error).partition("\n")[0]
            if self.health.add_reason(UNREADABLE, detail):
                log.warning("tables cannot be read: %s", detail)
            return
        if self.health.clear_reason(UNREADABLE):
            log.info("tables can be read again")
        self.health.clear_reason(WAITING)
        self._metrics.show(seen)
        for _ in self.registry.bounds.round(self.health.clock.monotonic()):
            await asyncio.sleep(0)
        if self._webhook is not None and seen.newest is not None:
            news = self._notices.take(seen.changes, seen.names, seen.newest, seen.in_time)
            await self._webhook.post(news)

    def _read(self) -> Reading:
        now = self._now()
        # The first reading finds the last run of a job that runs daily.
        since = now - RUNS_WITHIN if self._read_at is None else self._read_at - RUNS_LATE
        seen = read(TableRoot(self._options.tables), now, since)
        self._read_at = now
        return seen
