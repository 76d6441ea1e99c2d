"""The event loop of one simulated process: asyncio's own, with the world's time and threads.

Tasks, futures, timers and callbacks are asyncio's. One thread of the process runs it. A callback
may be interrupted at every border, and other processes go on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tests.simulation.replication.process import Process, Thread
from tests.simulation.replication.threads import ThreadPoolExecutor
from tests.simulation.replication.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replication.network import Factory, Sockets

T = TypeVar("T")
CLIENT: Final = "client"
"""Tasks of this name are clients, not part of the service."""
TURN_US: Final = 20
"""Duration of an iteration that does not wait, so that time always advances."""


class Loop(asyncio.BaseEventLoop):
    """An event loop that one thread of a process runs."""

    _ready: Any
    _scheduled: Any

    def __init__(self, process: Process, failed: Callable[[BaseException], None]) -> None:
        """failed: takes the exception of a callback."""
        super().__init__()
        self._process, self._failed = process, failed
        self._turning: Thread | None = None
        self.sockets: Sockets | None = None
        """Connections to other nodes; None: the process has none."""
        self.steps = 0
        """Number of callbacks that were begun."""
        self._tasks: list[asyncio.Task[Any]] = []
        process.loop = self
        self.set_task_factory(self._make_task)

    def turned_by(self, thread: Thread) -> None:
        """Set the thread that runs the callbacks."""
        self._turning = thread

    def run_to_end(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until main has ended, in the thread of the loop; returns its result."""
        task = self.create_task(main)
        while not task.done():
            self._turn()
        result = task.result()
        names = [each.get_name() for each in self._tasks if not each.done()]
        if left := [name for name in names if name != CLIENT]:
            raise Violation(f"{self._process.name} shut down cleanly but left tasks behind: {left}")
        return result

    def time(self) -> float:
        """Seconds since the start of the world."""
        return self._process.timeline.now_us / 1e6

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Schedule a callback from another thread or from the world."""
        handle = self.call_soon(callback, *args, context=context)
        if self._turning is not None:
            self._turning.wake()
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """Run func in a thread of this process; without an executor, in a new one."""
        future = self.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def job() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - raised by the future
                self.call_soon_threadsafe(settle, None, error)
            else:
                self.call_soon_threadsafe(settle, result, None)

        if isinstance(executor, ThreadPoolExecutor):
            executor.give(self._process, job)
        else:
            self._process.start("worker", job)
        return future

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Factory, host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a node."""
        assert self.sockets is not None
        return await self.sockets.connect(protocol_factory, host)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Factory, host: str, port: int, **_: Any
    ) -> asyncio.Server:
        """Accept connections to this node."""
        assert self.sockets is not None
        return self.sockets.listen(protocol_factory)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report the exception of a callback."""
        error = context.get("exception")
        if error is not None and self._process.alive:
            self._failed(error)

    def dispose(self) -> None:
        """Close all coroutines of a process that is gone."""
        self._ready.clear()
        self._scheduled.clear()
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            if not task.done() and coroutine is not None:
                # A coroutine that awaits in a finally cannot be closed at once.
                with contextlib.suppress(BaseException):
                    coroutine.close()
        self._ready.clear()
        self._tasks.clear()
        self.close()

    def _make_task(self, loop: Any, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **named)
        if len(self._tasks) > 64:
            self._tasks = [each for each in self._tasks if not each.done()]
        self._tasks.append(task)
        return task

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Do nothing: the handle is dropped when its time comes."""

    def _turn(self) -> None:
        ready, scheduled, now = self._ready, self._scheduled, self.time()
        while scheduled and (scheduled[0]._cancelled or scheduled[0]._when <= now):
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                ready.append(handle)
        thread = self._turning
        assert thread is not None
        if not ready:
            wait_s = scheduled[0]._when - now if scheduled else None
            thread.park(None if wait_s is None else int(wait_s * 1e6) + 1)
            return
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                self.steps += 1
                handle._run()
        if ready:
            thread.work(TURN_US)
        else:
            thread.border(of_load=True)
