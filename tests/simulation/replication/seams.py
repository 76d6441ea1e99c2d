"""Replaces the services' locks and threads, random numbers, the boot id and every access to the
page.

The replacement lasts for a ``with``. What is patched is named, so a rename in the product breaks
the simulation instead of weakening it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Final, cast
from unittest.mock import patch

from services.broker import building, watch
from services.broker.api import api_document
from services.broker.log import flusher, open_store, preallocator
from services.broker.replication import followed_state, grouped_store, leaving, master
from services.broker.state import state_replay
from services.ha.core import catch_up, master_protocol, recreation
from services.ha.lease import directory
from services.ha.shell import (
    copied_log,
    hooks,
    lease_client,
    links,
    lock_bytes,
    locked_store,
    log_check,
    replica_disk,
    replica_store,
)
from services.ha.shell import worker as ha_worker
from services.reput import dispatch_loop
from services.reput import open_store as reput_store
from shared.files import commit_log_appender, file_run, log_writer, region_cache, store_dir
from shared.files.positions import Positions
from shared.runtime.clock import BootId
from tests.simulation.replication import threads
from tests.simulation.replication.consuming import SimpleConsuming
from tests.simulation.replication.node_disk import ProcessDisk
from tests.simulation.replication.plan import GENTLE_SIZE, WINDOW_SIZE
from tests.simulation.replication.process import DeadlineCheck, Killed, border, running
from tests.simulation.replication.timeline import Timeline
from tidemark.formats.checkpoint import Slot

THREADED: Final = (
    *(commit_log_appender, file_run, log_writer, region_cache),
    *(ha_worker, locked_store, log_check, replica_disk),
    flusher,
)
QUEUED: Final = (ha_worker, flusher)
POOLED: Final = (preallocator, dispatch_loop, directory)
RANDOM: Final = (grouped_store, links, locked_store, replica_store, store_dir, directory)
BOOTED: Final = (grouped_store, open_store, reput_store)
HEARTBEAT_S: Final = 0.2
"""In proportion to the times of ``plan``, which are those of a fast profile."""
LEAVE_S: Final = 0.6
ANNOUNCE_MAX_S: Final = 2.0
ASK_AGAIN_MS: Final = 150
"""Shortened in the same proportion: a promise whose answer is lost is requested once more before
the old term ends."""
ANSWER_MAX_MS: Final = 5
"""Between the reading of the clock and the load of the deadline."""
BUSY_POLL_S: Final = 0.02
"""Doorbells are rarely lost, so frequent polls cost time and find nothing."""
STREAM_SIZE_MAX: Final = 1_000
"""Frames end within records, as those of long logs do."""
SYNC_SIZE: Final = 4_000
STATE_AT_ONCE: Final = 4
"""State records that are applied or read together; some hundred in production."""
STATE_BEHIND_MAX: Final = 40
CHECKED_AT_ONCE: Final = 4_096
CHECK_PASS_INTERVAL_S: Final = 2.0
"""Time between two checks of the log: days in production, seconds here."""


def _get(
    load: Callable[[Positions, Slot], int],
) -> Callable[[Positions, Slot], int]:
    def get(self: Positions, slot: Slot) -> int:
        disk = self._disk
        if type(disk) is not ProcessDisk:
            return load(self, slot)
        process = disk.process
        if not process.alive:
            raise Killed
        value = self._slots[slot]
        thread = running()
        if thread is None or thread.process is not process:
            return value  # A load by the judge changes nothing.
        if slot is Slot.FENCED:
            process.fence_loaded_us = process.timeline.now_us
        if slot is Slot.LEASE_DEADLINE and process.loop is not None:
            in_time = process.machine.boot_ms() < value + ANSWER_MAX_MS
            process.last_check = DeadlineCheck(process.loop.steps, in_time)
        process.quiet -= 1
        if process.quiet <= 0:
            border(of_load=True)
        return value

    return get


def _publish(
    store: Callable[[Positions, Slot, int], None],
) -> Callable[[Positions, Slot, int], None]:
    def publish(self: Positions, slot: Slot, value: int) -> None:
        disk = self._disk
        if type(disk) is not ProcessDisk:
            store(self, slot, value)
            return
        process = disk.process
        process.check_alive()
        process.machine.publishes(process, slot, value)
        store(self, slot, value)
        process.machine.published(slot)
        border()

    return publish


def _boot_id(path: Path | None = None) -> BootId:
    thread = running()
    assert thread is not None
    return BootId(*thread.process.machine.boot)


def _at_step(step: str) -> None:
    thread = running()
    if thread is not None:
        thread.process.machine.reaches(step)
        border()


@contextmanager
def simulated(timeline: Timeline) -> Iterator[None]:
    """Run the services in the world of that timeline."""
    random: Random = timeline.random
    secrets = SimpleNamespace(
        randbits=random.getrandbits,
        token_bytes=random.randbytes,
        token_hex=lambda size: f"{random.getrandbits(8 * size):0{2 * size}x}",
    )
    level = logging.root.manager.disable
    with ExitStack() as stack:
        for module in THREADED:
            stack.enter_context(patch.object(module, "threading", threads.THREADING))
        for module in QUEUED:
            stack.enter_context(patch.object(module, "queue", threads.QUEUE))
        for module in POOLED:
            pool = threads.ThreadPoolExecutor
            stack.enter_context(patch.object(module, "ThreadPoolExecutor", pool))
        for module in RANDOM:
            stack.enter_context(patch.object(module, "secrets", secrets))
        for module in BOOTED:
            stack.enter_context(patch.object(module, "boot_id", _boot_id))
        for module in (lock_bytes, store_dir):
            stack.enter_context(patch.object(module, "time", threads.TIME))
        stack.enter_context(patch.object(watch, "HEARTBEAT_S", HEARTBEAT_S))
        stack.enter_context(patch.object(dispatch_loop, "WATCH_INTERVAL_S", HEARTBEAT_S))
        stack.enter_context(patch.object(master, "BUSY_POLL_S", BUSY_POLL_S))
        stack.enter_context(patch.object(lease_client, "ANNOUNCE_PAUSE_MAX_S", ANNOUNCE_MAX_S))
        stack.enter_context(patch.object(leaving, "WAIT_S", LEAVE_S))
        stack.enter_context(patch.object(recreation, "ASK_AGAIN_MS", ASK_AGAIN_MS))
        stack.enter_context(patch.object(master_protocol, "STREAM_SIZE_MAX", STREAM_SIZE_MAX))
        stack.enter_context(patch.object(copied_log, "REPORT_SIZE", STREAM_SIZE_MAX))
        stack.enter_context(patch.object(copied_log, "SYNC_SIZE", SYNC_SIZE))
        for module in (master_protocol, catch_up):
            stack.enter_context(patch.object(module, "WINDOW_SIZE", WINDOW_SIZE))
        stack.enter_context(patch.object(catch_up, "GENTLE_SIZE", GENTLE_SIZE))
        stack.enter_context(patch.object(log_check, "CHUNK_SIZE", CHECKED_AT_ONCE))
        for limit in ("APPLIED_AT_ONCE", "WALKED_AT_ONCE"):
            stack.enter_context(patch.object(followed_state, limit, STATE_AT_ONCE))
        stack.enter_context(patch.object(state_replay, "READ_AT_ONCE", STATE_AT_ONCE))
        stack.enter_context(patch.object(followed_state, "BEHIND_MAX", STATE_BEHIND_MAX))
        for interval in ("CHECK_PASS_INTERVAL_S", "CHECK_EMPTY_INTERVAL_S"):
            stack.enter_context(patch.object(replica_disk, interval, CHECK_PASS_INTERVAL_S))
        stack.enter_context(patch.object(building, "Consuming", SimpleConsuming))
        # It describes the calls, takes longer to build than all other parts of a start, and has no
        # reader here.
        stack.enter_context(patch.object(api_document, "document", lambda **_: {}))
        stack.enter_context(patch.object(Positions, "get", _get(Positions.get)))
        stack.enter_context(patch.object(Positions, "publish", _publish(Positions.publish)))
        hooks.install(_at_step)
        stack.callback(hooks.install, None)
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, level)
        stack.callback(asyncio._set_running_loop, cast(asyncio.AbstractEventLoop, None))
        yield
