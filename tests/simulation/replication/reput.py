"""One start of reput: the service's own follower and dispatcher, on the simulated disk of the
node."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, cast

from services.reput.config import ReputConfig
from services.reput.dispatch_loop import DispatchLoop
from services.reput.metrics import ReputMetrics
from services.reput.open_store import OpenStore
from shared.metrics.registry import Registry
from shared.runtime.doorbell import Doorbell
from shared.runtime.health import Health
from shared.runtime.lifecycle import run_parts
from shared.runtime.traced_ranges import TracedRanges
from tests.simulation.replication.service import Service
from tests.simulation.replication.store_view import ROOT, STORE
from tidemark.errors import StoreLocked

POLL_S: Final = 0.1
CONFIG: Final = ReputConfig(
    store_dir=ROOT, store=STORE, busy_poll_ms=40, idle_poll_ms=80, sync_interval_ms=200
)


class Reput(Service):
    """A process of the service reput on one node."""

    async def main(self) -> None:
        """Run as ``services.reput.service`` does."""
        store = None
        while store is None:
            await asyncio.sleep(POLL_S)
            if self.stop.is_set():
                return
            if OpenStore.is_there(CONFIG, self.disk):
                with contextlib.suppress(StoreLocked):
                    store = await asyncio.to_thread(OpenStore.open, CONFIG, self.disk, self.machine)
        metrics = ReputMetrics(Registry("reput"))
        bell = cast(Doorbell, self.bell)
        traced = TracedRanges(self.machine.monotonic)
        dispatch_loop = DispatchLoop(CONFIG, store, bell, Health(self.machine), metrics, traced)
        await run_parts(self.stop, {"dispatch": lambda: dispatch_loop.run(self.stop)})
        await asyncio.to_thread(store.stopped_clean)
