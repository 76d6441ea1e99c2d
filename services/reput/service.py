"""The reput process: wait for the store, open it, follow the log, close in reverse order.

Probes respond from the start. A damaged log, a queue gap or a full disk keeps the process up but
unready. A failed sync, a replaced checkpoint page or a part that ends makes it exit with a non-zero
status.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Final

from services.reput.config import ReputConfig
from services.reput.dispatch_loop import DispatchLoop
from services.reput.metrics import ReputMetrics
from services.reput.open_store import OpenStore
from shared.files.os_disk import OsDisk
from shared.metrics.process_facts import add_process_facts
from shared.metrics.registry import Registry
from shared.runtime.clock import SystemClock
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import AdminServer, Health
from shared.runtime.lifecycle import raise_descriptor_limit, run_parts, stop_on_signals
from shared.runtime.traced_ranges import TracedRanges
from tidemark.clock import Clock
from tidemark.errors import StoreLocked

log = logging.getLogger(__name__)

SERVICE: Final = "reput"
STORE_POLL_S: Final = 0.05


async def run(config: ReputConfig) -> None:
    """Dispatch until SIGTERM or until a part fails."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    await Reput(config, stop).run()


class Reput:
    """One reput process."""

    def __init__(
        self, config: ReputConfig, stop: asyncio.Event, clock: Clock | None = None
    ) -> None:
        """clock: source of all times; None for the system clock."""
        self._config = config
        self._stop = stop
        self._health = Health(clock if clock is not None else SystemClock())
        self.registry = Registry(SERVICE)
        """A program that runs the service inside itself may register metrics of its own here."""
        add_process_facts(self.registry, is_ready=lambda: self._health.ready)
        self._metrics = ReputMetrics(self.registry)

    async def run(self) -> None:
        """Run the process from opening the probes to releasing the lock."""
        config = self._config
        raise_descriptor_limit()
        async with AsyncExitStack() as closing:
            admin = AdminServer(
                self._health, self.registry, host=config.admin_host, port=config.admin_port
            )
            await closing.enter_async_context(admin)
            log.info(
                "listening",
                extra={
                    "event": "listening",
                    "admin": f"http://{config.admin_host}:{admin.port}",
                    "store": str(config.store_dir),
                },
            )
            if not await self._wait_for_store():
                return
            store = await self._open_store()
            if store is None:
                return
            closing.callback(store.close)
            traced = TracedRanges(self._health.clock.monotonic)
            doorbell = Doorbell(config.sockets_dir, SERVICE, traced.note)
            closing.callback(doorbell.close)
            self._metrics.show(store.dispatcher, self._health.clock)
            dispatch_loop = DispatchLoop(
                config, store, doorbell, self._health, self._metrics, traced
            )
            await run_parts(
                self._stop,
                {"dispatch": lambda: dispatch_loop.run(self._stop)},
                grace_s=config.stop_timeout_s + 30.0,
            )
            doorbell.close()
            await asyncio.to_thread(store.stopped_clean)

    async def _wait_for_store(self) -> bool:
        """Wait until the broker, in a group ha, has created the store; return False if stopped
        first."""
        disk = OsDisk()
        while not self._stop.is_set():
            if await asyncio.to_thread(OpenStore.is_there, self._config, disk):
                self._health.clear_reason("waiting-for-store")
                return True
            self._health.add_reason(
                "waiting-for-store",
                f"there is no store in {self._config.store_dir} yet: check that "
                f"{self._config.recovered_by} runs",
            )
            await self._pause()
        return False

    async def _open_store(self) -> OpenStore | None:
        """Lock and open the store; in a group, wait while it is being emptied. None if stopped
        first."""
        while not self._stop.is_set():
            try:
                store = await asyncio.to_thread(
                    OpenStore.open, self._config, OsDisk(), self._health.clock
                )
            except StoreLocked as error:
                if not self._config.is_grouped:
                    raise
                self._health.add_reason(error.code, error.detail)
                await self._pause()
                continue
            self._health.clear_reason(StoreLocked.code)
            return store
        return None

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(STORE_POLL_S):
                await self._stop.wait()
        except TimeoutError:
            return
